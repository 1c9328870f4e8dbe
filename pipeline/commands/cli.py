"""The command line `fedrepro`: every command with its arguments, options and help text.

The module of a command is imported only when the command runs, so that --help is fast.
"""

import contextlib
import os
import sys
from pathlib import Path

import click

from pipeline.commands import interrupts
from pipeline.commands.options import FORCE, Amount, Commands, Name, calls, example, jobs_option
from pipeline.place import HOME, checkout_of, surroundings

DEVICE = click.option(
    "--device",
    metavar="NAME",
    help="Estimate hours on this device, such as h200 (default: on those that trained the results).",
)
# What --help shows together.
HEADINGS = {
    "Run": ("run", "status", "plan", "tune", "sweep", "reproduce"),
    "Look": ("explain", "compare", "report", "ui", "methods", "partition"),
    "Trust": ("check", "verify", "trust"),
    "Begin something of your own": ("new", "sync", "migrate"),
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
@click.option("--seeds", default="", metavar="N,N", help="Train with these seeds instead; no table changes.")
@click.option(
    "--on",
    default="local",
    metavar="NAME",
    help="Train cells on a cluster: slurm, ray (docs/scale.md) or your own.",
)
@click.option(
    "--slurm", default="", metavar="OPTIONS", help="Options for sbatch, such as partition=gpu,gres=gpu:1."
)
@click.option("--address", default="", metavar="HOST:PORT", help="Address of Ray's head node.")
@click.option(
    "--gpus",
    type=click.FloatRange(min=0),
    default=0,
    metavar="SHARE",
    help="GPUs for each cell on Ray, such as 0.25.",
)
@click.option("--cancel", is_flag=True, help="End the jobs of WHAT on the cluster.")
@calls("start:main")
def run() -> None:
    """Run what is missing or out of date, several stages at once.

    WHAT is a cell (fedlsa/mini/fedavg), a scenario (fedlsa/mini), a paper (fedlsa), all miniatures (mini),
    methods of other papers in all miniatures (across), or a target of `dvc repro --glob`. Default: the
    miniatures and the reports.
    """


@main.command(
    epilog=example("fedrepro status", "fedrepro status fedlsa --stages 'table 2' | xargs -r fedrepro run"),
)
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@click.option("--stages", "table", metavar="TABLE", help="Only list the stages that this table still needs.")
@DEVICE
@calls("status:status")
def status() -> None:
    """Show what is finished, and estimate the hours that are left.

    Without PAPERS, this prints a line for each paper; with PAPERS, their tables.
    """


@main.command(
    epilog=example(
        "fedrepro explain fedlsa/mini --clients",
        "fedrepro explain fedlsa/mini/fedavg",
        "fedrepro explain fedcrl 'table II' CIFAR-10 FedProx",
    ),
)
@click.argument("what", nargs=-1, required=True, type=Name())
@click.option(
    "--clients", is_flag=True, help="Show which client of a scenario has which images, as histograms."
)
@calls("explain:explain")
def explain() -> None:
    """Explain a number: data, settings with sources, state.

    WHAT is a cell, PAPER/SCENARIO/METHOD. It can also be a paper, a table and words of the row and column, or
    `methods` for a list of all methods.
    """


@main.command(
    epilog=example(
        "fedrepro verify",
        "fedrepro verify fedcrl/mini/fedprox --seconds 10",
        "fedrepro verify fedlsa/office-caltech --rounds 5 --code HEAD~3",
    )
)
@click.argument("what", nargs=-1, type=Name())
@click.option(
    "--seconds", type=Amount("seconds"), default=60, show_default=True, help="Time limit for each cell."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    metavar="N",
    help="Verify only this seed (default: all, one after another).",
)
@click.option(
    "--rounds", type=click.IntRange(min=1), metavar="N", help="Compare at most N rounds of each seed."
)
@click.option("--code", metavar="COMMIT", help="Compare with the code of COMMIT, on any processor.")
@jobs_option()
@calls("verify:verify")
def verify() -> None:
    """Check that today's code reproduces the recorded results.

    This trains the seeds again, in random order and for a limited time, and compares every round bit for bit.
    A result that is equal counts as a result of today's code. WHAT are cells, scenarios or papers. Default:
    every cell whose code has changed and whose data are on this machine.

    With --code, the code of COMMIT and today's code both train here. If they give the same bits, a result
    that was valid for COMMIT is valid for today's code. Use this if the processor that trained the result is
    not at hand.
    """


@main.command(epilog=example("fedrepro check", "fedrepro check fedlsa"))
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@calls("check:check")
def check() -> None:
    """Check all results, and the files on which they depend.

    This prints which files are damaged, which results are stale and why, and which depend on a verification.
    The exit code is 1 if a file is damaged.
    """


@main.command(epilog=example("fedrepro plan 10", "fedrepro plan 24 fedlsa --jobs 2"))
@click.argument("budget", type=Amount("hours"), metavar="HOURS")
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@jobs_option("1, each with HOURS")
@click.option("--with-network", "network", is_flag=True, help="Include claims whose data must be downloaded.")
@DEVICE
@calls("plan:plan")
def plan() -> None:
    """Find the cells that decide the most claims in HOURS.

    It also writes them to a file for `fedrepro run`.
    """


@main.command(epilog=example("fedrepro tune fedcrl/mini/fedprox", "fedrepro tune fedcrl --jobs 2"))
@click.argument("what", nargs=-1, type=Name())
@jobs_option()
@FORCE
@calls("tune:main")
def tune() -> None:
    """Tune hyper-parameters on the clients' validation images.

    Afterwards the best configuration is trained. WHAT is PAPER, PAPER/SCENARIO or PAPER/SCENARIO/METHOD.
    Default: everything under `tuning` in every paper.yaml.
    """


@main.command(epilog=example("fedrepro sweep fedlsa/mini/fedprox mu=0.001,0.01,0.1"))
@click.argument("name", type=Name(), metavar="CELL")
@click.argument("assignment", metavar="NAME=VALUE,...")
@jobs_option()
@calls("variants:sweep")
def sweep() -> None:
    """Train a cell with several values of a hyper-parameter.

    NAME is a hyper-parameter of the method, or learning_rate. No table changes.
    """


@main.command(
    epilog=example(
        "fedrepro compare fedlsa/mini/fedlsa fedlsa/mini/fedavg --seeds 7,8,9",
        "fedrepro compare fedlsa/mini/fedprox --set method.mu=0.1,training.rounds=9",
        "fedrepro compare fedlsa/mini/fedavg theirs.zip:fedlsa/mini/fedavg",
    )
)
@click.argument("names", nargs=-1, required=True, type=Name(), metavar="CELL...")
@click.option(
    "--seeds", default="", metavar="N,N", help="Use these seeds (default: those of the results in git)."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="Add a variant of each cell with other values of training, evaluation or method.",
)
@click.option("--csv", metavar="FILE", help="Write the differences as CSV.")
@click.option("--latex", metavar="FILE", help="Write the differences as a LaTeX table.")
@click.option("--plot", metavar="FILE", help="Draw accuracy over rounds into a .svg, .pdf or .png.")
@jobs_option()
@calls("compare:compare")
def compare() -> None:
    """Compare cells seed by seed: by how much is the first better?

    The first cell is compared with each other cell and with each variant of --set. FILE.zip:CELL is a cell of
    an archive. Missing results are trained; no table changes.
    """


@main.command(epilog=example("fedrepro reproduce fedlsa --jobs 2"))
@click.argument("names", nargs=-1, type=Name(), metavar="[PAPERS]...")
@jobs_option()
@FORCE
@calls("reproduce:reproduce")
def reproduce() -> None:
    """Train the miniatures in a clone and compare the numbers.

    This uses the miniatures of PAPERS, or of all papers, in the folder reproduction/. The committed results
    stay unchanged.
    """


@main.command(epilog=example("fedrepro report", "fedrepro report fedlsa"))
@click.argument("paper", required=False, type=Name())
@calls(".report.writing:main")
def report() -> None:
    """Write the pages in reports/ from the existing results."""


@main.command(epilog=example("fedrepro ui fedlsa --port 5050"))
@click.argument("paper", required=False, type=Name())
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1024, 65535),
    default=5000,
    show_default=True,
    help="Port on 127.0.0.1; if it is in use, the next free one.",
)
@calls("ui:ui")
def ui() -> None:
    """Show the runs of all papers, or of PAPER, in MLflow.

    It prints links to the runs of each paper, and to the methods of each scenario side by side. Ctrl-C ends
    it.
    """


