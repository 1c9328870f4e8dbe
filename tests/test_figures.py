"""t-SNE of representations: what is computed once, what is kept, and how the page draws it."""
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from reporting import PAPER, write_run

from pipeline.cells.results import collect
from pipeline.data import store
from pipeline.errors import FedReproError, ParamError
from pipeline.report import clouds, computed, embedding, examples, figures, geometry, render
from pipeline.report.drawings import FigureView, figure_views
from pipeline.report.study import Study
from pipeline.schema import ROOT, Cell, load_paper, papers
from pipeline.sealing import seal

PAPERS = papers()

FIGURE = {
    "figure4": {
        "number": "4",
        "title": "t-SNE",
        "scenarios": ["balanced"],
        "methods": ["fedavg", "ours"],
        "kind": "embedding",
    }
}
OURS, FEDAVG = Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "balanced", "fedavg")


def write_representations(root, cell, spread, n=48, **changed):
    """Three classes of unit vectors in eight dimensions, `spread` apart from their centres."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 3
    arrays = {
        "values": (np.eye(8)[labels] + spread * rng.normal(size=(n, 8))).astype(np.float16),
        "labels": labels,
        "clients": labels % 2,
        "ids": np.arange(n),
        "prototypes": np.tile(np.eye(8, dtype=np.float32)[:3], (2, 1)),
        "prototype_labels": np.tile(np.arange(3), 2),
        "prototype_clients": np.repeat([0, 1], 3),
    } | changed
    cell.representations(root).parent.mkdir(parents=True, exist_ok=True)
    np.savez(
        cell.representations(root), **{name: array for name, array in arrays.items() if array is not None}
    )


@pytest.fixture
def drawn(measured):
    """Two methods of a scenario with representations, and a figure that shows them."""
    for name in PAPERS:
        (measured / f"papers/{name}/paper.yaml").write_text(
            yaml.safe_dump(PAPER | {"figures": FIGURE}, sort_keys=False)
        )
    write_representations(measured, OURS, 0.05)
    write_representations(measured, FEDAVG, 0.6)
    return measured


def test_embedding_is_kept_and_drawn_without_the_representations(drawn):
    written = computed.update("fedcrl", root=drawn)
    assert [path.name for path in written] == ["figure4-balanced-fedavg.csv", "figure4-balanced-ours.csv"]
    first = [path.read_bytes() for path in written]
    lines = written[1].read_text().splitlines()
    assert lines[0] == "x,y,label,client" and len(lines) == 49
    assert all(re.fullmatch(r"-?\d+\.\d{3},-?\d+\.\d{3},[012],[01]", line) for line in lines[1:])
    assert [path.read_bytes() for path in computed.update("fedcrl", root=drawn)] == first
    for path in drawn.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    render(["fedcrl"], drawn)
    svg = (drawn / "reports/figures/fedcrl-figure4.svg").read_text()
    assert (
        svg.count('id="label-') == 6 and "FedAvg: silhouette" in svg and "prefers-color-scheme: dark" in svg
    )
    apart, mixed = (embedding.read("figure4", cell, drawn).silhouette for cell in (OURS, FEDAVG))
    assert apart > 0.9 > mixed
    assert f"FedAvg {mixed:.3f}; Ours {apart:.3f}." in (drawn / "reports/fedcrl.html").read_text()


def test_silhouette_is_that_of_the_representations(drawn):
    write_representations(
        drawn, OURS, 0.0, 6, values=np.array([[1, 0], [0, 1]] * 3, np.float16), labels=np.array([0, 1] * 3)
    )
    assert embedding.compute(OURS, drawn).silhouette == 1.0
    write_representations(
        drawn, OURS, 0.0, 4, values=np.array([[1, 0], [0, 1]] * 2, np.float16), labels=np.array([0, 0, 1, 1])
    )
    assert embedding.compute(OURS, drawn).silhouette == -0.5  # each point's nearest is of the other label


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
        computed.update("fedcrl/balanced/ours", root=drawn)
    (OURS.representations(drawn)).unlink()
    with pytest.raises(FedReproError, match="ours.npz: no such file"):
        computed.update("fedcrl/balanced/ours", root=drawn)
    with pytest.raises(FedReproError, match="no figure that is computed shows fedcrl/balanced/fedprox"):
        computed.update("fedcrl/balanced/fedprox", root=drawn)
    assert [path.name for path in computed.update("fedcrl", root=drawn)] == ["figure4-balanced-fedavg.csv"]


@pytest.mark.parametrize("change", [
    lambda csv: csv.with_suffix(".json").unlink(),
    lambda csv: csv.with_suffix(".json").write_text("{}"),
    lambda csv: csv.write_text(csv.read_text() + "1.000,1.000,1,1\n"),
    lambda csv: csv.write_text("a,b\n1,2\n"),
    lambda csv: csv.write_text(csv.read_text().replace("1.000,1.000", "abc,1.000")),
    lambda csv: csv.write_text(csv.read_text().replace("1.000,1.000", "inf,1.000")),
])
def test_a_kept_file_that_does_not_fit_is_refused(drawn, change):
    points = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], "label": [0, 1], "client": [0, 0]})
    path = embedding.write("figure4", OURS, embedding.Embedding(points, 0.5), drawn)
    assert embedding.read("figure4", OURS, drawn).silhouette == 0.5
    change(path)
    with pytest.raises(FedReproError, match="figures/figure4-balanced-ours.csv: not an embedding"):
        render(["fedcrl"], drawn)


def test_no_more_points_are_drawn_than_a_page_can_bear():
    n = 3 * clouds.MOST_POINTS
    table = pd.DataFrame(
        {"x": np.arange(n) % 97, "y": np.arange(n) % 89, "label": np.arange(n) % 12, "client": 0}
    )
    svg = clouds.points({"many": table})
    assert svg.count('id="label-') == 12
    strokes = [re.search(rf'id="label-{i}".*?d="(.*?)"', svg, re.S)[1].count("M") for i in range(12)]
    # a cross has two
    assert sum(strokes[:5]) + sum(strokes[5:10]) / 2 + sum(strokes[10:]) == clouds.MOST_POINTS


def test_stage_says_one_line_and_exits_with_2():
    done = subprocess.run(
        [sys.executable, "-m", "stages.figures", "fedclr"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: unknown paper 'fedclr' (nearest: 'fedcrl')"]


# -- sweeps --------------------------------------------------------------------------------------------------

def paper_with(root, **document):
    """FedCRL's paper.yaml in the repository of the tests, changed; what the reports have of it."""
    (root / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(PAPER | document, sort_keys=False))
    load_paper.cache_clear()
    return load_paper("fedcrl", root)


