"""A scenario: data, partition, networks, training and evaluation of one block of columns in a table."""

import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pipeline.schema.checker import Count, Fraction, Name, NonNegative, Positive, Range, Share, Whole, check
from pipeline.schema.partitions import Partition, Subset

# More would not fit into any memory, or never end.
Side = Annotated[int, Range(low=1, high=1024)]
Width = Annotated[int, Range(low=1, high=65_536)]
Rounds = Annotated[int, Range(low=1, high=1_000_000)]


@dataclass(frozen=True)
class Data:
    """Which images or other samples are used, and how they become network inputs."""

    set: Name  # a name of pipeline.data.registry
    # printed name -> domain of the set; empty: all domains under their names
    domains: dict[str, str] = field(default_factory=dict)
    size: Side = 32  # side in pixels after resizing
    channels: Literal[1, 3] = 3
    # Of images: half: (x - .5) / .5; imagenet, cifar10: by that set's statistics; none: [0, 1]. Of samples in
    # the shape in which they are stored: standard: each column of a table, or channel of a signal, by mean
    # and deviation over the clients' training samples; raw: as they are.
    normalise: Literal["half", "imagenet", "cifar10", "none", "standard", "raw"] = "half"
    features: Literal["pixels", "vit_tiny"] = "pixels"  # vit_tiny: frozen ViT-Ti/16 class token, 192 numbers
    # Of training images. crop_flip: 4 reflected pixels around, a random crop, a horizontal flip.
    augmentation: Literal["crop_flip"] | None = None

    def __post_init__(self) -> None:
        if len(set(self.domains.values())) < len(self.domains):
            raise ValueError("'domains' has two names for one domain")
        asked = {"augmentation": self.augmentation is not None, "features": self.features != "pixels"}
        for key in (key for key, given in asked.items() if given and not self.of_images):
            raise ValueError(f"'{key}' needs images, and with 'normalise: {self.normalise}' there are none")

    @property
    def of_images(self) -> bool:
        """Whether the samples are images, which are resized; other samples keep their stored shape."""
        return self.normalise not in ("standard", "raw")


@dataclass(frozen=True)
class Public:
    """Unlabelled images that server and clients share."""

    set: Name
    size: Count = 5000  # images drawn once
    batch_size: Count = 512
    epochs: Count = 1  # passes over them per round
    # weak, strong: FCCL+ Sec. 4.1 and, padded, its release; crop_flip_rotate: RAHFL's code, FCCL's, and that
    # of FCCL+ for strongly augmented Fashion-MNIST
    augmentation: Literal["none", "weak", "strong", "weak_padded", "strong_padded", "crop_flip_rotate"] = (
        "none"
    )
    drop_last: bool = False

    def __post_init__(self) -> None:
        if self.drop_last and self.batch_size > self.size:
            raise ValueError("with 'drop_last' a 'batch_size' above 'size' leaves no batch")


# What a scenario may demand of a method beyond that (methods.base.Method.supports), and the keys for it.
DEMANDS = {
    "partial participation": ("training.participation", "training.failing", "training.stragglers"),
    "unseen clients": ("training.unseen",),
}


# What a method may need of a scenario (methods.base.Method.requires), and which key gives it.
REQUIREMENTS = {
    "public data": "`public`, unlabelled images that all clients see",
    "one network": "`model`, one network for all clients; a method's row may give one",
    "projector": "`projector`, its width, in every network; a method's row may give it: `model: {projector: "
    "1024}`",
    "held-out images": "`partition.heldout`, labelled training images that no client gets",
    "images": "a `data.set` of images, under a `data.normalise` that is of images",
    "pixels in [0, 1]": "`data.normalise: none`",
}


@dataclass(frozen=True)
class Model:
    """A network of pipeline.models; the widths that the papers vary."""

    name: str
    features: Width | None = None  # width of the representation, where the network has a choice
    # None: the network's (EfficientNet 0.2, all others 0).
    dropout: Annotated[float, Range(low=0, high=0.99)] | None = None
    # The activation after the representation layer: FedCRL names none, PFLlib has a ReLU.
    activation: Literal["relu", "none"] = "relu"
    # width of a projector of the representation (RAHFL's networks: 1024)
    projector: Width | None = None
    # the paper in whose models.py it is defined; None: pipeline.models
    paper: Name | None = None


@dataclass(frozen=True)
class Optimiser:
    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: Positive = 0.01
    # SGD only
    momentum: Share = 0.0
    # adamw: decoupled from the gradient (Loshchilov & Hutter 2019)
    weight_decay: NonNegative = 0.0
    # the rate is multiplied by it after every round
    lr_decay: Fraction | None = None
    # largest L2 norm of a step's gradient, over all tensors
    clip: Positive | None = None

    def __post_init__(self) -> None:
        if self.name != "sgd" and self.momentum:
            raise ValueError(f"momentum belongs to sgd, not to {self.name}")

    def in_round(self, number: int) -> "Optimiser":
        """With the rate of that round, 1, 2, ...; 0 initialises a method."""
        if self.lr_decay is None or number < 2:
            return self
        return dataclasses.replace(self, lr=self.lr * self.lr_decay ** (number - 1))


