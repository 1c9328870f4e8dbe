"""Format settings, methods, measures and numbers as readable text; citations and BibTeX entries.

The CSVs write settings as `practical(beta=0.1,N=20),test=clean`, method variants as
`FedCCL[local=1,global=0]` and Greek letters by name; a page shows `practical (β = 0.1, N = 20)`, `FedCCL
(local = 1, global = 0)`.
"""

import re
from collections.abc import Mapping
from html import unescape
from pathlib import Path
from typing import Any

import jinja2

from pipeline.schema import ROOT, Cell, Paper, read_yaml

GREEK = {
    name: unescape(f"&{name};")
    for name in ("alpha", "beta", "gamma", "eta", "theta", "lambda", "mu", "tau", "omega")
} | {"delta": "Δ"}
NAMES = {
    "hfl": "HFL",
    "asymhfl": "AsymHFL",
    "aug": "Aug",
    "dcl": "DCL",
    "supcon": "SupCon",
    "fccm": "FCCM",
    "fisl": "FISL",
    "fntd": "FNTD",
    "sep": "separability",
    "com": "compactness",
}  # components of methods, as the papers write them
MEASURES = {
    "weighted": "weighted by test size",
    "clients_std": "std. over clients",
    "AVG": "average",
    "fgsm": "under FGSM",
    "pgd": "under PGD",
}
GROUPS = {
    "inter": "inter-domain",
    "intra": "intra-domain",
    "clean": "clean test",
    "corrupted": "corrupted test",
    "unseen": "unseen clients",
    "metric": "",
    "pre": "before local training",
    "post": "after local training",
    "before": "before local training",
    "after": "after local training",
    "other": "other model",
}
ARCHIVES = {"https://arxiv.org/abs/": "arXiv:", "https://doi.org/": "doi:"}
_GREEK = re.compile(rf"(?<![A-Za-z])({'|'.join(GREEK)})(?![A-Za-z])")
_OUTSIDE = re.compile(r",(?![^(\[]*[)\]])")  # a comma that no bracket encloses
_VARIANT = re.compile(r"(?P<base>[^\[]+)\[(?P<options>.*)\]")


def pretty(text: str) -> str:
    """Greek letters, spaces for underscores (`T_f` stays), spaces around `=`, room before a bracket."""
    text = _GREEK.sub(lambda match: GREEK[match[1]], text)
    text = re.sub(r"(?<!\b[A-Z])_", " ", text)
    text = re.sub(r"\s*=\s*", " = ", text)
    return re.sub(r",(?=\S)", ", ", re.sub(r"(?<=\w)\(", " (", text))


def split_setting(setting: str) -> list[str]:
    """`practical(beta=0.1,N=20),test=clean` -> [`practical(beta=0.1,N=20)`, `test=clean`]."""
    return [part for part in _OUTSIDE.split(setting) if part]


def setting_words(part: str) -> str:
    """One part of a setting; hyphens between words go, those of inter-domain and of values stay."""
    key, equals, value = part.partition("=") if "(" not in part else (part, "", "")
    if key in ("metric", "test") and value in GROUPS:
        return GROUPS[value]
    return pretty(re.sub(r"(?<!inter)(?<!intra)(?<=[a-z])-", " ", key) + equals + value.replace("/", " / "))


def variant(label: str) -> tuple[str, dict[str, str]]:
    """`FedCCL[local=1,global=0]` -> (`FedCCL`, {`local`: `1`, `global`: `0`}); a plain name has no
    options."""
    match = _VARIANT.fullmatch(label)
    if not match:
        return label, {}
    return match["base"], dict(option.partition("=")[::2] for option in match["options"].split(","))


def method_words(label: str) -> str:
    """A method's name as running text; of components that are there or not those that are:
    `RAHFL[hfl=1,asymhfl=0]` -> `RAHFL (HFL)`."""
    base, options = variant(label)
    if not options:
        return base
    words = {NAMES.get(key) or pretty(key): value for key, value in options.items()}
    if set(options.values()) <= {"0", "1"}:
        return f"{base} ({' + '.join(key for key in words if words[key] == '1') or 'none'})"
    return f"{base} ({', '.join(f'{key} = {value}' for key, value in words.items())})"


def measure_words(measure: str) -> str:
    """`clean.AVG` -> `clean test, average`; a domain keeps its name."""
    group, _, name = measure.rpartition(".")
    return ", ".join(filter(None, (GROUPS.get(group, group), MEASURES.get(name, pretty(name)))))