def finished(root, cell, mean, **hyper):
    """A result that `collect` accepts, with its headline at mean -1 and +1."""
    write_run(root, f"{cell.scenario}/{cell.method}", {"average": [mean - 1, mean + 1]})
    path = cell.folder(root) / "result.json"
    document = json.loads(path.read_text())
    document["hyper"] = hyper
    document.pop("self")
    path.write_text(json.dumps(seal(document)))


def drawing_of(root, paper, name):
    (view,) = [
        view
        for view in figure_views(replace(Study.of("fedcrl", collect(root), root), paper=paper))
        if view.key == name
    ]
    return view


def test_a_sweep_over_a_number_of_the_scenario(root):
    scenarios = dict(PAPER["scenarios"])
    skewed = {
        f"dir-{i}": scenarios["balanced"] | {"partition": {"kind": "dirichlet", "clients": 2, "beta": beta}}
        for i, beta in enumerate((5.0, 0.05, 0.5))
    }
    paper = paper_with(
        root,
        scenarios=scenarios | skewed,
        grids={"main": {"scenarios": list(skewed), "methods": ["fedavg", "ours"]}},
        figures={
            "figure5": {
                "number": "5",
                "title": "beta",
                "scenarios": list(skewed),
                "kind": "sweep",
                "over": ["partition.beta"],
            }
        },
    )
    view = drawing_of(root, paper, "figure5")
    assert view.drawing is None and view.miniature is None
    assert view.command == "fedrepro run " + " ".join(
        f"'papers/fedcrl/dvc.yaml:main@dir-{i}-*'" for i in range(3)
    )
    finished(root, Cell("fedcrl", "dir-0", "fedavg"), 90)
    assert drawing_of(root, paper, "figure5").drawing is None       # a point is no line
    finished(root, Cell("fedcrl", "dir-1", "fedavg"), 60)
    finished(root, Cell("fedcrl", "dir-0", "ours"), 95)
    view = drawing_of(root, paper, "figure5")
    lines = view.drawing.draw.args[0]["beta"]["accuracy (average)"]
    assert (
        list(lines) == ["FedAvg"]
        and lines["FedAvg"]["x"].tolist() == [0.05, 5.0]
        and lines["FedAvg"]["mean"].tolist() == [60.0, 90.0]
    )
    svg = view.drawing.draw()
    assert (
        svg.count('id="sweep-') == 1
        and ">0.05<" in svg
        and ">beta<" in svg
        and "_nolegend_" not in svg
        and "prefers-color-scheme: dark" in svg
    )
    assert (
        view.command
        == "fedrepro run 'papers/fedcrl/dvc.yaml:main@dir-1-*' 'papers/fedcrl/dvc.yaml:main@dir-2-*'"
    )


