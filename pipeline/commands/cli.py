"""The command `fedrepro`. A command's own module is imported when it is called, so that --help costs no
time."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from pipeline.errors import NOT_INSTALLED, FedReproError, ParamError, unknown
from pipeline.place import HOME, begin, checkout_of, cores, surroundings


class Commands(click.Group):
    """Bad input ends with one line and exit code 2."""

    group_class = type  # nested groups are of this class too

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        """The command that the first word names; an unknown one names the nearest."""
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise ParamError(unknown("command", args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command; what it returns is the exit code."""
        try:
            begin()
            sys.exit(super().invoke(ctx) or 0)
        except FedReproError as error:
            click.echo(f"error: {error}", err=True)
        except click.UsageError as error:
            if "\n" in error.format_message():  # called without arguments: the message is the help text
                raise
            at = error.ctx.command_path if error.ctx else "fedrepro"
            click.echo(f"error: {error.format_message().rstrip('.')}. See {at} --help", err=True)
        except SyntaxError as error:  # in a method that somebody is writing
            click.echo(
                f"error: {os.path.relpath(error.filename or '')}, line {error.lineno}: {error.msg}", err=True
            )
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] in ("pipeline", "stages", "papers"):
                raise
            click.echo(f"error: {NOT_INSTALLED.format(error.name, sys.executable)}", err=True)
        except OSError as error:
            if isinstance(error, BrokenPipeError):  # `| head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(0)
            click.echo(f"error: {error.filename or 'file system'}: {error.strerror or error}", err=True)
        except KeyboardInterrupt:
            click.echo("stopped", err=True)
            sys.exit(130)
        sys.exit(2)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are written below."""
        return list(self.commands)


def example(*lines: str) -> str:
    """The last lines of a command's --help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def _papers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: the papers whose names begin so."""
    from pipeline.schema import folders

    try:
        return [name for name in folders() if name.startswith(incomplete)]
    except FedReproError:
        return []


def _cells(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """For the shell's completion: a cell part by part, and the papers."""
    from pipeline.schema import planned

    paper, slash, rest = incomplete.partition("/")
    if not slash:
        return [text for name in _papers(ctx, param, incomplete) for text in (name, name + "/")]
    try:
        cells = [str(cell) for cell in planned(paper)]
    except FedReproError:
        return []
    found = cells if "/" in rest else dict.fromkeys(cell.rpartition("/")[0] + "/" for cell in cells)
    return [text for text in found if text.startswith(incomplete)]


def jobs_option(default: str = "the cores") -> Callable:
    """--jobs, of commands that start processes."""
    return click.option(
        "--jobs", "-j", type=click.IntRange(min=1), help=f"Processes at once; default: {default}."
    )


FORCE = click.option("--force", "-f", is_flag=True, help="Run also what has not changed, from the beginning.")


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nCompletion of commands, papers and cells (bash; or zsh_source, fish_source):\n"
    '  eval "$(_FEDREPRO_COMPLETE=bash_source fedrepro)"\n\n'
    + example(
        "fedrepro status",
        "fedrepro run fedlsa/mini/fedavg",
        "fedrepro explain fedcrl 'table II' CIFAR-10 FedProx",
    ),
)
@click.version_option(package_name="fedrepro")
def main() -> None:
    """Federated-learning papers, from public data to their own tables."""


