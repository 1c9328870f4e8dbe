"""Whether measured numbers are consistent: what can be seen in a result without training it again.

`problem` names the first contradiction: a client too many or too few, an accuracy that cannot result from the
clients' accuracies, a mean that cannot result from its parts. A correct result always passes. An altered one
passes only if all numbers that depend on each other were altered consistently; `fedrepro verify` finds that.
"""

import math
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from pipeline.data.parts import Parts
from pipeline.schema import Scenario

# Largest gap of two means of accuracies that were rounded to four decimals, in points.
ROUNDED = 0.002
# Largest gap of an accuracy and its rounding to four decimals, in points, and a little more.
LAST_DIGIT = 0.0001
# What a client holds that has no usable batch: it takes part without a sample.
EMPTIED = 0
# The column of a row that has the digest of the state after the round.
STATE = "state"
DIGEST = re.compile("[0-9a-f]{16}")
# The oldest torch that this project has run with (pyproject.toml).
OLDEST_TORCH = (2, 8)
# The methods of this repository without communication.
SILENT = frozenset(("local", "centralised"))
# Columns that are no domain's accuracy, although they have a plain name.
PLAIN = {
    *("seed", "round", "state", "loss", "participants"),
    *("average", "weighted", "clients_std", "fgsm", "pgd"),
}
HOOKS = ("pre.", "post.")
# Prefix of the measures of clients that come after the last round.
UNSEEN = "unseen."
# What a round may have besides accuracies, and what the names of a method's and a paper's own values begin
# with.
BESIDE = frozenset(("seed", "round", STATE, "loss", "participants"))
METHOD = "method."
METRIC = "metric."
# Accuracies by `evaluation.tests`, besides those of domains and clients.
MEASURES = {
    "clients": ("average", "weighted", "clients_std"),
    "domains": ("average",),
    "pooled": ("average",),
    "cross": ("average", "intra.AVG", "inter.AVG"),
}
ATTACKS = ("fgsm", "pgd")
# Of several variants of one test set, the clean one and the damaged one.
VARIANTS = ("clean", "corrupted")
# What the names of measures begin with that are no domain's accuracy. A domain may have a dot in its name.
GROUPS = ("intra.", "inter.", *(f"{variant}." for variant in VARIANTS))


def kind_of(measures: Collection[str]) -> str:
    """Whose test sets the accuracies with these names are of, as `evaluation.tests` has it."""
    if "weighted" in measures:
        return "clients"
    if "intra.AVG" in measures:
        return "cross"
    return "domains" if any(map(_is_domain, measures)) else "pooled"


def _is_domain(measure: str) -> bool:
    """Whether a measure is a domain's accuracy, whose name it has."""
    return measure not in PLAIN and not measure.startswith((*HOOKS, *GROUPS, METHOD, METRIC, UNSEEN))


@dataclass(frozen=True)
class Clients:
    """The clients that a seed trains, in their order.

    names, domains: of each; images, classes: how many of each it trains on, empty where that is not known;
    tests: how many test images its accuracy is over, 0 if it is not scored, empty where that is not known
    """

    names: Sequence[str]
    domains: Sequence[str]
    images: Sequence[int] = ()
    classes: Sequence[int] = ()
    tests: Sequence[int] = ()


@dataclass(frozen=True)
class Expected:
    """What every seed of a cell has.

    rounds: trained; classes: of the data set; hook: of the scored models; kind: whose test sets the
    accuracies are of, as `evaluation.tests`; clients: of its partition; domains: that have a test set;
    metrics: the paper's that its scenario names; silent: whether its clients send nothing, None where that is
    not known
    """

    rounds: int
    classes: int
    hook: str
    kind: str
    clients: Clients
    domains: Collection[str] = ()
    metrics: Collection[str] = ()
    silent: bool | None = None


