"""`fedrepro migrate [paper ...]`: give the keys of paper.yaml their names of today.

The text of the file is edited where a key stands, so comments, order and layout stay.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from pipeline import files
from pipeline.errors import DAMAGED, FedReproError, unknown
from pipeline.schema import ROOT, shorten
from pipeline.schema.former_keys import FORMER_KEYS, PLACES


class Edit(NamedTuple):
    """A former key, and the `text` that replaces the characters `start` to `end` of the file."""

    start: int
    end: int
    text: str
    key: str


def migrate(wanted: Sequence[str] = (), root: Path = ROOT) -> None:
    """Rename former keys in papers/<paper>/paper.yaml, and remove dropped ones; prints what was changed.

    wanted: keys of papers; empty: all papers

    FedReproError for an unknown paper, for a file that is no YAML, for a dropped key between braces, and
    for a former key beside today's. Nothing is written then.
    """
    known = sorted(path.parent.name for path in root.glob("papers/*/paper.yaml"))
    for name in wanted:
        if name not in known:
            raise FedReproError(unknown("paper", name, known))

    texts: dict[Path, str] = {}
    lines = []
    for name in wanted or known:
        path = root / "papers" / name / "paper.yaml"
        text = _read(path)
        edits = _edits(text, path)
        if edits:
            texts[path] = _edited(text, edits)
        for edit in edits:
            change = f"is now {edit.text!r}" if edit.text else "is removed"
            line = text.count("\n", 0, edit.start) + 1
            lines.append(f"{shorten(path)}:{line}: {edit.key!r} {change}")

    for path, text in texts.items():
        files.write_text(path, text)
    print("\n".join(lines) or "No paper.yaml has a former key.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except DAMAGED as error:
        raise FedReproError(f"{shorten(path)}: cannot be read: {error}") from None


def _edits(text: str, path: Path) -> list[Edit]:
    """What to change in a paper.yaml, from its beginning to its end."""
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise FedReproError(f"{shorten(path)}: {' '.join(str(error).split())}") from None
    found = {}
    for kind, places in PLACES.items():
        for place in places:
            for mapping in _mappings(document, place):
                for edit in _edits_of(mapping, FORMER_KEYS[kind], text, path):
                    found[edit.start] = edit  # once for a mapping that is an alias elsewhere
    return [found[start] for start in sorted(found)]


def _mappings(node: yaml.Node | None, place: tuple[str, ...]) -> Iterator[yaml.MappingNode]:
    """The mappings at a place of PLACES."""
    if not isinstance(node, yaml.MappingNode):
        return
    if not place:
        yield node
        return
    for key, value in node.value:
        if place[0] in ("*", key.value):
            yield from _mappings(value, place[1:])


def _edits_of(
    mapping: yaml.MappingNode, names: dict[str, str | None], text: str, path: Path
) -> Iterator[Edit]:
    """The edits of a mapping's own keys."""
    present = {key.value for key, _ in mapping.value}
    for key, value in mapping.value:
        if key.value not in names:
            continue
        place = f"{shorten(path)}:{key.start_mark.line + 1}"
        today = names[key.value]
        if today in present:
            raise FedReproError(f"{place}: {key.value!r} is now {today!r}, which is there, too: remove one")
        if today:
            yield Edit(key.start_mark.index, key.end_mark.index, today, key.value)
            continue
        if mapping.flow_style:
            raise FedReproError(f"{place}: {key.value!r} was dropped: remove it")
        start = key.start_mark.index - key.start_mark.column
        yield Edit(start, _end(start, value, text), "", key.value)


def _end(start: int, value: yaml.Node, text: str) -> int:
    """The end of the lines that begin at `start` with a key and hold its value, which is in block style.

    Comments and empty lines after the value belong to what follows.
    """
    is_text = isinstance(value, yaml.ScalarNode) and value.style in ("|", ">")
    lines = text[start : value.end_mark.index].splitlines(keepends=True)
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#") and not is_text):
        lines.pop()
    end = start + sum(map(len, lines))
    if lines[-1].endswith("\n"):
        return end
    rest = text.find("\n", end)
    return len(text) if rest < 0 else rest + 1


def _edited(text: str, edits: list[Edit]) -> str:
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text
