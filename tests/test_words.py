"""Documents stay short and plain. `python tests/test_words.py` prints the measurements."""

import re
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).resolve().parent.parent
NAMES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "docs/**/*.md",
)
DOCUMENTS = {path: path.read_text("utf-8") for name in NAMES for path in sorted(ROOT.glob(name))}
CODE = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
MARKUP = re.compile(r"<(script|style|code).*?</\1>|<[^>]*>", re.DOTALL)
PRIVATE = "found said told kept asked beside apart anew".split()


def sentences(text: str) -> list[int]:
    """Words of each sentence of paragraphs, list items and table cells."""
    text = re.sub(r"^(#.*|[-|: ]+)$", "", CODE.sub("\n\n", text), flags=re.MULTILINE)
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) |\||:\s*\n", text)
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?])[\s*)]+", block)]
    return [sum(bool(re.search(r"\w", word)) for word in part.split()) for part in parts]


def private(texts) -> dict[str, int]:
    """How often each private word occurs, also in names such as `found_in`."""
    parts = [part.lower() for text in texts for part in re.findall("[A-Z]?[a-z]+", text)]
    return {word: parts.count(word) for word in PRIVATE}


def measurements() -> dict:
    texts, lengths = DOCUMENTS.values(), [n for text in DOCUMENTS.values() for n in sentences(text)]
    code = (path for folder in ("pipeline", "stages") for path in ROOT.glob(f"{folder}/**/*.py"))
    pages = (MARKUP.sub(" ", path.read_text("utf-8")) for path in ROOT.glob("reports/*.html"))
    return {
        "words before the README's first command": len(DOCUMENTS[ROOT / "README.md"].split("```")[0].split()),
        "words of documents": sum(len(text.split()) for text in texts),
        "longest sentence": max(lengths),
        "mean sentence of four words or more": round(fmean(n for n in lengths if n > 3), 1),
        "private words in documents": private(texts),
        "private words in code": private(path.read_text() for path in code),
        "private words in pages": private(pages),
    }


def test_documents_are_short_and_plain():
    first, total, longest, mean, words, *_ = measurements().values()
    assert first <= 60 and total <= 14_000 and longest <= 35 and mean <= 20
    assert not any(words.values())


if __name__ == "__main__":
    print(*(f"{what}: {value}" for what, value in measurements().items()), sep="\n")
