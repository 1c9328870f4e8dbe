"""How many images of each class every client trains on, as a table."""

import numpy as np
import pandas as pd

from pipeline.data.parts import Parts

OURS = ("client", "domain", "train", "test")  # the first columns; those of the classes come behind
MARKED = "class "


def class_columns(classes: list[str]) -> list[str]:
    """Names of the classes' columns: as the classes are called, or `class 90: train` for all of them where
    one has no name, the name of another, or one that reads as a column of ours or as such a mark."""
    clear = len({*classes}) == len(classes) and all(
        name and name not in OURS and not name.startswith(MARKED) for name in classes
    )
    return classes if clear else [f"{MARKED}{label}: {name}" for label, name in enumerate(classes)]


def label_counts(parts: Parts, labels: np.ndarray, classes: list[str]) -> pd.DataFrame:
    """One row per client: name, domain, training and test images, training images of every class."""
    held = [np.bincount(labels[train], minlength=len(classes)) for train in parts.train]
    table = pd.DataFrame(parts.clients, columns=OURS[:2])
    table["train"], table["test"] = (
        [len(part) for part in each] for each in (parts.train, parts.client_test)
    )
    return pd.concat([table, pd.DataFrame(held, columns=class_columns(classes))], axis=1)
