"""Dataclasses of papers/<paper>/paper.yaml: scenarios, methods, grids, tables and figures."""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from pipeline.schema.checker import Count, FileName, Name, Whole
from pipeline.schema.scenario import Scenario, check_seeds

# the name of the scenario that every paper's miniature becomes
MINIATURE = "mini"
# the same scenario, when a method of another paper runs in it
ACROSS = "across"
# their names besides those of tables
LISTED = {MINIATURE: "miniature", ACROSS: "across papers"}
MINIATURES = (*LISTED,)


def scenario_key(name: str) -> str:
    """The key of a scenario in paper.yaml."""
    return "miniature.scenario" if name in MINIATURES else f"scenarios.{name}"


DELTA = "delta"  # the printed column that subtracts the baseline's row
# Kinds of figures that are computed from a cell's representations.
Computed = Literal["embedding", "sphere", "margins", "matrix", "transfer", "corruptions"]
COMPUTED = get_args(Computed)
# Columns of published/*.csv.
PUBLISHED = ["paper", "table", "setting", "dataset", "column", "method", "value", "std", "note"]
# A number in them.
NUMBER = r"[+-]?\d{1,15}(?:\.\d{1,15})?"
# of "why do numbers differ" on a paper's page
MOST_POINTS, MOST_WORDS = 5, 40
# the kind that is drawn from a scenario's data
PICTURE = "images"


@dataclass(frozen=True)
class Block:
    """Which scenario, and which of its measures, fills one (setting, dataset) block of a table."""

    scenario: str
    # prefix of every measure of the block, e.g. "inter."
    measure: str = ""
    # columns that it fills, printed or ours; empty: all
    only: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Table:
    """One table of the paper, in its shape: methods down, (setting, dataset, column) across.

    blocks   "<setting>|<dataset>" of the CSV -> what fills it; a row with another scenario (other local
             epochs, another network) has a further key "<setting>|<dataset>|<printed method>"
    columns  printed column -> measure, where the names differ; null: printed, but nothing that a run measures
    rows     printed method -> key of `methods`, where it is not the label; null: a mean over the rows, not a
             method
    also     heading -> measure of a column of ours behind the printed ones of every block
    """

    number: str  # as printed: "2", "III"
    title: str
    published: FileName  # CSV under published/
    blocks: dict[str, Block] = field(default_factory=dict)
    columns: dict[str, str | None] = field(default_factory=dict)
    rows: dict[str, str | None] = field(default_factory=dict)
    baseline: str | None = None  # printed method that `delta` subtracts; null: each block's row without one
    also: dict[str, str] = field(default_factory=dict)
    note: str = ""

    def block(self, setting: str, dataset: str, method: str) -> Block | None:
        """What fills the cells of a method in a block; None if nothing of it is measured."""
        at = f"{setting}|{dataset}"
        return self.blocks.get(f"{at}|{method}", self.blocks.get(at))

    def measure(self, block: Block, column: str) -> str | None:
        """The name of the measure that a column of a block shows; None for `delta` and for what no run
        measures.

        Costs of a run (`run.`) and a paper's metrics (`metric.`) have no prefix. The prefix of another model
        of the clients (`pre.AVG`) comes before that of the block: `pre.inter.AVG`.
        """
        filled = column != DELTA and (not block.only or column in block.only)
        name = {**self.also, **self.columns}.get(column, column) if filled else None
        if name is None or name.startswith(("run.", "metric.")):
            return name
        hook, dot, rest = name.partition(".") if name.startswith(("pre.", "post.")) else ("", "", name)
        return f"{hook}{dot}{block.measure}{rest}"


