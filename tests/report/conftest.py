"""The pages of the committed results, for the tests of several formats."""

import pytest
from drawn import drawn, paper  # noqa: F401  (fixtures)

from pipeline.report import writing
from pipeline.schema import ROOT


@pytest.fixture(scope="session")
def committed(tmp_path_factory):
    """(paper -> its page, name -> HTML file): rendered once, beside the files that the pages link to."""
    pages, root, page = {}, tmp_path_factory.mktemp("committed"), writing.Page
    (root / "papers").symlink_to(ROOT / "papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "Page", lambda study: pages.setdefault(study.key, page(study)))
        files = writing.render(out=root / "reports")
    return pages, {path.stem: path for path in files if path.suffix == ".html"}


@pytest.fixture(scope="session")
def pages(committed):
    return committed[0]


@pytest.fixture(scope="session")
def files(committed):
    return committed[1]
