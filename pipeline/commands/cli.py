"""The command line `fedrepro`: every subcommand with its arguments, options and help text.

A command's module is imported when it is called, so that --help costs no time.
"""

import contextlib
import os
import sys
from pathlib import Path

import click

from pipeline.commands.options import FORCE, Amount, Commands, Name, calls, example, jobs_option
from pipeline.place import HOME, checkout_of, surroundings

DEVICE = click.option(
    "--device",
    metavar="NAME",
    help="Hours on this device, such as h200 (default: on what has trained).",
)
# What --help shows together.
HEADINGS = {
    "Run": ("run", "status", "plan", "tune", "sweep", "reproduce"),
    "Look": ("explain", "compare", "report", "ui", "methods", "partition"),
    "Trust": ("check", "verify", "trust"),
    "Begin something of your own": ("new", "sync"),
    "Share": ("export", "import", "archive"),
}


@click.group(
    cls=Commands,
    headings=HEADINGS,
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
@click.argument("stages", nargs=-1, type=Name(), metavar="[WHAT]...")
@jobs_option("one for each core; SLURM: 256 tasks")
@FORCE
@click.option("--seeds", default="", metavar="N,N", help="Train with these seeds; tables stay unchanged.")
@click.option("--on", default="local", metavar="NAME", help="Train cells on slurm or ray (docs/scale.md).")
@click.option("--slurm", default="", metavar="OPTIONS", help="For sbatch, such as partition=gpu,gres=gpu:1.")
@click.option("--address", default="", metavar="HOST:PORT", help="Ray's head node.")
@click.option(
    "--gpus",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SHARE",
    help="GPUs for each cell on Ray, such as 0.25.",
)
@click.option("--cancel", is_flag=True, help="End the SLURM jobs of WHAT.")
@calls("start:main")
def run() -> None:
    """Run what is missing or out of date, several stages at once.

    WHAT is a cell (fedlsa/mini/fedavg), a scenario (fedlsa/mini), a paper (fedlsa), all miniatures (mini,
    or across for the other papers' methods in them), or a target of `dvc repro --glob`. Default: the
    miniatures and the reports.
    """


@main.command(
    epilog=example("fedrepro status", "fedrepro status fedlsa --stages 'table 2' | xargs -r fedrepro run"),
)
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@click.option("--stages", "table", metavar="TABLE", help="Only list the stages that a table still needs.")
@DEVICE
@calls("status:status")
def status() -> None:
    """Show what is done, and about how many hours are left.

    A line for each paper, or the tables of PAPERS.
    """


@main.command(
    epilog=example(
        "fedrepro explain fedlsa/mini --clients",
        "fedrepro explain fedlsa/mini/fedavg",
        "fedrepro explain fedcrl 'table II' CIFAR-10 FedProx",
    ),
)
@click.argument("what", nargs=-1, required=True, type=Name())
@click.option("--clients", is_flag=True, help="Who holds what, of a scenario: a histogram for each client.")
@calls("explain:explain")
def explain() -> None:
    """Explain a number: its data, settings with their sources, state.

    WHAT is a cell, PAPER/SCENARIO/METHOD; or a paper, a table and words of the row and column; or `methods`
    for a list of all methods.
    """


@main.command(
    epilog=example(
        "fedrepro verify",
        "fedrepro verify fedcrl/mini/fedprox --seconds 10",
        "fedrepro verify fedlsa/office-caltech --rounds 5 --code HEAD~3",
    )
)
@click.argument("what", nargs=-1, type=Name())
@click.option("--seconds", type=Amount("seconds"), default=60, show_default=True, help="Time for each cell.")
@click.option(
    "--seed", type=click.IntRange(min=0), metavar="N", help="Only this seed (default: all in turn)."
)
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="At most so many rounds of a seed.")
@click.option("--code", metavar="COMMIT", help="Compare with the code of this commit, on any processor.")
@jobs_option()
@calls("verify:verify")
def verify() -> None:
    """Check that today's code gives the results.

    Trains the seeds in an order that is drawn anew, as far as the time goes, and compares every round bit for
    bit. WHAT are cells, scenarios or papers. Default: every cell whose code has changed and whose data are
    here. A result that agrees counts as today's.

    With --code both codes train here. Where they give the same bits, a result that counted as that commit's
    counts as today's: so a change of code is verified where the result's own processor is not at hand.
    """


