"""The shape of what a training records: a round, a finished seed, a cell's result.json, a tuning.

These are the mappings that JSON gives, with their keys and types. `Result` is the one table of result.json
fields: `pipeline.cells.results` checks files by it, `pipeline.training` writes it, and mypy knows every key
that a report reads. A `NotRequired` key is absent from results that were trained before it was recorded, and
if it has nothing to say. They are mappings, not classes, because a result is hashed, sealed and compared as
the document that it is.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pipeline.schema.checker import Count, Finite, NonNegative, Range, Whole

Percent = Annotated[float, Range(low=0, high=100)]
# name of a measure -> one value for each seed
Measures = dict[str, list[Finite]]
# One round, as a line of history.csv. Round, loss, participants and measures are numbers (None: not measured
# in this round); `state` is the digest of the state of server and clients.
Round = dict[str, Any]


class Data(TypedDict):
    """A data set as it was used."""

    set: str
    source: str
    digest: str
    # how it differs from the paper's, a sentence; empty if it does not
    deviation: str


class Traffic(TypedDict):
    """What a client sends (up) and receives (down) in a round, in scalars, and both in bytes."""

    up: NonNegative
    down: NonNegative
    bytes: NonNegative


class TrafficOfSeeds(TypedDict):
    """`Traffic` of each seed."""

    up: list[NonNegative]
    down: list[NonNegative]
    bytes: list[NonNegative]


class HoldingsOfSeed(TypedDict):
    """How many images, and how many classes, each client trains on."""

    images: list[Whole]
    classes: list[Whole]


class Holdings(TypedDict):
    """`HoldingsOfSeed` of each seed: (seeds, clients)."""

    images: list[list[Whole]]
    classes: list[list[Whole]]


class Memory(TypedDict):
    """The most memory that a seed took, in MiB: of its process, and on a GPU of what torch held there."""

    process_mb: Whole | None
    device_mb: Whole | None


class Digests(TypedDict):
    """What decides whether a result is today's: digests of the code, and the parameters."""

    definitions: dict[str, str]
    parameters: dict[str, Any]


class Commit(TypedDict):
    """The code in git."""

    commit: NotRequired[str]
    dirty: NotRequired[bool]
    # of a paper in a repository of its own
    paper_commit: NotRequired[str]
    paper_dirty: NotRequired[bool]


class Run(TypedDict):
    """A finished seed, as it lies in .cells/ until all seeds of its cell are finished."""

    # the digest that names the cell's folder in .cells/
    cell: str
    seed: Whole
    rows: list[Round]
    # accuracy of each client after the last round; None for a client without test images
    clients: list[Percent | None]
    # what a client sends and receives in a round, in scalars
    traffic: list[NonNegative]
    # whose models are scored: before (pre) or after (post) local training
    hook: Literal["pre", "post"]
    seconds: NonNegative
    memory: Memory
    versions: dict[str, str]
    device: str
    precision: str
    executor: str
    # when it was started, ISO 8601
    started: str
    # sha256 of the file of representations
    pictures: str
    holdings: NotRequired[HoldingsOfSeed]
    # accuracy on each class; None for a class without test images
    by_class: NotRequired[list[Percent | None]]
    # file of a module -> digest of what was loaded
    modules: NotRequired[dict[str, str]]
    # whether it comes from the committed result
    adopted: NotRequired[bool]
    # sha256 of the rest
    self: str


class UnfinishedSeed(TypedDict):
    """A checkpoint of a seed, between two rounds."""

    # of server and clients, packed by `pipeline.engine.state`
    state: Any
    rows: list[Round]
    # accuracy of each client, as in `Run`
    own: list[Percent | None]
    seconds: NonNegative


class Beginning(TypedDict):
    """A checkpoint of what is trained before round 1."""

    models: dict[str, Any]
    losses: list[Any]
    seconds: NonNegative


class Result(TypedDict):
    """result.json: everything that was measured of a cell."""

    cell: str
    paper: str
    scenario: str
    method: str
    # the method's name in the tables
    label: str
    # the method that runs, one for several rows of a table
    algorithm: str
    # hyper-parameters as the files have them
    hyper: dict[str, Any]
    seeds: list[Whole]
    rounds: Count
    # how many last rounds `measures` is the mean of
    last: Count
    # the measure that tables show
    headline: str
    hook: Literal["pre", "post"]
    measures: Measures
    # means over the last one, three and five rounds
    final: Measures
    last3: Measures
    last5: Measures
    # (seeds, clients), as in `Run`
    clients: list[list[Percent | None]]
    traffic: Traffic
    data: Data
    # the public data of methods that need them
    public: Data | None
    # digest of the first seed's inputs
    partition: str
    warnings: list[str]
    device: str
    precision: str
    executor: str
    versions: dict[str, str]
    seconds: list[NonNegative]
    started: str
    # digest of parameters, data and code, the name of the cell's folder in .cells/
    digest: str
    git: Commit
    # sha256 of the rest
    self: str
    # digest of the code that trained
    code: NotRequired[str]
    # digest of history.csv
    history: NotRequired[str]
    holdings: NotRequired[Holdings]
    # (seeds, classes), as in `Run`
    by_class: NotRequired[list[list[Percent | None]]]
    memory: NotRequired[dict[str, list[Whole | None]] | None]
    traffic_of_seeds: NotRequired[TrafficOfSeeds]
    # digests of the inputs of each seed, if each draws a partition of its own
    partitions: NotRequired[list[str]]
    # versions of each seed, if they differ
    machines: NotRequired[list[dict[str, Any]]]
    # hyper-parameters with the method's defaults
    resolved: NotRequired[dict[str, Any]]
    # how many clients take part in a round, if not all do
    participants: NotRequired[Whole]
    # how many clients are scored, if not all are
    sample: NotRequired[Count]
    modules: NotRequired[dict[str, str]]
    digests: NotRequired[Digests]


class Configuration(TypedDict):
    """A trial of a tuning: either its accuracies, or why it could not be trained."""

    # key -> value, where it differs from the method's row
    changes: dict[str, Any]
    # all hyper-parameters
    values: dict[str, Any]
    # the name of the trial's folder in .cells/
    digest: NotRequired[str]
    # of each seed
    accuracy: NotRequired[list[Percent]]
    seconds: NotRequired[list[NonNegative]]
    error: NotRequired[str]


class TuningResult(TypedDict):
    """papers/<paper>/tuning/<scenario>/<method>.json: what a tuning tried."""

    cell: str
    seeds: list[Whole]
    configurations: list[Configuration]
    # index of the best configuration
    chosen: int
    # sha256 of the rest
    self: str
