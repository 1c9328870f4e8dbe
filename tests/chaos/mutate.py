"""Damaged and hostile forms of the files that FedRepro reads. Every function is pure: the same content and
the same random.Random state give the same bytes.

`damaged` knows nothing of a format; `altered_yaml`, `altered_json` and `altered_csv` change one place of a
well-formed file to something that a careless or hostile hand might write there, so that readers are tested
behind the parser, too."""

import copy
import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

NAMES = [
    "x; touch PWNED; #",
    "x/../../../ESCAPED",
    "../..",
    "",
    "$(touch PWNED)",
    "a\n\nb",
    "mini",
    "across",
    "NUL\x00",
    "漢",
    "a" * 300,
    "<b>",
    "${item}",
    "{{ x }}",
    "1",
    "null",
]
TEXTS = [
    *NAMES,
    "$x^",
    "$\\frac{$",
    "\\input{/etc/passwd}",
    "`<img src=x>`",
    "\x1b[31m",
    "\u202e",
    "7x.1",
    "1e999",
    "nan",
    "1.18e21",
    "9" * 5000,
    "max(" * 400,
    "=1" * 200,
]
VALUES: list[Any] = [
    None,
    True,
    0,
    10**18,
    10**400,
    -1e-308,
    float("nan"),
    float("inf"),
    [],
    {},
    {"": {}},
    {"kind": "x"},
    [1, 1],
    *TEXTS,
]


def _aliases(form: str, first: str) -> str:
    """YAML in which every line names the one before it nine times."""
    lines = [f"a{i}: &a{i} " + form.format(", ".join([f"*a{i - 1}"] * 9)) for i in range(1, 10)]
    return "\n".join([f"a0: &a0 {first}", *lines, ""])


YAMLS = [
    _aliases("[{}]", "[x]"),
    _aliases("{{<<: [{}]}}", "{k: 1}"),
    "a: &a [*a]\n",
    "<<: 1\n",
    "*x\n",
    "when: 2024-13-45\n",
    "n: " + "9" * 5000 + "\n",
    "n: !!int x\n",
    "n: !!binary '*'\n",
    "n: !!python/name:os.system\n",
    "? [a]\n: b\n",
    "n: " + "[" * 3000 + "]" * 3000 + "\n",
    "--- a\n--- b\n",
    "%YAML 9.9\n---\na: 1\n",
    "\t- a\n",
    'a: "\\uD800"\n',
    "",
]


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The content after one accident: cut, bits turned, a piece lost, doubled, moved or overwritten."""
    if not content:
        return draw.choice([b"", b"\x00", b"\xff"])
    begin = draw.randrange(len(content))
    end = min(len(content), begin + draw.choice([1, 1, 2, 8, 64, 4096]))
    piece = content[begin:end]
    actual = [
        content[:begin],
        content[:begin] + bytes([content[begin] ^ 1 << draw.randrange(8)]) + content[begin + 1 :],
        content[:begin] + content[end:],
        content[:end] + piece * draw.choice([1, 2, 1000]) + content[end:],
        content[:begin] + bytes(len(piece)) + content[end:],
        content[:begin] + draw.randbytes(len(piece)) + content[end:],
        content[:begin] + draw.choice(TEXTS).encode("utf-8", "replace") + content[begin:],
        b"".join(_swapped(content.splitlines(keepends=True), draw)),
        content.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + content,
        b"",
    ]
    return draw.choice(actual)


def altered_yaml(content: bytes, draw: random.Random) -> bytes:
    """YAML with one key or value changed, or with a piece of the language that is a trap put before it."""
    if draw.random() < 0.2:
        trap = draw.choice(YAMLS).encode("utf-8", "surrogatepass")
        return draw.choice([trap, trap + content, content + trap])
    document = altered(yaml.safe_load(content), draw)
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=draw.random() < 0.5)
    return text.encode("utf-8", "replace")


def altered_json(content: bytes, draw: random.Random, seal: Callable[[dict], dict] | None = None) -> bytes:
    """JSON with one key or value changed; `seal`, where it is given, hashes the rest again."""
    document = altered(json.loads(content), draw)
    if seal and isinstance(document, dict):
        try:
            document = seal(document)
        except (ValueError, TypeError):  # a NaN cannot be sealed: the old hash stays
            pass
    return json.dumps(document, indent=2).encode("utf-8", "replace")


def altered_csv(content: bytes, draw: random.Random) -> bytes:
    """A CSV with one field, line or column changed."""
    rows = list(csv.reader(io.StringIO(content.decode("utf-8"), newline="")))
    row, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    line = rows[row]
    match draw.randrange(8):
        case 0 | 1 | 2:
            line[column % len(line)] = draw.choice([*TEXTS, "", "0", "-1", "101", "200000"])
        case 3:
            del rows[row]
        case 4:
            rows.insert(row, list(line))
        case 5:
            line.pop(column % len(line))
        case 6:
            for each in rows:
                del each[column : column + 1]
        case 7:
            rows = rows[: draw.choice([0, 1, row])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def altered(document: Any, draw: random.Random) -> Any:
    """Plain values (mappings, lists, scalars) with one of them changed, renamed, doubled or left out."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    if not places:
        return draw.choice(VALUES)
    holder, key = draw.choice(places)
    what = draw.randrange(4)
    if what == 0:
        del holder[key]
    elif what == 1 and isinstance(holder, dict):
        holder[draw.choice(NAMES)] = holder.pop(key)
    elif what == 2 and isinstance(holder, list):
        holder.append(holder[key])
    else:
        old = holder[key]
        number = isinstance(old, (int, float)) and not isinstance(old, bool)
        near = [old * 10, -old, old + 1] if number else []
        holder[key] = draw.choice([*VALUES, *near * 8])
    return document


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _swapped(lines: list[bytes], draw: random.Random) -> list[bytes]:
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return lines
