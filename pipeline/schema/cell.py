"""A cell, the unit that is trained and cached: a method in a scenario of a paper, or a tuned or varied
form of it."""

import dataclasses
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pipeline.errors import ParamError, unknown
from pipeline.schema.checker import Positive, Spelling, check
from pipeline.schema.discovery import functions
from pipeline.schema.documents import ROOT
from pipeline.schema.loader import load_paper
from pipeline.schema.paper import ACROSS, MINIATURE, MINIATURES, Grid, Paper
from pipeline.schema.scenario import Scenario

# Other values than the row's, by hyper-parameter; RATE is the learning rate of the scenario's optimiser.
Changes = tuple[tuple[str, Any], ...]
RATE = "learning_rate"
# Parts of a scenario of which a variant may change values; others would need another partition.
CHANGEABLE = ("training", "evaluation")


def planned(key: str, root: Path = ROOT) -> "list[Cell]":
    """All cells of a paper that have a DVC stage: of the miniature, of its grids, and other papers'
    methods."""
    paper = load_paper(key, root)
    miniature = paper.miniature
    cells = [Cell(key, MINIATURE, method) for method in (miniature.methods if miniature else [])]
    cells += _of_grids(key, paper.grids.values())
    cells += [Cell(key, ACROSS, method) for method in (miniature.others if miniature else [])]
    return list(dict.fromkeys(cells))


def printed(key: str, root: Path = ROOT) -> "list[Cell]":
    """The cells of a paper's grids, without those that its tables do not show."""
    paper = load_paper(key, root)
    cells = _of_grids(key, (grid for grid in paper.grids.values() if not grid.supplementary))
    return list(dict.fromkeys(cell for cell in cells if cell.scenario not in paper.extra_scenarios))


def _of_grids(key: str, grids: Iterable[Grid]) -> "list[Cell]":
    return [
        Cell(key, scenario, method)
        for grid in grids
        for scenario in grid.scenarios
        for method in grid.methods
    ]


@dataclass(frozen=True)
class Cell:
    """A method in a scenario of a paper: the unit that DVC runs and caches."""

    paper: str
    scenario: str
    method: str

    @classmethod
    def parse(cls, text: str) -> "Cell":
        """`fedcrl/mini/fedprox` -> Cell."""
        parts = text.split("/")
        if len(parts) != 3 or any(map(Spelling().problem, parts)):
            raise ParamError(
                f"cell {text!r:.80}: expected <paper>/<scenario>/<method>, such as fedcrl/mini/fedprox"
            )
        return cls(*parts)

    def __str__(self) -> str:
        return f"{self.paper}/{self.scenario}/{self.method}"

    @property
    def partition(self) -> str:
        """The scenario whose partition the cell trains on."""
        return MINIATURE if self.scenario == ACROSS else self.scenario

    def folder(self, root: Path = ROOT) -> Path:
        return root / "papers" / self.paper / "runs" / self.scenario / self.method

    def representations(self, root: Path = ROOT) -> Path:
        """The file of the cell's representations. It is outside `runs/` because it is not in git."""
        return root / "papers" / self.paper / "representations" / self.scenario / f"{self.method}.npz"

    def final_models(self, root: Path = ROOT) -> Path:
        """The folder of the models that a scenario with `keep: models` keeps; it is in DVC, not in git."""
        return root / "papers" / self.paper / "final-models" / self.scenario / self.method

    def stage(self, paper: Paper) -> str:
        """The DVC stage that trains the cell, as `dvc repro` accepts it; empty if no grid contains the
        cell."""
        if self.scenario in MINIATURES:
            return f"papers/{self.paper}/dvc.yaml:{self.scenario}@{self.method}"
        for name, grid in paper.grids.items():
            if self.scenario in grid.scenarios and self.method in grid.methods:
                folder = name if grid.separate_file else "grids"
                return f"papers/{self.paper}/{folder}/dvc.yaml:{name}@{self.scenario}-{self.method}"
        return ""

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        """(scenario, algorithm, hyper-parameters as written); ParamError for an unknown name."""
        paper = load_paper(self.paper, root)
        name = self.paper, self.scenario, self.method
        networks = functions(self.paper, "models", root)
        known = _READ.get(name)
        if known is None or known[0] is not paper or known[1] != networks:
            scenario, values = self._read(paper)
            _READ[name] = paper, networks, scenario.with_networks_of(self.paper, networks), values
        *_, scenario, values = _READ[name]
        return scenario, paper.algorithm(self.method), dict(values)

    def _read(self, paper: Paper) -> tuple[Scenario, dict]:
        """The scenario with the row's network, and the row's hyper-parameters."""
        file = f"papers/{self.paper}/paper.yaml"
        if self.scenario not in paper.scenarios:
            raise ParamError(f"{file}: {unknown('scenario', self.scenario, paper.scenarios)}")
        if self.method not in paper.methods:
            raise ParamError(f"{file}: {unknown('method', self.method, paper.methods)}")
        values = dict(paper.methods[self.method])
        for name in ("algorithm", "label"):
            values.pop(name, None)
        # These hyper-parameters differ in some scenarios.
        values |= values.pop("scenarios", {}).get(self.scenario, {})
        scenario = paper.scenarios[self.scenario]
        if (network := values.pop("model", None)) is not None:  # the row names a network
            scenario = scenario.with_networks(network, f"{file}: methods.{self.method}.model")
        return scenario, values


