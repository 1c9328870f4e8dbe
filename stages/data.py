"""Prepare one data set, downloaded if necessary, in data/<set>: `python -m stages.data cifar10`."""

from pipeline.data import sources
from pipeline.schema import ROOT, load_params
from stages._stage import stage


def data(name: str) -> None:
    """Prepare a data set from the bundled digits, a mirror (FEDREPRO_MIRROR) or its canonical source."""
    meta = sources.prepare(name, ROOT / "data" / name, load_params().data.source)
    print(
        f"data/{name}: {meta['shape'][0]} images of {'x'.join(map(str, meta['shape'][1:]))} from "
        f"{meta['source']}" + (f" ({meta['deviation']})" if meta["deviation"] else "")
    )


if __name__ == "__main__":
    stage(data, "name")
