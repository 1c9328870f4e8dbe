"""Write sources.yaml: digests of the code behind every stage or cell, so that DVC reruns what changed.

For a paper it is papers/<paper>/sources.yaml, with a digest for every cell.
"""

from collections.abc import Mapping

import yaml

from pipeline import files
from pipeline.cells import sources as code
from pipeline.cells.checks import check_names
from pipeline.schema import ROOT
from stages._stage import stage

HEADER = "# Made by the stage `sources`. DVC reads it to know which {} a change of code concerns.\n"


def sources(paper: str | None = None) -> None:
    """Digest the code behind every cell of a paper, or behind every other kind of stage. A paper's other
    stages wait for this one, so what they could not know in time is checked here."""
    if paper:
        check_names(paper)
    digests: Mapping = code.paper_digests(paper) if paper else code.stage_digests()
    folder, what = (ROOT / "papers" / paper, "cells") if paper else (ROOT, "stages")
    files.write_text(folder / "sources.yaml", HEADER.format(what) + yaml.safe_dump(digests, sort_keys=True))


if __name__ == "__main__":
    stage(sources, paper="whose cells; without it the stages of other kinds")