@dataclass(frozen=True)
class Figure:
    """A figure whose curves or points come from cells: which scenarios and methods it draws.

    kind is one of
    - curves: measures over rounds
    - sweep: measures against a number in which the cells differ; if it is a number of a method, the first of
      `methods` is the one that the others vary
    - embedding: t-SNE of representations
    - sphere: directions and lengths of representations
    - margins: distances between the clients' class means, and what the server sends for each class
    - matrix: cross-correlations of the clients' logits
    - transfer: t-SNE of the first client's features, of test images of its own domain and of the next one
    - corruptions: accuracy by corruption and by severity
    - pairs: two measures of every method
    - clients: number of images of each class at each client
    - images: an example of every class and domain
    """

    number: str
    title: str
    scenarios: list[str]
    methods: list[str] = field(default_factory=list)  # empty: every method that was run there
    # See above; null: not drawn.
    kind: Literal[Computed, "curves", "sweep", "pairs", "clients", "images"] | None = None
    # Of curves: columns of history.csv; of a sweep and of pairs: measures; empty: the headline.
    measures: list[str] = field(default_factory=list)
    window: Count = 1  # of curves: trailing mean over so many rounds
    # Of a sweep, with a panel each: a number of the scenario (partition.beta) or of the method (tau).
    over: list[str] = field(default_factory=list)
    function: Name | None = None  # of the paper's figures.py, which draws it instead of a kind

    def __post_init__(self) -> None:
        if self.kind and self.function:
            raise ValueError("give either 'kind' or 'function'")
        if (self.kind == "sweep") != bool(self.over):
            raise ValueError("a figure of kind 'sweep' needs 'over', and no other has it")
        if self.kind == "pairs" and len(self.measures) != 2:
            raise ValueError("a figure of kind 'pairs' needs two 'measures'")


@dataclass(frozen=True)
class Grid:
    """Cells to run: every scenario with every method. `dvc.yaml` has one matrix stage for each grid.

    separate_file: put the grid into a folder and a dvc.yaml of its own, for a grid that is too large for the
        paper's lock file and for `dvc repro papers/<paper>/dvc.yaml`
    supplementary: the paper does not compare these methods; the cells belong to none of its tables
    """

    scenarios: list[str]
    methods: list[str]
    separate_file: bool = False
    supplementary: bool = False


@dataclass(frozen=True)
class Communication:
    """What a client sends and receives in a round according to the paper; reports compare it with our
    count."""

    # where it says so, and its symbols
    source: str
    # key of `methods` -> "2|θ|"
    counts: dict[str, str]


@dataclass(frozen=True)
class Source:
    """Where a value comes from: the paper, released code (repository and file), or our choice (with its
    reason)."""

    paper: str = ""
    code: str = ""
    choice: str = ""

    def __post_init__(self) -> None:
        if not (self.paper or self.code or self.choice):
            raise ValueError("give 'paper', 'code' or 'choice'")

    def __str__(self) -> str:
        named = (("", self.paper), ("released code: ", self.code), ("our choice: ", self.choice))
        return "; ".join(name + text for name, text in named if text)


@dataclass(frozen=True)
class Sources:
    """Where the values of a paper.yaml come from.

    methods   row or algorithm -> hyper-parameter -> source; a row's comes before its algorithm's
    settings  key of the scenarios ("training.rounds") -> source
    """

    methods: dict[str, dict[str, Source]] = field(default_factory=dict)
    settings: dict[str, Source] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A reading: what runs if the paper says something else, contradicts itself or is silent, and in which
    cells."""

    paper: str
    run: str
    why: str
    option: str = ""
    # rows; empty: all
    methods: list[str] = field(default_factory=list)
    # empty: all but the miniature
    scenarios: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Miniature:
    """A paper's protocol on the bundled digits, small enough for a laptop, and the methods that run in it.

    others: methods of other papers, or of none. They run as scenario ACROSS. No stage of the root's dvc.yaml
        reads their results, so `dvc repro` does not run them, and the paper's tables do not show them.
    """

    scenario: Scenario
    methods: list[str]
    others: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if twice := sorted({name for name in self.others if [*self.methods, *self.others].count(name) > 1}):
            raise ValueError(f"'others' holds {', '.join(twice)} twice, or also in 'methods'")


@dataclass(frozen=True)
class Tuning:
    """Which methods of a scenario are tuned.

    Each method tries `configurations` configurations with `seeds`, first the values of its row. The clients'
    validation images decide (pipeline.training.tuning).

    test_seeds: seeds with which the row's values and the chosen values are then trained, all on the first
        draw of the partition; empty: the chosen values are trained with the scenario's seeds, next to its
        cells
    """

    configurations: Count
    seeds: list[Whole]
    methods: list[str]
    test_seeds: list[Whole] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.test_seeds:
            check_seeds(self.test_seeds, "test_seeds")


@dataclass(frozen=True)
class Links:
    """Addresses for the pages: of the paper (DOI or arXiv), and of its authors' code where there is any."""

    paper: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        if wrong := [link for link in (self.paper, self.code) if link and not link.startswith("https://")]:
            raise ValueError(f"{wrong[0]!r} is no address that begins with https://")


