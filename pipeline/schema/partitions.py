"""The kinds of partition that a scenario can name: their keys, and the clients that result.

`pipeline/data/partition.py` draws them. A paper adds kinds as subclasses of `Pooled` in
papers/<paper>/partitions.py.
"""

import re
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, ClassVar, Literal

from pipeline.schema.checker import Count, Fraction, Positive, Range, Share, Whole

Clients = Annotated[int, Range(low=1, high=100_000)]  # more would never end


@dataclass(frozen=True)
class Partition:
    """Base of all kinds. The fields of a kind are its keys in paper.yaml."""

    kind: ClassVar[str]
    overlap = False  # whether clients may share images
    _: KW_ONLY
    seed: Whole = 1
    fixed: bool = False  # one draw serves all seeds; else each seed has one

    @classmethod
    def variants(cls) -> dict[str, type["Partition"]]:
        """The kinds that every paper can name."""
        return KINDS if cls is Partition else {}

    @property
    def names(self) -> list[str]:
        """The names of the clients on pages."""
        raise NotImplementedError

    @property
    def keeps_split(self) -> bool:
        """Whether the official split decides which images are trained on."""
        return getattr(self, "test", "official") == "official"

    @property
    def may_be_empty(self) -> bool:
        """Whether a client may have no training image."""
        return False