def test_a_sweep_over_two_numbers_of_the_method_keeps_the_other_at_its_first_value(root):
    rows = {"ours": (0.1, 1.0), "ours-a": (1.0, 1.0), "ours-b": (10.0, 1.0), "ours-c": (0.1, 3.0)}
    methods = PAPER["methods"] | {
        key: {"label": key, "algorithm": "fedprox", "alpha": a, "lam": lam} for key, (a, lam) in rows.items()
    }
    paper = paper_with(
        root,
        methods=methods,
        figures={
            "figure5": {
                "number": "5",
                "title": "alpha, lambda",
                "scenarios": ["balanced"],
                "methods": list(rows),
                "kind": "sweep",
                "over": ["alpha", "lam"],
            }
        },
    )
    for i, (key, (a, lam)) in enumerate(rows.items()):
        finished(root, Cell("fedcrl", "balanced", key), 50 + i, alpha=a, lam=lam)
    panels = drawing_of(root, paper, "figure5").drawing.draw.args[0]
    (line,), (other,) = (list(rows["accuracy (average)"].values()) for rows in panels.values())
    assert list(panels) == ["alpha", "lambda"]
    assert (
        line["x"].tolist() == [0.1, 1.0, 10.0]
        and line["mean"].tolist() == [50, 51, 52]
        and line["std"].tolist() == pytest.approx([2**0.5] * 3)
    )
    assert other["x"].tolist() == [1.0, 3.0] and other["mean"].tolist() == [50, 53]


@pytest.mark.parametrize("figure, message", [
    ({"kind": "sweep"}, "figures.figure5: a figure of kind 'sweep' needs 'over'"),
    ({"kind": "curves", "over": ["tau"]}, "figures.figure5: a figure of kind 'sweep' needs 'over'"),
    ({"kind": "swep", "over": ["tau"]}, "unknown value 'swep' .nearest: 'sweep'.")])
def test_a_sweep_needs_its_number(root, figure, message):
    with pytest.raises(FedReproError, match=message):
        paper_with(
            root, figures={"figure5": {"number": "5", "title": "t", "scenarios": ["balanced"]} | figure}
        )


# -- two measures, and data ----------------------------------------------------------------------------------

def test_two_measures_of_every_method_stand_beside_each_other(root):
    figure = {
        "number": "2",
        "title": "both",
        "scenarios": ["balanced", "skewed"],
        "kind": "pairs",
        "measures": ["clean.AVG", "corrupted.AVG"],
    }
    paper = paper_with(root, figures={"figure2": figure})
    assert drawing_of(root, paper, "figure2").drawing is None
    write_run(
        root,
        "balanced/fedavg",
        {"average": [5.0, 5.0], "clean.AVG": [60.0, 62.0], "corrupted.AVG": [50.0, 51.0]},
    )
    write_run(root, "balanced/ours", {"average": [5.0, 5.0]})                     # has neither
    view = drawing_of(root, paper, "figure2")
    panels, words = view.drawing.draw.args
    assert (
        panels["balanced"].loc["FedAvg"].tolist() == [61.0, 50.5]
        and len(panels["balanced"]) == 1
        and words == ["clean test, average", "corrupted test, average"]
    )
    assert (
        view.drawing.draw().count('id="first-') == 1
        and "'papers/fedcrl/dvc.yaml:main@balanced-*'" in view.command
    )
    with pytest.raises(ParamError, match="a figure of kind 'pairs' needs two 'measures'"):
        paper_with(root, figures={"figure2": figure | {"measures": ["clean.AVG"]}})


def test_images_per_class_and_client_need_the_partition_alone(root):
    paper = paper_with(
        root,
        figures={"figure1": {"number": "R1", "title": "dealt", "scenarios": ["skewed"], "kind": "clients"}},
    )
    view = drawing_of(root, paper, "figure1")
    assert view.drawing is None and view.command == "fedrepro run papers/fedcrl/dvc.yaml:partition@skewed"
    path = root / "papers/fedcrl/runs/skewed/clients.csv"
    path.parent.mkdir(parents=True)
    path.write_text("client,domain,train,test,0,1,2\na,x,6,2,1,2,3\nb,x,4,2,4,0,0\n")
    view = drawing_of(root, paper, "figure1")
    [table] = view.drawing.draw.args[0].values()
    assert (
        table.values.tolist() == [[1, 2, 3], [4, 0, 0]]
        and view.command == ""
        and 'id="dealt-0"' in view.drawing.draw()
    )
    path.write_text("client,domain,train\na,x,many\n")
    with pytest.raises(FedReproError, match="clients.csv: not the images per class and client"):
        drawing_of(root, paper, "figure1")


