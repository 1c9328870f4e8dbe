"""Takes over the seeds of a committed result as trained, so that one more seed, or another machine, does not
train them again."""

import subprocess
from pathlib import Path

import pandas as pd

from pipeline.cells import provenance, results
from pipeline.cells.experiment import Experiment
from pipeline.cells.kept import Kept
from pipeline.engine.environment import default_device, executor_name, precision
from pipeline.errors import FedReproError
from pipeline.schema import COMPUTED, MINIATURE, Cell, Published, load_paper


def adopt(seeds: list[Kept], experiment: Experiment, metas: list[dict]) -> list[int]:
    """Finish every seed of this cell in git's last commit that was trained by today's code and parameters, on
    today's partition and on a CPU; returns those seeds. Where the committed
    result already has all seeds, nothing is taken over: the cell is to be trained again.

    DVC deletes a stage's results before it runs, so they are read from git. The representations are not in
    git and are left empty; where a figure draws them, the first seed, which they come from, is trained.
    metas: what each seed trains on, in the order of `seeds`."""
    cell, root = experiment.cell, experiment.root
    if drawn := _drawn(cell, root):  # another cell that trains alike may have taken it over
        if (seeds[0].run() or {}).get("adopted"):
            seeds[0].forget()
    places = [cell, cell.base] if isinstance(cell, Published) else [cell]  # trained alike
    committed = next(filter(None, (_committed(place, root) for place in places)), None)
    if committed is None or all(kept.finished.exists() for kept in seeds):
        return []
    result, history = committed
    if not _same_conditions(result, experiment):
        return []
    of_seed = dict(
        zip(result["seeds"], result.get("partitions") or [result["partition"]] * len(result["seeds"]))
    )
    found = [
        kept for kept, meta in zip(seeds, metas, strict=True) if of_seed.get(kept.seed) == meta["digest"]
    ]
    if len(found) == len(seeds):
        return []
    if drawn:
        found = [kept for kept in found if kept != seeds[0]]
    for kept in found:
        if not kept.finished.exists():
            kept.finish(_as_finished(result, history, kept.seed), {})
    return [kept.seed for kept in found]


def _drawn(cell: Cell, root: Path) -> bool:
    """Does a figure of the paper draw the cell's representations?"""
    return any(
        figure.kind in COMPUTED
        and cell.scenario in (MINIATURE, *figure.scenarios)
        and cell.method in (figure.methods or [cell.method])
        for figure in load_paper(cell.paper, root).figures.values()
    )


def _same_conditions(result: dict, experiment: Experiment) -> bool:
    device, executor = default_device(), executor_name(default_device())
    return (
        result["device"] == device.type == "cpu"
        and result["executor"] == executor
        and result["precision"] == precision()
        and provenance.current(result, experiment)
    )


def _committed(cell: Cell, root: Path) -> tuple[dict, pd.DataFrame] | None:
    """(result, history) of the cell in git's last commit; None where there is none that can be trusted."""
    folder = cell.folder(root).relative_to(root)
    try:
        one, other = (
            subprocess.run(
                ["git", "-C", str(root), "show", f"HEAD:{folder.as_posix()}/{name}"],
                capture_output=True,
                check=True,
            ).stdout
            for name in ("result.json", "history.csv")
        )
        result = results.parse(one, root / folder / "result.json")
        history = results.parse_history(other, root / folder / "history.csv")
        results.check_history(result, history, root / folder / "history.csv")
        return result, history
    except (OSError, subprocess.CalledProcessError, FedReproError):
        return None


def _as_finished(result: dict, history: pd.DataFrame, seed: int) -> dict:
    """A seed's entry as training would have written it, from the files in git."""
    at = result["seeds"].index(seed)
    rows = [
        {"round": int(row["round"]), "loss": None}
        | {name: value for name, value in row.items() if name not in ("seed", "round") and value == value}
        for row in history[history["seed"] == seed].to_dict("records")
    ]
    return {
        "seed": seed,
        "rows": rows,
        "clients": result["clients"][at],
        "traffic": [results.traffic_of_seeds(result, name)[at] for name in ("up", "down")],
        "hook": result["hook"],
        "seconds": result["seconds"][at],
        "memory": {name: values[at] for name, values in result["memory"].items()},
        "versions": result["machines"][at] if "machines" in result else result["versions"],
        "adopted": True,  # without representations
        **({"by_class": result["by_class"][at]} if "by_class" in result else {}),
        **(
            {"holdings": {name: values[at] for name, values in result["holdings"].items()}}
            if "holdings" in result
            else {}
        ),
        **{key: result[key] for key in ("device", "precision", "executor", "started")},
    }