@main.command(epilog=example("fedrepro check", "fedrepro check fedlsa"))
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@calls("check:check")
def check() -> None:
    """Read everything that results rest on again.

    Says what is damaged, which results are stale and why, and what rests on a stamp. The exit code is 1 where
    a file is damaged.
    """


@main.command(epilog=example("fedrepro plan 10", "fedrepro plan 24 fedlsa --jobs 2"))
@click.argument("budget", type=Amount("hours"), metavar="HOURS")
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@jobs_option("1, each with HOURS")
@click.option(
    "--with-network", "network", is_flag=True, help="Also plan claims whose data must be downloaded."
)
@DEVICE
@calls("plan:plan")
def plan() -> None:
    """Find the cells that settle the most claims in HOURS.

    They are written to a file for `fedrepro run`.
    """


@main.command(epilog=example("fedrepro tune fedcrl/mini/fedprox", "fedrepro tune fedcrl --jobs 2"))
@click.argument("what", nargs=-1, type=Name())
@jobs_option()
@FORCE
@calls("tune:main")
def tune() -> None:
    """Tune hyper-parameters on the clients' validation images.

    Then trains with the best. WHAT is PAPER, PAPER/SCENARIO or PAPER/SCENARIO/METHOD. Default: everything
    under `tuning` of every paper.yaml.
    """


@main.command(epilog=example("fedrepro sweep fedlsa/mini/fedprox mu=0.001,0.01,0.1"))
@click.argument("name", type=Name(), metavar="CELL")
@click.argument("assignment", metavar="NAME=VALUE,...")
@jobs_option()
@calls("variants:sweep")
def sweep() -> None:
    """Train a cell with several values of a hyper-parameter.

    NAME is one of the method's or learning_rate. Tables stay unchanged.
    """


@main.command(
    epilog=example(
        "fedrepro compare fedlsa/mini/fedlsa fedlsa/mini/fedavg --seeds 7,8,9",
        "fedrepro compare fedlsa/mini/fedprox --set method.mu=0.1,training.rounds=9",
        "fedrepro compare fedlsa/mini/fedavg theirs.zip:fedlsa/mini/fedavg",
    )
)
@click.argument("names", nargs=-1, required=True, type=Name(), metavar="CELL...")
@click.option("--seeds", default="", metavar="N,N", help="On these seeds (default: those in git).")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Also each cell with other values, of training, evaluation or method.",
)
@click.option("--csv", metavar="FILE", help="Write the differences as CSV.")
@click.option("--latex", metavar="FILE", help="Write them as a LaTeX table.")
@click.option("--plot", metavar="FILE", help="Draw accuracy over rounds, as .svg, .pdf or .png.")
@jobs_option()
@calls("compare:compare")
def compare() -> None:
    """Compare cells seed by seed: by how much the first is better.

    The others and the variants of --set are compared with it; FILE.zip:CELL is one of an archive. What is
    missing is trained; no table changes.
    """


@main.command(epilog=example("fedrepro reproduce fedlsa --jobs 2"))
@click.argument("names", nargs=-1, type=Name(), metavar="[PAPERS]...")
@jobs_option()
@FORCE
@calls("reproduce:reproduce")
def reproduce() -> None:
    """Train the miniatures in a copy and compare the numbers.

    Of PAPERS, or of all, in reproduction/; the committed results stay as they are.
    """


