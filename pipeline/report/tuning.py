"""Every tuned method: its accuracy as published and after tuning, what was chosen, and how much its
hyper-parameters matter."""
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

from pipeline.cells import choices, provenance
from pipeline.cells.results import Summary, of_tuning, summarise
from pipeline.errors import FedReproError
from pipeline.report.study import Study
from pipeline.schema import MINIATURES, ROOT, Cell


@dataclass(frozen=True)
class Tuning:
    """One method of a scenario. Accuracies in percent: `published` and `tuned` on test images (the headline
    measure over the seeds; None where the cell was not run), the others on validation images."""
    cell: Cell
    published: Summary | None             # with the values of its row in paper.yaml
    tuned: Summary | None                 # with the chosen values, of the same seeds
    values: dict[str, float | str | None]
    kept: bool                            # whether the chosen values are the row's own
    configurations: list[float | None]    # validation accuracy of each, the row's own first; None: diverged
    older: bool = False                   # whether either was made by other code or parameters than today's

    @property
    def _trained(self) -> list[float]:
        return [mean for mean in self.configurations if mean is not None]

    @property
    def spread(self) -> float | None:
        """Standard deviation over the configurations (ddof 1), in points; None of a single one."""
        return stdev(self._trained) if len(self._trained) > 1 else None

    @property
    def diverged(self) -> int:
        """Configurations whose training did not stay finite; `spread` does not have them."""
        return len(self.configurations) - len(self._trained)


def tunings(root: Path = ROOT, cells: Iterable[Cell] | None = None) -> tuple[list[Tuning], list[str]]:
    """Every method that was tuned, of all cells or of these, in the order of the paths, and a line for each
    file that was altered."""
    found, problems = [], []
    for cell in choices.found(root) if cells is None else cells:
        try:
            found.append(_tuning(cell, root))
        except FedReproError as error:
            problems.append(str(error))
    return found, problems


def after_tuning(study: Study) -> tuple[dict[str, dict[str, Summary]], list[str]]:
    """(title of a scenario -> label of a method -> its accuracy with the chosen values, best first; lines as
    `tunings`), of the paper's scenarios but for its miniatures."""
    numbers: dict[str, dict[str, Summary]] = {}
    found, problems = tunings(study.root, (cell for cell in choices.found(study.root)
                                           if cell.paper == study.key and cell.scenario not in MINIATURES))
    for one in found:
        if one.tuned:
            title, name = study.title(one.cell.scenario), study.paper.label(one.cell.method)
            numbers.setdefault(title, {})[name] = one.tuned
    return {title: best_first(some) for title, some in numbers.items()}, problems


def best_first(numbers: dict[str, Summary]) -> dict[str, Summary]:
    """Accuracies of methods, the highest first."""
    return dict(sorted(numbers.items(), key=lambda item: -item[1].mean))


def _tuning(cell: Cell, root: Path) -> Tuning:
    document, results = choices.read(cell, root), of_tuning(cell, root)
    chosen = document["configurations"][document["chosen"]]
    pair = [find(cell, root) for find in (choices.published, choices.tuned)]
    before, after = map(results.get, pair)
    if before and after and before["seeds"] != after["seeds"]:           # one is from before a change of them
        after = None
    return Tuning(
        cell,
        _headline(before),
        _headline(after),
        chosen["values"],
        not chosen["changes"],
        choices.means(document["configurations"]),
        any(one in results and not provenance.current(results[one], one, root) for one in pair),
    )


def _headline(result: dict | None) -> Summary | None:
    return None if result is None else summarise(result["measures"][result["headline"]])