def minus(number: str) -> str:
    """`-0.41` with the minus sign that is as wide as the plus."""
    return number.replace("-", "−")


def signed(number: float, digits: int = 2) -> str:
    """`+0.41`, `−7.23`."""
    return minus(f"{number:+.{digits}f}")


def interval_words(low: float, high: float) -> str:
    """`[−4.4, 4.6]`."""
    return minus(f"[{low:.1f}, {high:.1f}]")


def ordinal(place: int) -> str:
    """`1st`, `12th`."""
    ending = "th" if place % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{ending}"


def address(link: str) -> str:
    """`https://arxiv.org/abs/2404.09259` -> `arXiv:2404.09259`, a DOI likewise; others without `https://`."""
    for start, name in ARCHIVES.items():
        if link.startswith(start):
            return name + link.removeprefix(start)
    return link.removeprefix("https://")


def hours_words(hours: float) -> str:
    """`12 hours`, `1.5 hours`, `40 minutes`."""
    if hours < 1:
        return counted(max(round(60 * hours), 1), "minute")
    return f"{hours:,.0f} hours" if hours >= 10 else f"{hours:.1f} hours"


def counted(count: int, noun: str) -> str:
    """`1 cell`, `9 cells`."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def bibtex(paper: Paper, key: str) -> str:
    """A paper as BibTeX, from what paper.yaml says of it."""
    venue, _, year = paper.reference.partition(" (")
    year = year[:4] if year[:4].isdigit() else ""
    kind, place = ("inproceedings", "booktitle") if "onference" in venue else ("article", "journal")
    link, authors = paper.links.paper, paper.authors.replace(", ", " and ")
    fields = {"title": f"{{{paper.title}}}", "author": authors, place: venue, "year": year}
    for start, name in (("https://doi.org/", "doi"), ("https://arxiv.org/abs/", "eprint"), ("", "url")):
        if link.startswith(start):
            fields[name] = link.removeprefix(start)
            break
    return bibtex_entry(kind, key + year, fields | {"archiveprefix": "arXiv" * ("eprint" in fields)})


def bibtex_entry(kind: str, key: str, fields: Mapping[str, str]) -> str:
    """An entry with the fields that are not empty."""
    escaped = {name: re.sub(r"(?<!\\)[&%#]", r"\\\g<0>", text) for name, text in fields.items() if text}
    lines = [f"  {name} = {{{text}}}" for name, text in escaped.items()]
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


def citation(root: Path) -> dict[str, str]:
    """`version`, `code` (the repository; empty: nowhere yet) and `bibtex` of a checkout, from CITATION.cff; a
    remote's address would give other pages on every machine."""
    file = root / "CITATION.cff"
    facts = read_yaml(file) if file.exists() else {}
    authors = facts.get("authors", [])
    people = (one.get("name") or f"{one['given-names']} {one['family-names']}" for one in authors)
    fields = {
        "title": f"{{{facts.get('title', 'FedRepro')}}}",
        "author": " and ".join(f"{{{name}}}" for name in people),
        "year": str(facts.get("date-released", ""))[:4],
        "version": str(facts.get("version", "")),
        "url": str(facts.get("repository-code", "")).rstrip("/"),
    }
    entry = bibtex_entry("software", "fedrepro", fields)
    return {"version": fields["version"], "code": fields["url"], "bibtex": entry}


def result_path(cell: Cell) -> str:
    """papers/<paper>/runs/<scenario>/<method>/result.json, as a link wants it."""
    return f"papers/{cell.paper}/runs/{cell.scenario}/{cell.method}/result.json"


def tick(value: float, sign: bool = False) -> str:
    """A number of an axis: `+4`, `0`, `−8`."""
    return minus(f"{value:+g}" if sign and value else f"{value:g}")


FILTERS = {
    "address": address,
    "tick": tick,
    "ordinal": ordinal,
    "file": result_path,
    "fixed": lambda number, digits: minus(f"{number:.{digits}f}"),
    "signed": signed,
    "thousands": lambda number: f"{number:,}",
    "interval": lambda ends: interval_words(*ends),
    "p": lambda p: "< 0.0001" if p < 1e-4 else f"{p:.2g}",
    "hours": hours_words,
}


def templates(**options: Any) -> jinja2.Environment:
    """The environment of reports/templates/, in which a missing value is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "reports" / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )
    made.filters |= FILTERS
    return made
