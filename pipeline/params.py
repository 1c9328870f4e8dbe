"""A typed, checked view of `params.yaml` and of each `papers/<paper>/paper.yaml`.

Written on dataclasses instead of pydantic because a training stage must run on machines that have torch,
numpy, pandas, PyYAML and Jinja2 and nothing else. Every error names the file and the key.
"""
import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, reduce
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml

from pipeline.errors import ParamError, unknown

ROOT = Path(__file__).resolve().parent.parent
PAPERS = ("fedccl", "fcclplus", "fedlsa", "rahfl", "fedcrl")
MINIATURE = "mini"                       # the name of the scenario that params.yaml gives every paper
ACROSS = "across"                        # the same scenario, when a method of another paper runs in it
DELTA = "delta"                          # the printed column that subtracts the baseline's row


# -- checking a mapping against a dataclass ----------------------------------------------------------------

@dataclass(frozen=True)
class Range:
    """Bounds of a number: low <= x <= high, or above < x."""
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf

    def problem(self, value) -> str | None:
        if not math.isfinite(value):
            return "must be finite"
        if value < self.low:
            return f"must be at least {self.low:g}"
        if value > self.high:
            return f"must be at most {self.high:g}"
        if value <= self.above:
            return f"must be above {self.above:g}"
        return None


Count = Annotated[int, Range(low=1)]
Whole = Annotated[int, Range(low=0)]
Positive = Annotated[float, Range(above=0)]
NonNegative = Annotated[float, Range(low=0)]
Share = Annotated[float, Range(low=0, high=1)]
Fraction = Annotated[float, Range(above=0, high=1)]


