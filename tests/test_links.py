"""Links between documents lead to files, and the lines that docs/one-round.md quotes are in the code."""

import re

from test_words import CODE, DOCUMENTS, ROOT

QUOTES = re.compile(r"^```python from=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