@dataclass(frozen=True)
class Pooled(Partition):
    """Base of the kinds that divide one pool of images over the clients without overlap.

    pool: `train+test` divides all images and splits each client's part into training and test images, as
        PFLlib does; `train` divides the training part and keeps the official test set for all clients
    """

    clients: Clients
    _: KW_ONLY
    pool: Literal["train+test", "train"] = "train+test"
    train_share: Share = 0.75
    # None: floor(min(10 / (1 - train_share), n / N / 2))
    min_samples: Whole | None = None
    # use only so many images of the pool
    samples: Count | None = None

    @property
    def names(self) -> list[str]:
        return [str(k) for k in range(self.clients)]

    @property
    def keeps_split(self) -> bool:
        return self.pool == "train"

    def cut(self, pool: Any, indices: Any, rng: Any) -> list:
        """The images of every client, for a paper's own kind; returns an array of indices for each client.

        pool: the stored set (pipeline.data.parts.Pool)
        indices: int (n,), the images to divide
        rng: NumPy's generator of this draw

        A ValueError becomes an error that names file and key.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Iid(Pooled):
    """Equal parts of the shuffled pool (Flower's IidPartitioner, NIID-Bench's `homo`)."""

    kind = "iid"


@dataclass(frozen=True)
class Shards(Pooled):
    """The pool sorted by label and cut into clients * shards equal pieces; each client gets `shards`
    random pieces (McMahan et al. 2017, Sec. 3; Flower's ShardPartitioner)."""

    kind = "shards"
    shards: Count = 2


@dataclass(frozen=True)
class QuantitySkew(Pooled):
    """Numbers of images follow Dir(beta); labels are distributed as in the pool (Li et al. 2022,
    NIID-Bench's `iid-diff-quantity`)."""

    kind = "quantity_skew"
    beta: Positive


@dataclass(frozen=True)
class Dirichlet(Pooled):
    """Label skew: each class is divided over the clients by p ~ Dir(beta) (PFLlib's dataset_utils.py)."""

    kind = "dirichlet"
    beta: Positive
    cap: bool = True  # a client that holds n/N samples gets no more
    tries: Count = 1_000_000


@dataclass(frozen=True)
class ExtendedDirichlet(Pooled):
    """Each client has `classes` classes, and each class is divided over its clients by p ~ Dir(beta) (Li
    and Lyu 2023; PFLlib's `exdir`)."""

    kind = "extended_dirichlet"
    beta: Positive
    classes: Count


@dataclass(frozen=True)
class BalancedDirichlet(Pooled):
    """Clients with equally many images, each with a mixture of classes q ~ Dir(beta) (Acar et al. 2021;
    Flower's InnerDirichletPartitioner)."""

    kind = "balanced_dirichlet"
    beta: Positive


@dataclass(frozen=True)
class Natural(Pooled):
    """Users as in the data: a client has the images with one value of a column, such as one writer's.

    `clients` of them are drawn at random among those with at least `min_samples` images (Caldas et al. 2018;
    Flower's NaturalIdPartitioner).
    """

    kind = "natural"
    column: str


@dataclass(frozen=True)
class Pathological(Pooled):
    """Each client has `classes` classes (PFLlib's `pat`)."""

    kind = "pathological"
    classes: Count
    # PFLlib's `pat`, or classes drawn until each has an owner
    owners: Literal["in_order", "random"] = "in_order"
    balanced: bool = False


@dataclass(frozen=True)
class Domains(Partition):
    """Domain skew: each domain belongs to one or several clients, who divide it without overlap."""

    kind = "domains"
    clients: dict[str, Clients]  # printed domain name -> number of clients
    # Each client's share of the domain's training part; None: equal parts.
    share: Fraction | dict[str, Fraction] | None = None
    # images of each class per client, instead of a share
    per_class: Count | None = None
    # imbalanced: class c gives client k int(base * N * p_k), p ~ Dir(beta)
    beta: Positive | None = None
    test: Literal["official", "index_mod_10", "random"] = "official"
    # for test: random
    test_share: Share = 0.3
    # keep at most so many test images of each class
    test_per_class: Count | None = None
    # at most so many training images per domain
    samples: Count | None = None
    # score on the training images that no client has, and never on the test part
    validation: bool = False

    def __post_init__(self) -> None:
        if self.beta is not None and self.per_class is None:
            raise ValueError("'beta' divides the images of 'per_class', which has to be given, too")
        if self.share is not None and self.per_class is not None:
            raise ValueError("give either 'share' or 'per_class'")

    @property
    def names(self) -> list[str]:
        return [
            domain if count == 1 else f"{domain}-{i}"
            for domain, count in self.clients.items()
            for i in range(count)
        ]

    @property
    def may_be_empty(self) -> bool:
        return self.beta is not None


@dataclass(frozen=True)
class Subset(Partition):
    """A fixed number of private images for each client, from one domain each (FCCL+) or all from one pool
    (RAHFL)."""

    kind = "subset"
    # printed client name -> images
    sizes: dict[str, Count]
    # clients of one domain draw independently
    overlap: bool = False
    # labels of a client follow Dir(beta) (RAHFL, supplement B)
    beta: Positive | None = None
    test: Literal["official", "index_mod_10", "random"] = "official"
    test_share: Fraction | None = None  # for test: random
    test_per_class: Count | None = None
    stratified: bool = False
    # Labelled training images that no client gets, on which clients are compared (RAHFL).
    heldout: Count | None = None
    _: KW_ONLY
    seed: Whole = 0

    def __post_init__(self) -> None:
        if (self.test == "random") != (self.test_share is not None):
            raise ValueError("'test_share' belongs to 'test: random', which needs it")
        if self.stratified and self.beta is not None:
            raise ValueError("give either 'stratified', the domain's shares of the classes, or 'beta'")

    @property
    def names(self) -> list[str]:
        return list(self.sizes)


@dataclass(frozen=True)
class Listed(Partition):
    """Clients whose images are listed in a file, such as those of another library (`fedrepro partition
    import`)."""

    kind = "listed"
    clients: Clients
    file: str  # papers/<paper>/splits/<name>.csv
    sha256: str
    keeps_split = False
    _: KW_ONLY
    fixed: bool = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"papers/[\w-]+/splits/[\w-]+\.csv", self.file, re.ASCII):
            raise ValueError(f"'file' is {self.file!r:.80}, not papers/<paper>/splits/<name>.csv")

    @property
    def names(self) -> list[str]:
        return [str(k) for k in range(self.clients)]


KINDS: dict[str, type[Partition]] = {
    value.kind: value
    for value in [*vars().values()]
    if isinstance(value, type) and issubclass(value, Partition) and "kind" in vars(value)
}
