"""The documents' links lead to files, and the lines of code that they quote are in the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = "README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md benchmarks/README.md docs/**/*.md".split()
DOCUMENTS = [path for name in NAMES for path in sorted(ROOT.glob(name))]
CODE = re.compile(r"^```.*?^```$|<!--.*?-->", re.MULTILINE | re.DOTALL)
QUOTES = re.compile(r"^```python from=(\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def stripped(text: str) -> set[str]:
    return {line.strip() for line in text.splitlines()}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(path):
    text = CODE.sub("", path.read_text("utf-8"))
    for link in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (path.parent / link).exists(), link


def test_quoted_lines_are_in_the_code():
    quotes = QUOTES.findall((ROOT / "docs/one-round.md").read_text("utf-8"))
    assert len(quotes) >= 5
    for name, block in quotes:
        assert stripped(block) <= stripped((ROOT / name).read_text(encoding="utf-8")), name


def test_the_version_to_cite_is_the_last_one_that_the_changes_call_released():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    version, day = (re.search(rf"^{key}: (\S+)$", citation, re.M)[1] for key in ("version", "date-released"))
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## (\S+), (\d{4}-\d\d-\d\d)$", changes, re.M)
    assert (version, day) == released[0]