# (paper, scenario, method) -> what a paper.yaml, as it was read, says of it with the networks of the paper's
# folder: each cell is asked for some times by `fedrepro status`.
_READ: dict[tuple[str, str, str], tuple[Paper, frozenset[str], Scenario, dict]] = {}


@dataclass(frozen=True)
class Seeded(Cell):
    """A cell with other seeds than its scenario's; with the cell's partition and parameters."""

    seeds: tuple[int, ...]

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        scenario, algorithm, hyper = super().resolve(root)
        return dataclasses.replace(scenario, seeds=list(self.seeds)), algorithm, hyper


@dataclass(frozen=True)
class ExtraSeeds(Seeded):
    """A cell with seeds that a user chooses. Its files lie outside `runs/` and are not in git, so that no
    table shows them; a seed that paper.yaml asks for later is not trained again."""

    @property
    def base(self) -> Cell:
        """The cell with its scenario's seeds."""
        return Cell(self.paper, self.scenario, self.method)

    @property
    def partition(self) -> str:
        return f".extra-seeds/{super().partition}"

    def folder(self, root: Path = ROOT) -> Path:
        return root / "papers" / self.paper / "extra-seeds" / self.scenario / self.method

    def representations(self, root: Path = ROOT) -> Path:
        return self.folder(root) / "representations.npz"


@dataclass(frozen=True)
class Tuned(Cell):
    """A cell of `base`'s method with the values that tuning chose. Its files do not lie in `runs/`, on
    which stages of the paper's dvc.yaml depend: those must not need the tuning.

    seeds: all on the first draw of the partition, where the tuning was; none: the scenario's.
    """

    base: Cell
    changes: Changes
    seeds: tuple[int, ...] = ()

    @classmethod
    def of(cls, base: Cell, changes: Changes, **more: Any) -> Self:
        """Named after `base`: fedcrl/mini/fedprox -> fedcrl/mini-tuned/fedprox."""
        return cls(base.paper, f"{base.scenario}-{cls.__name__.lower()}", base.method, base, changes, **more)

    @property
    def partition(self) -> str:
        return self.base.partition

    def folder(self, root: Path = ROOT) -> Path:
        return root / "papers" / self.paper / "tuning" / self.scenario / self.method

    def stage(self, paper: Paper) -> str:
        kind = type(self).__name__.lower()
        return f"papers/{self.paper}/tuning/dvc.yaml:{kind}-{self.base.scenario}@{self.method}"

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        scenario, algorithm, hyper = self.base.resolve(root)
        changes = dict(self.changes)
        if RATE in changes:
            rate = check(Positive, changes.pop(RATE), f"{self.base}: tuning: changes.{RATE}")
            optimiser = dataclasses.replace(scenario.training.optimiser, lr=rate)
            training = dataclasses.replace(scenario.training, optimiser=optimiser)
            scenario = dataclasses.replace(scenario, training=training)
        if self.seeds:
            partition = dataclasses.replace(scenario.partition, fixed=True)
            scenario = dataclasses.replace(scenario, seeds=list(self.seeds), partition=partition)
        return scenario, algorithm, hyper | changes