def test_examples_of_every_domain_are_kept_where_the_data_are(root):
    scenario = PAPER["scenarios"]["balanced"] | {
        "data": {"set": "digits", "domains": {"B": "bright", "A": "dark"}}
    }
    paper = paper_with(
        root,
        scenarios=PAPER["scenarios"] | {"balanced": scenario},
        figures={
            "figure5": {"number": "5", "title": "examples", "scenarios": ["balanced"], "kind": "images"}
        },
    )
    view = drawing_of(root, paper, "figure5")
    assert (
        view.drawing is None
        and view.command
        == "fedrepro run papers/fedcrl/dvc.yaml:partition@balanced; python -m stages.figures fedcrl"
    )
    labels = np.array([0, 1, 0, 1, 2])
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.full((1, 8, 8, 1), 40, np.uint8)
    store.write(
        root / "data/digits",
        images,
        labels,
        np.array([0, 0, 1, 1, 1]),
        np.zeros(5, np.uint8),
        {
            "set": "digits",
            "domains": ["dark", "bright"],
            "classes": ["0", "1", "2"],
            "source": "bundled",
            "deviation": "",
            "inputs": {},
            "official_split": False,
        },
    )
    assert [path.name for path in computed.update("fedcrl", root=root)] == [
        "figure5-mini.png",
        "figure5-balanced.png",
    ]
    view = drawing_of(root, paper, "figure5")
    assert view.drawing.path == "../papers/fedcrl/figures/figure5-balanced.png" and view.command == ""
    with Image.open(root / "papers/fedcrl/figures/figure5-balanced.png") as picture:
        gray = np.asarray(picture.convert("L"))
    rows = [
        {int(value) for value in gray[top, examples.LEFT + 20 :: examples.SIDE + examples.GAP]}
        for top in (30, 30 + examples.SIDE + examples.GAP)
    ]
    # a row per printed domain, the first image of each class
    assert rows == [{80, 120, 160, 255}, {0, 40, 255}]
    render(["fedcrl"], root)
    mini = (root / "reports/runs/fedcrl/miniature.html").read_text()
    assert 'src="../../../papers/fedcrl/figures/figure5-mini.png"' in mini
    (root / "papers/fedcrl/figures/figure5-mini.png").write_text("no picture")
    with pytest.raises(FedReproError, match="figure5-mini.png: not a picture"):
        drawing_of(root, paper, "figure5")


# -- margins and matrices ------------------------------------------------------------------------------------

def test_margins_are_distances_to_the_nearest_prototype():
    points = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    assert geometry.margins(points)[:3].tolist() == [1.0, pytest.approx(18**0.5), 1.0] and np.isnan(
        geometry.margins(points)[3]
    )
    assert np.isnan(geometry.margins(points[[0, 3]])).all()         # nothing to be apart from