@main.command(epilog=example("fedrepro report", "fedrepro report fedlsa"))
@click.argument("paper", required=False, type=Name())
@calls(".report:main")
def report() -> None:
    """Write the pages under reports/ from the results that are there."""


@main.command(epilog=example("fedrepro ui fedlsa --port 5050"))
@click.argument("paper", required=False, type=Name())
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1024, 65535),
    default=5000,
    show_default=True,
    help="On 127.0.0.1; if it is in use, the next free one.",
)
@calls("ui:ui")
def ui() -> None:
    """Open MLflow on the runs of all papers, or of PAPER.

    Prints a link to every paper's runs and to each scenario's methods side by side. Ctrl-C ends it.
    """


@main.group(epilog=example("fedrepro new paper mypaper", "fedrepro new method fedmine"))
def new() -> None:
    """Begin a paper, or a part of one, with files that run."""


@new.command(epilog=example("fedrepro new project mine && cd mine && fedrepro run"))
@click.argument("name")
@calls("new:project")
def project() -> None:
    """Make a folder with the code and a paper of two methods.

    For an installation outside of any checkout.
    """


@new.command(epilog=example("fedrepro new paper mypaper && fedrepro run mypaper"))
@click.argument("name")
@calls("new:paper")
def paper() -> None:
    """Make papers/NAME: a miniature with FedAvg and one table."""


@new.command(epilog=example("fedrepro new method fedmine", "fedrepro new method ours --paper fedlsa"))
@click.argument("name")
@click.option("--paper", metavar="PAPER", type=Name(), help="For this paper alone, in its methods/.")
@calls("new:method")
def method() -> None:
    """Make a file with FedAvg's round to change, and a test of it."""


WHOSE_FOLDER = click.option("--paper", metavar="PAPER", type=Name(), required=True, help="Whose folder.")


@new.command("data", epilog=example("fedrepro new data mine --paper fedlsa"))
@click.argument("name")
@WHOSE_FOLDER
@calls("new:part", what="data")
def new_data() -> None:
    """Add a data set to a paper's folder, with a test."""


@new.command("model", epilog=example("fedrepro new model mine --paper fedlsa"))
@click.argument("name")
@WHOSE_FOLDER
@calls("new:part", what="model")
def new_model() -> None:
    """Add a network to a paper's folder, with a test."""


@new.command("partition", epilog=example("fedrepro new partition mine --paper fedlsa"))
@click.argument("name")
@WHOSE_FOLDER
@calls("new:part", what="partition")
def new_partition() -> None:
    """Add a kind of partition to a paper's folder, with a test."""


@new.command("metric", epilog=example("fedrepro new metric mine --paper fedlsa"))
@click.argument("name")
@WHOSE_FOLDER
@calls("new:part", what="metric")
def new_metric() -> None:
    """Add a metric to a paper's folder, with a test."""


@main.group(epilog=example("fedrepro export model fedlsa/mini/fedavg"))
def export() -> None:
    """Write what other programs read."""


@export.command(epilog=example("fedrepro export model fedlsa/mini/fedavg --seed 1 --to models/mine"))
@click.argument("name", type=Name(), metavar="CELL")
@click.option("--seed", type=click.IntRange(min=0), help="One of the scenario's (default: the first).")
@click.option("--to", "target", metavar="FOLDER", help="Default: models/CELL-SEED.")
@calls("export:model")
def model() -> None:
    """Train a seed; write its final models as safetensors.

    The server's model, and those of the clients where the tables score them. Exit code 1 where the
    training ends in another state than the result in git.
    """


SEED = click.option("--seed", metavar="N", type=int, help="Whose draw (default: the first seed's).")
SCENARIO = click.argument("what", type=Name(), metavar="SCENARIO")


