"""Look up a measure of a run by its name: accuracies, statistics of its curve, costs, and values of figures.

`numbers` gives a measure for each seed. The names are those that paper.yaml and claims.csv use:

average, clean.AVG, ...  a measure of result.json
rounds.10-100.average    mean over the evaluated rounds 10 to 100 of a column of history.csv
changes.average          how unsteady a curve is: root mean square of the change from one evaluated round,
                         round 1 first, to the next
above.hfl.average        percent of the evaluated rounds, from round 1 on, in which the curve is above
                         that of the row `hfl` of the same scenario
pace.average             the first evaluated round in which a curve has covered 90 % of the way from its
                         first value to its last one
other.average            of the models on the other side of local training than the reported ones
before.average           of the models before local training, whichever the method is scored with
after.average            of the models after local training
domains.std              standard deviation over the accuracies of the scenario's domains
scarce.accuracy          mean accuracy, after the last round, of the quarter of the clients with the
                         fewest training images; only where all seeds share one partition
run.traffic              kB that a client sends and receives in a round, at four bytes a scalar
run.memory               peak memory in MB, of the device where it has one, else of the process
run.seconds              wall time of a round
figure1.vectors          of a figure's stored points, which are those of the first seed: of margins the mean
                         over the classes of `clients`, `mean` or `vectors`; of an embedding `silhouette`;
                         of a sphere `uniformity`
"""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from pipeline.cells import plausible
from pipeline.cells.documents import Result
from pipeline.cells.experiment import Experiment
from pipeline.cells.results import history, traffic_of_seeds
from pipeline.report import geometry
from pipeline.schema import ROOT, Cell, Paper, Scenario

# Measures of costs -> their unit.
COSTS = {"run.traffic": "kB", "run.memory": "MB", "run.seconds": "s"}
# Prefix of a measure that names the models before or after local training -> the prefix in results.
SIDES = {"before": "pre", "after": "post"}
# Names of measures with parameters: (first round, last round, column), (row, column), (figure, statistic).
_ROUNDS = re.compile(r"rounds\.(\d+)-(\d+)\.(.+)")
_ABOVE = re.compile(r"above\.([\w-]+)\.(.+)")
_FIGURE = re.compile(r"(figure[\w-]*)\.(clients|mean|vectors|silhouette|uniformity)")
# How names begin of measures that are computed from a curve.
_CURVES = ("rounds.", "changes.", "pace.")
# How names begin of measures that are numbers or shares of rounds, and not accuracies.
_OF_ROUNDS = ("above.", "pace.")
# Share of the way from a curve's first value to its last that `pace` waits for.
PACE_SHARE = 0.9
# `scarce.accuracy` is over this fraction of the clients: one in so many, those with the fewest images.
SCARCE_ONE_IN = 4
# Bytes in a kB.
KILO = 1000


def draws(result: Result) -> dict[int, str]:
    """Seed -> the digest of the partition that it was trained on."""
    seeds = result["seeds"]
    # Older results have one partition for all seeds.
    partitions = result.get("partitions") or [result["partition"]] * len(seeds)
    return dict(zip(seeds, partitions))


def numbers(cell: Cell, result: Result, measure: str, root: Path = ROOT) -> dict[int, float]:
    """One measure of a finished cell: seed -> number, seeds in order; empty if the cell has no such number.

    cell     that was trained
    result   of the cell
    measure  its name, as at the top of this module
    root     folder of the repository, for what is in other files than the result
    """
    measure = _of_side(measure, result["hook"])
    figure = _FIGURE.fullmatch(measure)
    if figure:
        value = _stored(figure[1], figure[2], cell, root)
        return {} if value is None else {min(result["seeds"]): value}
    above = _ABOVE.fullmatch(measure)
    if above:
        return _share_above(cell, above[1], above[2], root)
    if measure.startswith(_CURVES):
        return _of_curve(cell, measure, root)

    # The others have a number for each seed, in the order of the result.
    if measure in COSTS:
        values = _costs(result, measure)
    elif measure == "domains.std":
        values = _over_domains(cell, result, root)
    elif measure == "scarce.accuracy":
        values = _of_scarce(cell, result, root)
    else:
        values = result["measures"].get(measure, [])
    return dict(sorted(zip(result["seeds"], values)))