def check(kind: Any, value: Any, where: str) -> Any:
    """Turn plain YAML into `kind`, or raise ParamError with `where` (file and key) in front.

    `kind` is a dataclass, int, float, bool, str, Literal, Annotated[number, Range], list[...],
    dict[str, ...], an optional of these, or a union of dataclasses told apart by their `kind` field.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return _check_dataclass(kind, value, where)
    if origin is Annotated:
        number = check(args[0], value, where)
        problem = next((p for p in (bound.problem(number) for bound in args[1:]) if p), None)
        if problem:
            raise ParamError(f"{where}: {problem}, found {value!r}")
        return number
    if origin is Literal:
        if value not in args:
            raise ParamError(f"{where}: {unknown('value', value, args)}")
        return value
    if origin in (Union, types.UnionType):
        return _check_union(args, value, where)
    if origin is list:
        if not isinstance(value, list):
            raise ParamError(f"{where}: expected a list, found {value!r}")
        return [check(args[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if origin is dict:
        if not isinstance(value, dict):
            raise ParamError(f"{where}: expected a mapping, found {value!r}")
        return {str(k): check(args[1], item, _at(where, k)) for k, item in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ParamError(f"{where}: expected {kind.__name__}, found {value!r}")
    return value


def _check_union(kinds, value, where):
    if value is None and type(None) in kinds:
        return None
    kinds = [k for k in kinds if k is not type(None)]
    tagged = {k.kind: k for k in kinds if dataclasses.is_dataclass(k) and hasattr(k, "kind")}
    if not tagged:                                    # one kind, or a number beside a mapping of numbers
        fits = [k for k in kinds if (typing.get_origin(k) is dict) == isinstance(value, dict)]
        return check((fits or kinds)[0], value, where)
    if not isinstance(value, dict) or "kind" not in value:
        raise ParamError(f"{where}: expected a mapping with the key 'kind', one of {', '.join(tagged)}")
    if value["kind"] not in tagged:
        raise ParamError(f"{where}.kind: {unknown('kind', value['kind'], tagged)}")
    return _check_dataclass(tagged[value["kind"]], {k: v for k, v in value.items() if k != "kind"}, where)


def _check_dataclass(kind, value, where):
    said = where.rstrip(":")
    if not isinstance(value, dict):
        raise ParamError(f"{said}: expected a mapping, found {value!r}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    hints = typing.get_type_hints(kind, include_extras=True)
    for key in value:
        if key not in fields:
            raise ParamError(f"{said}: {unknown('key', key, fields)}")
    for name, f in fields.items():
        if name not in value and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise ParamError(f"{said}: the key {name!r} is missing")
    made = {k: check(hints[k], v, _at(where, k)) for k, v in value.items()}
    try:
        return kind(**made)
    except ValueError as error:                       # a rule over several keys, raised in __post_init__
        raise ParamError(f"{where}: {error}") from None


def check_keys(value: Any, kinds: dict[str, Any], where: str) -> None:
    """ParamError, beginning with `where`, unless the mapping has these keys of these types and no other."""
    if not isinstance(value, dict):
        raise ParamError(f"{where} expected a mapping, found {value!r:.80}")
    for key in value:
        if key not in kinds:
            raise ParamError(f"{where} {unknown('key', key, kinds)}")
    for key, kind in kinds.items():
        if key not in value:
            raise ParamError(f"{where} the key {key!r} is missing")
        if not isinstance(value[key], kind) or isinstance(value[key], bool):
            raise ParamError(f"{where} {key}: expected {kind.__name__}, found {value[key]!r:.80}")


def _at(where: str, key: object) -> str:
    """`file: key`, `file: key.inner`."""
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


# -- a scenario --------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Data:
    """Which images, and how they enter the network."""
    set: str                                          # a name of pipeline.data.registry
    domains: dict[str, str] = field(default_factory=dict)   # printed name -> domain of the set; empty: all, own names
    size: Count = 32                                  # side in pixels after resizing
    channels: Literal[1, 3] = 3
    normalise: Literal["half", "imagenet", "cifar10", "none"] = "half"   # (x - .5) / .5, the set's statistics, or [0, 1]
    features: Literal["pixels", "vit_tiny"] = "pixels"        # vit_tiny: frozen ViT-Ti/16 class token, 192 numbers
    augmentation: Literal["crop_flip"] | None = None  # of training images: reflect-pad 4, random crop, horizontal flip


@dataclass(frozen=True)
class Public:
    """Unlabelled images that server and clients share."""
    set: str
    size: Count = 5000                                # images drawn once
    batch_size: Count = 512
    epochs: Count = 1                                 # passes over them per round
    # weak, strong: FCCL+ Sec. 4.1 and, padded, its release; crop_flip_rotate: RAHFL's code, FCCL's
    augmentation: Literal["none", "weak", "strong", "weak_padded", "strong_padded", "crop_flip_rotate"] = "none"
    drop_last: bool = False


@dataclass(frozen=True)
class Dirichlet:
    """Label skew: class c is cut over the clients by p ~ Dir(beta) (PFLlib, dataset/utils/dataset_utils.py)."""
    kind = "dirichlet"
    clients: Count
    beta: Positive
    pool: Literal["train+test", "train"] = "train+test"   # split each client's part, or keep the official test set
    train_share: Share = 0.75
    cap: bool = True                                  # a client that holds n/N samples gets no more
    min_samples: Whole | None = None                  # None: floor(min(10 / (1 - train_share), n / N / 2))
    tries: Count = 1_000_000
    samples: Count | None = None                      # use only so many images of the pool
    seed: Whole = 1
    fixed: bool = False                               # of every kind: one draw serves all seeds; else each seed has its own


@dataclass(frozen=True)
class Pathological:
    """Each client owns `classes` classes (PFLlib's `pat`)."""
    kind = "pathological"
    clients: Count
    classes: Count
    pool: Literal["train+test", "train"] = "train+test"
    train_share: Share = 0.75
    owners: Literal["in_order", "random"] = "in_order"    # PFLlib's `pat`, or classes drawn until each has an owner
    balanced: bool = False
    min_samples: Whole | None = None
    samples: Count | None = None
    seed: Whole = 1
    fixed: bool = False


@dataclass(frozen=True)
class Domains:
    """Domain skew: a domain belongs to one or several clients, who share it without overlap."""
    kind = "domains"
    clients: dict[str, Count]                         # printed domain name -> number of clients
    share: Fraction | dict[str, Fraction] | None = None   # of the domain's training part, per client; None: cut equally
    per_class: Count | None = None                    # images of each class per client, instead of a share
    beta: Positive | None = None                      # imbalanced: class c gives client k int(base * N * p_k), p ~ Dir(beta)
    test: Literal["official", "index_mod_10", "random"] = "official"
    test_share: Share = 0.3                           # for test: random
    test_per_class: Count | None = None               # keep at most so many test images of each class
    samples: Count | None = None                      # at most so many training images per domain
    validation: bool = False                          # score on the training images that no client has, and never on the test part
    seed: Whole = 1
    fixed: bool = False


@dataclass(frozen=True)
class Subset:
    """A fixed number of private images per client, one domain each (FCCL+) or all from one pool (RAHFL)."""
    kind = "subset"
    sizes: dict[str, Count]                           # printed client name -> images
    overlap: bool = False                             # clients of one domain draw independently
    beta: Positive | None = None                      # labels of a client follow Dir(beta) (RAHFL, supplement B)
    test: Literal["official", "index_mod_10", "random"] = "official"
    test_share: Fraction | None = None                # for test: random
    test_per_class: Count | None = None
    stratified: bool = False
    heldout: Count | None = None                      # labelled training images that no client gets, to compare clients by (RAHFL)
    seed: Whole = 0
    fixed: bool = False

    def __post_init__(self):
        if (self.test == "random") != (self.test_share is not None):
            raise ValueError("'test_share' belongs to 'test: random', which needs it")


Partition = Dirichlet | Pathological | Domains | Subset

# What a method may need of a scenario (methods.base.Method.needs), and which key gives it.
NEEDS = {
    "public data": "`public`, unlabelled images that all clients see",
    "one network": "`model`, one network for all clients; a method's row may give one",
    "projector": "`projector`, its width, in every network; a method's row may give it: `model: {projector: 1024}`",
    "held-out images": "`partition.heldout`, labelled training images that no client gets",
    "pixels in [0, 1]": "`data.normalise: none`",
}


@dataclass(frozen=True)
class Model:
    """A network of pipeline.models; the widths that the papers vary."""
    name: str
    features: Count | None = None                     # width of the representation, where the network has a choice
    dropout: Annotated[float, Range(low=0, high=0.99)] | None = None   # None: the network's own (0, EfficientNet 0.2)
    activation: Literal["relu", "none"] = "relu"      # after the representation layer (FedCRL names none, PFLlib has a ReLU)
    projector: Count | None = None                    # width of a projector of the representation (RAHFL's networks: 1024)


@dataclass(frozen=True)
class Optimiser:
    name: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.01
    momentum: Share = 0.0                             # SGD only
    weight_decay: NonNegative = 0.0

    def __post_init__(self):
        if self.name == "adam" and self.momentum:
            raise ValueError("momentum belongs to sgd, not to adam")


@dataclass(frozen=True)
class Training:
    rounds: Count
    batch_size: Count
    local_epochs: Count = 1
    optimiser: Optimiser = field(default_factory=Optimiser)
    drop_last: bool = False                           # skip a last incomplete batch
    averaging: Literal["uniform"] | None = None       # of models at the server; None: weighted by training samples n_k
    pretraining: Count | None = None                  # epochs that every client trains alone before round 1 (RAHFL)


@dataclass(frozen=True)
class Attack:
    """White-box attack on every test image, l_infinity in units of [0, 1] pixels: FGSM (one step of eps) and PGD."""
    eps: Positive
    step: Positive                                    # of PGD
    steps: Count
    random_start: bool = False


@dataclass(frozen=True)
class Evaluation:
    """What is measured after a round.

    tests: `clients` every client's own test part; `domains` every domain's test set, mean over domains;
    `pooled` the one test set of all domains; `cross` each client's model on every domain (intra and inter).
    """
    tests: Literal["clients", "domains", "pooled", "cross"]
    every: Count = 1                                  # rounds between evaluations; the last ones are always evaluated
    last: Count = 5                                   # the reported number is the mean over the last so many rounds
    top: Count = 1                                    # top-k accuracy
    hook: Literal["pre", "post"] | None = None        # which model the table scores, where it is not the method's own choice
    attack: Attack | None = None                      # adds the measures `fgsm` and `pgd` (FedCCL Table 8)


@dataclass(frozen=True)
class Scenario:
    """One column block of a table: data, partition, models, training and evaluation protocol."""
    data: Data
    partition: Partition
    training: Training
    evaluation: Evaluation
    model: Model | None = None                        # one network for all clients
    models: dict[str, Model] | None = None            # printed client name -> network (heterogeneous models)
    public: Public | None = None
    corruption: Share | None = None                   # share of the private images that are corrupted (RAHFL)
    arithmetic: Literal["portable"] | None = None     # portable: processors of different makers round alike, see pipeline.arithmetic
    seeds: list[Whole] = field(default_factory=lambda: [0, 1, 2])

    def __post_init__(self):
        if (self.model is None) == (self.models is None):
            raise ValueError("give either 'model' or 'models'")
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"'seeds' must be different whole numbers, found {self.seeds}")
        if self.models is not None and isinstance(self.partition, Subset) and set(self.models) != set(self.partition.sizes):
            raise ValueError(f"'models' names {sorted(self.models)}, 'partition.sizes' names {sorted(self.partition.sizes)}")

        if self.evaluation.attack is not None and self.data.normalise != "none":
            raise ValueError("'evaluation.attack' needs images in [0, 1]: set 'data.normalise' to none")

    def draw(self, seed: int) -> int:
        """Which draw of the partition a seed trains on: its own, or draw 0 where one serves all."""
        return 0 if self.partition.fixed else seed

    @property
    def draws(self) -> int:
        """Draws of the partition that the seeds train on."""
        return len(set(map(self.draw, self.seeds)))

    @property
    def networks(self) -> list[Model]:
        """Every client's network; one where all have the same."""
        return [self.model] if self.model else list(self.models.values())

    @property
    def offers(self) -> set[str]:
        """Those of NEEDS that it has."""
        has = {"public data": self.public is not None, "one network": len(set(self.networks)) == 1,
               "projector": all(model.projector for model in self.networks),
               "held-out images": bool(getattr(self.partition, "heldout", None)), "pixels in [0, 1]": self.data.normalise == "none"}
        return {need for need in NEEDS if has[need]}

    def with_networks(self, changes: object, where: str) -> "Scenario":
        """This scenario with `changes` (keys of Model) over the network of every client: {name: fedlsa}, {projector: 1024}."""
        def changed(model: Model) -> Model:
            given = {k: v for k, v in dataclasses.asdict(model).items() if v is not None}
            return check(Model, {**given, **changes} if isinstance(changes, dict) else changes, where)
        return dataclasses.replace(self, model=self.model and changed(self.model),
                                   models=self.models and {name: changed(model) for name, model in self.models.items()})


