"""t-SNE of representations: what is computed once, what is kept, and how the page draws it."""
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yaml
from test_report import PAPER, measured, root, write_run  # noqa: F401  (fixtures)

from pipeline.errors import FedReproError
from pipeline.params import PAPERS, ROOT, Cell, load_paper
from pipeline.report import embedding, figures, render

FIGURE = {"figure4": {"number": "4", "title": "t-SNE", "scenarios": ["balanced"], "methods": ["fedavg", "ours"], "kind": "embedding"}}
OURS, FEDAVG = Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "balanced", "fedavg")


def write_representations(root, cell, spread, n=48, **changed):
    """Three classes of unit vectors in eight dimensions, `spread` apart from their centres."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    arrays = {"values": (np.eye(8)[labels] + spread * rng.normal(size=(n, 8))).astype(np.float16), "labels": labels,
              "clients": labels % 2, "ids": np.arange(n)} | changed
    cell.representations(root).parent.mkdir(parents=True, exist_ok=True)
    np.savez(cell.representations(root), **{name: array for name, array in arrays.items() if array is not None})


@pytest.fixture
def drawn(measured):  # noqa: F811
    """Two methods of a scenario with representations, and a figure that shows them."""
    for name in PAPERS:
        (measured / f"papers/{name}/paper.yaml").write_text(yaml.safe_dump(PAPER | {"figures": FIGURE}, sort_keys=False))
    write_representations(measured, OURS, 0.05)
    write_representations(measured, FEDAVG, 0.6)
    return measured


def test_embedding_is_kept_and_drawn_without_the_representations(drawn):
    written = embedding.update("fedcrl", drawn)
    assert [path.name for path in written] == ["figure4-balanced-fedavg.csv", "figure4-balanced-ours.csv"]
    first = [path.read_bytes() for path in written]
    lines = written[1].read_text().splitlines()
    assert lines[0] == "x,y,label,client" and len(lines) == 49
    assert all(re.fullmatch(r"-?\d+\.\d{3},-?\d+\.\d{3},[012],[01]", line) for line in lines[1:])
    assert [path.read_bytes() for path in embedding.update("fedcrl", drawn)] == first
    for path in drawn.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    render(["fedcrl"], drawn)
    svg = (drawn / "reports/figures/fedcrl-figure4.svg").read_text()
    assert svg.count('id="label-') == 6 and "FedAvg: silhouette" in svg and "prefers-color-scheme: dark" in svg
    apart, mixed = (embedding.read("figure4", cell, drawn).silhouette for cell in (OURS, FEDAVG))
    assert apart > 0.9 > mixed
    assert f"FedAvg {mixed:.3f}; Ours {apart:.3f}." in (drawn / "reports/fedcrl.html").read_text()


def test_silhouette_is_that_of_the_representations(drawn):
    write_representations(drawn, OURS, 0.0, 6, values=np.array([[1, 0], [0, 1]] * 3, np.float16), labels=np.array([0, 1] * 3))
    assert embedding.compute(OURS, drawn).silhouette == 1.0
    write_representations(drawn, OURS, 0.0, 4, values=np.array([[1, 0], [0, 1]] * 2, np.float16), labels=np.array([0, 0, 1, 1]))
    assert embedding.compute(OURS, drawn).silhouette == -0.5          # each point's nearest is of the other label


@pytest.mark.parametrize("changed, message", [
    ({"values": None}, "not representations"),
    ({"labels": np.zeros(5, int)}, "not representations: values"),
    ({"values": np.full((48, 8), np.nan, np.float16)}, "not finite"),
    ({"labels": np.zeros(48, int)}, "48 points of 1 labels"),
])
def test_broken_representations_are_named(drawn, changed, message):
    write_representations(drawn, OURS, 0.1, **changed)
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: .*{message}"):
        embedding.compute(OURS, drawn)


def test_a_cell_needs_a_figure_and_representations(drawn):
    (OURS.representations(drawn)).write_bytes(b"PK")
    with pytest.raises(FedReproError, match="ours.npz: not representations"):
        embedding.update("fedcrl/balanced/ours", drawn)
    (OURS.representations(drawn)).unlink()
    with pytest.raises(FedReproError, match="ours.npz: no such file"):
        embedding.update("fedcrl/balanced/ours", drawn)
    with pytest.raises(FedReproError, match="no figure of kind 'embedding' shows the cell fedcrl/balanced/fedprox"):
        embedding.update("fedcrl/balanced/fedprox", drawn)
    assert [path.name for path in embedding.update("fedcrl", drawn)] == ["figure4-balanced-fedavg.csv"]


@pytest.mark.parametrize("change", [
    lambda csv: csv.with_suffix(".json").unlink(),
    lambda csv: csv.with_suffix(".json").write_text("{}"),
    lambda csv: csv.write_text(csv.read_text() + "1.000,1.000,1,1\n"),
    lambda csv: csv.write_text("a,b\n1,2\n"),
])
def test_a_kept_file_that_does_not_fit_is_refused(drawn, change):
    points = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], "label": [0, 1], "client": [0, 0]})
    path = embedding.write("figure4", OURS, embedding.Embedding(points, 0.5), drawn)
    assert embedding.read("figure4", OURS, drawn).silhouette == 0.5
    change(path)
    with pytest.raises(FedReproError, match="figures/figure4-balanced-ours.csv: not an embedding"):
        render(["fedcrl"], drawn)


def test_no_more_points_are_drawn_than_a_page_can_bear():
    n = 3 * figures.MOST_POINTS
    table = pd.DataFrame({"x": np.arange(n) % 97, "y": np.arange(n) % 89, "label": np.arange(n) % 12, "client": 0})
    svg = figures.points({"many": table})
    assert svg.count('id="label-') == 12
    strokes = [re.search(rf'id="label-{i}".*?d="(.*?)"', svg, re.S)[1].count("M") for i in range(12)]
    assert sum(strokes[:5]) + sum(strokes[5:10]) / 2 + sum(strokes[10:]) == figures.MOST_POINTS       # a cross has two


def test_stage_says_one_line_and_exits_with_2():
    done = subprocess.run([sys.executable, "stages/figures.py", "fedclr"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: unknown paper 'fedclr' (nearest: 'fedcrl')"]
