"""Clients with networks of their own on real images.

`PYTHONPATH=. python benchmarks/heterogeneous_on_real_images.py fcclplus` (or `rahfl`)

The papers' own scenarios, networks and losses, cut down until a CPU finishes them in minutes; PAPERS says
what was cut. This shows that every part runs together on the real images and how accuracies move at first; it
cannot rank the methods as the papers do.

fcclplus  Office-Caltech, GoogLeNet, ResNet12, ResNet10, ResNet12; CIFAR-100 is public. BASE, FedMD, FCCL+.
rahfl     CIFAR-10 with half of the private images corrupted, ResNet10, ResNet12, ShuffleNet, MobileNetV2;
          CIFAR-100 is public. BASE, RAHFL.

Needs data/office_caltech10, cifar10, cifar100 (`python -m stages.data cifar100`; the mirror's sample of
10,000 training images is enough) and data/cifar10-corrupted (`python -m stages.corrupt cifar10`). Writes
benchmarks/results/heterogeneous_<paper>.json and .svg.
"""

import argparse
import dataclasses
from dataclasses import replace

from pipeline.schema import Scenario, load_paper


def cut_fcclplus(scenario: Scenario) -> Scenario:
    """Of 368, 431, 60 and 113 private images, 5000 public ones in batches of 512, batches of 256, 20 epochs
    and 40 rounds."""
    return replace(
        scenario,
        partition=replace(
            scenario.partition, sizes={"AM": 120, "CA": 160, "D": 60, "W": 113}, test_per_class=8
        ),
        public=replace(scenario.public, size=128, batch_size=64),
        training=replace(scenario.training, rounds=3, batch_size=16, local_epochs=2),
        evaluation=replace(scenario.evaluation, last=1),
    )


def cut_rahfl(scenario: Scenario) -> Scenario:
    """Of 10,000 private images, 1000 held out, 5000 public ones, batches of 256, 40 epochs of pretraining and
    40 rounds."""
    return replace(
        scenario,
        partition=replace(
            scenario.partition, sizes=dict.fromkeys(scenario.partition.sizes, 320), heldout=200
        ),
        public=replace(scenario.public, size=128, batch_size=64),
        training=replace(scenario.training, rounds=2, batch_size=32, pretraining=3),
    )


@dataclasses.dataclass(frozen=True)
class Comparison:
    scenario: str
    methods: list[str]
    panels: dict[str, str]  # measure -> title
    tests: int | None = None  # test images, where fewer than all


PAPERS = {
    "fcclplus": (
        cut_fcclplus,
        Comparison(
            "office-caltech",
            ["base", "fedmd", "fcclplus"],
            {"intra.AVG": "own domain", "inter.AVG": "other domains"},
        ),
    ),
    "rahfl": (
        cut_rahfl,
        Comparison(
            "corrupted-05", ["base", "rahfl"], {"clean.AVG": "clean", "corrupted.AVG": "corrupted"}, tests=400
        ),
    ),
}


def main() -> None:
    from cut_down import RESULTS, Smaller, compare, draw

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paper", choices=PAPERS)
    paper = parser.parse_args().paper
    cut, wanted = PAPERS[paper]
    cells = {
        load_paper(paper).label(method): Smaller(paper, wanted.scenario, method, cut, wanted.tests)
        for method in wanted.methods
    }
    document = compare(cells, f"heterogeneous_{paper}", list(wanted.panels))
    draw(document, wanted.panels, RESULTS / f"heterogeneous_{paper}.svg")
    for result in document["results"]:
        last = result["rounds"][-1]
        numbers = ", ".join(f"{title} {last[name]:.2f}" for name, title in wanted.panels.items())
        print(f"{result['label']:6} round {last['round']}: {numbers}   ({result['cpu_seconds']:.0f} CPU s)")


if __name__ == "__main__":
    main()