@dataclass(frozen=True)
class Training:
    rounds: Rounds
    batch_size: Count
    local_epochs: Count = 1
    optimiser: Optimiser = field(default_factory=Optimiser)
    drop_last: bool = False  # skip a last incomplete batch
    # How the server averages models; None: weighted by training samples n_k.
    averaging: Literal["uniform"] | None = None
    pretraining: Count | None = None  # epochs that every client trains alone before round 1 (RAHFL)
    # Clients that take part in a round, drawn in every round: a share of all (0.2) or how many; None: all.
    participation: Fraction | Count | None = None
    failing: Fraction | None = None  # share of them that fail before they send, drawn in every round
    # Share of them, drawn in every round, that do 1 to all of their epochs, uniformly (FedProx, Sec. 5.2).
    stragglers: Fraction | None = None
    # Clients that never train and come after the last round: a share of all, how many, or their names.
    unseen: Fraction | Count | list[str] | None = None
    adaptation: Count | None = None  # local epochs by which these adapt; None: the method's round

    def __post_init__(self) -> None:
        if self.adaptation is not None and self.unseen is None:
            raise ValueError("'adaptation' is of clients that come at the end: name them under 'unseen'")
        if self.stragglers is not None and self.local_epochs == 1:
            raise ValueError("'stragglers' do a part of their epochs: 'local_epochs' must be above 1")


@dataclass(frozen=True)
class Attack:
    """White-box attack on every test image, l_infinity in [0, 1] pixels: FGSM (a step of eps) and PGD."""

    eps: Positive
    step: Positive  # of PGD
    steps: Count
    random_start: bool = False


# Means over clients that each kind of `evaluation.tests` measures; the first is the headline by default.
HEADLINES = {
    "clients": ("weighted", "average"),
    "domains": ("average",),
    "pooled": ("average",),
    "cross": ("average",),
}


@dataclass(frozen=True)
class Evaluation:
    """What is measured after a round.

    tests: `clients` every client's test part; `domains` every domain's test set, mean over domains;
    `pooled` the one test set of all domains; `cross` each client's model on every domain (intra and inter).
    """

    tests: Literal["clients", "domains", "pooled", "cross"]
    # rounds between evaluations; the last ones are always evaluated
    every: Count = 1
    # the reported number is the mean over the last so many rounds
    last: Count = 5
    # top-k accuracy
    top: Count = 1
    # Which model the table scores; None: the method's choice.
    hook: Literal["pre", "post"] | None = None
    # Which mean over clients is the headline number: `average`, all alike, or `weighted` by their test
    # images; None: the first in HEADLINES.
    headline: Literal["average", "weighted"] | None = None
    # How many clients are scored, drawn once for every seed; None: all.
    sample: Count | None = None
    # adds the measures `fgsm` and `pgd` (FedCCL Table 8)
    attack: Attack | None = None
    # functions of the paper's metrics.py; adds `metric.<name>` of each
    metrics: list[Name] | None = None

    def __post_init__(self) -> None:
        measured = HEADLINES[self.tests]
        if self.headline is not None and self.headline not in measured:
            only = f"with 'tests: {self.tests}' only {measured[0]} is measured"
            raise ValueError(f"'headline' is {self.headline}, and {only}")
        if self.sample is not None and self.tests != "clients":
            needs = "'sample' needs every client's test part: 'tests: clients'"
            raise ValueError(f"{needs}, not 'tests: {self.tests}'")

    @property
    def measure(self) -> str:
        """The mean over clients that is the headline number, as it is called in results."""
        return self.headline or HEADLINES[self.tests][0]