def clients_of(scenario: Scenario, seed: int, parts: Parts, labels: np.ndarray) -> Clients:
    """Who trains with a seed, by the partition; those that come after the last round are left out.

    labels: (N,), of the stored set
    """
    wanted = scenario.training.unseen
    names = [name for name, _ in parts.clients]
    late: Collection[int] = ()
    if isinstance(wanted, list):
        late = [k for k, name in enumerate(names) if name in wanted]
    elif wanted is not None:
        from pipeline.engine.phase import draw  # with torch: a second

        late = draw(range(len(names)), wanted, len(names), "unseen", seed)
    kind = scenario.evaluation.tests
    domains = parts.domain_test
    tests = {
        "clients": lambda k: parts.client_test[k],
        "pooled": lambda k: np.concatenate(list(domains.values())),
    }.get(kind, lambda k: domains[parts.clients[k][1]])
    here = [k for k in range(len(names)) if k not in late]
    images = [len(tests(k)) for k in here]
    sample = scenario.evaluation.sample
    if sample is not None:
        from pipeline.cells.test_sets import sampled  # with torch

        scored = sampled(sample, images, seed)
        images = [count if k in scored else 0 for k, count in enumerate(images)]
    return Clients(
        [names[k] for k in here],
        [parts.clients[k][1] for k in here],
        [len(parts.train[k]) for k in here],
        [len(np.unique(labels[parts.train[k]])) for k in here],
        images,
    )


def of_seed(run: Mapping[str, Any], expected: Expected) -> str:
    """What cannot be in a finished seed, wherever it was trained; nothing where all fits."""
    rows = run["rows"]
    if len(rows) != expected.rounds + 1:
        return f"{len(rows) - 1} rounds, the scenario has {expected.rounds}"
    if run["hook"] != expected.hook:
        return f"scores the models {run['hook']!r}, the cell scores {expected.hook!r}"
    problem = of_torch(run["versions"]) or of_traffic(run["traffic"], expected.silent)
    problem = problem or of_holdings(run, expected)
    if problem:
        return problem
    names: set[str] = set()
    for row in rows:
        names.update(name for name, value in row.items() if value is not None)
        for name, value in row.items():
            problem = _out_of_range(name, value)
            if problem:
                return f"round {row['round']}: {problem}"
    strange = sorted(name for name in names if not _is_measured(name, expected))
    if strange:
        return f"{strange[0]}: the cell measures no such thing"
    for row in rows:
        problem = of_row(row, expected.kind)
        if problem:
            return f"round {row['round']}: {problem}"
    # A seed from git may be from before rounds had a digest of the state.
    if not run.get("adopted") and not all(DIGEST.fullmatch(row.get(STATE) or "") for row in rows):
        return f"{STATE}: a round has no digest of the state"
    last = f"round {rows[-1]['round']}: "
    for name in MEASURES[expected.kind]:
        if rows[-1].get(name) is None and name in (*MEASURES["domains"], "weighted"):
            return f"{last}{name} is missing"
    problem = of_clients_last(rows[-1], run["clients"], expected.kind, expected.clients)
    return (last + problem if problem else "") or of_states(rows)


def of_holdings(run: Mapping[str, Any], expected: Expected) -> str:
    """What cannot be in the numbers of clients, images and classes."""
    holdings, clients = run.get("holdings") or {}, expected.clients
    of_clients = {"clients": run["clients"], **{f"holdings.{name}": each for name, each in holdings.items()}}
    for name, each in of_clients.items():
        if len(each) != len(clients.names):
            return f"{name}: {len(each)} clients, the partition has {len(clients.names)}"
    if len(run.get("by_class") or range(expected.classes)) != expected.classes:
        return f"by_class: {len(run['by_class'])} classes, the data set has {expected.classes}"
    if any(not 0 <= held <= expected.classes for held in holdings.get("classes", ())):
        return f"holdings.classes: a client has at most {expected.classes}"
    for name, wanted in (("images", clients.images), ("classes", clients.classes)):
        for client, held, dealt in zip(clients.names, holdings.get(name, ()), wanted):
            if not is_held(held, dealt):
                return f"holdings.{name}: client {client} has {held}, by the partition {dealt}"
    return ""


def is_held(held: int, dealt: int) -> bool:
    """Whether a client can have trained on so many where its partition deals it so many."""
    return held in (dealt, EMPTIED)


def of_torch(versions: Mapping[str, str]) -> str:
    """What cannot be in the version of torch that trained a seed."""
    found = re.match(r"(\d+)\.(\d+)", versions.get("torch", ""))
    if found and (int(found[1]), int(found[2])) >= OLDEST_TORCH:
        return ""
    oldest = ".".join(map(str, OLDEST_TORCH))
    return f"versions.torch: {versions.get('torch')!r:.40}, the oldest that this project has is {oldest}"


def of_traffic(sent: Sequence[float], silent: bool | None) -> str:
    """What cannot be in the scalars that a client sends and receives in a round; silent: as in `Expected`."""
    fits = silent is None or (not any(sent) if silent else all(sent))
    if fits:
        return ""
    return f"traffic: {list(sent)}, of a method {'without' if silent else 'with'} communication"