# -- the tables of a paper -----------------------------------------------------------------------------------

@dataclass(frozen=True)
class Block:
    """Which scenario fills one (setting, dataset) block of a table, and which of its measures."""
    scenario: str
    measure: str = ""                                 # prefix of every measure of the block, e.g. "inter."
    previous: str | None = None                       # scenario of the default setting: + better, - worse than there
    only: list[str] = field(default_factory=list)     # columns that it fills, printed or ours; empty: all


@dataclass(frozen=True)
class Table:
    """One table of the paper, in the paper's own shape: methods down, (setting, dataset, column) across.

    blocks   "<setting>|<dataset>" of the CSV -> what fills it; a row with a scenario of its own (other local epochs,
             another network) has a further key "<setting>|<dataset>|<printed method>"
    columns  printed column -> measure, where the names differ; null: printed, but nothing that a run measures
    rows     printed method -> key of `methods`, where it is not the label; null: a mean over the rows, not a method
    marks    what the paper prints beside its numbers, shown of the measured ones: `rank`, the three best of a column,
             `average`, better or worse than the row that is a mean
    remarks  printed method -> a footnote to its row
    also     heading -> measure of a column of ours behind the printed ones of every block
    hook     whether a column says which of a client's models each row scores
    """
    number: str                                       # as printed: "2", "III"
    title: str
    published: str                                    # CSV under published/
    blocks: dict[str, Block] = field(default_factory=dict)
    columns: dict[str, str | None] = field(default_factory=dict)
    rows: dict[str, str | None] = field(default_factory=dict)
    baseline: str | None = None                       # printed method that `delta` subtracts; null: each block's row without one
    marks: list[Literal["rank", "average"]] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    also: dict[str, str] = field(default_factory=dict)
    hook: bool = False
    note: str = ""

    def block(self, setting: str, dataset: str, method: str) -> Block | None:
        """What fills the cells of a printed method in a block; None where nothing of it is measured."""
        at = f"{setting}|{dataset}"
        return self.blocks.get(f"{at}|{method}", self.blocks.get(at))

    def measure(self, block: Block, column: str) -> str | None:
        """Name of the measure that a column of a block shows; None for `delta` and what no run measures. What a run
        costs (`run.`) has no prefix."""
        filled = column != DELTA and (not block.only or column in block.only)
        name = {**self.also, **self.columns}.get(column, column) if filled else None
        return name if name is None or name.startswith("run.") else block.measure + name