@main.group(epilog=example("fedrepro new paper mypaper", "fedrepro new method fedmine"))
def new() -> None:
    """Begin a paper, or a part of one, with files that run."""


@new.command(epilog=example("fedrepro new project mine && cd mine && fedrepro run"))
@click.argument("name")
@calls("new:project")
def project() -> None:
    """Make a folder with the code and a paper of two methods.

    Use this if you have installed FedRepro without a checkout.
    """


@new.command(epilog=example("fedrepro new paper mypaper && fedrepro run mypaper"))
@click.argument("name")
@calls("new:paper")
def paper() -> None:
    """Make papers/NAME: a miniature with FedAvg and one table."""


@new.command(epilog=example("fedrepro new method fedmine", "fedrepro new method ours --paper fedlsa"))
@click.argument("name")
@click.option(
    "--paper", metavar="PAPER", type=Name(), help="Only for this paper, in the folder methods/ of it."
)
@calls("new:method")
def method() -> None:
    """Make a file with FedAvg's round, to be changed, and a test."""


@new.command("cluster", epilog=example("fedrepro new cluster mine"))
@click.argument("name")
@calls("new:cluster")
def new_cluster() -> None:
    """Make a cluster's class that trains on this machine, and a test.

    The class is to be changed so that it submits to your scheduler. `fedrepro run --on NAME` uses it.
    """


WHOSE_FOLDER = click.option(
    "--paper", metavar="PAPER", type=Name(), required=True, help="The paper to whose folder it is added."
)


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
    """Write files for other programs."""