def _is_measured(name: str, expected: Expected) -> bool:
    """Whether a round of the cell can have a value of this name."""
    if name in BESIDE or name.startswith(METHOD):
        return True
    measure = _plain(name)
    known = {*MEASURES[expected.kind], *(METRIC + metric for metric in expected.metrics)}
    if measure == name:
        known |= {*ATTACKS}
    if expected.kind == "domains":
        known |= {*expected.domains}
    groups = {"cross": ("intra", "inter"), "pooled": VARIANTS}.get(expected.kind, ())
    for group in groups:
        known |= {f"{group}.{client}" for client in (*expected.clients.names, "AVG")}
    return measure in known


def _plain(name: str) -> str:
    """The name of a measure without whose it is."""
    for prefix in (*HOOKS, UNSEEN):
        name = name.removeprefix(prefix)
    return name


def of_states(rows: Sequence[Mapping[str, Any]]) -> str:
    """What cannot be in the digests of a seed's states: some rounds have one and some none, or all have the
    same while what was measured moves."""
    states = [row.get(STATE) for row in rows]
    known = [state for state in states if state and isinstance(state, str)]
    if known and len(known) != len(states):
        return f"{STATE}: {len(states) - len(known)} of {len(states)} rounds have no digest of the state"
    accuracies = {row["average"] for row in rows if row.get("average") is not None}
    if len(known) > 1 and len(set(known)) == 1 and len(accuracies) > 1:
        return f"{STATE}: all rounds have the same, and the accuracy moves"
    return ""


def of_seeds(seeds: Mapping[int, Sequence[Mapping[str, Any]]]) -> str:
    """What cannot be between seeds of a cell (seed -> its rows): one measures what another does not, or two
    are the same training."""
    measured = {seed: _names(rows) for seed, rows in seeds.items()}
    every = set[str]().union(*measured.values())
    for seed, names in measured.items():
        if names != every:
            other = next(one for one, its in measured.items() if its - names)
            return f"seed {other} has {min(every - names)!r}, which seed {seed} has not"
    for one, two in combinations(seeds, 2):
        for first, second in zip(seeds[one], seeds[two]):
            # The states of trainings that diverged may be alike: nothing in them is a number.
            trained = first["round"] and _is_number(first.get("loss")) and _is_number(second.get("loss"))
            if trained and isinstance(first.get(STATE), str) and first[STATE] == second.get(STATE):
                if len({row[STATE] for row in seeds[one] if isinstance(row.get(STATE), str)}) > 1:
                    return f"seeds {one} and {two} have the same state in round {first['round']}"
        if any(_is_number(row.get("loss")) for row in seeds[one]) and _alike(seeds[one], seeds[two]):
            return f"seeds {one} and {two} have the same rounds"
    return ""


