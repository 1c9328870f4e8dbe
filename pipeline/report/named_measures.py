"""Check the measures that paper.yaml names: one that no result can ever have is an error, and not a gap.

A table with `domain.std` for `domains.std` would show nothing in that column. A measure that results can have
and none has yet is no error.
"""

from collections.abc import Iterator
from pathlib import Path

from pipeline.cells import plausible
from pipeline.data.registry import sets
from pipeline.errors import ParamError, unknown
from pipeline.report.measures import COSTS, SIDES, can_exist, is_recorded
from pipeline.schema import ROOT, Paper, Scenario, load_paper
from pipeline.schema.paper import Figure, Table

# Kinds of figures that draw what results record, and nothing that is computed from it.
OF_RECORDS = ("curves", "sweep", "pairs")


def check_measures(key: str, root: Path = ROOT) -> None:
    """Raise ParamError, naming file and key, for the first measure of a paper.yaml that no result can have.

    key   of the paper
    root  folder of the repository
    """
    paper = load_paper(key, root)
    recorded = {name: columns(scenario, root) for name, scenario in paper.scenarios.items()}
    for table_name, table in paper.tables.items():
        for place, why in _of_table(table, paper, recorded):
            raise ParamError(f"papers/{key}/paper.yaml: tables.{table_name}.{place}: {why}")
    for figure_name, figure in paper.figures.items():
        for measure in _of_figure(figure, paper, recorded):
            raise ParamError(f"papers/{key}/paper.yaml: figures.{figure_name}.measures: {measure}")


def columns(scenario: Scenario, root: Path = ROOT) -> set[str]:
    """The names of the numbers that results of a scenario record, but for those of methods.

    scenario  as paper.yaml describes it
    root      folder of the repository
    """
    evaluation = scenario.evaluation
    names = {*plausible.MEASURES[evaluation.tests]}
    names.update(plausible.METRIC + metric for metric in evaluation.metrics or ())
    if evaluation.tests == "domains":
        data = scenario.data
        known_set = sets(root).get(data.set)
        of_set = known_set.domains if known_set else []
        names.update(data.domains or of_set or [data.set])
    groups = {"cross": ("intra", "inter"), "pooled": plausible.VARIANTS}.get(evaluation.tests, ())
    for group in groups:
        names.update(f"{group}.{client}" for client in (*scenario.partition.names, "AVG"))

    found = {*names, "loss", "participants"}
    prefixes = [*plausible.HOOKS]
    if scenario.training.unseen is not None:
        prefixes.append(plausible.UNSEEN)
    for prefix in prefixes:
        found.update(prefix + name for name in names)
    if evaluation.attack is not None:
        found.update(plausible.ATTACKS)
    return found


def _of_table(table: Table, paper: Paper, recorded: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """(key below the table, what is wrong) of each measure that no result of its blocks can have.

    recorded  scenario -> the names of `columns`
    """
    for name, block in table.blocks.items():
        scenario = paper.scenarios[block.scenario]
        names = recorded[block.scenario]
        if block.measure and not _begins(block.measure, scenario, names, paper):
            beginnings = {f"{known.rpartition('.')[0]}." for known in names if "." in known}
            yield f"blocks.{name}.measure", unknown("beginning of measures", block.measure, beginnings)

    for heading in {**table.also, **table.columns}:
        # What the blocks show under the heading, with the names that results have there.
        shown = []
        for block in table.blocks.values():
            full = table.measure(block, heading)
            if full is not None:
                shown.append((full, block.scenario))
        known_to = [can_exist(full, paper.scenarios[name], recorded[name], paper) for full, name in shown]
        if shown and not any(known_to):
            full, scenario_name = shown[0]
            part = "columns" if heading in table.columns else "also"
            known = _known(paper.scenarios[scenario_name], recorded[scenario_name])
            yield f"{part}.{heading}", unknown("measure", full, known)


def _begins(beginning: str, scenario: Scenario, names: set[str], paper: Paper) -> bool:
    """Whether a measure of a scenario begins so, as `inter.AVG` does with `inter.`."""
    rests = {name[len(beginning) :] for name in names if name.startswith(beginning)}
    return any(can_exist(beginning + rest, scenario, names, paper) for rest in rests | names)


def _known(scenario: Scenario, names: set[str]) -> set[str]:
    """Names of measures that a scenario's results can have, without those that have parameters."""
    known = {*names, *COSTS, "scarce.accuracy"}
    if scenario.evaluation.tests == "domains":
        known.add("domains.std")
    plain = [name for name in names if not name.startswith((*plausible.HOOKS, plausible.UNSEEN))]
    for side in (*SIDES, "other"):
        known.update(f"{side}.{name}" for name in plain)
    return known


def _of_figure(figure: Figure, paper: Paper, recorded: dict[str, set[str]]) -> Iterator[str]:
    """What is wrong with each measure of a figure that no result of its scenarios can have.

    recorded  scenario -> the names of `columns`
    """
    for measure in figure.measures:
        drawable = False
        for name in figure.scenarios:
            computed = can_exist(measure, paper.scenarios[name], recorded[name], paper)
            from_records = is_recorded(measure, recorded[name])
            drawable |= from_records or (computed and figure.kind not in OF_RECORDS)
        if figure.scenarios and not drawable:
            known = set[str]().union(*(recorded[name] for name in figure.scenarios))
            yield unknown("measure", measure, known)