@dataclass(frozen=True)
class Figure:
    """A figure whose curves or points come from cells: which scenarios and methods it draws.

    kind: curves, measures over rounds; sweep, measures against a number that the cells differ in (of a method's: the first of
    `methods` is the one that the others vary); embedding, t-SNE of representations; sphere, their directions and lengths;
    margins, between class means; matrix, cross-correlations of the clients' logits; transfer, t-SNE of the first client's features
    of its own domain's and the next domain's test images; pairs, two measures of every method beside each other;
    clients, images per class and client; images, an example of every class and domain.
    """
    number: str
    title: str
    scenarios: list[str]
    methods: list[str] = field(default_factory=list)  # empty: every method that was run there
    kind: Literal["curves", "sweep", "embedding", "sphere", "margins", "matrix", "transfer", "pairs", "clients",
                  "images"] | None = None             # see above; null: not drawn
    # Of curves: columns of history.csv; of a sweep and of pairs: measures; empty: the headline.
    measures: list[str] = field(default_factory=list)
    window: Count = 1                                 # of curves: trailing mean over so many rounds
    over: list[str] = field(default_factory=list)     # of a sweep, a panel each: a number of the scenario (partition.beta) or of the method (tau)

    def __post_init__(self):
        if (self.kind == "sweep") != bool(self.over):
            raise ValueError("a figure of kind 'sweep' needs 'over', and no other has it")
        if self.kind == "pairs" and len(self.measures) != 2:
            raise ValueError("a figure of kind 'pairs' needs two 'measures'")