@main.command(
    short_help="Run what has changed, several stages at once.",
    epilog=example(
        "fedrepro run",
        "fedrepro run fedlsa/mini/fedavg --jobs 2",
        "fedrepro run fedlsa/mini/fedavg --seeds 7,8",
        "fedrepro run 'papers/fedlsa/dvc.yaml:main@*'",
        "fedrepro run fedcrl --on slurm --slurm partition=gpu,gres=gpu:1 -j 64",
        "fedrepro run fedcrl --on ray --address 10.0.0.1:6379 --gpus 0.25",
    ),
)
@click.argument("stages", nargs=-1, shell_complete=_cells)
@jobs_option("the cores; on SLURM 256 tasks, on Ray what it takes")
@FORCE
@click.option(
    "--seeds",
    default="",
    metavar="N,N,...",
    help="Train cells with seeds of your own; git and the tables stay as they are.",
)
@click.option("--on", default="local", metavar="ENGINE", help="Where cells are trained: local, slurm or ray.")
@click.option(
    "--slurm",
    default="",
    metavar="OPTION=VALUE,...",
    help="Options of sbatch, such as partition=gpu,gres=gpu:1.",
)
@click.option("--address", default="", metavar="HOST:PORT", help="Of Ray's head node.")
@click.option("--gpus", default="", metavar="SHARE", help="Of a GPU for each cell on Ray, such as 0.25.")
@click.option("--cancel", is_flag=True, help="On SLURM: end what earlier calls left of these stages.")
def run(stages: tuple[str, ...], jobs: int | None, force: bool, on: str, **options) -> int:
    """Run what has changed, as `dvc repro` does, with several stages at once.

    STAGES are what `dvc repro --glob` takes, or a cell (fedlsa/mini/fedavg), a scenario (fedlsa/mini), a
    paper (fedlsa), `mini` or `across` (the miniatures of all papers; the other papers' methods in them).
    Without any: the miniatures and the reports.
    """
    from pipeline.commands import run as command

    return command.main(stages, jobs, force, on, **options)


@main.command(
    short_help="Choose hyper-parameters by validation images.",
    epilog=example("fedrepro tune fedcrl/mini/fedprox", "fedrepro tune fedcrl --jobs 2"),
)
@click.argument("what", nargs=-1, shell_complete=_cells)
@jobs_option()
@FORCE
def tune(what: tuple[str, ...], jobs: int | None, force: bool) -> int:
    """Choose hyper-parameters by the clients' validation images, and train with what was chosen.

    WHAT is PAPER, PAPER/SCENARIO or PAPER/SCENARIO/METHOD. Without any: whatever a paper.yaml has under
    `tuning`.
    """
    from pipeline.commands import tune as command

    return command.main(what, jobs, force)


@main.command(
    short_help="What of every table is done and left, and for how long.",
    epilog=example(
        "fedrepro status",
        "fedrepro status fedlsa",
        "fedrepro status fedlsa --stages 'table 2' | xargs -r fedrepro run",
    ),
)
@click.argument("papers", nargs=-1, shell_complete=_papers)
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--stages", metavar="TABLE", help="Only the names of the stages that a table still needs.")
def status(papers: tuple[str, ...], as_json: bool, stages: str | None) -> int:
    """What of every table is done, what is left, and about how long that takes."""
    from pipeline.commands import status as command

    return command.status(papers, as_json, stages)


@main.command(
    short_help="Which cells settle the most claims in so many hours.",
    epilog=example("fedrepro plan 10", "fedrepro plan 24 fedlsa --jobs 2"),
)
@click.argument("hours", type=click.FloatRange(min=0, min_open=True))
@click.argument("papers", nargs=-1, shell_complete=_papers)
@click.option(
    "--jobs", "-j", type=click.IntRange(min=1), help="Processes that have so many hours each; default: 1."
)
def plan(hours: float, papers: tuple[str, ...], jobs: int | None) -> int:
    """Which cells settle the most claims in so many HOURS of training, and the command that trains them."""
    from pipeline.commands import plan as command

    return command.plan(hours, papers, jobs)


@main.command(
    short_help="What a number is, where it comes from, and its state.",
    epilog=example(
        "fedrepro explain fedcrl 'table II' CIFAR-10 FedProx", "fedrepro explain fedlsa/mini/fedavg"
    ),
)
@click.argument("what", nargs=-1, required=True, shell_complete=_cells)
def explain(what: tuple[str, ...]) -> int:
    """What a number is: data, partition, networks, protocol, hyper-parameters with their sources, readings,
    state.

    WHAT is a cell, PAPER/SCENARIO/METHOD, or a paper, a table and words of the row and column.
    """
    from pipeline.commands import explain as command

    return command.explain(what)


@main.command(
    short_help="Does today's code still give the results?",
    epilog=example("fedrepro verify", "fedrepro verify fedcrl/mini/fedprox --seconds 10"),
)
@click.argument("what", nargs=-1, shell_complete=_cells)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="For each cell, from where its training begins.",
)
@jobs_option()
def verify(what: tuple[str, ...], seconds: float, jobs: int | None) -> int:
    """Train results once more, as far as the time goes, and compare every round.

    WHAT are cells, scenarios (PAPER/SCENARIO) or papers; without any, every stale cell whose data are here.
    What agrees counts as today's.
    """
    from pipeline.commands.verify import verify as command

    return command(what, seconds, jobs or cores())


