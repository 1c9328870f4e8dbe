"""Where a measured number comes from: a page per scenario that was run, with a section per method."""
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml

from pipeline.cells import provenance, stamps
from pipeline.cells.readings import Reading, Setting, hyper_parameters, settings_of
from pipeline.cells.results import Summary, ordered, summarise
from pipeline.report.panels import result_path
from pipeline.report.study import Study
from pipeline.report.told import ran
from pipeline.report.words import bytes_words, measure_words
from pipeline.schema import Cell, Scenario

WIDTH, HEIGHT = 600, 120                         # of a curve, in units of its own
CODE = re.compile(r"^repository-code:\s*[\"']?(https://[^\s\"']+)", re.MULTILINE)      # in CITATION.cff
HOOKS = {
    "pre": "that a client has at the end of a round, before the next local training",
    "post": "after the round's local training",
}
POINTS = 120  # points of a line at most; a longer run is drawn at every n-th round


@dataclass(frozen=True)
class Curve:
    """The headline accuracy over rounds, a line per seed, as SVG path data."""
    measure: str
    lines: list[str]
    low: float
    high: float
    rounds: int
    first: int                                   # the first round that was evaluated


@dataclass(frozen=True)
class Run:
    """A finished cell."""
    cell: Cell
    label: str
    facts: list[tuple[str, str]]
    measures: list[tuple[str, Summary, list[float]]]      # (name, over seeds, of each seed)
    seeds: list[int]
    curve: Curve | None
    readings: list[Reading]
    hyper: list[Setting]                                  # every hyper-parameter with its source
    recorded: bool                                        # whether the result itself has the defaults
    commit: str                                           # address of the commit; empty where it is unknown

    @property
    def file(self) -> str:
        return result_path(self.cell)


@dataclass(frozen=True)
class RunsPage:
    """Every finished cell of a scenario."""
    key: str                                     # of the paper
    paper: str                                   # as it spells itself
    scenario: str
    title: str
    protocol: str                                # the scenario as YAML
    histogram: str  # SVG of the partition, from the repository's root; empty where it was not drawn
    notes: list[str]                             # what differs from the paper
    settings: list[Setting]                      # values of the scenario with their sources
    runs: list[Run]

    @property
    def path(self) -> str:
        """From reports/."""
        return f"runs/{self.key}/{self.scenario}.html"


def runs_page(study: Study, scenario: str, notes: list[str]) -> RunsPage:
    """The page of one scenario, from the results of its cells; `notes`: what differs from the paper."""
    results = study.runs[scenario]
    first = next(iter(results))
    histogram = Path("papers", study.key, "runs", first.partition, "clients.svg")
    return RunsPage(
        study.key,
        study.name,
        scenario,
        study.title(scenario),
        _protocol(study.paper.scenarios[scenario]),
        histogram.as_posix() if (study.root / histogram).exists() else "",
        notes,
        settings_of(first, study.root),
        [_run(study, cell, result) for cell, result in results.items()],
    )


def _run(study: Study, cell: Cell, result: dict) -> Run:
    root = study.root
    measures = [
        (name, summarise(result["measures"][name]), result["measures"][name])
        for name in ordered(result["measures"])
    ]
    return Run(
        cell,
        study.label(cell.method),
        _facts(cell, result, root),
        measures,
        result["seeds"],
        _curve(study.history(cell), result["headline"]),
        study.readings_of(cell),
        hyper_parameters(cell, root, ran(result)),
        "resolved" in result,
        f"{repository(root)}/commit/{git['commit']}" if (git := result["git"]) and repository(root) else "",
    )