@dataclass(frozen=True)
class Grid:
    """Cells to run: every scenario with every method. `dvc.yaml` has one matrix stage per grid."""
    scenarios: list[str]
    methods: list[str]


@dataclass(frozen=True)
class Communication:
    """What the paper says that a client sends and receives in a round; shown beside what the methods count."""
    source: str                                       # where it says so, and its symbols
    counts: dict[str, str]                            # key of `methods` -> "2|θ|"


@dataclass(frozen=True)
class Source:
    """Where a value comes from: the paper (its place), released code (repository, file) or a choice of our own (its reason)."""
    paper: str = ""
    code: str = ""
    own: str = ""

    def __post_init__(self):
        if not (self.paper or self.code or self.own):
            raise ValueError("give 'paper', 'code' or 'own'")

    def __str__(self) -> str:
        named = (("", self.paper), ("released code: ", self.code), ("own choice: ", self.own))
        return "; ".join(name + text for name, text in named if text)


@dataclass(frozen=True)
class Sources:
    """Where the values of a paper.yaml come from.

    methods   row or algorithm -> hyper-parameter -> source; a row's own comes before its algorithm's
    settings  key of the scenarios ("training.rounds") -> source
    """
    methods: dict[str, dict[str, Source]] = field(default_factory=dict)
    settings: dict[str, Source] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """What is run where the paper says something else, says it twice or is silent (pipeline.readings.Reading), and in which cells."""
    paper: str
    run: str
    why: str
    option: str = ""
    methods: list[str] = field(default_factory=list)      # rows; empty: all
    scenarios: list[str] = field(default_factory=list)    # empty: all but the miniature


@dataclass(frozen=True)
class Paper:
    """papers/<paper>/paper.yaml: the paper as data."""
    name: str                                         # as the paper spells its method, for headings: "FCCL+"
    title: str
    authors: str
    reference: str
    idea: str                                         # one sentence
    order: Count                                      # its place on the pages
    scenarios: dict[str, Scenario]
    methods: dict[str, dict[str, Any]]                # key -> {algorithm?, label?, model?, hyper-parameters..., scenarios?}
    grids: dict[str, Grid]
    tables: dict[str, Table]
    figures: dict[str, Figure] = field(default_factory=dict)
    beside: list[str] = field(default_factory=list)   # scenarios that are in no table of the paper, such as cut-down ones; each has one of its own
    communication: Communication | None = None
    readings: list[Choice] = field(default_factory=list)   # of the paper; those of a method are in pipeline/methods/readings.yaml
    sources: Sources = field(default_factory=Sources)
    runs: Count = 1                                   # that a printed number is the mean of; 1 where the paper does not say
    titles: dict[str, str] = field(default_factory=dict)   # scenario -> what it is; apart from the scenario, so that
    notes: dict[str, str] = field(default_factory=dict)    # scenario -> deviations;  a changed word re-runs nothing
    defaults: Any = None                              # YAML anchors to merge into scenarios; not read

    def label(self, method: str) -> str:
        """The method's name as the paper's tables print it."""
        return (self.methods.get(method) or {}).get("label", method)

    def stage(self, cell: "Cell") -> str:
        """The DVC stage that makes a cell, as `dvc repro` takes it; empty where no grid holds it."""
        if cell.scenario == MINIATURE:
            return f"{cell.paper}@{cell.method}"
        if cell.scenario == ACROSS:
            return f"papers/across/dvc.yaml:{cell.paper}@{cell.method}"
        grid = next((name for name, g in self.grids.items() if cell.scenario in g.scenarios and cell.method in g.methods), None)
        if grid is None:
            return ""
        # A grid too big for one lock stands in a folder of its own.
        at = f"papers/{cell.paper}/full/dvc.yaml:main" if grid == "full" else f"papers/{cell.paper}/dvc.yaml:{grid}"
        return f"{at}@{cell.scenario}-{cell.method}"

    def method_of(self, table: Table, printed: str) -> str | None:
        """Key of the method in a printed row; None for a row that is a mean over the others, or an unknown one."""
        if printed in table.rows:
            return table.rows[printed]
        return next((key for key in self.methods if self.label(key) == printed), None)