@export.command(epilog=example("fedrepro export model fedlsa/mini/fedavg --seed 1 --to models/mine"))
@click.argument("name", type=Name(), metavar="CELL")
@click.option("--seed", type=click.IntRange(min=0), help="One of the scenario's seeds (default: the first).")
@click.option("--to", "target", metavar="FOLDER", help="Folder to write to (default: models/CELL-SEED).")
@calls("export:model")
def model() -> None:
    """Train a seed and write its scored models for plain PyTorch.

    Each model is written as a .pt2 file, which runs without FedRepro, and as .safetensors (weights only),
    with a README. `deployed` is what clients use before local training, `trained` after it. The exit code is
    1 if the training does not end in the state of the result in git.
    """


SEED = click.option(
    "--seed", metavar="N", type=int, help="Seed that draws the partition (default: the first)."
)
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
    help="Program that is to read the files.",
)
@calls("partition:export")
def export_partition() -> None:
    """Write which images each client has.

    csv: indices into the arrays of data/<set>. flower: flower.json with each client's positions in the
        training part (higher positions mean the test part), and flower-test.json with the client's own test
        samples. pfllib: config.json and the images themselves.
    """


@export.command("results", epilog=example("fedrepro export results fedlsa --csv results.csv"))
@click.argument("wanted", nargs=-1, type=Name(), metavar="[PAPERS]...")
@click.option("--csv", metavar="FILE", help="Write it as CSV.")
@click.option("--parquet", metavar="FILE", help="Write it as Parquet.")
@calls("table:export")
def export_results() -> None:
    """Write the numbers of all seeds and rounds as one table.

    Its columns are paper, scenario, method, seed, round, measure, value, and hook (whether models were scored
    before or after local training).
    """


@main.group("partition", epilog=example("fedrepro partition show fedcrl/mini"))
def partitions() -> None:
    """Show or import the clients of a scenario."""


@partitions.command(epilog=example("fedrepro partition show fedcrl/mini"))
@SCENARIO
@SEED
@calls("partition:show")
def show() -> None:
    """Show how many images of each class every client has."""


@partitions.command("import", epilog=example("fedrepro partition import PFLlib/dataset/MNIST mypaper/mnist"))
@click.argument("source")
@SCENARIO
@calls("partition:import_split")
def import_partition() -> None:
    """Use the clients of another library in a scenario.

    SOURCE is a folder of PFLlib, a .json with lists of positions (training part first, as in Flower's
    partitioners), or a .csv written by `export partition`.
    """


@main.command(epilog=example("fedrepro sync", "fedrepro sync --check"))
@click.option("--check", is_flag=True, help="Write nothing; the exit code is 1 if a file would change.")
@calls("sync:main")
def sync() -> None:
    """Write papers/*/dvc.yaml from each paper.yaml.

    `run` and `tune` do this first.
    """


@main.command(epilog=example("fedrepro migrate", "fedrepro migrate mypaper"))
@click.argument("wanted", nargs=-1, metavar="[PAPER]...")
@calls("migrate:migrate")
def migrate() -> None:
    """Change the keys of older paper.yaml files into today's.

    The lines that change are printed. Default: all papers.
    """


@main.command(epilog=example("fedrepro methods"))
@click.option("--page", is_flag=True, help="Write the table of docs/methods.md instead.")
@calls("methods:main")
def methods() -> None:
    """List every method in one line."""


@main.command("import", epilog=example("fedrepro import https://example.org/fedmine.git"))
@click.argument("source", required=False)
@click.option("--name", metavar="NAME", help="Name of the paper's folder (default: the name of SOURCE).")
@calls("bring:main")
def import_() -> None:
    """Add the folder of a paper with its results.

    SOURCE is a folder, a .zip of `fedrepro archive` or a git repository. Without SOURCE, all finished seeds
    are added to MLflow, as `ui` does.
    """


@main.command(epilog=example("fedrepro archive fedlsa --to fedlsa.zip"))
@click.argument("key", type=Name(), metavar="PAPER")
@click.option("--to", "target", metavar="FILE", help="File to write (default: PAPER.zip).")
@calls("archive:archive")
def archive() -> None:
    """Pack a paper with results and code, to publish with a DOI.

    The zip contains RO-Crate metadata, CITATION.cff, results, digests of the partitions, the code and the
    list of packages. Zenodo accepts it, and `fedrepro import` reads it.
    """


@main.command(epilog=example("fedrepro trust fedmine"))
@click.argument("name", metavar="PAPER")
@calls("bring:trust")
def trust() -> None:
    """Allow the code of an imported paper to run.

    Before that, no command uses PAPER. Read its Python files first: they run with your permissions.
    """


def here() -> None:
    """The installed command. Inside another checkout, it runs the code of that checkout."""
    interrupts.at_once()
    with contextlib.suppress(OSError):  # the current directory was deleted: `main` says so
        folder = checkout_of(Path.cwd()) or HOME
        if folder != HOME:
            os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(folder))
    if sys.flags.optimize > 1:  # without the texts of --help
        os.environ.pop("PYTHONOPTIMIZE")
        os.execve(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]], surroundings(HOME))
    main(prog_name="fedrepro")
