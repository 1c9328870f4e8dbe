"""Small official files of the two data sets of the study tests/fedntd."""

import gzip
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def patterns(side: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """120 noisy images (n, side, side) of ten bright squares, and their labels."""
    rng, labels = np.random.default_rng(seed), np.arange(120) % 10
    images = rng.integers(0, 120, (120, side, side), dtype=np.uint8)
    for image, label in zip(images, labels):
        row, column = divmod(label, 4)
        image[row * 8 : row * 8 + 8, column * 7 : column * 7 + 7] += 120
    return images, labels


def write_data(folder: Path) -> None:
    """The official files of both sets, small."""
    (kmnist := folder / "kmnist").mkdir(parents=True)
    (cinic10 := folder / "cinic10").mkdir()
    with tarfile.open(cinic10 / "CINIC-10.tar.gz", "w:gz") as archive:
        for seed, (prefix, part) in enumerate((("train", "train"), ("t10k", "test"))):
            images, labels = patterns(28, seed)
            for kind, head, values in (
                ("images-idx3", struct.pack(">HBB3I", 0, 8, 3, *images.shape), images),
                ("labels-idx1", struct.pack(">HBBI", 0, 8, 1, len(labels)), labels.astype(np.uint8)),
            ):
                (kmnist / f"{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + values.tobytes()))
            for number, (image, label) in enumerate(zip(*patterns(32, seed + 2))):
                content = io.BytesIO()
                Image.fromarray(image).save(content, "PNG")
                entry = tarfile.TarInfo(f"CINIC-10/{part}/class{label}/{number}.png")
                entry.size = len(content.getvalue())
                archive.addfile(entry, io.BytesIO(content.getvalue()))