@dataclass(frozen=True)
class Published(Tuned):
    """A cell with its row's values, to compare with what was tuned: same seeds, same draw."""


@dataclass(frozen=True)
class Swept(Tuned):
    """A cell with a value that a user tries. Its files are not in git, so that no table shows them."""

    def folder(self, root: Path = ROOT) -> Path:
        values = ",".join(f"{name}={value}" for name, value in self.changes)
        return root / "papers" / self.paper / "sweeps" / self.base.scenario / self.method / values

    def representations(self, root: Path = ROOT) -> Path:
        return self.folder(root) / "representations.npz"


@dataclass(frozen=True)
class Variant(Tuned):
    """A cell with values and seeds that a user sets for a comparison. Its files are not in git, so that no
    table shows them.

    changes: by key, of `training.`, `evaluation.` or `method.`, such as `training.local_epochs`
    seeds: the user's, each on its draw of the partition
    """

    @property
    def partition(self) -> str:
        return f".extra-seeds/{self.base.partition}"

    def folder(self, root: Path = ROOT) -> Path:
        values = ",".join(f"{name}={value}" for name, value in self.changes)
        return root / "papers" / self.paper / "sweeps" / self.base.scenario / self.method / values

    def representations(self, root: Path = ROOT) -> Path:
        return self.folder(root) / "representations.npz"

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        scenario, algorithm, hyper = self.base.resolve(root)
        scenario = dataclasses.replace(scenario, seeds=list(self.seeds))
        for key, value in self.changes:
            part, _, name = key.partition(".")
            if part == "method" and name:
                hyper = hyper | {name: value}
            elif part in CHANGEABLE and name:
                changed = _with(getattr(scenario, part), name, value, f"{self.base}: --set {part}")
                scenario = dataclasses.replace(scenario, **{part: changed})
            else:
                known = ", ".join(f"{name}.<key>" for name in (*CHANGEABLE, "method"))
                raise ParamError(f"{self.base}: --set {key}: expected {known}")
        return scenario, algorithm, hyper


def _with(values: Any, key: str, value: Any, where: str) -> Any:
    """A dataclass of the schema with another value under `local_epochs` or `optimiser.lr`, checked."""
    name, _, rest = key.partition(".")
    kinds = typing.get_type_hints(type(values), include_extras=True)
    if name not in kinds:
        raise ParamError(f"{where}: {unknown('key', name, kinds)}")
    if rest:
        below = getattr(values, name)
        if not dataclasses.is_dataclass(below):
            raise ParamError(f"{where}.{name}: has no key {rest!r}")
        return dataclasses.replace(values, **{name: _with(below, rest, value, f"{where}.{name}")})
    return dataclasses.replace(values, **{name: check(kinds[name], value, f"{where}.{name}")})


@dataclass(frozen=True)
class Trial(Tuned):
    """A configuration that is tried: trained with the seeds of the tuning on a part of every client's
    training images, and scored by each client's model on the rest of its images."""

    number: int = field(kw_only=True)

    def __str__(self) -> str:
        return f"{super().__str__()}, configuration {self.number}"

    @property
    def partition(self) -> str:
        return f"{self.base.partition}-trial"

    def resolve(self, root: Path = ROOT) -> tuple[Scenario, str, dict]:
        scenario, algorithm, hyper = super().resolve(root)
        evaluation = dataclasses.replace(scenario.evaluation, tests="clients", attack=None)
        partition = self.base.resolve(root)[0].partition  # each seed on its draw
        return dataclasses.replace(scenario, evaluation=evaluation, partition=partition), algorithm, hyper