@dataclass(frozen=True)
class Miniature:
    """A paper's protocol on the bundled digits, small enough for a laptop, and the methods it runs.

    others: methods of the other papers. Their cells have the scenario ACROSS, whose folders no stage of the root's dvc.yaml reads, so
    that `dvc repro` need not run them and the paper's own tables do not show them.
    """
    scenario: Scenario
    methods: list[str]
    others: list[str] = field(default_factory=list)

    def __post_init__(self):
        if twice := sorted({name for name in self.others if [*self.methods, *self.others].count(name) > 1}):
            raise ValueError(f"'others' holds {', '.join(twice)} twice, or beside 'methods'")


@dataclass(frozen=True)
class DataChoice:
    source: Literal["auto", "mirror", "canonical"] = "auto"   # for sets that are not bundled; auto: mirror, then canonical
    weights: Literal["pretrained", "untrained"] = "pretrained"   # of the frozen ViT-Ti/16; untrained: where its weights cannot be had


@dataclass(frozen=True)
class Params:
    """params.yaml: what a user tunes."""
    data: DataChoice
    miniature: dict[str, Miniature]


# -- loading -------------------------------------------------------------------------------------------------

def read_yaml(path: Path) -> dict:
    """One YAML mapping; a missing file, a syntax error or a repeated key is a ParamError naming file and line."""
    shown = shorten(path)
    try:
        return yaml.load(path.read_text(encoding="utf-8"), _UniqueKeys) or {}
    except FileNotFoundError:
        raise ParamError(f"{shown}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamError(f"{shown}: {' '.join(str(error).split())}") from None


class _UniqueKeys(yaml.SafeLoader):
    """safe_load that refuses a key given twice, which YAML would silently overwrite."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def shorten(path: Path) -> str:
    """A path as a user sees it: relative to the repository where it lies inside."""
    path = Path(path)
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


@cache
def load_params(root: Path = ROOT) -> Params:
    """params.yaml of the repository at `root`."""
    path = root / "params.yaml"
    return check(Params, read_yaml(path), f"{shorten(path)}:")


@cache
def load_paper(name: str, root: Path = ROOT) -> Paper:
    """papers/<name>/paper.yaml; the miniature of params.yaml is added as the scenario `mini`, and once more for `others`."""
    if name not in PAPERS:
        raise ParamError(unknown("paper", name, PAPERS))
    path = root / "papers" / name / "paper.yaml"
    paper = check(Paper, read_yaml(path), f"{shorten(path)}:")
    mini = load_params(root).miniature.get(name)
    if mini is not None:
        added = {MINIATURE: mini.scenario} | ({ACROSS: mini.scenario} if mini.others else {})
        paper = dataclasses.replace(paper, scenarios={**paper.scenarios, **added})
    for where, kind, item in _references(paper):
        known = paper.scenarios if kind == "scenario" else paper.methods
        if item not in known:
            raise ParamError(f"{shorten(path)}: {where}: {unknown(kind, item, known)}")
    for name in paper.sources.settings:
        if all(setting(scenario, name) is None for scenario in paper.scenarios.values()):
            raise ParamError(f"{shorten(path)}: sources.settings.{name}: no scenario has such a value")
    return paper


def planned(key: str, root: Path = ROOT) -> "list[Cell]":
    """Every cell of a paper that has a DVC stage: the miniature's, those of the paper's grids, the other papers' methods."""
    paper, mini = load_paper(key, root), load_params(root).miniature.get(key)
    cells = [Cell(key, MINIATURE, method) for method in (mini.methods if mini else [])]
    cells += [Cell(key, s, m) for grid in paper.grids.values() for s in grid.scenarios for m in grid.methods]
    cells += [Cell(key, ACROSS, method) for method in (mini.others if mini else [])]
    return list(dict.fromkeys(cells))


def setting(scenario: Scenario, name: str) -> Any:
    """`training.rounds` of a scenario; None where it has no such value."""
    return reduce(lambda part, key: getattr(part, key, None), name.split("."), scenario)


def _references(paper: Paper) -> Iterator[tuple[str, str, str]]:
    """(key, scenario or method, name) of every place in a paper.yaml that names a scenario or a method."""
    for kind, part in (("grids", paper.grids), ("figures", paper.figures)):
        for key, named in part.items():
            yield from ((f"{kind}.{key}.scenarios", "scenario", name) for name in named.scenarios)
            yield from ((f"{kind}.{key}.methods", "method", name) for name in named.methods)
    for key, table in paper.tables.items():
        yield from ((f"tables.{key}.blocks.{at}", "scenario", name) for at, block in table.blocks.items()
                    for name in (block.scenario, block.previous) if name is not None)
        yield from ((f"tables.{key}.rows.{row}", "method", name) for row, name in table.rows.items() if name is not None)
    for part in ("titles", "notes", "beside"):
        yield from ((part, "scenario", name) for name in getattr(paper, part))
    if paper.communication:
        yield from (("communication.counts", "method", name) for name in paper.communication.counts)
    for key, values in paper.methods.items():
        yield from ((f"methods.{key}.scenarios", "scenario", name) for name in (values or {}).get("scenarios", {}))
    for at, choice in enumerate(paper.readings):
        yield from ((f"readings[{at}].scenarios", "scenario", name) for name in choice.scenarios)
        yield from ((f"readings[{at}].methods", "method", name) for name in choice.methods)
    algorithms = {(values or {}).get("algorithm") for values in paper.methods.values()}
    yield from (("sources.methods", "method", name) for name in paper.sources.methods if name not in algorithms)


@dataclass(frozen=True)
class Cell:
    """A scenario and a method of a paper: the unit that DVC runs and caches."""
    paper: str
    scenario: str
    method: str

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """`fedcrl/mini/fedprox` -> Cell."""
        parts = text.split("/")
        if len(parts) != 3 or not all(parts):
            raise ParamError(f"cell {text!r}: expected <paper>/<scenario>/<method>, such as fedcrl/mini/fedprox")
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.paper}/{self.scenario}/{self.method}"

    @property
    def partition(self) -> str:
        """The scenario whose partition the cell trains on."""
        return MINIATURE if self.scenario == ACROSS else self.scenario

    def folder(self, root: Path = ROOT) -> Path:
        return root / "papers" / self.paper / "runs" / self.scenario / self.method

    def metrics(self, root: Path = ROOT) -> Path:
        return root / "papers" / self.paper / "metrics" / self.scenario / f"{self.method}.json"

    def representations(self, root: Path = ROOT) -> Path:
        """Apart from `runs/`, which is in git: reports must not depend on what a fresh clone lacks."""
        return root / "papers" / self.paper / "representations" / self.scenario / f"{self.method}.npz"

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        """(scenario, algorithm, hyper-parameters as written); raises ParamError for a name that is not there."""
        paper = load_paper(self.paper, root)
        file = f"papers/{self.paper}/paper.yaml"
        if self.scenario not in paper.scenarios:
            raise ParamError(f"{file}: {unknown('scenario', self.scenario, paper.scenarios)}")
        if self.method not in paper.methods:
            raise ParamError(f"{file}: {unknown('method', self.method, paper.methods)}")
        values = dict(paper.methods[self.method] or {})
        algorithm = values.pop("algorithm", self.method)
        values.pop("label", None)
        values |= values.pop("scenarios", {}).get(self.scenario, {})     # hyper-parameters that differ in a scenario
        scenario = paper.scenarios[self.scenario]
        if (network := values.pop("model", None)) is not None:           # a method with a network of its own
            scenario = scenario.with_networks(network, f"{file}: methods.{self.method}.model")
        return scenario, algorithm, values
