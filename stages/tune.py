"""Tune a cell's hyper-parameters on validation images, or train it with the chosen or published values."""

from pipeline import arithmetic
from pipeline.cells import choices
from pipeline.cells.experiment import Experiment
from pipeline.errors import ParamError, unknown
from pipeline.schema import Cell
from pipeline.training.checks import check_environment
from stages._stage import stage


def main(cell: str, what: str | None = None) -> None:
    """Choose the hyper-parameters of <paper>/<scenario>/<method> by its clients' validation images."""
    finals = {"chosen": choices.tuned, "published": choices.published}
    if what and what not in finals:
        raise ParamError(unknown("word", what, finals))
    parsed = Cell.parse(cell)
    scenario = Experiment.of(parsed).scenario  # reports a wrong name before torch is imported
    choices.tuning_of(parsed)
    arithmetic.adopt(scenario.arithmetic)
    check_environment()
    from pipeline.training.trainer import train_cell
    from pipeline.training.tuning import tune

    if what:
        train_cell(finals[what](parsed))
        return
    document = tune(parsed)
    values = document["configurations"][document["chosen"]]["values"]
    print(
        f"{cell}: chosen of {len(document['configurations'])} configurations is {document['chosen']}: "
        + ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
    )


if __name__ == "__main__":
    stage(main, "cell", what="`chosen` or `published`: train it with these values")