def _of_side(measure: str, hook: str) -> str:
    """The name in result.json of a measure of the models before or after local training; other names stay.

    measure  such as `before.average`, `after.average` or `other.average`
    hook     which models the result reports, `pre` or `post` local training; their names have no prefix there
    """
    side, _, rest = measure.partition(".")
    if side == "other":
        other = "post" if hook == "pre" else "pre"
        return f"{other}.{rest}"
    if side not in SIDES:
        return measure
    return rest if SIDES[side] == hook else f"{SIDES[side]}.{rest}"


def locally_trained(measure: str) -> str:
    """The same measure of the models after local training, for a run that is scored before it.

    `average` -> `post.average`, `rounds.1-20.average` -> `rounds.1-20.post.average`
    """
    match = _ROUNDS.fullmatch(measure)
    if match:
        return f"{measure.removesuffix(match[3])}post.{match[3]}"
    if measure.startswith(_CURVES):
        statistic, _, column = measure.partition(".")
        return f"{statistic}.post.{column}"
    return f"post.{measure}"


def window(measure: str) -> tuple[int, int] | None:
    """(first, last) round of a measure such as `rounds.10-100.average`; None for another measure."""
    match = _ROUNDS.fullmatch(measure)
    return (int(match[1]), int(match[2])) if match else None


def can_exist(measure: str, scenario: Scenario, columns: Collection[str], paper: Paper) -> bool:
    """Whether a result of a scenario can have a measure of this name.

    measure   its name, as at the top of this module
    scenario  that was trained
    columns   which numbers of a round its results record
    paper     whose figures and rows the name may have
    """
    if measure in COSTS or measure == "scarce.accuracy":
        return True
    if measure == "domains.std":
        return scenario.evaluation.tests == "domains"
    figure = _FIGURE.fullmatch(measure)
    if figure:
        return figure[1] in paper.figures
    above = _ABOVE.fullmatch(measure)
    if above:
        return above[1] in paper.methods and is_recorded(above[2], columns)
    rounds = _ROUNDS.fullmatch(measure)
    if rounds:
        return is_recorded(rounds[3], columns)

    beginning, _, rest = measure.partition(".")
    if measure.startswith(_CURVES) or beginning == "other" or beginning in SIDES:
        return is_recorded(rest, columns)
    return is_recorded(measure, columns)


def is_recorded(name: str, columns: Collection[str]) -> bool:
    """Whether results record a number of this name: one of these columns, or what a method records of
    itself."""
    return name in columns or name.startswith(plausible.METHOD)


def in_points(measure: str) -> bool:
    """Whether differences in a measure are percent points of accuracy."""
    if measure in COSTS or measure.startswith(_OF_ROUNDS) or _FIGURE.fullmatch(measure):
        return False
    return measure.rpartition(".")[2] != "loss"


def _costs(result: Result, measure: str) -> list[float]:
    """A cost of each seed, in the unit of COSTS; none if it is not known for all seeds."""
    if measure == "run.traffic":
        return [sent / KILO for sent in traffic_of_seeds(result, "bytes")]
    if measure == "run.seconds":
        return [seconds / result["rounds"] for seconds in result["seconds"]]
    memory = result.get("memory") or {}
    for name in ("device_mb", "process_mb"):
        known = [value for value in memory.get(name, []) if value is not None]
        if len(known) == len(result["seeds"]):
            return [float(value) for value in known]
    return []


