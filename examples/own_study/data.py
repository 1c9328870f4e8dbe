"""A table and a signal, both from scikit-learn's package, so that nothing is downloaded."""

import numpy as np

from pipeline.data.registry import Canonical, DataSet
from pipeline.data.store import TEST, TRAIN, Arrays

# one row of so many is a test row, in the order of the table
TABLE_TEST = 5
LENGTH = 128
# Rows of a photograph in a band; of so many bands one is a test band, since neighbouring rows look alike.
BAND, BANDS = 16, 4
# every so many rows, for the same reason
STEP = 2


def _tumours(files, scratch, entry) -> Arrays:
    """569 tumours in 30 measurements of cell nuclei; the size is a column for the partition."""
    from sklearn.datasets import load_breast_cancer

    table = load_breast_cancer()
    samples, labels = table.data.astype(np.float32), table.target.astype(np.int64)
    test = np.arange(len(labels)) % TABLE_TEST == 0
    return Arrays(
        samples,
        labels,
        np.zeros(len(labels), np.int64),
        np.where(test, TEST, TRAIN),
        table.target_names.tolist(),
        {"size": np.rint(samples[:, 0]).astype(np.int64)},
    )


def _lines(files, scratch, entry) -> Arrays:
    """Pieces of the rows of two photographs, as signals of three channels: which photograph, which half?"""
    from sklearn.datasets import load_sample_images

    signals, labels, test, strips, names = [], [], [], [], []
    for number, photo in enumerate(load_sample_images().images):
        rows = np.arange(0, len(photo), STEP)
        half = (rows >= len(photo) // 2).astype(np.int64)
        for strip in range(photo.shape[1] // LENGTH):
            piece = photo[rows, strip * LENGTH : (strip + 1) * LENGTH]
            signals.append(piece.transpose(0, 2, 1).astype(np.float32) / 255)
            labels.append(2 * number + half)
            test.append(rows // BAND % BANDS == 0)
            strips.append(np.full(len(rows), strip))
        names += [f"photograph {number + 1}, {part}" for part in ("top", "bottom")]
    of = np.concatenate(labels)
    split = np.where(np.concatenate(test), TEST, TRAIN)
    columns = {"strip": np.concatenate(strips)}
    return Arrays(np.concatenate(signals), of, np.zeros(len(of), np.int64), split, names, columns)


tumours = DataSet(
    "Breast tumours (Wolberg et al. 1995)",
    shape=[30],
    dtype="float32",
    classes=2,
    canonical=Canonical(_tumours, {}),
)
lines = DataSet(
    "Rows of scikit-learn's two photographs",
    shape=[3, LENGTH],
    dtype="float32",
    classes=4,
    canonical=Canonical(_lines, {}),
)
