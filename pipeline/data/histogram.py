"""How many images of each class every client trains on, as a table and as a figure."""

from typing import Any

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("svg")
import matplotlib.pyplot as plt

from pipeline.data.parts import Parts

STYLE: dict[Any, Any] = {  # matplotlib types the keys as literals
    "svg.hashsalt": "fedrepro",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
}


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
    """One row per client: name, domain, training and test images, then the training images of every
    class (`class_columns`)."""
    rows, columns = [], class_columns(classes)
    for (name, domain), train, test in zip(parts.clients, parts.train, parts.client_test, strict=True):
        counts = np.bincount(labels[train], minlength=len(classes))
        rows.append(
            {
                "client": name,
                "domain": domain,
                "train": len(train),
                "test": len(test),
                **dict(zip(columns, counts, strict=True)),
            }
        )
    return pd.DataFrame(rows)


def draw(table: pd.DataFrame, path) -> None:
    """Stacked bars, one per client and one colour per class, as an SVG that is the same for the same
    table."""
    classes = list(table.columns[len(OURS) :])
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(7.2, 1.1 + 0.22 * min(len(table), 100)), layout="constrained")
        colours = plt.get_cmap("tab20")(np.arange(len(classes)) % 20)
        left = np.zeros(len(table))
        for name, colour in zip(classes, colours, strict=True):
            axes.barh(
                table["client"].astype(str), table[name], left=left, color=colour, label=name, height=0.8
            )
            left += table[name].to_numpy()
        axes.invert_yaxis()
        axes.set(xlabel="training images", ylabel="client")
        axes.spines[["top", "right"]].set_visible(False)
        if len(classes) <= 20:
            axes.legend(
                title="class",
                ncols=1 if len(classes) <= 10 else 2,
                loc="center left",
                bbox_to_anchor=(1, 0.5),
                frameon=False,
            )
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
