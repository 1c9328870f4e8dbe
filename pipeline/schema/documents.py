"""Read YAML safely, refuse unsafe links and devices in a paper's folder, shorten paths in messages."""

import configparser
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ParamError, conflict

ROOT = Path(__file__).resolve().parents[2]
# Of a YAML document; the largest here has some 6,000 values in 6 levels.
MOST_VALUES = 100_000
DEEPEST = 50
# of dvc.lock, of which the largest here has 30,000
MOST_OF_OTHERS = 3_000_000
# A folder with this file is only read, and no Python file in it runs: the folder of an imported paper until
# somebody has read its files, and the whole temporary checkout in which `fedrepro import` reads a paper.
UNTRUSTED = ".untrusted"
# folders of a paper that git leaves out
MADE = frozenset("partitions representations final-models extra-seeds sweeps".split())


def shorten(path: Path) -> str:
    """A path as a user sees it: relative to the repository where it lies inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def visible(root: Path, pattern: str) -> list[Path]:
    """The files of a pattern by their paths, without the hidden files of tools (`._fedprox.json`) and without
    imported papers that nobody trusts yet."""
    return sorted(
        path
        for path in root.glob(pattern)
        if not any(part.startswith(".") for part in path.relative_to(root).parts)
        and not is_untrusted(path, root)
    )


def is_untrusted(path: Path, root: Path = ROOT) -> bool:
    """Does a path lie in the folder of an imported paper that nobody trusts yet?"""
    parts = path.relative_to(root).parts[:2] if path.is_relative_to(root) else ()
    return parts[:1] == ("papers",) and root.joinpath(*parts, UNTRUSTED).exists()


def check_trusted(path: Path, root: Path = ROOT) -> None:
    """ParamError for a file of an imported paper that nobody trusts yet."""
    if is_untrusted(path, root):
        name = path.relative_to(root).parts[1]
        advice = f"read its Python files, then `fedrepro trust {name}`"
        raise ParamError(f"papers/{name}: was imported, and nothing of it runs yet: {advice}")


def is_only_read(root: Path) -> bool:
    """Does a checkout hold papers that nobody trusts yet, which are read and do not run?"""
    return root.joinpath(UNTRUSTED).exists()


def check_may_run(file: Path) -> None:
    """ParamError for a Python file of an imported paper that nobody trusts yet, or of a checkout that is only
    read. A file that lies in no folder `papers` may run."""
    for folder in file.parents:
        if folder.name != "papers":
            continue
        if is_only_read(folder.parent):
            raise ParamError(f"{shorten(file)}: nobody trusts its paper yet: it is read and does not run")
        check_trusted(file, folder.parent)


def check_files(*folders: Path) -> None:
    """ParamError naming a device, a pipe or a socket below the folders: to read it may never end."""
    for path in _below(*folders):
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ParamError(f"{shorten(path)}: a device, a pipe or a socket, not a file: remove it")


def check_links(root: Path = ROOT) -> None:
    """ParamError naming a link in a paper's folder or in .cells that leads out of the repository: what is
    written there would land outside. A paper's folder may be a link itself, and so may be what git leaves out
    of it, as partitions on another disk; links into DVC's cache are DVC's own."""
    caches = [os.path.realpath(folder) for folder in cache_folders(root)]
    for folder in (*root.glob("papers/*"), root / ".cells"):
        inside = os.path.realpath(root), os.path.realpath(folder), *caches
        for path in _below(folder):
            if not path.is_symlink() or (path.parent == folder and path.name in MADE):
                continue
            if not any(map(Path(os.path.realpath(path)).is_relative_to, inside)):
                raise ParamError(f"{shorten(path)}: a link that leads out of the repository: remove it")


def cache_folders(root: Path = ROOT) -> list[Path]:
    """The folders of DVC's cache that its settings name, as a group shares one on a server."""
    own, user = root / ".dvc", os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    places = [own / "config", own / "config.local"]
    places.append(Path(os.environ.get("DVC_GLOBAL_CONFIG_DIR") or os.path.join(user, "dvc")) / "config")
    places.append(Path(os.environ.get("DVC_SYSTEM_CONFIG_DIR") or "/etc/xdg/dvc") / "config")
    folders = []
    for place in places:
        settings = configparser.RawConfigParser(strict=False, allow_no_value=True)
        try:
            settings.read_string(re.sub(r"^\s+", "", place.read_text(encoding="utf-8"), flags=re.M))
        except (OSError, UnicodeDecodeError, configparser.Error):
            continue
        named = settings.get("cache", "dir", fallback=None)
        if named:
            folders.append(place.parent / os.path.expanduser(named.strip("'\"")))
    return folders


