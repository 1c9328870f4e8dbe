"""The command line `fedrepro`: every subcommand with its arguments, options and help text.

A command's module is imported when it is called, so that --help costs no time.
"""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from pipeline.commands.options import FORCE, Amount, Cell, Commands, Paper, example, jobs_option
from pipeline.place import HOME, checkout_of, cores, surroundings


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=example(
        "fedrepro status", "fedrepro run fedlsa/mini/fedavg", "fedrepro explain fedlsa/mini/fedavg"
    ),
)
@click.version_option(package_name="fedrepro")
def main() -> None:
    """Reproduce federated-learning papers, from public data to their tables."""


@main.command(
    epilog=example(
        "fedrepro run fedlsa/mini/fedavg --jobs 2",
        "fedrepro run fedlsa/mini/fedavg --seeds 7,8",
    ),
)
@click.argument("stages", nargs=-1, type=Cell(), metavar="[WHAT]...")
@jobs_option("one for each core; SLURM: 256 tasks")
@FORCE
@click.option("--seeds", default="", metavar="N,N", help="Train with these seeds; tables stay unchanged.")
@click.option("--on", default="local", metavar="NAME", help="Train cells on slurm or ray (docs/scale.md).")
@click.option("--slurm", default="", metavar="OPTIONS", help="For sbatch, such as partition=gpu,gres=gpu:1.")
@click.option("--address", default="", metavar="HOST:PORT", help="Ray's head node.")
@click.option("--gpus", default="", metavar="SHARE", help="GPUs for each cell on Ray, such as 0.25.")
@click.option("--cancel", is_flag=True, help="End the SLURM jobs of WHAT.")
def run(stages: tuple[str, ...], jobs: int | None, force: bool, on: str, **options: Any) -> int:
    """Run what is missing or out of date, several stages at once.

    WHAT is a cell (fedlsa/mini/fedavg), a scenario (fedlsa/mini), a paper (fedlsa), all miniatures (mini,
    or across for the other papers' methods in them), or a target of `dvc repro --glob`. Default: the
    miniatures and the reports.
    """
    from pipeline.commands import run as command

    return command.main(stages, jobs, force, on, **options)


@main.command(
    epilog=example("fedrepro status", "fedrepro status fedlsa --stages 'table 2' | xargs -r fedrepro run"),
)
@click.argument("papers", nargs=-1, type=Paper())
@click.option("--stages", metavar="TABLE", help="Only list the stages that a table still needs.")
def status(papers: tuple[str, ...], stages: str | None) -> int:
    """Show what is done, and about how many hours are left.

    A line for each paper, or the tables of PAPERS.
    """
    from pipeline.commands import status as command

    return command.status(papers, stages)


@main.command(
    epilog=example(
        "fedrepro explain fedlsa/mini/fedavg", "fedrepro explain fedcrl 'table II' CIFAR-10 FedProx"
    ),
)
@click.argument("what", nargs=-1, required=True, type=Cell())
def explain(what: tuple[str, ...]) -> int:
    """Explain a number: its data, settings with their sources, state.

    WHAT is a cell, PAPER/SCENARIO/METHOD; or a paper, a table and words of the row and column; or `methods`
    for a list of all methods.
    """
    from pipeline.commands import explain as command
    from pipeline.commands import methods as listed

    return listed.main() if what == ("methods",) else command.explain(what)


@main.command(
    epilog=example("fedrepro verify", "fedrepro verify fedcrl/mini/fedprox --seconds 10"),
)
@click.argument("what", nargs=-1, type=Cell())
@click.option(
    "--seconds",
    type=Amount("seconds"),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="Time for each cell.",
)
@jobs_option()
def verify(what: tuple[str, ...], seconds: float, jobs: int | None) -> int:
    """Check that today's code gives the results.

    Trains as far as the time goes and compares every round. WHAT are cells, scenarios or papers. Default:
    every cell whose code has changed and whose data are here. A result that agrees counts as today's.
    """
    from pipeline.commands.verify import verify as command

    return command(what, seconds, jobs or cores())