def test_means_over_clients_can_lie_closer_than_any_clients_own():
    """Two clients whose classes lie 2 apart, crosswise: their means coincide (FedLSA Fig. 1's margin
    decay)."""
    values = np.array([[1.0, 0], [-1, 0], [-1, 0], [1, 0]])
    table = geometry.margin_table(values, np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    assert table[["label", "clients", "mean"]].to_dict("list") == {
        "label": [0, 1],
        "clients": [2.0, 2.0],
        "mean": [0.0, 0.0],
    }
    # client 1 lacks class 1
    alone = geometry.margin_table(values[:3], np.array([0, 1, 0]), np.array([0, 0, 1]))
    assert alone[["label", "clients", "mean"]].to_dict("list") == {
        "label": [0, 1],
        "clients": [2.0, 2.0],
        "mean": [1.0, 1.0],
    }
    assert table["vectors"].isna().all()                            # the server sends nothing per class


def test_margins_are_those_of_the_clients_own_class_means_and_not_of_test_images(drawn):
    """Client 0 has three classes at (0, 0), (3, 4), (0, 1), client 1 two of them, 6 apart; the means over
    clients lie at (0, 3), (3, 4), (0, 3.5): FedLSA Fig. 1."""
    write_representations(
        drawn, OURS, 0.05,
        prototypes=np.array([[0, 0], [3, 4], [0, 1], [0, 6], [0, 0]], np.float32),
        prototype_labels=np.array([0, 1, 2, 2, 0]), prototype_clients=np.array([0, 0, 0, 1, 1]),
        vectors=np.array([[0, 0], [0, 2], [0, 5]], np.float16))
    table = geometry.compute("margins", OURS, drawn)
    assert table.to_dict("list") == {
        "label": [0, 1, 2],
        "clients": [6.0, pytest.approx(18**0.5), 6.0],
        "mean": [3.5, pytest.approx(9.25**0.5), pytest.approx(9.25**0.5)],
        "vectors": [2.0, 2.0, 3.0],
    }


@pytest.mark.parametrize("arrays, message", [
    ({"prototypes": None}, "no class means of the clients"), ({"prototypes": np.zeros(6)}, "expected"),
    ({"prototypes": np.full((6, 8), np.nan)}, "finite"), ({"prototype_labels": np.arange(3)}, "expected")])
def test_broken_prototypes_are_named(drawn, arrays, message):
    write_representations(drawn, OURS, 0.05, **arrays)
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: .*{message}"):
        geometry.compute("margins", OURS, drawn)


def test_margins_of_what_the_server_sends():
    """Anchors of four classes, one of them unknown, another one not among the test images: 3-4-5, then 0 to
    its nearest."""
    values, labels = np.array([[1.0, 0], [-1, 0], [0, 3]]), np.array([0, 1, 3])
    vectors = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    table = geometry.margin_table(values, labels, np.zeros(3, int), vectors)
    assert (
        table["label"].tolist() == [0, 1, 3]
        and table["vectors"][:2].tolist() == [1.0, pytest.approx(18**0.5)]
        and np.isnan(table["vectors"][2])
    )


def test_the_vectors_are_kept_and_drawn_where_there_are_some(drawn):
    paper = paper_with(drawn, figures=KINDS)
    vectors = np.eye(8)[:3].astype(np.float16)                      # sqrt 2 apart
    vectors[2] = np.nan
    write_representations(drawn, OURS, 0.05, vectors=vectors)
    for cell in (FEDAVG, OURS):
        geometry.maker("margins")("figure1", cell, drawn)
    lines = embedding.kept("figure1", OURS, drawn).read_text().splitlines()
    assert lines[0] == "label,clients,mean,vectors" and [line.rpartition(",")[2] for line in lines[1:]] == [
        "1.4142",
        "1.4142",
        "",
    ]
    drawing = drawing_of(drawn, paper, "figure1").drawing
    svg = drawing.draw()
    assert (
        'id="vectors-1"' in svg
        and 'id="vectors-0"' not in svg
        and "sent by the server" in svg
        and "nan" not in svg.lower()
    )
    assert "diamond: the vectors that the server sends" in drawing.caption and drawing.caption.endswith(
        ", diamond 1.414."
    )
    write_representations(drawn, OURS, 0.05)
    geometry.maker("margins")("figure1", OURS, drawn)
    drawing = drawing_of(drawn, paper, "figure1").drawing
    assert "diamond" not in drawing.caption and "sent by the server" not in drawing.draw()


@pytest.mark.parametrize("vectors, message", [
    (np.zeros(3), r"vectors \(3,\), expected"), (np.zeros((2, 8)), "a row for each of the labels to 2"),
    (np.full((3, 8), np.inf), "finite or NaN")])
def test_broken_vectors_are_named(drawn, vectors, message):
    write_representations(drawn, OURS, 0.05, vectors=vectors)
    with pytest.raises(
        FedReproError,
        match=f"balanced/ours.npz: {message}"
        if message.startswith("vec")
        else f"balanced/ours.npz: vectors .*{message}",
    ):
        geometry.compute("margins", OURS, drawn)


def test_uniformity_is_that_of_the_representations_in_all_their_dimensions(drawn):
    """The directions +e and -e of four axes: of 28 pairs four are opposite and 24 at right angles, so that
    |u - v|^2 is 4 and 2. Three dimensions, which the figure draws, have no room for one of the axes."""
    from pipeline.report.measures import numbers
    result, axes = collect(drawn)[OURS], np.eye(4, 8)
    write_representations(drawn, OURS, 0.05, values=np.concatenate([axes, -axes]).astype(np.float16),
                          ids=np.arange(8), labels=np.arange(8) % 2, clients=np.zeros(8, int))
    path = geometry.maker("sphere")("figure2", OURS, drawn)
    expected = round(float(np.log((4 * np.exp(-8) + 24 * np.exp(-4)) / 28)), 4)
    assert numbers(OURS, result, "figure2.uniformity", drawn) == {0: expected}
    assert geometry.kept_uniformity("figure2", FEDAVG, drawn) is None
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts.pop("uniformity") == expected
    # as it was kept before it held the measure
    path.with_suffix(".json").write_text(json.dumps(facts))
    assert numbers(OURS, result, "figure2.uniformity", drawn) == {}


def test_cross_correlation_is_the_one_of_the_loss():
    torch = pytest.importorskip("torch")
    from pipeline.methods.fccl import cross_correlation
    logits = np.random.default_rng(0).normal(size=(3, 20, 4))
    ours = geometry.cross_correlation(logits[0], logits.mean(0))
    theirs = cross_correlation(torch.from_numpy(logits[0]), torch.from_numpy(logits.mean(0)), pearson=True)
    assert np.allclose(ours, theirs.numpy()) and np.allclose(
        np.diag(geometry.cross_correlation(logits[0], logits[0])), 1
    )
    logits[0][:, 2] = 7.0
    assert (geometry.cross_correlation(logits[0], logits[1])[2] == 0).all()


KINDS = {
    "figure1": {
        "number": "1",
        "title": "Margins",
        "scenarios": ["balanced"],
        "methods": ["fedavg", "ours"],
        "kind": "margins",
    },
    "figure8": {
        "number": "8",
        "title": "Correlations",
        "scenarios": ["balanced"],
        "methods": ["ours"],
        "kind": "matrix",
    },
}


def test_margins_and_matrices_are_kept_and_drawn_without_the_representations(drawn):
    paper = paper_with(drawn, figures=KINDS)
    write_representations(
        drawn, OURS, 0.05, logits=np.random.default_rng(0).normal(size=(4, 30, 3)).astype(np.float16)
    )
    assert drawing_of(drawn, paper, "figure1").command == "python -m stages.figures fedcrl"
    written = computed.update("fedcrl", root=drawn)
    assert {path.name for path in written} == {
        "figure1-balanced-fedavg.csv",
        "figure1-balanced-ours.csv",
        "figure8-balanced-ours.csv",
    }
    for path in drawn.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    view = drawing_of(drawn, paper, "figure1")
    svg = view.drawing.draw()
    assert (
        view.command == ""
        and svg.count('id="clients-') == svg.count('id="mean-') == 2
        and "prefers-color-scheme: dark" in svg
    )
    assert f"{geometry.read('margins', 'figure1', OURS, drawn)['mean'].mean():.3f}" in view.drawing.caption
    matrices = drawing_of(drawn, paper, "figure8").drawing
    assert {row: list(columns) for row, columns in matrices.draw.args[0].items()} == {
        f"client {k}": ["public images"] for k in range(4)
    }
    assert "client 3" in matrices.draw() and "private" not in matrices.caption
    path = embedding.kept("figure1", OURS, drawn)
    whole = path.read_text()
    path.write_text(re.sub(r",[\d.]+", ",abc", whole, count=1))
    with pytest.raises(FedReproError, match="figure1-balanced-ours.csv: not the margins of a cell .*abc"):
        drawing_of(drawn, paper, "figure1")
    path.write_text(whole + "9,1,1,1\n")
    with pytest.raises(FedReproError, match="figure1-balanced-ours.csv: not the margins of a cell"):
        drawing_of(drawn, paper, "figure1")


@pytest.mark.parametrize("logits, message", [
    (None, "no logits of all clients on common images"), (np.zeros((3, 4)), r"logits \(3, 4\), expected"),
    (np.full((2, 3, 4), np.nan), "all of them finite")])
def test_without_logits_there_is_no_matrix(drawn, logits, message):
    paper_with(drawn, figures=KINDS)
    write_representations(drawn, OURS, 0.05, logits=logits)
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: .*{message}"):
        geometry.compute("matrix", OURS, drawn)


def test_private_images_are_the_right_column(drawn):
    """Clients a and b share the domain M; each is held against the mean of all on its own domain's images."""
    rng = np.random.default_rng(0)
    logits, of_m, of_u = (rng.normal(size=(3, n, 4)).astype(np.float16) for n in (30, 12, 9))
    arrays = {
        "logits": logits,
        "names": np.array(["a", "b", "c"]),
        "domains": np.array(["M", "M", "U"]),
        "private.M": of_m,
    }
    write_representations(drawn, OURS, 0.05, **arrays, **{"private.U": of_u})
    paper = paper_with(drawn, figures={"figure8": KINDS["figure8"]})
    geometry.maker("matrix")("figure8", OURS, drawn)
    drawing = drawing_of(drawn, paper, "figure8").drawing
    rows = drawing.draw.args[0]
    assert list(rows) == ["a", "b", "c"] and all(
        list(row) == ["public images", "private images"] for row in rows.values()
    )
    for k, (name, private) in enumerate(zip(rows, (of_m, of_m, of_u))):
        for column, found in (("public images", logits), ("private images", private)):
            expected = geometry.cross_correlation(found[k].astype(float), found.astype(float).mean(0))
            assert rows[name][column] == pytest.approx(expected, abs=6e-5)  # four decimals are kept
    svg = drawing.draw()
    assert (
        svg.count(">private images<") == 1
        and f">diagonal {np.diag(rows['c']['private images']).mean():.2f}<" in svg
    )
    assert (
        drawing.size == clouds.matrices_size(3, 2)
        and "private images of the client's own domain (right)" in drawing.caption
    )
    write_representations(drawn, OURS, 0.05, **arrays)
    with pytest.raises(
        FedReproError, match="balanced/ours.npz: no logits of all clients on common images: .*private.U"
    ):
        geometry.compute("matrix", OURS, drawn)


# -- one client on two domains -------------------------------------------------------------------------------

def crossed(**changed):
    """Client one's features of 40 images of each of three domains: those of its own, M, lie by label, 3 in 4
    right; the others do not, 1 in 4 right."""
    rng, labels = np.random.default_rng(0), np.arange(120) % 4
    domains = np.repeat(["M", "U", "SV"], 40)
    features = np.where((domains == "M")[:, None], np.eye(8)[labels], 0) + 0.1 * rng.normal(size=(120, 8))
    right = np.where(domains == "M", np.arange(120) % 8 < 6, np.arange(120) % 8 < 2)
    return {
        "names": np.array(["one", "two"]),
        "domains": np.array(["M", "U"]),
        "cross_domains": domains,
        "cross_labels": labels,
        "features.one": features.astype(np.float16),
        "answers.one": np.where(right, labels, (labels + 1) % 4).astype(np.int16),
    } | changed


def transfer_paper(root):
    """The paper of the tests whose figure 9 shows the transfer of both methods."""
    paper = paper_with(
        root, figures={"figure9": KINDS["figure8"] | {"number": "9", "methods": ["fedavg", "ours"]}}
    )
    return replace(paper, figures={"figure9": replace(paper.figures["figure9"], kind="transfer")})


def test_one_client_on_its_own_and_the_next_domain(drawn):
    write_representations(drawn, OURS, 0.05, **crossed())
    table = geometry.compute("transfer", OURS, drawn)
    assert table["domain"].tolist() == ["M"] * 40 + ["U"] * 40 and set(table["client"]) == {"one"}
    assert table.groupby("domain")["right"].mean().to_dict() == {"M": 0.75, "U": 0.25}
    places = {domain: part[["x", "y"]].to_numpy() for domain, part in table.groupby("domain")}
    nearest = {}
    for domain, xy in places.items():
        apart = np.linalg.norm(xy[:, None] - xy[None], axis=2) + np.diag([np.inf] * 40)
        nearest[domain] = (np.arange(40) % 4 == (apart.argmin(1) % 4)).mean()
    assert nearest["M"] > 0.9 > 0.6 > nearest["U"]  # neighbours share the label at home, by chance elsewhere
    pd.testing.assert_frame_equal(table, geometry.compute("transfer", OURS, drawn))


def test_a_transfer_says_both_accuracies_below_each_panel(drawn):
    paper = transfer_paper(drawn)
    for cell in (FEDAVG, OURS):
        write_representations(drawn, cell, 0.05, **crossed())
        measures = {"average": [50.0, 52.0], "intra.one": [90.0, 91.0], "inter.one": [40.0, 43.0]}
        write_run(drawn, f"{cell.scenario}/{cell.method}", measures)
    view = drawing_of(drawn, paper, "figure9")
    assert view.drawing is None and view.command == "python -m stages.figures fedcrl"
    for cell in (FEDAVG, OURS):
        geometry.maker("transfer")("figure9", cell, drawn)
    for path in drawn.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    view = drawing_of(drawn, paper, "figure9")
    panels = view.drawing.draw.args[0]
    assert (
        list(panels) == ["FedAvg", "Ours"]
        and view.command == ""
        and view.drawing.size == clouds.transfers_size(2)
    )
    assert {title: words for title, (_, words) in panels["Ours"].items()} == {
        "one → M": "75.0 % of these images right\nintra-domain accuracy 90.50 %",
        "one → U": "25.0 % of these images right\ninter-domain accuracy 41.50 %"}
    svg = view.drawing.draw()
    assert svg.count('id="label-') == 16 and svg.count(">inter-domain accuracy 41.50 %<") == 2
    assert ">FedAvg<" in svg and "prefers-color-scheme: dark" in svg
    assert "40 at most of a domain" in view.drawing.caption


def test_a_transfer_without_results_names_its_command(root):
    paper = transfer_paper(root)
    view, = figure_views(Study("fedcrl", paper, root=root))
    assert view.drawing is None and view.miniature is None
    assert view.command.startswith("fedrepro run 'papers/fedcrl/dvc.yaml:") and view.command.endswith(
        "; python -m stages.figures fedcrl"
    )


@pytest.mark.parametrize("changed, message", [
    ({"features.one": None}, "no features of every client on every domain's images: .*features.one"),
    ({"names": None}, "no features of every client on every domain's images: .*names"),
    ({"features.one": np.full((120, 8), np.nan, np.float16)}, r"features.one \(120, 8\), expected \(120, "
                                                              r"d\), all of them finite"),
    ({"cross_labels": np.zeros(5, int)}, r"features.one \(120, 8\), expected \(5, d\)"),
    ({"cross_domains": np.repeat("M", 120)}, "cross_domains holds M, expected M and another domain"),
])
def test_a_transfer_needs_features_of_two_domains(drawn, changed, message):
    write_representations(drawn, OURS, 0.05, **crossed(**changed))
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: {message}"):
        geometry.compute("transfer", OURS, drawn)


# -- by corruption -------------------------------------------------------------------------------------------

def damaged(**changed):
    """Two clients' answers on 12 images: fog at severities 1 and 2, snow at 1; the second client is never
    right about fog at 2."""
    kinds, severities = np.repeat(["fog", "fog", "snow"], 4), np.repeat([1, 2, 1], 4)
    first = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1], bool)
    return {"corruptions": kinds, "severities": severities,
            "right": np.stack([first, first & (severities == 1)])} | changed


