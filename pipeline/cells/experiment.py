"""Experiment: one method in one scenario (a cell) with all its settings, read from paper.yaml."""

from dataclasses import dataclass
from pathlib import Path

from pipeline.data import partition
from pipeline.schema import ROOT, Cell, Scenario
from pipeline.schema.paper import scenario_key


@dataclass(frozen=True, eq=False)
class Experiment:
    """What training, status and reports need to know about a cell.

    cell: its name
    scenario: with the networks and seeds of this cell
    algorithm: name of the method's file
    hyper: hyper-parameters as written in paper.yaml, without defaults
    root: the project's folder
    """

    cell: Cell
    scenario: Scenario
    algorithm: str
    hyper: dict
    root: Path

    @classmethod
    def of(cls, cell: Cell, root: Path = ROOT) -> "Experiment":
        """The experiment of a cell; ParamError if the paper does not have the scenario or the method."""
        return cls(cell, *cell.resolve(root), root)

    @property
    def where(self) -> str:
        """File and key of the method's row, for messages."""
        return f"papers/{self.cell.paper}/paper.yaml: methods.{self.cell.method}"

    @property
    def scenario_key(self) -> str:
        return f"papers/{self.cell.paper}/paper.yaml: {scenario_key(self.cell.scenario)}"

    @property
    def folder(self) -> Path:
        """The folder of result.json and history.csv."""
        return self.cell.folder(self.root)

    def partition(self, seed: int) -> Path:
        """The folder with the draw of the partition on which a seed trains."""
        folder = self.root / "papers" / self.cell.paper / "partitions" / self.cell.partition
        return partition.folder_of_draw(folder, self.scenario.draw(seed))


def link(root: Path, folder: Path) -> None:
    """Make `folder` a root for a separate training: links to all that `root` has but `.cells` and git's."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in root.iterdir():
        if path.name not in (".cells", ".git") and not (folder / path.name).is_symlink():
            (folder / path.name).symlink_to(path)
