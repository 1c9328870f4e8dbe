"""The tables of declared experiments on a paper's page.

An experiment is declared if its question, its rows and its seeds were written down in
papers/<paper>/experiments before these seeds were trained. Its table compares the first row with each control
over the declared seeds.
"""

from collections.abc import Iterator
from dataclasses import replace

from pipeline.cells.declarations import Declaration, declarations, missing_seeds
from pipeline.cells.results import lower_is_better
from pipeline.report.alike import Alike, AlikeRow, compared
from pipeline.report.footnotes import listed
from pipeline.report.measures import numbers
from pipeline.report.study import Study, result_file, seed_words
from pipeline.report.words import counted
from pipeline.schema import Cell


def experiments(study: Study) -> list[Alike]:
    """The table of each declared experiment, its best row first.

    study  of the paper

    An experiment is left out if its first row does not have all declared seeds.
    """
    tables = []
    for name, declaration in declarations(study.key, study.root).items():
        table = _compared(study, name, declaration)
        if table:
            tables.append(table)
    return tables


def _compared(study: Study, name: str, declared: Declaration) -> Alike | None:
    """The table of one experiment; None if its first row does not have all declared seeds.

    name      of the experiment
    declared  its declaration
    """
    # Labels of rows -> their cells; those that have run; their numbers; those with all declared seeds.
    cells = {study.label(method): study.cell(declared.scenario, method) for method in declared.methods}
    lead = study.label(declared.rows[0])
    known = {label: cell for label, cell in cells.items() if cell in study.results}
    runs = {label: _by_seed(study, cell, declared) for label, cell in known.items()}
    whole = {label: by_seed for label, by_seed in runs.items() if len(by_seed) == len(declared.seeds)}
    if lead not in whole:
        return None

    lower = lower_is_better(declared.measure)
    rows = [_of_run(study, known[row.name], row) for row in compared(whole, lead, lower)]
    about = (
        f"{declared.question} Declared in experiments/{name}.yaml: {counted(len(declared.seeds), 'seed')}, "
        f"{counted(declared.looks, 'look')} at the level {declared.level:.2g}, smallest difference that "
        f"matters {declared.smallest_effect:.3g}. The intervals are those of single comparisons."
    )
    title = f"{study.title(declared.scenario)}, declared: {lead} and {counted(len(cells) - 1, 'other')}"
    unit = declared.measure if declared.measure != "average" else "accuracy"
    notes = tuple(_notes(study, declared))
    return Alike(f"declared-{name}", title, about, unit, "", rows, notes)


def _by_seed(study: Study, cell: Cell, declared: Declaration) -> dict[int, float]:
    """Seed -> number, for those of the declared seeds that a cell has."""
    known = numbers(cell, study.results[cell], declared.measure, study.root)
    return {seed: known[seed] for seed in declared.seeds if seed in known}


def _of_run(study: Study, cell: Cell, row: AlikeRow) -> AlikeRow:
    """A row of a table with the file of its result, its chance level, and whether it is stale."""
    return replace(row, file=result_file(cell), chance=study.chance_level(cell), stale=study.is_stale(cell))


def _notes(study: Study, declared: Declaration) -> Iterator[str]:
    """The sentences below the table: which rows lack seeds or diverged, and which results had been seen
    before the declaration."""
    lacking = missing_seeds(study.key, declared, study.results)
    if lacking:
        names = listed(study.label(cell.method) for cell in lacking)
        seeds = sorted({seed for several in lacking.values() for seed in several})
        yield f"Not shown, for declared seeds are missing ({seed_words(seeds)}): {names}."

    for method, seeds in declared.diverged.items():
        which = seed_words([*seeds])
        yield f"{study.label(method)} diverged (seed {which}): its training loss is not finite."

    # Seeds -> the rows of which they had been seen.
    groups: dict[tuple[int, ...], list[str]] = {}
    for method, seeds in declared.seen.items():
        groups.setdefault(tuple(seeds), []).append(study.label(method))
    if groups:
        texts = [f"{listed(names)} {seed_words([*seeds])}" for seeds, names in groups.items()]
        yield f"Seen before the declaration: {'; '.join(texts)}."