@dataclass(frozen=True)
class Answer:
    """A question at the top of a paper's page. The answer is computed from the results, never written by
    hand.

    question: as a reader would ask it
    claim: id in claims.csv of the claim whose comparison answers it
    control: the claim's control that answers instead: "same network", "tuned alike", "same scored model" or
        the heading of another setting; empty: the claim itself
    scenario: another scenario in which the claim's methods are compared; empty: the claim's
    experiment: name of a file in experiments/, whose first row is compared with its best control instead
    """

    question: str
    claim: str
    control: str = ""
    scenario: str = ""
    experiment: str = ""

    def __post_init__(self) -> None:
        given = [bool(self.control), bool(self.scenario), bool(self.experiment)]
        if sum(given) > 1:
            raise ValueError("give one of 'control', 'scenario' and 'experiment'")


@dataclass(frozen=True)
class Findings:
    """What is asked of a paper's results besides its claims.

    same_network: row -> the row of the same method with the network of the paper's method
    looks: scenario -> number of seeds each time its results were looked at; a scenario that is not named was
        looked at once
    answers: the questions at the top of the page, in order
    """

    same_network: dict[Name, Name] = field(default_factory=dict)
    looks: dict[Name, list[Count]] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)


@dataclass(frozen=True)
class Paper:
    """papers/<paper>/paper.yaml: the paper as data."""

    name: str  # as the paper spells its method, for headings: "FCCL+"
    title: str
    authors: str
    reference: str
    # one sentence
    idea: str
    # its place on the pages
    order: Count
    scenarios: dict[Name, Scenario]
    # key -> {algorithm?, label?, model?, hyper-parameters..., scenarios?, sweep?}; a sweep's values hold in
    # every scenario and end the label
    methods: dict[Name, dict[str, Any]]
    grids: dict[Name, Grid]
    tables: dict[Name, Table]
    figures: dict[Name, Figure] = field(default_factory=dict)
    links: Links = field(default_factory=Links)
    # Scenarios that are in no table of the paper, such as smaller ones; each gets a table.
    extra_scenarios: list[str] = field(default_factory=list)
    miniature: Miniature | None = None
    tuning: dict[Name, Tuning] = field(default_factory=dict)  # scenario -> what is tuned there
    communication: Communication | None = None
    # Readings of this paper; those of a method are in pipeline/methods/readings.yaml.
    readings: list[Choice] = field(default_factory=list)
    sources: Sources = field(default_factory=Sources)
    # Ids of the four to six claims of claims.csv that matter most to the paper, the first the most.
    main: list[str] = field(default_factory=list)
    # What the pages ask of the results, and which controls a claim has.
    findings: Findings = field(default_factory=Findings)
    # Why numbers differ from the printed ones: at most five points, `{method measure}` for a measured number.
    why: list[str] = field(default_factory=list)
    runs: Count = 1  # that a printed number is the mean of; 1 where the paper does not say
    # scenario -> its title; no part of the scenario, so that a changed word re-runs nothing.
    titles: dict[str, str] = field(default_factory=dict)
    # scenario -> deviations from the paper, a point each, or one as plain text.
    notes: dict[str, str | list[str]] = field(default_factory=dict)
    defaults: Any = None  # YAML anchors to merge into scenarios; not read

    def __post_init__(self) -> None:
        if len(self.why) > MOST_POINTS or any(len(text.split()) >= MOST_WORDS for text in self.why):
            raise ValueError(f"'why' holds at most {MOST_POINTS} points of under {MOST_WORDS} words each")

    def points(self, scenario: str) -> list[str]:
        """The notes on a scenario; empty if there are none."""
        noted = self.notes.get(scenario, [])
        return [noted] if isinstance(noted, str) else noted

    def label(self, method: str) -> str:
        """The method's name as in the paper's tables."""
        return self.methods.get(method, {}).get("label", method)

    def algorithm(self, method: str) -> str:
        """The name of the method's file, which several rows may share."""
        return self.methods[method].get("algorithm", method)

    def method_of(self, table: Table, printed: str) -> str | None:
        """The key of the method in a row of a table; None for a mean over other rows, or an unknown
        method."""
        if printed in table.rows:
            return table.rows[printed]
        return next((key for key in self.methods if self.label(key) == printed), None)
