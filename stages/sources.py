"""Write sources.yaml: for every method, a digest of the code that it runs."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from pipeline import files, provenance
from pipeline.cli import stage
from pipeline.params import ROOT

HEADER = "# Made by the stage `sources`. DVC reads it to know which cells a change of code concerns.\n"


def sources() -> None:
    """Digest the code behind every method and every other kind of stage."""
    files.write_text(ROOT / "sources.yaml", HEADER + yaml.safe_dump(provenance.all_digests(), sort_keys=True))


if __name__ == "__main__":
    stage(sources)