def _of_curve(cell: Cell, measure: str, root: Path) -> dict[int, float]:
    """Seed -> the statistic of its curve, without seeds whose curve gives none."""
    rounds = _ROUNDS.fullmatch(measure)
    column = rounds[3] if rounds else measure.partition(".")[2]
    table = _curve(cell, column, root)
    statistic: Callable[[pd.Series], float] = _unsteadiness
    if rounds:
        table = table[table["round"].between(int(rounds[1]), int(rounds[2]))]
        statistic = pd.Series.mean
    elif measure.startswith("pace."):
        statistic = _pace
    curves = table.set_index("round").groupby("seed")[column]
    numbers = {int(seed): float(statistic(curve)) for seed, curve in curves}
    return {seed: number for seed, number in numbers.items() if not np.isnan(number)}


def _curve(cell: Cell, column: str, root: Path) -> pd.DataFrame:
    """The columns seed, round and `column` of the evaluated rounds from 1 on, in order; no rows if the
    history has no such column."""
    table = history(cell, root)
    if column not in table:
        return pd.DataFrame(columns=["seed", "round", column])
    table = table.loc[table["round"] > 0, ["seed", "round", column]]
    return table.dropna(subset=[column]).sort_values("round")


def _unsteadiness(curve: pd.Series) -> float:
    """Root mean square of the change from one evaluated round to the next."""
    return (curve.diff() ** 2).mean() ** 0.5


def _pace(curve: pd.Series) -> float:
    """The first round in which a curve has covered PACE_SHARE of the way from its first value to its last;
    the first round of a curve that ends where it begins.

    curve  numbers by round
    """
    way = curve.iloc[-1] - curve.iloc[0]
    covered = np.sign(way) * (curve - curve.iloc[0])
    return (covered >= PACE_SHARE * abs(way)).idxmax()


def _share_above(cell: Cell, other: str, column: str, root: Path) -> dict[int, float]:
    """Seed -> percent of the rounds that both rows evaluated in which `cell` is above.

    other   method of the other row of the scenario; if it has not run, there are no numbers
    column  of history.csv
    """
    rival = replace(cell, method=other)
    if not (rival.folder(root) / "history.csv").exists():
        return {}
    both = _curve(cell, column, root).merge(_curve(rival, column, root), on=["seed", "round"])
    above = both[f"{column}_x"] > both[f"{column}_y"]
    shares = above.groupby(both["seed"]).mean()
    return {int(seed): 100 * float(share) for seed, share in shares.items()}


def _over_domains(cell: Cell, result: Result, root: Path) -> list[float]:
    """The standard deviation of each seed over the domains (ddof 0); empty if no domain is scored."""
    domains = Experiment.of(cell, root).scenario.data.domains
    by_domain = [result["measures"].get(name, []) for name in domains]
    return [float(np.std(accuracies)) for accuracies in zip(*by_domain)]


def _of_scarce(cell: Cell, result: Result, root: Path) -> list[float]:
    """The mean accuracy of each seed over the clients with the fewest training images; none if seeds have
    different partitions, or if none of these clients is scored."""
    path = cell.folder(root).with_name("clients.csv")
    if not path.exists() or len(set(result.get("partitions", ()))) > 1:
        return []
    from pipeline.data.reading import reading  # with SciPy's formats, which take long to import

    with reading(path):
        images = pd.read_csv(path)["train"].astype(int).to_numpy()
        order = images.argsort(kind="stable")
        scarce = order[: max(1, round(len(order) / SCARCE_ONE_IN))]
        means = []
        for accuracies in result["clients"]:
            scored = [accuracies[k] for k in scarce if accuracies[k] is not None]
            if not scored:
                return []
            means.append(float(np.mean(scored)))
    return means


def _stored(figure: str, statistic: str, cell: Cell, root: Path) -> float | None:
    """A statistic of the stored points of a figure; None if none are stored, or if they do not have it."""
    kinds = {"silhouette": "embedding", "uniformity": "sphere"}
    kind = kinds.get(statistic, "margins")
    table = geometry.read(kind, figure, cell, root)
    if table is None:
        return None
    value = table[statistic].mean() if kind == "margins" else table.attrs.get(statistic, np.nan)
    return None if np.isnan(value) else float(value)