@main.command(short_help="Every method, in a line.", epilog=example("fedrepro methods"))
@click.option("--page", is_flag=True, help="Renew the table of docs/methods.md instead.")
def methods(page: bool) -> int:
    """Every method that there is, in a line each."""
    from pipeline.commands import methods as command

    return command.main(page)


@main.command(epilog=example("fedrepro sync", "fedrepro sync --check"))
@click.option(
    "--check", is_flag=True, help="Write nothing; exit with 1 where a file is not as it would be written."
)
def sync(check: bool) -> int:
    """Write papers/*/dvc.yaml from the paper.yaml beside each."""
    from pipeline.commands.sync import sync as write
    from pipeline.schema import shorten

    for path in (found := write(check=check)):
        click.echo(
            f"{shorten(path)}: {'not as paper.yaml says; fedrepro sync writes it' if check else 'written'}"
        )
    return 1 if check and found else 0


@main.group(epilog=example("fedrepro new paper mypaper", "fedrepro new method fedmine"))
def new() -> None:
    """Begin a paper or a method."""


@new.command(
    short_help="A folder that runs at once.",
    epilog=example("fedrepro new paper mypaper && fedrepro run papers/mypaper/dvc.yaml"),
)
@click.argument("name")
def paper(name: str) -> int:
    """A folder under papers/ that runs at once: a miniature with FedAvg and one table."""
    from pipeline.commands import new as command

    return command.paper(name)


@new.command(epilog=example("fedrepro new method fedmine", "fedrepro new method ours --paper mypaper"))
@click.argument("name")
@click.option(
    "--paper", metavar="PAPER", shell_complete=_papers, help="For this paper alone, in its own methods/."
)
def method(name: str, paper: str | None) -> int:
    """A file with FedAvg's round to change, and a test of it."""
    from pipeline.commands import new as command

    return command.method(name, paper)


@main.command(
    short_help="Render the pages from the results that are there.",
    epilog=example("fedrepro report", "fedrepro report fedlsa"),
)
@click.argument("paper", required=False, shell_complete=_papers)
def report(paper: str | None) -> int:
    """Render the pages under reports/ from the results that are there."""
    from pipeline.commands import pages as command

    command.main(paper)
    return 0


@main.command(
    short_help="Open MLflow on the runs.", epilog=example("fedrepro ui", "fedrepro ui fedlsa --port 5050")
)
@click.argument("paper", required=False, shell_complete=_papers)
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    default=5000,
    show_default=True,
    help="On 127.0.0.1; where it is in use, the next free one.",
)
def ui(paper: str | None, port: int) -> int:
    """Open MLflow on the runs of all papers, or of PAPER.

    Prints a link to every paper's runs, grouped by cell, and one to each comparison of a table's methods, and
    opens the first where there is a browser. Ctrl-C ends it.
    """
    from pipeline.commands import ui as command

    return command.ui(paper, port)


@main.command(
    "import",
    short_help="Bring finished seeds into MLflow.",
    epilog=example("MLFLOW_TRACKING_URI=http://127.0.0.1:5000 fedrepro import"),
)
def import_() -> int:
    """Bring every finished seed that MLflow does not know yet into it."""
    from pipeline.cells.tracking import say_import
    from pipeline.commands.ui import printed

    return say_import(printed())


@main.command(
    short_help="Train the miniatures anew and compare the numbers.",
    epilog=example("fedrepro reproduce fedlsa --jobs 2"),
)
@click.argument("papers", nargs=-1, shell_complete=_papers)
@jobs_option()
@FORCE
def reproduce(papers: tuple[str, ...], jobs: int | None, force: bool) -> int:
    """Train the miniatures of all papers, or of PAPERS, anew in reproduction/ and compare them with git's
    numbers."""
    from pipeline.commands import reproduce as command

    return command.reproduce(papers, jobs, force)


def here() -> None:
    """The installed command; inside another checkout it runs that checkout's own code."""
    with contextlib.suppress(OSError):  # a folder that is no more: `main` says so
        if (folder := checkout_of(Path.cwd()) or HOME) != HOME:
            os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(folder))
    main(prog_name="fedrepro")
