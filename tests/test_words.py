"""Documents stay short and plain, their links lead to files, and what they quote is in the code.
`python tests/test_words.py` prints the measurements."""

import re
from collections import Counter
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent
NAMES = "README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md benchmarks/README.md docs/**/*.md".split()
DOCUMENTS = {path: path.read_text("utf-8") for name in NAMES for path in sorted(ROOT.glob(name))}
CODE = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
QUOTES = re.compile(r"^```python from=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PRIVATE = "found said told kept asked beside apart anew own shown stands".split()
PROGRAMS = {
    "pipeline": "pipeline",
    "stages": "stages",
    "papers' methods": "papers/*/methods",
    "tests": "tests",
}


def sentences(text: str) -> list[int]:
    """Words of each sentence of paragraphs, list items and table cells."""
    text = re.sub(r"^(#.*|[-|: ]+)$", "", CODE.sub("\n\n", text), flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\||:\s*\n", text)
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?])[\s*)]+", block)]
    return [sum(bool(re.search(r"\w", word)) for word in part.split()) for part in parts]


def private(paths) -> Counter:
    """How often each private word occurs, also in names (`found_in`), but not in FileNotFoundError nor in the
    addresses of links."""
    texts = (re.sub(r"\]\([^)\s]*\)", "]", path.read_text("utf-8")) for path in paths)
    parts = (part.lower() for text in texts for part in re.findall("(?<!Not)(?:[A-Z]?[a-z]+|[A-Z]+)", text))
    return Counter(part for part in parts if part in PRIVATE)


def measurements() -> dict:
    texts, lengths = DOCUMENTS.values(), [n for text in DOCUMENTS.values() for n in sentences(text)]
    return {
        "words before the README's first command": len(DOCUMENTS[ROOT / "README.md"].split("```")[0].split()),
        "words of documents": sum(len(text.split()) for text in texts),
        "longest sentence": max(lengths),
        "mean sentence of four words or more": round(fmean(n for n in lengths if n > 3), 1),
        "private words in documents": private(DOCUMENTS),
        "private words in reports/*.md": private(ROOT.glob("reports/*.md")),
        **{f"private words in {name}": private(ROOT.glob(f"{at}/**/*.py")) for name, at in PROGRAMS.items()},
    }


def test_documents_are_short_and_plain():
    first, total, longest, mean, *words = measurements().values()
    assert first <= 60 and total <= 14_000 and longest <= 35 and mean <= 20
    documents, pages, *programs, tests = words
    assert not documents and not pages
    assert all(count < 20 for where in (sum(programs, Counter()), tests) for count in where.values())


def stripped(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


def test_links_lead_to_files():
    for path, text in DOCUMENTS.items():
        for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", CODE.sub("", text)):
            assert (path.parent / link).exists(), f"{path.name}: {link}"


def test_quoted_lines_are_in_the_code():
    quotes = QUOTES.findall(DOCUMENTS[ROOT / "docs/one-round.md"])
    assert len(quotes) >= 5
    for name, block in quotes:
        assert stripped(block) <= stripped((ROOT / name).read_text(encoding="utf-8")), name


if __name__ == "__main__":
    print(
        *(
            f"{what}: {dict(value) if isinstance(value, Counter) else value}"
            for what, value in measurements().items()
        ),
        sep="\n",
    )