def _facts(cell: Cell, result: dict, root: Path) -> list[tuple[str, str]]:
    git, sent = result["git"], result["traffic"]
    reported = f"mean over the last {result['last']} that were evaluated" if result["last"] > 1 else "last"
    state = git["commit"] + (" with uncommitted changes" if git.get("dirty") else "") if git else "unknown"
    if stamp := provenance.verified(result, cell, root):
        state = f"trained at {state}, {stamps.words(stamp)}"
    facts = [
        ("algorithm", result["algorithm"]),
        ("hyper-parameters", _words(result["hyper"])),
        ("seeds", ", ".join(map(str, result["seeds"]))),
        ("rounds", f"{result['rounds']}; reported is the {reported}"),
        ("participants of a round", str(result.get("participants", ""))),
        ("scored model", HOOKS.get(result["hook"], result["hook"])),
        ("data", _set(result["data"])),
        ("public data", _set(result["public"]) if result["public"] else ""),
        ("partition", ", ".join(result.get("partitions", [result["partition"]]))),
        ("git commit", state),
        ("device", result["device"]),
        ("executor", f"{result['executor']}, {result['precision']}"),
        ("versions", ", ".join(f"{name} {value}" for name, value in result["versions"].items())),
        ("started", result["started"]),
        ("wall time", ", ".join(f"{seconds:,.0f} s" for seconds in result["seconds"]) + " (by seed)"),
        (
            f"sent per {'participant' if 'participants' in result else 'client'} and round",
            f"{sent['up']:,.0f} scalars up, {sent['down']:,.0f} down, {bytes_words(sent['bytes'])}",
        ),
        ("digest of code and parameters", result["digest"]),
    ]
    return [(name, text) for name, text in facts if text]


def repository(root: Path) -> str:
    """Address of this repository as CITATION.cff has it; empty where it has none. A clone's remote would give
    other pages on every machine."""
    path = root / "CITATION.cff"
    found = CODE.search(path.read_text(encoding="utf-8")) if path.exists() else None
    return found[1].rstrip("/") if found else ""


def _set(data: dict) -> str:
    """Name, source and digest of a data set, and how it differs from the canonical one."""
    return f"{data['set']} ({data['source']}), digest {data['digest']}" + (
        f"; {data['deviation']}" if data["deviation"] else ""
    )


def _protocol(scenario: Scenario) -> str:
    """A scenario as YAML, without the keys that say nothing."""
    values = dataclasses.asdict(scenario)
    values["partition"] = {"kind": scenario.partition.kind, **values["partition"]}
    return yaml.safe_dump(
        _without_empty(values), sort_keys=False, default_flow_style=False, allow_unicode=True, width=110
    )


def _without_empty(value):
    if not isinstance(value, dict):
        return value
    return {key: _without_empty(item) for key, item in value.items() if item is not None and item != {}}


def _curve(table: pd.DataFrame, measure: str) -> Curve | None:
    """Of history.csv."""
    if measure not in table:
        return None
    groups = table.groupby("seed", sort=False)       # in the order of the seeds, as the legend has them
    seeds = [rows[["round", measure]].dropna().to_numpy(float) for _, rows in groups]
    seeds = [
        rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), POINTS)).astype(int))]
        for rows in seeds
        if len(rows)
    ]
    if not seeds:
        return None
    values = np.concatenate(seeds)
    (first, low), (last, high) = values.min(0), values.max(0)

    def line(rows) -> str:
        at = (rows - (first, low)) / (max(last - first, 1), max(high - low, 1e-9)) * (WIDTH, -HEIGHT) + (
            0,
            HEIGHT,
        )
        return "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in at)

    return Curve(
        f"accuracy ({measure_words(measure)})",
        [line(rows) for rows in seeds],
        float(low),
        float(high),
        int(last),
        int(first),
    )


def departures(study: Study, cell: Cell) -> list[str]:
    """How a run differs from what paper.yaml asks for now."""
    result, (scenario, _, hyper) = study.results[cell], cell.resolve(study.root)
    found = []
    if result["rounds"] != scenario.training.rounds:
        found.append(f"{result['rounds']} rounds instead of {scenario.training.rounds}")
    if result["hyper"] != hyper:
        found.append(f"run with {_words(result['hyper'])}, paper.yaml now has {_words(hyper)}")
    if not found and not provenance.current(result, cell, study.root):
        found.append("measured with code or parameters that have changed since, and not yet measured again")
    if provenance.redrawn(result, scenario):
        found.append("each seed on a draw of its own; by now they share one" if scenario.partition.fixed
                     else "all seeds on one draw of the partition; by now each has its own")
    if missing := [seed for seed in scenario.seeds if seed not in result["seeds"]]:
        found.append(f"{len(scenario.seeds) - len(missing)} of {len(scenario.seeds)} seeds")
    if more := [seed for seed in result["seeds"] if seed not in scenario.seeds]:
        found.append(f"seeds {', '.join(map(str, more))} besides, which paper.yaml no longer has")
    return found


def _words(hyper: dict) -> str:
    return ", ".join(f"{name} = {value}" for name, value in hyper.items()) or "the method's defaults"