def test_accuracy_by_corruption_is_the_mean_over_clients_and_images(drawn):
    write_representations(drawn, OURS, 0.05, **damaged())
    table = geometry.compute("corruptions", OURS, drawn)
    assert table.to_dict("list") == {"corruption": ["fog", "fog", "snow"], "severity": [1, 2, 1],
                                     "images": [4, 4, 4], "accuracy": [100.0, 25.0, 25.0]}
    assert figures._pooled(table, "severity").to_dict() == {1: 62.5, 2: 25.0}
    assert figures._pooled(table, "corruption").to_dict() == {"fog": 62.5, "snow": 25.0}
    geometry.maker("corruptions")("figure9", OURS, drawn)
    paper = paper_with(drawn, figures={"figure9": KINDS["figure8"] | {"number": "9", "methods": ["ours"]}})
    paper = replace(paper, figures={"figure9": replace(paper.figures["figure9"], kind="corruptions")})
    view = drawing_of(drawn, paper, "figure9")
    svg = view.drawing.draw()
    assert svg.index(">snow<") != -1 and "Accuracy on 12 test images" in view.drawing.caption
    assert "of which each has 4 images or more" in view.drawing.caption
    assert svg.count('id="severity-') == svg.count('id="corruption-') == 1


@pytest.mark.parametrize("changed, message", [
    ({"right": None}, "no answers of every client on corrupted images: .*right"),
    ({"right": np.zeros((2, 5), bool)}, r"right \(2, 5\), expected \(clients, 12\), with 12 severities"),
])
def test_accuracy_by_corruption_needs_an_answer_for_every_image(drawn, changed, message):
    write_representations(drawn, OURS, 0.05, **damaged(**changed))
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: {message}"):
        geometry.compute("corruptions", OURS, drawn)


