"""How papers and this software are cited: BibTeX entries, and addresses as text."""

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.schema import Paper, read_yaml

# The start of an address in an archive -> how the archive is written in front of the rest.
ARCHIVES = {"https://arxiv.org/abs/": "arXiv:", "https://doi.org/": "doi:"}
# The start of a paper's address -> the field of BibTeX that has the rest.
LINK_FIELDS = {"https://doi.org/": "doi", "https://arxiv.org/abs/": "eprint", "": "url"}


def address(link: str) -> str:
    """`https://arxiv.org/abs/2404.09259` -> `arXiv:2404.09259`, a DOI likewise; others without `https://`."""
    for start, name in ARCHIVES.items():
        if link.startswith(start):
            return name + link.removeprefix(start)
    return link.removeprefix("https://")


def bibtex(paper: Paper, key: str) -> str:
    """A paper as BibTeX, from what paper.yaml says of it.

    key: that of its folder; the entry's is this with the year
    """
    venue, _, remark = paper.reference.partition(" (")
    year = remark[:4] if remark[:4].isdigit() else ""
    conference = "onference" in venue
    fields = {
        "title": f"{{{paper.title}}}",
        "author": paper.authors.replace(", ", " and "),
        "booktitle" if conference else "journal": venue,
        "year": year,
    }
    for start, name in LINK_FIELDS.items():
        if paper.links.paper.startswith(start):
            fields[name] = paper.links.paper.removeprefix(start)
            break
    if "eprint" in fields:
        fields["archiveprefix"] = "arXiv"
    return bibtex_entry("inproceedings" if conference else "article", key + year, fields)


def bibtex_entry(kind: str, key: str, fields: Mapping[str, str]) -> str:
    """An entry with the fields that are not empty.

    kind: `article`, `software`, ...
    """
    lines = []
    for name, text in fields.items():
        if text:
            escaped = re.sub(r"(?<!\\)[&%#]", r"\\\g<0>", text)
            lines.append(f"  {name} = {{{escaped}}}")
    return f"@{kind}{{{key},\n" + ",\n".join(lines) + "\n}"


def citation(root: Path) -> dict[str, str]:
    """`version`, `code` (the repository; empty: nowhere yet) and `bibtex` of a checkout, from CITATION.cff; a
    remote's address would give other pages on every machine."""
    file = root / "CITATION.cff"
    facts = read_yaml(file) if file.exists() else {}
    people = []
    for author in facts.get("authors", []):
        people.append(author.get("name") or f"{author['given-names']} {author['family-names']}")
    fields = {
        "title": f"{{{facts.get('title', 'FedRepro')}}}",
        "author": " and ".join(f"{{{name}}}" for name in people),
        "year": str(facts.get("date-released", ""))[:4],
        "version": str(facts.get("version", "")),
        "url": str(facts.get("repository-code", "")).rstrip("/"),
    }
    entry = bibtex_entry("software", "fedrepro", fields)
    return {"version": fields["version"], "code": fields["url"], "bibtex": entry}
