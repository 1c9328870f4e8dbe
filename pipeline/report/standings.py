"""Mean ranks of methods over the scenarios of a table, or over the miniatures, in words and as a
critical-difference picture."""
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from pipeline.cells.results import lower_is_better
from pipeline.report import figures
from pipeline.report.drawings import Drawing
from pipeline.report.evidence import Evidence, Source
from pipeline.report.judgement import summing
from pipeline.report.ranks import ADVISED, BLOCKS, METHODS, Ranks, ranks
from pipeline.report.words import listed, method_words, p_words

SCENARIOS = 3                                     # over two scenarios, ranks say no more than the numbers


@dataclass(frozen=True)
class Standing:
    """The ranks of the methods in words and as a picture."""
    text: str
    drawing: Drawing


def of_table(name: str, evidence: Evidence) -> Standing | None:
    """Of a table of which SCENARIOS or more are measured with every method that has run in any; a scenario
    counts once, by its first column that sums it up."""
    columns: dict[str, dict[str, Source]] = {}
    for spots in summing(name, evidence).values():
        sources = {spot.method: source for spot in spots
                   if (source := evidence.source(spot)) and evidence.values(source)}
        for cell, _ in list(sources.values())[:1]:
            columns.setdefault(cell.scenario, sources)
    methods = list(dict.fromkeys(method for sources in columns.values() for method in sources))
    whole = [sources for sources in columns.values() if len(sources) == len(methods)]
    if len(whole) < SCENARIOS or len(methods) < METHODS:
        return None
    rows = {method_words(method): [fmean(evidence.values(sources[method]).values()) for sources in whole]
            for method in methods}
    lower = [lower_is_better(sources[methods[0]][1]) for sources in whole]
    lacking = [scenario for scenario, sources in columns.items() if sources not in whole]
    further = f" Left out, as not every method has run there: {listed(lacking)}." if lacking else ""
    return standing(
        ranks(rows, lower), "scenarios", f"figures/{evidence.study.key}-{name}-ranks.svg", further
    )


def standing(found: Ranks, blocks: str, path: str, further: str = "") -> Standing:
    """Words and picture; bars join methods only where the ranks differ, of enough methods over enough
    blocks."""
    n, k = found.blocks, len(found.means)
    over = f"over {n} {blocks}"
    listing = ", ".join(f"{name} {mean:.2f}" for name, mean in found.means.items())
    f = "∞" if math.isinf(found.f) else f"{found.f:.3g}"
    text = (f"Mean ranks {over} (1 is the best): {listing}. Friedman test after Iman and Davenport: "
            f"F({found.df[0]}, {found.df[1]}) = {f}, {p_words(found.p)}. Two mean ranks differ if they are "
            f"at least {found.distance:.2f} apart (Nemenyi, 5 %).{further}")
    if k < ADVISED[0] or n < ADVISED[1]:
        text += f" Demšar (2006) advises {ADVISED[0]} methods and {ADVISED[1]} {blocks} for this."
    if found.bars:
        bars = "Bars join methods that do not differ."
    elif n < BLOCKS:
        bars = f"No bars are drawn for fewer than {BLOCKS} {blocks}."
    else:
        bars = "No bars are drawn, as the ranks as a whole do not differ."
    drawing = Drawing(path, f"Mean ranks of {k} methods {over} on a line: {listing}",
                      f"Mean ranks {over}; the length above the line is the critical difference. {bars}",
                      figures.critical_difference_size(k, len(found.groups) if found.bars else 0),
                      partial(figures.critical_difference, found))
    return Standing(text, drawing)


def shared(numbers: dict[tuple[str, str], float], blocks: Sequence[str]) -> tuple[list[str], list[str]]:
    """(methods, blocks): of at least SCENARIOS blocks and METHODS methods that have run in each of them the
    most numbers, of equally many the most blocks; empty where there are none.

    numbers: (method, block) -> number.
    """
    names = list(dict.fromkeys(method for method, _ in numbers))
    best: tuple[list[str], list[str]] = ([], [])
    for mask in range(1, 2 ** len(blocks)):
        chosen = [block for i, block in enumerate(blocks) if mask >> i & 1]
        methods = [name for name in names if all((name, block) in numbers for block in chosen)]
        if len(chosen) >= SCENARIOS and len(methods) >= METHODS:
            best = max(best, (methods, chosen), key=lambda one: (len(one[0]) * len(one[1]), len(one[1])))
    return best
