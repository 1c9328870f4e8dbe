"""Two data sets with ten classes."""

from pipeline.data.registry import Canonical, DataSet

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")

kmnist = DataSet(
    "Kuzushiji-MNIST",
    shape=[28, 28, 1],
    classes=10,
    names="o ki su tsu na ha ma ya re wo".split(),
    canonical=Canonical(
        "idx", {f"{part}-ubyte.gz": "" for part in PARTS}, page="https://codh.rois.ac.jp/kmnist"
    ),
)
cinic10 = DataSet(
    "CINIC-10",
    shape=[32, 32, 3],
    classes=10,
    canonical=Canonical("image_folder", {"CINIC-10.tar.gz": ""}, page="https://doi.org/10.7488/ds/2448"),
)