# -- the sphere ----------------------------------------------------------------------------------------------

def test_representations_of_one_length_lie_on_the_sphere():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 7))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    table = geometry.sphere_table(values, np.arange(40) % 4, np.zeros(40))
    assert np.allclose(np.linalg.norm(table[["x", "y", "z"]], axis=1), 1)
    stretched = geometry.sphere_table(
        values * np.repeat([1.0, 3.0], 20)[:, None], np.arange(40) % 4, np.zeros(40)
    )
    # over the mean length 2
    assert np.allclose(np.linalg.norm(stretched[["x", "y", "z"]], axis=1), np.repeat([0.5, 1.5], 20))


def test_three_dimensions_keep_every_angle():
    values = np.random.default_rng(1).normal(size=(12, 3))
    places = geometry.sphere_table(values, np.arange(12) % 3, np.zeros(12))[["x", "y", "z"]].to_numpy()
    assert np.allclose(places @ places.T, values @ values.T / np.linalg.norm(values, axis=1).mean() ** 2)


def test_points_behind_the_sphere_are_faint():
    table = pd.DataFrame(
        {"x": [0.5, -0.5], "y": [0.1, 0.2], "z": [0.8, -0.8], "label": [0, 1], "client": [0, 0]}
    )
    text = clouds.sphere({"FedLSA": table})
    assert 'id="label-0"' in text and 'id="label-1"' in text and "0.25" in text and "FedLSA" in text


