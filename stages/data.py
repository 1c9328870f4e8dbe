"""Bring one data set into data/<set>: `python stages/data.py cifar10`."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline.cli import stage
from pipeline.data import sources
from pipeline.params import ROOT, load_params


def data(name: str) -> None:
    """Prepare a data set from the bundled digits, a mirror (FEDREPRO_MIRROR) or its canonical source."""
    meta = sources.prepare(name, ROOT / "data" / name, load_params().data.source)
    print(f"data/{name}: {meta['shape'][0]} images of {'x'.join(map(str, meta['shape'][1:]))} from {meta['source']}"
          + (f" ({meta['deviation']})" if meta["deviation"] else ""))


if __name__ == "__main__":
    stage(data, "name")
