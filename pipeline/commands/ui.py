"""`fedrepro ui`: serve MLflow's web interface, import results and print links to useful views.

A link names a view that is stored as a tag of the experiment, as MLflow's button Share does: which runs,
which columns, how they are grouped and sorted.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

import click
import requests

from pipeline.cells import results
from pipeline.cells.documents import Result
from pipeline.commands.status import table_rows
from pipeline.errors import FedReproError
from pipeline.place import HOME, surroundings
from pipeline.schema import LISTED, ROOT, Cell, load_paper, papers
from pipeline.schema.paper import NUMBER
from pipeline.tracking import mlflow_database, mlflow_runs

# Only this machine may connect, since MLflow asks for no password.
HOST = "127.0.0.1"
# Seconds that the server may take to start.
PATIENCE = 180.0
# The server waits for this on its standard input: its database is complete.
GO = b"go\n"
# cell -> result.json
Results = dict[Cell, Result]


def ui(paper: str | None, port: int, root: Path = ROOT) -> int:
    """Import results that MLflow does not have yet, print the links and serve until Ctrl-C; returns the exit
    code.

    paper  whose views are linked; None: of all papers
    port   at which the server is; another one if it is taken
    root   folder of the repository

    A server that MLFLOW_TRACKING_URI names is not started. Raises FedReproError if it does not answer, and
    ParamError for an unknown paper.
    """
    keys = [paper] if paper else list(papers(root))
    for key in keys:
        load_paper(key, root)  # reports an unknown one
    address = mlflow_runs.uri(root)
    if address.startswith("http"):
        _show(_fill(keys, root), address.rstrip("/"), root)
        return 0
    return _serve(keys, free_port(port), root)


def _fill(keys: list[str], root: Path) -> dict[str, dict[str, str]]:
    """Import results that MLflow does not have yet; returns the links: paper -> what a link shows -> link."""
    try:
        measured = results.collect(root)
        mlflow_runs.import_results(root, printed(measured, root), show=True)
        store = mlflow_runs.Store(root)
        links = {}
        for key in keys:
            of_paper = {cell: result for cell, result in measured.items() if cell.paper == key}
            links[key] = dict(views(key, of_paper, store))
        return links
    except FedReproError:
        raise
    except Exception as error:  # whatever MLflow, SQLite or the network raises
        raise FedReproError(mlflow_runs.no_answer(error, root)) from error


def printed(measured: Results, root: Path = ROOT) -> dict[Cell, dict[str, float]]:
    """The numbers that the papers print for these cells: cell -> measure -> number.

    Numbers that cannot be read with certainty are left out. If several tables print one, the first counts.
    """
    by_measure: dict[Cell, dict[str, float]] = {}
    for key in dict.fromkeys(cell.paper for cell in measured):
        paper = load_paper(key, root)
        for table in paper.tables.values():
            for record, cell, measure in table_rows(key, paper, table, root):
                # The note `likely=...` of a garbled number says what it probably is.
                is_sure = "likely=" not in record["note"] and re.fullmatch(NUMBER, record["value"])
                if cell in measured and measure and is_sure:
                    by_measure.setdefault(cell, {}).setdefault(measure, float(record["value"]))
    return by_measure


# -- views ---------------------------------------------------------------------------------------------------


def views(key: str, by_cell: Results, store: mlflow_runs.Store) -> Iterator[tuple[str, str]]:
    """Write the views of a paper into its experiment; yields (what a view shows, path of its link).

    These are the methods of each scenario side by side, if two or more are measured, then all runs grouped by
    cell.

    key      of the paper
    by_cell  its results
    store    where the experiment is
    """
    if not by_cell:
        return
    experiment = store.experiment(key)
    documents = {}
    for scenario in dict.fromkeys(cell.scenario for cell in by_cell):
        of_scenario = {cell: result for cell, result in by_cell.items() if cell.scenario == scenario}
        if len(of_scenario) > 1:
            query = f"tags.scenario = '{scenario}' and tags.seed LIKE '%'"
            order = f"metrics.`{columns(of_scenario)[0]}`"
            documents[LISTED.get(scenario, scenario)] = view(of_scenario, query, "label", order)
    # Runs of a tuning have no seed.
    documents["all runs"] = view(by_cell, "tags.seed LIKE '%'", "cell", "attributes.start_time")
    for title, document in documents.items():
        name = re.sub(r"[^a-z0-9]+", "-", title.lower())
        store.client.set_experiment_tag(experiment, f"mlflow.sharedViewState.{name}", json.dumps(document))
        mode = "" if title == "all runs" else "&compareRunsMode=CHART"
        path = f"/#/experiments/{experiment}/runs?workflowType=machine_learning&viewStateShareKey={name}"
        yield title, path + mode


def view(by_cell: Results, query: str, group: str, order: str) -> dict:
    """What MLflow keeps of a table of runs."""
    metrics = [f"metrics.`{name}`" for name in columns(by_cell)]
    name = "attributes.`Run Name`"
    return {
        "searchFilter": query,
        "orderByKey": order,
        "orderByAsc": False,
        "selectedColumns": metrics,
        "columnOrder": [name, *metrics],
        "columnWidths": {name: 330, **dict.fromkeys(metrics, 150)},
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": group}]},
        "runsHiddenMode": "SHOW_ALL",
    }


def columns(by_cell: Results) -> list[str]:
    """Metrics worth a column: the headlines, measured, printed and their spread."""
    headlines = dict.fromkeys(result["headline"] for result in by_cell.values())
    return [f"{kind}/{name}" for name in headlines for kind in ("reported", "printed", "spread")]


# -- the server ----------------------------------------------------------------------------------------------


def free_port(first: int) -> int:
    """The port, or the next one on which nothing answers; prints which."""
    for port in range(first, min(first + 100, 65536)):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)):
                if port != first:
                    click.echo(f"port {first} is in use; {port} instead")
                return port
    raise FedReproError(f"ports {first} to {port} of {HOST} are all in use: give another with --port")


def _serve(keys: list[str], port: int, root: Path) -> int:
    """Start the server while a new database is made, say where it is, then bring the runs in."""
    server_app = [sys.executable, "-m", "uvicorn", "pipeline.commands.mlflow_app:app"]
    command = [*server_app, "--host", HOST, "--port", str(port), "--log-level", "warning"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    more = {"_MLFLOW_SERVER_FILE_STORE": mlflow_runs.uri(root), "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    environment = surroundings(HOME) | more
    address = f"http://{HOST}:{port}"
    server = subprocess.Popen(
        command, cwd=root, start_new_session=True, env=environment, stdin=subprocess.PIPE
    )
    try:
        _make_database(root)
        _wait_for(server, port)
        click.echo(f"MLflow answers at {address}; results are brought in, those of tables first")
        _show(_fill(keys, root), address, root)
        click.echo("Ctrl-C ends it")
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def _wait_for(server: subprocess.Popen, port: int) -> None:
    """Let the server go on, since its database is there, and wait until it answers."""
    with contextlib.suppress(BrokenPipeError), cast(IO[bytes], server.stdin) as pipe:
        pipe.write(GO)
    begun = time.monotonic()
    while not _answers(port):
        if server.poll() is not None or time.monotonic() - begun > PATIENCE:
            raise FedReproError(f"MLflow's server did not start on {HOST}:{port}; see above")
        time.sleep(0.3)


def _make_database(root: Path) -> None:
    """See that the server finds a whole database; otherwise it would make its own at the same time."""
    try:
        mlflow_database.make_usable(root)
    except FedReproError:
        raise
    except Exception as error:  # whatever MLflow or SQLite raises
        raise FedReproError(mlflow_runs.no_answer(error, root)) from error


def _answers(port: int) -> bool:
    with contextlib.suppress(requests.RequestException):
        return requests.get(f"http://{HOST}:{port}/health", timeout=5).ok
    return False


def _show(links: dict[str, dict[str, str]], address: str, root: Path) -> None:
    click.echo(f"\nMLflow: {address}" + ("" if any(links.values()) else "; no runs yet: fedrepro run"))
    for key, paper in links.items():
        if paper:
            click.echo(f"\n{load_paper(key, root).name}")
        for title, path in paper.items():
            click.echo(f"  {title:<{max(map(len, paper))}}  {address}{path}")
    click.echo()
