"""For tuning, split validation images off the clients' training images: `python -m stages.split
fedcrl/mini`."""

from pipeline import files
from pipeline.data import partition, validation
from pipeline.data.parts import generator
from pipeline.errors import ParamError
from pipeline.schema import ROOT, Cell, find_scenario, load_paper
from stages._stage import stage

VALIDATION = 3  # a further purpose of pipeline.data.parts


def split(scenario: str) -> None:
    """Write papers/<paper>/partitions/<scenario>-trial: the first draw of the scenario's partition, and those
    of the seeds that a tuning trains with, with validation images instead of test images. What any draw tests
    on is in none of them."""
    paper, name, settings = find_scenario(scenario)
    folder = ROOT / "papers" / paper / "partitions" / name
    tuned = {
        settings.draw(seed)
        for key, tuning in load_paper(paper).tuning.items()
        if Cell(paper, key, "").partition == name
        for seed in tuning.seeds
    }
    draws = {
        draw: partition.verify(partition.folder_of_draw(folder, draw))
        for draw in sorted({0, *map(settings.draw, settings.seeds)})
    }
    forbidden = validation.tested(parts for parts, _ in draws.values())
    with files.replace_folder(folder.with_name(f"{name}-trial")) as new:
        for draw in sorted({0} | tuned):
            parts, meta = draws[draw]
            divided = validation.split(parts, forbidden, generator(settings.partition, VALIDATION, draw))
            sources = {key: meta[key] for key in ("data", "public")}
            partition.write(partition.folder_of_draw(new, draw), divided, sources)
            train, held_out = (sum(map(len, part)) for part in (divided.train, divided.client_test))
            if not held_out:
                raise ParamError(f"{scenario}: no client has four training images, one to validate on")
            if draw == 0:
                print(
                    f"{scenario}: of {sum(map(len, parts.train))} training images {train} to train on and "
                    f"{held_out} to validate on"
                )


if __name__ == "__main__":
    stage(split, "scenario")