def _below(*folders: Path) -> Iterator[Path]:
    """Links and what is no plain file below the folders, hidden ones left out."""
    for folder in folders:
        for place, inner, names in os.walk(folder):
            inner[:] = [name for name in inner if not name.startswith(".")]
            for path in (Path(place, name) for name in (*inner, *names) if not name.startswith(".")):
                if path.is_symlink() or not (path.is_dir() or path.is_file()):
                    yield path


def read_yaml(path: Path) -> dict:
    """One YAML mapping; ParamError naming file and line where it is missing, malformed or too large."""
    name = shorten(path)
    try:
        text = path.read_text(encoding="utf-8")
        _check_size(text)
        document = yaml.load(text, _UniqueKeys)
    except FileNotFoundError:
        raise ParamError(f"{name}: no such file") from None
    except yaml.MarkedYAMLError as error:
        raise ParamError(f"{name}{conflict(text) or _described(error, text)}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamError(f"{name}: {' '.join(str(error).split())}") from None
    if document is not None and not isinstance(document, dict):
        raise ParamError(f"{name}: expected a mapping, not {document!r:.80}")
    return document or {}


def _described(error: yaml.MarkedYAMLError, text: str) -> str:
    """`:12: what is wrong`."""
    problem, mark = ", ".join(filter(None, (error.context, error.problem))), error.problem_mark
    lines = text.splitlines()[mark.line :] if mark else []
    if mark and lines and lines[0][mark.column :].startswith("\t"):
        problem = "a tab; YAML is indented with spaces"
    return f"{f':{mark.line + 1}' if mark else ''}: {' '.join(problem.split())}"


class _UniqueKeys(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """safe_load that refuses a key given twice, which YAML would silently overwrite, and names the line of a
    value that is not what it looks like (2024-13-45)."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _error(key, f"the key {key.value!r} is given twice")
                seen.add(key.value)
                self._check_spelling(key)
        return super().construct_mapping(node, deep)

    def _check_spelling(self, key: yaml.ScalarNode) -> None:
        """YAML 1.1 reads the names `on`, `007` and `12:30` as True, 7 and 750."""
        if key.value in ("true", "false", "null"):  # values of an option, as readings have them
            return
        if key.tag != "tag:yaml.org,2002:str" and str(value := self.construct_object(key)) != key.value:
            raise _error(key, f"YAML reads the key {key.value!r:.80} as {value!r:.80}: put it in quotes")

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        # int() of too many digits, a date that is none, a tag that does not fit its text
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise _unusable(node) from error
        if isinstance(value, int) and abs(value) >= 2**63:
            raise _unusable(node)
        return value


# YAML 1.1, which PyYAML reads, takes 1e-2 for text; YAML 1.2, as which DVC reads it, for a number.
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _error(node: yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _unusable(node: yaml.Node) -> yaml.MarkedYAMLError:
    kind = node.tag.rpartition(":")[2]
    return _error(node, f"{getattr(node, 'value', '')!r:.80} is no {kind} that can be used")


def read_plain(text: str) -> Any:
    """A YAML document as other programs write it; YAMLError for too many values, as aliases make them."""
    _check_size(text, MOST_OF_OTHERS)
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _check_size(text: str, most_values: int = MOST_VALUES) -> None:
    """MarkedYAMLError for a document that is nested too deeply or, with every alias written out, has too many
    values: each level of aliases may multiply those of the one before."""
    # anchor -> the values below it, aliases written out
    whole: dict[str, int] = {}
    # (anchor, values before it) of what is open
    inside: list[tuple[str | None, int]] = [(None, 0)]
    count = 0
    for event in yaml.parse(text, _UniqueKeys):
        if isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _ in inside):
                raise yaml.MarkedYAMLError(None, None, f"*{event.anchor} is inside itself", event.start_mark)
            count += whole.get(event.anchor, 0)
        elif isinstance(event, yaml.NodeEvent):
            inside.append((event.anchor, count))
            count += 1
        if isinstance(event, (yaml.ScalarEvent, yaml.CollectionEndEvent)):
            anchor, before = inside.pop()
            if anchor:
                whole[anchor] = count - before
        if count > most_values or len(inside) > DEEPEST:
            most = f"{DEEPEST} levels" if count <= most_values else f"{most_values:,} values, aliases too"
            raise yaml.MarkedYAMLError(None, None, f"more than {most}", event.start_mark)