def test_a_long_title_keeps_to_its_panel():
    """It would run into the legend's names."""
    title = "Office-Caltech, ten clients (Caltech 3, Amazon 2, Webcam 1, DSLR 4)"
    drawn = figures.curves(
        {title: {"FedAvg": pd.DataFrame({"seed": 0, "round": [0, 1], "accuracy": [10.0, 20.0]})}},
        ["accuracy"],
    )
    first, second = (drawn.index(words) for words in ("ten clients", "DSLR 4)"))
    assert title not in drawn and "<text" in drawn[first:second]


def test_a_legend_shows_what_tells_its_entries_apart():
    """Marks where there are no lines; else the lines alone, whose dashes a mark would hide."""
    margins = pd.DataFrame(
        {"label": [0, 1], "clients": [2.0, 3.0], "mean": [1.0, 1.0], "vectors": [1.0, 2.0]}
    )
    history = pd.DataFrame({"seed": 0, "round": [0, 1, 2], "average": [1.0, 2.0, 3.0]})
    marks, lines = (
        drawn.partition('id="legend_1"')[2]
        for drawn in (
            clouds.margins({"FedProto": margins}),
            figures.curves({"digits": {str(i): history for i in range(9)}}, ["average"]),
        )
    )
    assert marks.count("<use") == 3 and "<use" not in lines and lines.count("stroke-dasharray") == 1


def test_a_figure_of_a_supplement_is_the_papers_own_and_a_lettered_one_is_ours():
    headings = {figure.number: FigureView("x", figure.number, "", None, None, "").heading
                for figure in load_paper("rahfl").figures.values()}
    assert [headings[number] for number in ("2", "R1", "R2")] == ["Figure 2", "Figure R1", "Figure R2"]
    assert headings["T"] == "Further figure T"