@dataclass(frozen=True)
class Scenario:
    """One block of columns in a table: data, partition, models, training and evaluation."""

    data: Data
    partition: Partition
    training: Training
    evaluation: Evaluation
    # one network for all clients
    model: Model | None = None
    # printed client name -> network (heterogeneous models)
    models: dict[str, Model] | None = None
    public: Public | None = None
    corruption: Share | None = None  # share of the private images that are corrupted (RAHFL)
    # portable: processors of different makers round alike, see pipeline.arithmetic.
    arithmetic: Literal["portable"] | None = None
    seeds: list[Whole] = field(default_factory=lambda: [0, 1, 2])
    # what stays of every seed besides its numbers; None: nothing
    keep: Literal["models"] | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.models is None):
            raise ValueError("give either 'model' or 'models'")
        check_seeds(self.seeds)
        if not self.clients:
            raise ValueError("'partition' has no client")
        if (
            self.models is not None
            and isinstance(self.partition, Subset)
            and set(self.models) != set(self.partition.sizes)
        ):
            raise ValueError(
                f"'models' names {sorted(self.models)}, 'partition.sizes' names "
                f"{sorted(self.partition.sizes)}"
            )
        if self.evaluation.last > self.training.rounds:
            raise ValueError(
                f"'evaluation.last' reports the mean over {self.evaluation.last} rounds, and "
                f"'training.rounds' is {self.training.rounds}"
            )
        if self.corruption is not None and not self.partition.keeps_split:
            raise ValueError(
                "'corruption' chooses among the official training images: set 'partition.pool' "
                "to train, or 'partition.test' to official"
            )
        augmented = self.public is not None and self.public.augmentation != "none"
        for key, given in (("corruption", self.corruption), ("public.augmentation", augmented)):
            if given and not self.data.of_images:
                why = f"and with 'data.normalise: {self.data.normalise}' there are none"
                raise ValueError(f"'{key}' needs images, {why}")
        if self.evaluation.attack is not None and self.data.normalise != "none":
            raise ValueError("'evaluation.attack' needs images in [0, 1]: set 'data.normalise' to none")
        if self.training.unseen is not None and self.evaluation.tests != "clients":
            raise ValueError("'training.unseen' needs every client's test part: 'evaluation.tests: clients'")
        for name, most in (("participation", self.clients), ("unseen", self.clients - 1)):
            if isinstance(number := getattr(self.training, name), int) and number > most:
                raise ValueError(f"'training.{name}' is {number}, of {self.clients} clients")
        sample = self.evaluation.sample
        clients = self.trained_clients
        if sample is not None and sample >= clients:
            why = f"'evaluation.sample' is {sample}, of {clients} clients"
            raise ValueError(f"{why}: leave it out to score all")

    def draw(self, seed: int) -> int:
        """The draw of the partition on which a seed trains: its own, or draw 0 if all seeds share one."""
        return 0 if self.partition.fixed else seed

    @property
    def draws(self) -> int:
        """Draws of the partition that the seeds train on."""
        return len(set(map(self.draw, self.seeds)))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return len(self.partition.names)

    @property
    def trained_clients(self) -> int:
        """The number of clients without those that come after the last round."""
        late = self.training.unseen
        if late is None:
            return self.clients
        if isinstance(late, list):
            return self.clients - len(late)
        # as `phase.draw` counts
        return self.clients - (late if isinstance(late, int) else max(1, round(late * self.clients)))

    @property
    def networks(self) -> list[Model]:
        """The network of every client; a single one if all have the same."""
        return [self.model] if self.model else list((self.models or {}).values())

    @property
    def provides(self) -> set[str]:
        """Which of REQUIREMENTS the scenario provides."""
        has = {
            "public data": self.public is not None,
            "one network": len(set(self.networks)) == 1,
            "projector": all(model.projector for model in self.networks),
            "held-out images": bool(getattr(self.partition, "heldout", None)),
            "images": self.data.of_images,
            "pixels in [0, 1]": self.data.normalise == "none",
        }
        return {need for need in REQUIREMENTS if has[need]}

    @property
    def demands(self) -> dict[str, str]:
        """Which of DEMANDS the scenario makes, each with a key that makes it."""
        return {
            demand: key
            for demand, keys in DEMANDS.items()
            for key in reversed(keys)
            if setting(self, key) is not None
        }

    def with_networks(self, changes: object, where: str) -> "Scenario":
        """With `changes` over every client's network: {name: fedlsa}, {projector: 1024}."""

        def changed(model: Model) -> Model:
            given = {k: v for k, v in dataclasses.asdict(model).items() if v is not None}
            return check(Model, {**given, **changes} if isinstance(changes, dict) else changes, where)

        return self._with_each(changed)

    def with_networks_of(self, paper: str, names: Collection[str]) -> "Scenario":
        """This scenario with the networks of these names marked as the paper's."""
        if not any(model.name in names for model in self.networks):
            return self
        return self._with_each(
            lambda model: (
                dataclasses.replace(model, paper=model.paper or paper) if model.name in names else model
            )
        )

    def _with_each(self, change: Callable[[Model], Model]) -> "Scenario":
        return dataclasses.replace(
            self,
            model=self.model and change(self.model),
            models=self.models and {name: change(model) for name, model in self.models.items()},
        )


def check_seeds(seeds: list[int], key: str = "seeds") -> None:
    """Raise ValueError unless there is at least one seed, and each occurs once."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ValueError(f"'{key}' must be different whole numbers, at least one, not {seeds}")


def setting(scenario: Scenario, name: str) -> Any:
    """The value of a key such as `training.rounds` in a scenario; None if it has no such value."""
    part: Any = scenario
    for key in name.split("."):
        part = getattr(part, key, None)
    return part
