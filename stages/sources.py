"""Write sources.yaml: for every method, a digest of the code that it runs."""

import yaml

from pipeline import files
from pipeline.cells import provenance
from pipeline.schema import ROOT
from stages._stage import stage

HEADER = "# Made by the stage `sources`. DVC reads it to know which cells a change of code concerns.\n"


def sources() -> None:
    """Digest the code behind every method and every other kind of stage."""
    files.write_text(ROOT / "sources.yaml", HEADER + yaml.safe_dump(provenance.all_digests(), sort_keys=True))


if __name__ == "__main__":
    stage(sources)