@export.command(
    "partition",
    epilog=example(
        "fedrepro export partition fedcrl/mini clients",
        "fedrepro export partition fedcrl/mini PFLlib/dataset/digits --format pfllib",
    ),
)
@SCENARIO
@click.argument("folder")
@SEED
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "flower", "pfllib"]),
    default="csv",
    show_default=True,
    help="What is to read them.",
)
@calls("partition:export")
def export_partition() -> None:
    """Write which images every client has.

    csv: indices into the arrays of data/<set>. flower: flower.json with each client's positions in the
    training part, which go on in the test part, and flower-test.json with those of its own test samples.
    pfllib: config.json and the images themselves.
    """


@export.command("results", epilog=example("fedrepro export results fedlsa --csv results.csv"))
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@click.option("--csv", metavar="FILE", help="Write it as CSV.")
@click.option("--parquet", metavar="FILE", help="Write it as Parquet.")
@calls("table:export")
def export_results() -> None:
    """Write every seed's numbers of every round as one table.

    Columns: paper, scenario, method, seed, round, measure, value, hook (models scored before or after local
    training).
    """


@main.group("partition", epilog=example("fedrepro partition show fedcrl/mini"))
def partitions() -> None:
    """Show or import the clients of a scenario."""


@partitions.command(epilog=example("fedrepro partition show fedcrl/mini"))
@SCENARIO
@SEED
@calls("partition:show")
def show() -> None:
    """Show a bubble for every client and class."""


@partitions.command("import", epilog=example("fedrepro partition import PFLlib/dataset/MNIST mypaper/mnist"))
@click.argument("source")
@SCENARIO
@calls("partition:import_split")
def import_partition() -> None:
    """Take the clients of another library for a scenario.

    SOURCE is a folder of PFLlib's, a .json with lists of positions, training part first, as Flower's
    partitioners hold them, or a .csv of `export partition`.
    """


@main.command(epilog=example("fedrepro sync", "fedrepro sync --check"))
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a file would change.")
@calls("sync:main")
def sync() -> None:
    """Write papers/*/dvc.yaml from the paper.yaml of each.

    `run` and `tune` begin with it.
    """


@main.command(epilog=example("fedrepro methods"))
@click.option("--page", is_flag=True, help="Write the table of docs/methods.md instead.")
@calls("methods:main")
def methods() -> None:
    """List every method, in a line each."""


@main.command("import", epilog=example("fedrepro import https://example.org/fedmine.git"))
@click.argument("source", required=False)
@click.option("--name", metavar="NAME", help="Of the paper's folder (default: as SOURCE is called).")
@calls("bring:main")
def import_() -> None:
    """Add a paper's folder with its sealed results.

    SOURCE is a folder, a .zip of `fedrepro archive` or a git repository. Without it, every finished seed
    goes to MLflow, as with `ui`.
    """


@main.command(epilog=example("fedrepro archive fedlsa --to fedlsa.zip"))
@click.argument("key", type=Name(), metavar="PAPER")
@click.option("--to", "target", metavar="FILE", help="Default: PAPER.zip.")
@calls("archive:archive")
def archive() -> None:
    """Pack a paper with results and code for a DOI.

    A zip with RO-Crate metadata, CITATION.cff, results, digests of the partitions, code and environment,
    which Zenodo takes and `fedrepro import` reads back.
    """


@main.command(epilog=example("fedrepro trust fedmine"))
@click.argument("name", metavar="PAPER")
@calls("bring:trust")
def trust() -> None:
    """Let the files of an imported paper run.

    Until then no command sees PAPER. Read its Python files first: they run with your rights.
    """


def here() -> None:
    """The installed command; inside another checkout it runs that checkout's code."""
    with contextlib.suppress(OSError):  # a folder that is no more: `main` says so
        if (folder := checkout_of(Path.cwd()) or HOME) != HOME:
            os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(folder))
    if sys.flags.optimize > 1:  # without the texts of --help
        os.environ.pop("PYTHONOPTIMIZE")
        os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(HOME))
    main(prog_name="fedrepro")
