"""Declared experiments: what is compared, with which seeds and at which level, written down before the
training.

They are papers/<paper>/experiments/*.yaml, one file for each question. A comparison is planned if its rows
and seeds are in such a file. Any other comparison is exploratory, because someone may have looked for it in
the results.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.cells.documents import Result
from pipeline.errors import ParamError, unknown
from pipeline.schema import ROOT, Cell, Count, Positive, Share, Whole, check, load_paper, read_yaml
from pipeline.schema.checker import Name
from pipeline.schema.documents import shorten, visible
from pipeline.schema.scenario import check_seeds

# The error rate over all looks at a result.
ALPHA = 0.05
# Looks at one result -> the level of each that keeps ALPHA over all, two-sided (Pocock 1977, Table 1).
POCOCK = {1: 0.05, 2: 0.0294, 3: 0.0221, 4: 0.0182, 5: 0.0158}


@dataclass(frozen=True)
class Declaration:
    """One experiment.

    question         what it answers, in a sentence
    scenario         where all rows are trained
    rows             methods that the question is about
    seeds            of every row and control, in all
    controls         methods that they are compared with
    measure          that is compared
    looks            how often the results are looked at
    alpha            error rate over all looks
    smallest_effect  the smallest difference that matters, in the measure's unit; the printed one where there
                     is one
    seen             row or control -> seeds whose numbers were known when it was declared
    diverged         row or control -> seeds whose training ended with a loss that is not finite
    """

    question: str
    scenario: Name
    rows: list[Name]
    seeds: list[Whole]
    smallest_effect: Positive
    controls: list[Name] = field(default_factory=list)
    measure: str = "average"
    looks: Count = 1
    alpha: Share = ALPHA
    seen: dict[Name, list[Whole]] = field(default_factory=dict)
    diverged: dict[Name, list[Whole]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError("'question' is empty")
        if not self.rows:
            raise ValueError("'rows' is empty")
        check_seeds(self.seeds, "seeds")
        if twice := {name for name in self.methods if self.methods.count(name) > 1}:
            raise ValueError(f"'rows' and 'controls' hold {min(twice)} twice")
        for key in ("seen", "diverged"):
            for name, seeds in getattr(self, key).items():
                if name not in self.methods:
                    raise ValueError(f"'{key}': {unknown('row', name, self.methods)}")
                if set(seeds) - set(self.seeds):
                    raise ValueError(f"'{key}.{name}' has seeds that 'seeds' lacks")
        if self.looks not in POCOCK:
            raise ValueError(f"'looks' is at most {max(POCOCK)}")
        if self.looks > 1 and self.alpha != ALPHA:
            raise ValueError(f"with several looks 'alpha' is {ALPHA}")

    @property
    def methods(self) -> list[str]:
        return [*self.rows, *self.controls]

    @property
    def level(self) -> float:
        """At which each look is tested."""
        return POCOCK[self.looks] if self.looks > 1 else self.alpha

    def covers(self, scenario: str, methods: Collection[str], measure: str) -> bool:
        """Whether a comparison of these methods was planned: one of them at least is a row."""
        known = set(self.methods)
        asked = any(method in self.rows for method in methods)
        return (scenario, measure) == (self.scenario, self.measure) and asked and known.issuperset(methods)

    def new_seeds(self, methods: Collection[str]) -> list[int]:
        """The seeds in which a comparison of these methods was not known when it was declared: in which one
        of them at least was not seen."""
        known = [set(self.seen.get(method, [])) for method in methods]
        return [seed for seed in self.seeds if not all(seed in seeds for seeds in known)]


def level_of(looks: int) -> float:
    """At which a result that was looked at so often is tested; more looks than the table has get its last."""
    return POCOCK[min(looks, max(POCOCK))]


def declarations(paper: str, root: Path = ROOT) -> dict[str, Declaration]:
    """Name of the file without its ending -> the experiment, in the order of the names. ParamError names file
    and key of what is wrong."""
    known = load_paper(paper, root)
    found = {}
    for path in visible(root, f"papers/{paper}/experiments/*.yaml"):
        where = f"{shorten(path)}:"
        declared: Declaration = check(Declaration, read_yaml(path), where)
        if declared.scenario not in known.scenarios:
            raise ParamError(f"{where} scenario: {unknown('scenario', declared.scenario, known.scenarios)}")
        for key in ("rows", "controls"):
            for name in getattr(declared, key):
                if name not in known.methods:
                    raise ParamError(f"{where} {key}: {unknown('method', name, known.methods)}")
        found[path.stem] = declared
    return found


def missing_seeds(paper: str, declared: Declaration, results: dict[Cell, Result]) -> dict[Cell, list[int]]:
    """Cell -> the declared seeds that its result lacks, in the order of rows and controls."""
    lacking = {}
    for method in declared.methods:
        cell = Cell(paper, declared.scenario, method)
        result = results.get(cell)
        trained = result["seeds"] if result else []
        missing = [seed for seed in declared.seeds if seed not in trained]
        if missing:
            lacking[cell] = missing
    return lacking