@main.command(
    epilog=example("fedrepro plan 10", "fedrepro plan 24 fedlsa --jobs 2"),
)
@click.argument("hours", type=Amount("hours"))
@click.argument("papers", nargs=-1, type=Paper())
@click.option(
    "--jobs", "-j", metavar="N", type=click.IntRange(min=1), help="Processes, each with HOURS (default: 1)."
)
@click.option("--with-network", is_flag=True, help="Also plan claims whose data must be downloaded.")
def plan(hours: float, papers: tuple[str, ...], jobs: int | None, with_network: bool) -> int:
    """Find the cells that settle the most claims in HOURS.

    They are written to a file for `fedrepro run`.
    """
    from pipeline.commands import plan as command

    return command.plan(hours, papers, jobs, network=with_network)


@main.command(
    epilog=example("fedrepro tune fedcrl/mini/fedprox", "fedrepro tune fedcrl --jobs 2"),
)
@click.argument("what", nargs=-1, type=Cell())
@jobs_option()
@FORCE
def tune(what: tuple[str, ...], jobs: int | None, force: bool) -> int:
    """Tune hyper-parameters on the clients' validation images.

    Then trains with the best. WHAT is PAPER, PAPER/SCENARIO or PAPER/SCENARIO/METHOD. Default: everything
    under `tuning` of every paper.yaml.
    """
    from pipeline.commands import tune as command

    return command.main(what, jobs, force)


@main.command(
    epilog=example("fedrepro reproduce fedlsa --jobs 2"),
)
@click.argument("papers", nargs=-1, type=Paper())
@jobs_option()
@FORCE
def reproduce(papers: tuple[str, ...], jobs: int | None, force: bool) -> int:
    """Train the miniatures in a copy and compare the numbers.

    Of PAPERS, or of all, in reproduction/; the committed results stay as they are.
    """
    from pipeline.commands import reproduce as command

    return command.reproduce(papers, jobs, force)


@main.command(
    epilog=example("fedrepro report", "fedrepro report fedlsa"),
)
@click.argument("paper", required=False, type=Paper())
def report(paper: str | None) -> int:
    """Write the pages under reports/ from the results that are there."""
    from pipeline.commands import pages as command

    command.main(paper)
    return 0


@main.command(epilog=example("fedrepro ui fedlsa --port 5050"))
@click.argument("paper", required=False, type=Paper())
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1024, 65535),
    default=5000,
    show_default=True,
    help="On 127.0.0.1; if it is in use, the next free one.",
)
def ui(paper: str | None, port: int) -> int:
    """Open MLflow on the runs of all papers, or of PAPER.

    Prints a link to every paper's runs and to each scenario's methods side by side. Ctrl-C ends it.
    """
    from pipeline.commands import ui as command

    return command.ui(paper, port)


@main.group(
    epilog=example("fedrepro new paper mypaper", "fedrepro new method fedmine"),
)
def new() -> None:
    """Begin a paper, or a part of one, with files that run."""


@new.command(epilog=example("fedrepro new project mine && cd mine && fedrepro run"))
@click.argument("name")
def project(name: str) -> int:
    """Make a folder with the code and a paper of two methods.

    For an installation outside of any checkout.
    """
    from pipeline.commands import new as command

    return command.project(name)


@new.command(
    epilog=example("fedrepro new paper mypaper && fedrepro run mypaper"),
)
@click.argument("name")
def paper(name: str) -> int:
    """Make papers/NAME: a miniature with FedAvg and one table."""
    from pipeline.commands import new as command

    return command.paper(name)


@new.command(epilog=example("fedrepro new method fedmine", "fedrepro new method ours --paper fedlsa"))
@click.argument("name")
@click.option("--paper", metavar="PAPER", type=Paper(), help="For this paper alone, in its methods/.")
def method(name: str, paper: str | None) -> int:
    """Make a file with FedAvg's round to change, and a test of it."""
    from pipeline.commands import new as command

    return command.method(name, paper)


@main.group(hidden=True, epilog=example("fedrepro export model fedlsa/mini/fedavg"))
def export() -> None:
    """Write what other programs read."""