def _names(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The measures of a seed that every other one has, too."""
    return {
        name for row in rows for name, value in row.items() if _is_number(value) and not _is_of_a_seed(name)
    }


def _is_of_a_seed(name: str) -> bool:
    """Whether another seed may lack this value: a digest, which earlier ones have not; what a method or a
    paper measures itself; and what newcomers measure, who may have no test images."""
    return name in (STATE, "loss") or UNSEEN in name or _plain(name).startswith((METHOD, METRIC))


def _alike(one: Sequence[Mapping[str, Any]], two: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all numbers of two seeds are the same."""

    def numbers(row: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name != "seed" and _is_number(value)}

    return all(numbers(first) == numbers(second) for first, second in zip(one, two, strict=True))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not math.isnan(value)


def _out_of_range(name: str, value: object) -> str:
    if not isinstance(value, (int, float)) or name in ("seed", "round"):
        return ""
    if not math.isfinite(value):
        return f"{name}: {value} is no number"
    if name == "participants":
        return "" if value >= 0 else f"participants: {value} is negative"
    percent = name != "loss" and not name.startswith("method.")
    return f"{name}: {value} is not between 0 and 100" if percent and not 0 <= value <= 100 else ""


def of_row(row: Mapping[str, object], kind: str) -> str:
    """What cannot be in a line of history.csv; nothing where all fits.

    kind: whose test sets the accuracies are of, as `evaluation.tests`.
    """
    for prefix in ("", *HOOKS):
        values = {
            name.removeprefix(prefix): float(value)
            for name, value in row.items()
            if name.startswith(prefix) and isinstance(value, (int, float)) and not math.isnan(value)
        }
        if not prefix:
            values = {name: value for name, value in values.items() if not name.startswith(HOOKS)}
        problem = _of_measures(values, kind)
        if problem:
            return prefix + problem
    return ""


def _of_measures(values: Mapping[str, float], kind: str) -> str:
    average = values.get("average")
    if average is None:
        return ""
    if kind == "domains":
        accuracies = [value for name, value in values.items() if _is_domain(name)]
        return _mean("average", average, accuracies, "the domains")
    if kind == "cross":
        for group in ("intra", "inter"):
            stated = values.get(f"{group}.AVG")
            parts = {name: value for name, value in values.items() if name.startswith(f"{group}.")}
            parts.pop(f"{group}.AVG", None)
            if stated is not None:
                problem = _mean(f"{group}.AVG", stated, parts.values(), "the clients")
                if problem:
                    return problem
        return _mean("average", average, [values.get("intra.AVG", average)], "intra.AVG")
    return ""


def of_clients_last(
    row: Mapping[str, object],
    accuracies: Sequence[float | None],
    kind: str,
    clients: Clients | None = None,
) -> str:
    """What cannot be between the last line of a seed and the accuracies of its clients in that round.

    kind: as in `of_row`; clients: to whom the accuracies belong, where that is known
    """
    known = [value for value in accuracies if value is not None]
    average, spread, weighted = (row.get(name) for name in ("average", "clients_std", "weighted"))
    if not known or not isinstance(average, (int, float)) or math.isnan(average):
        return ""
    if kind in ("clients", "pooled", "cross"):
        problem = _mean("average", average, known, "the clients")
        if problem:
            return problem
    if kind == "clients" and isinstance(spread, (int, float)):
        given = statistics.pstdev(known)
        if not abs(given - spread) <= ROUNDED:
            return f"clients_std is {spread}, the clients give {given:.4f}"
    if kind == "clients" and isinstance(weighted, (int, float)):
        if not min(known) - ROUNDED <= weighted <= max(known) + ROUNDED:
            return f"weighted is {weighted}, the clients lie between {min(known)} and {max(known)}"
    return _of_order(row, accuracies, kind, clients) if clients else ""


def _of_order(
    row: Mapping[str, object], accuracies: Sequence[float | None], kind: str, clients: Clients
) -> str:
    """What cannot be where each accuracy is that of the client in its place."""
    of_each = list(zip(clients.names, accuracies, strict=True))
    for (name, accuracy), images in zip(of_each, clients.tests):
        if (accuracy is None) == (images > 0):
            return f"clients: {name} is scored on {images} test images, its accuracy is {accuracy}"
        hits = 0 if accuracy is None else accuracy * images / 100
        if abs(hits - round(hits)) > LAST_DIGIT * images / 100 + LAST_DIGIT:
            return f"clients: {accuracy} is no share of the {images} test images of {name}"
    weighted = row.get("weighted")
    if kind == "clients" and any(clients.tests) and isinstance(weighted, (int, float)):
        hits = sum((one or 0) * images for one, images in zip(accuracies, clients.tests, strict=True))
        if not abs(hits / sum(clients.tests) - weighted) <= ROUNDED:
            return f"weighted is {weighted}, the clients give {hits / sum(clients.tests):.4f}"
    if kind == "domains":
        for domain in dict.fromkeys(clients.domains):
            stated = row.get(domain)
            parts = [one for one, where in zip(accuracies, clients.domains, strict=True) if where == domain]
            if isinstance(stated, (int, float)) and not math.isnan(stated):
                problem = _mean(domain, stated, [one for one in parts if one is not None], "its clients")
                if problem:
                    return problem
    group = {"cross": "intra", "pooled": VARIANTS[0]}.get(kind)
    for name, accuracy in of_each if group else ():
        stated = row.get(f"{group}.{name}")
        if isinstance(stated, (int, float)) and accuracy is not None and abs(stated - accuracy) > ROUNDED:
            return f"{group}.{name} is {stated}, the accuracy of that client is {accuracy}"
    return ""


def _mean(name: str, stated: float, parts: Iterable[float], of: str) -> str:
    """`average is 60.1, the domains give 55.1` where a mean is not that of its parts."""
    known = list(parts)
    if not known or abs(statistics.fmean(known) - stated) <= ROUNDED:
        return ""
    return f"{name} is {stated}, {of} give {statistics.fmean(known):.4f}"
