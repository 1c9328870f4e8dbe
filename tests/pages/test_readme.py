"""The README: short, and its numbers are those of the committed results."""

import re

import pytest

from pipeline.errors import FedReproError
from pipeline.report import markdown
from pipeline.schema import ROOT

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_its_numbers_are_todays(pages):
    assert markdown.readme(TEXT, pages) == TEXT


def test_a_missing_block_is_named(pages):
    with pytest.raises(FedReproError, match="README.md: the block 'status'"):
        markdown.readme(TEXT.replace("<!-- status", "<!-- others"), pages)


def test_it_is_short():
    before = re.split(r"^```", TEXT, maxsplit=1, flags=re.MULTILINE)[0]
    assert len(before.split()) <= 60 and len(TEXT.split()) <= 900 and len(TEXT.splitlines()) <= 110