@export.command(epilog=example("fedrepro export model fedlsa/mini/fedavg --seed 1 --to models/mine"))
@click.argument("cell", type=Cell())
@click.option("--seed", type=click.IntRange(min=0), help="One of the scenario's (default: the first).")
@click.option("--to", metavar="FOLDER", help="Default: models/CELL-SEED.")
def model(cell: str, seed: int | None, to: str | None) -> int:
    """Train a seed; write its final models as safetensors.

    The server's model, and those of the clients where the tables score them. Exit code 1 where the
    training ends in another state than the result in git.
    """
    from pipeline.commands import export as command

    return command.model(cell, seed, to)


SEED = click.option("--seed", metavar="N", type=int, help="Whose draw (default: the first seed's).")


@export.command("partition", epilog=example("fedrepro export partition fedcrl/mini clients"))
@click.argument("scenario", type=Cell())
@click.argument("folder")
@SEED
def export_partition(scenario: str, folder: str, seed: int | None) -> int:
    """Write every client's indices as CSV and npz.

    They index the arrays of data/<set>.
    """
    from pipeline.commands import partition as command

    return command.export(scenario, folder, seed)


def _new_part(what: str, words: str) -> None:
    @new.command(
        what,
        help=f"Add {words} to a paper's folder, with a test.",
        epilog=example(f"fedrepro new {what} mine --paper fedlsa"),
    )
    @click.argument("name")
    @click.option("--paper", metavar="PAPER", type=Paper(), required=True, help="Whose folder.")
    def begin_part(name: str, paper: str) -> int:
        from pipeline.commands import new as command

        return command.part(what, name, paper)


_new_part("data", "a data set")
_new_part("model", "a network")
_new_part("partition", "a kind of partition")
_new_part("metric", "a metric")


@main.group("partition", epilog=example("fedrepro partition show fedcrl/mini"))
def partitions() -> None:
    """Show or import the clients of a scenario."""


@partitions.command(epilog=example("fedrepro partition show fedcrl/mini"))
@click.argument("scenario", type=Cell())
@SEED
def show(scenario: str, seed: int | None) -> int:
    """Show a bubble for every client and class."""
    from pipeline.commands import partition as command

    return command.show(scenario, seed)


@partitions.command("import", epilog=example("fedrepro partition import PFLlib/dataset/MNIST mypaper/mnist"))
@click.argument("source")
@click.argument("scenario", type=Cell())
def import_partition(source: str, scenario: str) -> int:
    """Take the clients of another library for a scenario.

    SOURCE is a folder of PFLlib's, a .json with lists of positions in the training part, as Flower's
    partitioners hold them, or a .csv of `export partition`.
    """
    from pipeline.commands import partition as command

    return command.import_split(source, scenario)


@main.command(hidden=True, epilog=example("fedrepro sync", "fedrepro sync --check"))
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
def sync(check: bool) -> int:
    """Write papers/*/dvc.yaml from the paper.yaml of each."""
    from pipeline.commands.sync import sync as write
    from pipeline.schema import shorten

    for path in (changed := write(check=check)):
        click.echo(
            f"{shorten(path)}: {'not as paper.yaml says; fedrepro sync writes it' if check else 'written'}"
        )
    return 1 if check and changed else 0


@main.command(hidden=True, epilog=example("fedrepro methods"))
@click.option("--page", is_flag=True, help="Write the table of docs/methods.md instead.")
def methods(page: bool) -> int:
    """List every method, in a line each."""
    from pipeline.commands import methods as command

    return command.main(page)


@main.command("import", hidden=True, epilog=example("fedrepro import https://example.org/fedmine.git"))
@click.argument("source", required=False)
@click.option("--name", metavar="NAME", help="Of the paper's folder (default: as SOURCE is called).")
def import_(source: str | None, name: str | None) -> int:
    """Add a paper's folder with its sealed results.

    SOURCE is a folder or a git repository. Without it, every finished seed goes to MLflow, as with `ui`.
    """
    from pipeline.cells.tracking import say_import
    from pipeline.commands.bring import bring
    from pipeline.commands.ui import printed

    if source:
        return bring(source, name)
    return say_import(printed())


def here() -> None:
    """The installed command; inside another checkout it runs that checkout's code."""
    with contextlib.suppress(OSError):  # a folder that is no more: `main` says so
        if (folder := checkout_of(Path.cwd()) or HOME) != HOME:
            os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(folder))
    main(prog_name="fedrepro")
