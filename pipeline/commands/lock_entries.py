"""Enter stages into dvc.lock as DVC does, but keep the text of all other entries.

DVC parses the whole file with its comments and writes it anew: 0.8 CPU seconds for a paper's 2,000 lines, of
which a trained cell changes thirty.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from pipeline.files import write_text

# The first lines of a dvc.lock that DVC writes.
HEAD = "schema: '2.0'\nstages:\n"
# Number of keys and values at the top of the document: `schema`, `stages` and what they have.
OUTSIDE = 4
# Number of collections around the name of a stage.
DEPTH = 2
# Number of columns before it.
INDENT = 2
# An anchor (&id001) or alias (*id001), by which DVC's YAML writes a value that occurs twice only once.
SHARED = re.compile(r"(?<=[:-] )([&*])(id\d{3,})$", re.M)


def enter(stages: list[Any]) -> None:
    """Write stages of one dvc.yaml into its dvc.lock, as DVC's `dump_stages` does.

    stages  DVC's, with the hashes that `save` has found

    If the file is not as DVC writes it (edited by hand, damaged, of an earlier schema), DVC writes it.
    """
    from dvc.stage.serialize import to_lockfile
    from dvc.utils.serialize import dumps_yaml

    dvcfile = stages[0].dvcfile
    path = Path(dvcfile.path).with_suffix(".lock")
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    entries = entries_of(text) if text else {}
    if entries is None:
        for stage in stages:  # together, their entries would share values that were read from one file
            dvcfile.dump_stages([stage], update_pipeline=False)
        return
    for stage in stages:
        entries[stage.name] = dumps_yaml({"stages": to_lockfile(stage)}).removeprefix("stages:\n")
    renewed = HEAD + "".join(_renumbered(list(entries.values())))
    if renewed != text:
        write_text(path, renewed)
        dvcfile.repo.scm_context.track_file(str(Path(dvcfile.relpath).with_suffix(".lock")))


def entries_of(text: str) -> dict[str, str] | None:
    """The entries of a dvc.lock: name of a stage -> its lines.

    None for a file that does not begin with HEAD, or has anything else than stages after it, or has anchors
    and aliases across entries.
    """
    if not text.startswith(f"{HEAD}{' ' * INDENT}") or not text.endswith("\n"):
        return None
    # the name of each stage and the line that it stands on
    starts: list[tuple[str, int]] = []
    shared = depth = outside = 0
    is_name = False
    try:
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            shared += getattr(event, "anchor", None) is not None
            outside += depth == 1 and isinstance(event, yaml.NodeEvent)
            if depth == DEPTH and isinstance(event, yaml.NodeEvent):
                is_name = not is_name
                if is_name and event.start_mark.column != INDENT:
                    return None
                if is_name:
                    starts.append((getattr(event, "value", ""), event.start_mark.line))
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            if isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
    except yaml.YAMLError:
        return None
    lines = text.split("\n")
    ends = [line for _, line in starts[1:]] + [len(lines) - 1]
    entries = {name: "\n".join(lines[start:end]) + "\n" for (name, start), end in zip(starts, ends)}
    together = HEAD + "".join(entries.values())
    if len(entries) != len(starts) or outside != OUTSIDE or together != text:
        return None
    regular = shared == len(SHARED.findall(text)) and all(map(_is_apart, entries.values()))
    return entries if regular else None


def _is_apart(entry: str) -> bool:
    """Whether the aliases of an entry are those of anchors in it, and each anchor has one."""
    anchors: list[str] = []
    used = set()
    for sign, name in SHARED.findall(entry):
        if sign == "&":
            anchors.append(name)
        elif name in anchors:
            used.add(name)
        else:
            return False
    return len(anchors) == len(used)


def _renumbered(entries: list[str]) -> list[str]:
    """The entries with their anchors numbered through the whole file, as DVC does it: in the order of the
    first alias of each."""
    count = 0
    renewed = []
    for entry in entries:
        names: dict[str, str] = {}
        for sign, name in SHARED.findall(entry):
            if sign == "*" and name not in names:
                count += 1
                names[name] = f"id{count:03d}"
        for name in names:  # first to a name that no entry has: a new number may be another's old one
            entry = re.sub(rf"(?<=[:-] )([&*]){name}$", rf"\1new {names[name]}", entry, flags=re.M)
        renewed.append(re.sub(r"(?<=[:-] )([&*])new (id\d+)$", r"\1\2", entry, flags=re.M))
    return renewed
