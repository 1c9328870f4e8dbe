"""Count test images that have a byte-identical twin among the training images: `python -m stages.twins SET`.

It needs data/SET and renews the set's rows of data/twins.csv, which the notes of tables read.
"""

import csv
from typing import Final

import numpy as np

from pipeline.data import store
from pipeline.data.domain_skew import domain_split
from pipeline.data.parts import Pool
from pipeline.files import read_csv
from pipeline.report.footnotes import TWIN_COLUMNS, TWINS
from pipeline.schema import ROOT
from pipeline.schema.partitions import Domains
from pipeline.schema.scenario import Data
from stages._stage import stage

# The rule by which a test part is taken, where it does not depend on a seed.
RULE: Final = "index_mod_10"


def count(stored: store.Stored) -> list[dict[str, str]]:
    """A row per domain of a set: how many of its test images by `RULE` have a twin among the domain's others.

    stored  the set, with its images as (N, H, W, C) uint8
    """
    pool = Pool.of(Data(stored.meta["set"]), stored, "data")
    settings = Domains(clients={}, test=RULE)
    rows = []
    for number, domain in enumerate(pool.names):
        train, test = domain_split(pool, number, settings, np.random.default_rng(0))
        trained = {stored.images[at].tobytes() for at in train}
        twins = sum(stored.images[at].tobytes() in trained for at in test)
        known = {"set": stored.meta["set"], "digest": stored.meta["digest"], "rule": RULE, "domain": domain}
        rows.append(known | {"tests": str(len(test)), "twins": str(twins)})
    return rows


def main(name: str) -> None:
    """Renew the rows of one data set.

    name  the set's folder under data/
    """
    path = ROOT / TWINS
    others = [row for _, row in read_csv(path, TWIN_COLUMNS)] if path.exists() else []
    rows = [row for row in others if row["set"] != name] + count(store.verify(ROOT / "data" / name))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, TWIN_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print("\n".join(f"{row['domain']}: {row['twins']} of {row['tests']}" for row in rows))


if __name__ == "__main__":
    stage(main, "name")
