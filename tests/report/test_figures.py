"""What figures show, drawn as SVG; sweeps, pairs and data."""

import re

import numpy as np
import pandas as pd
import pytest
from drawn import FEDAVG, OURS, keys, run, svgs, words
from PIL import Image
from reporting import PAPER, write_run

from pipeline.cells.results import collect
from pipeline.data import pictures, store
from pipeline.errors import FedReproError
from pipeline.report import additional, curves, drawings, figures, geometry, measures
from pipeline.report.study import Study
from pipeline.schema import ROOT, Cell

STYLE = (ROOT / "reports/templates/style.css").read_text()


def marks(html, key):
    """How many strokes the paths of a series have in the first drawing."""
    groups = [node for node in svgs(html)[0].iter("g") if node.get("data-key") == key]
    return sum(path.get("d").count("M") for group in groups for path in group.iter("path"))


def history(seeds=2, rounds=100):
    table = pd.DataFrame([(s, r, r * 0.5 + s) for s in range(seeds) for r in range(rounds + 1)])
    return table.set_axis(["seed", "round", "average"], axis=1)


def test_every_line_has_its_name_and_a_colour_of_the_page():
    """No ids and no fonts in the drawing; the pointer finds numbers."""
    names = ["FedAvg", "Ours", *(f"Method {i} (mu 0.001)" for i in range(18))]
    tables = {name: curves.over_seeds(history(), "average") for name in names}
    svg = figures.lines("A & B", "accuracy, %", "round", tables, figures.inks(names, "Ours")).svg
    assert not re.search(r'#[0-9a-f]{6}|font-family| id="|xlink|<style|<defs|clip-path', svg)
    used = set(re.findall(r"var\(--([\w-]+)\)", svg))
    assert used >= {"accent", "line", "mute", "line-1", "line-6"}
    assert used <= {*figures.PAINT}
    for name in used - {"accent", "ink", "mute", "line", "bg"}:
        assert re.search(rf"--{name}: light-dark\(#[0-9a-f]{{6}}, #[0-9a-f]{{6}}\);", STYLE)
    assert "currentColor" in svg
    assert "A &amp; B" in svg
    assert keys(svg) == [{*names}]
    titles = [node.text for node in svgs(svg)[0].iter("title")]
    assert "Ours: 50.5 [50.0, 51.0] at 100" in titles
    assert len(titles) == 20
    assert "Method 17 (mu 0.001)" in words(svg)[0]


def test_lines_and_squares_by_hand():
    values = pd.Series([0.0, 2.0, 4.0, 9.0], index=[0, 1, 2, 4])
    assert curves.trailing_mean(values, 2).to_dict() == {1: 2.0, 2: 3.0, 4: 9.0}
    assert curves.trailing_mean(values, 1) is values
    rounds = pd.DataFrame({"x": range(11), "mean": [0.0, 20, *[60] * 8, 80]})
    rounds = rounds.assign(low=rounds["mean"] - 10, high=rounds["mean"] + 10)
    curve = curves.entering({"A": rounds})["A"]
    assert curve.iloc[[0, -1]].values.tolist() == [[2, 60, 50, 70], [10, 80, 70, 90]]
    constant = rounds.assign(mean=5.0, low=5.0, high=5.0)
    assert curves.entering({"A": constant})["A"]["x"].tolist() == [*range(11)]
    drawn = figures.squares("t", "", np.array([[1.0, 0.5], [0.0, -1.0]]), (), (), "").svg
    paths = {path.get("style"): path.get("d").count("M") for path in svgs(drawn)[0].iter("path")}
    full = {style: n for style, n in paths.items() if "fill:var" in style}
    assert sorted(full.values()) == [1, 1, 1]
    assert sum("accent" in style for style in full) == 1
    assert sum("opacity:0.5" in style for style in full) == 1


def test_a_sweep_over_a_number_of_the_scenario(root, paper):
    dirichlet = {"kind": "dirichlet", "clients": 2}
    skewed = {
        f"dir-{i}": PAPER["scenarios"]["balanced"] | {"partition": dirichlet | {"beta": beta}}
        for i, beta in enumerate((5.0, 0.05, 0.5))
    }
    view = paper(
        {"kind": "sweep", "scenarios": [*skewed], "over": ["partition.beta"]},
        scenarios=PAPER["scenarios"] | skewed,
        grids={"main": {"scenarios": [*skewed], "methods": ["fedavg", "ours"]}},
    )
    assert not view()
    run(root, Cell("fedcrl", "dir-0", "fedavg"), 90)
    assert not view()  # a point is no line
    run(root, Cell("fedcrl", "dir-1", "fedavg"), 60)
    run(root, Cell("fedcrl", "dir-0", "ours"), 95)
    picture = view()
    # line, 2 dots, 2 bars, name
    assert keys(picture) == [{"FedAvg"}]
    assert marks(picture, "FedAvg") == 6
    assert {"0.05", "5", "β"} <= set(words(picture)[0])
    study = Study.of("fedcrl", collect(root), root)
    figure = study.paper.figures["figure4"]
    lines = drawings.sweep_lines(study, "partition.beta", "average", [*study.results], figure)
    assert lines["FedAvg"].drop(columns=["low", "high"]).values.tolist() == [[0.05, 60.0], [5.0, 90.0]]


def test_a_sweep_over_two_numbers_of_the_method_keeps_the_other_at_its_first_value(root, paper):
    rows = {"ours": (0.1, 1.0), "ours-a": (1.0, 1.0), "ours-b": (10.0, 1.0), "ours-c": (0.1, 3.0)}
    methods = {
        key: {"label": key, "algorithm": "fedprox", "alpha": a, "lam": b} for key, (a, b) in rows.items()
    }
    view = paper(
        {"kind": "sweep", "methods": [*rows], "over": ["alpha", "lam"]}, methods=PAPER["methods"] | methods
    )
    for i, (key, (a, lam)) in enumerate(rows.items()):
        run(root, Cell("fedcrl", "balanced", key), 50 + i, alpha=a, lam=lam)
    study = Study.of("fedcrl", collect(root), root)
    cells = [study.cell("balanced", key) for key in rows]
    figure = study.paper.figures["figure4"]
    (alpha,), (lam,) = (
        drawings.sweep_lines(study, over, "average", cells, figure).values() for over in ("alpha", "lam")
    )
    assert alpha[["x", "mean"]].values.tolist() == [[0.1, 50], [1, 51], [10, 52]]
    assert (alpha["high"] - alpha["mean"]).tolist() == pytest.approx([2**0.5] * 3)
    assert lam[["x", "mean"]].values.tolist() == [[1, 50], [3, 53]]
    assert "α" in words(view())[0]
    assert "λ" in words(view())[1]


def test_curves_need_their_column(root, paper):
    view = paper({"kind": "curves", "measures": ["weighted", "loss"]})
    write_run(root, "balanced/fedavg", {"average": [5.0, 5.0], "weighted": [6.0, 6.0]})
    assert len(svgs(view())) == 2
    path = FEDAVG.folder(root) / "history.csv"
    path.write_text(path.read_text().replace("weighted", "other"))
    with pytest.raises(FedReproError, match="history.csv: the column 'weighted' is missing or empty"):
        view()


def test_images_per_class_and_client_need_the_partition_alone(root, paper):
    view = paper({"kind": "clients", "scenarios": ["skewed"]})
    assert not view()
    path = root / "papers/fedcrl/runs/skewed/clients.csv"
    path.parent.mkdir(parents=True)
    path.write_text("client,domain,train,test,0,1,2\na,x,6,2,1,2,3\nb,x,4,2,4,0,0\n")
    assert set(words(view())[0]) == {"a", "b", "0", "1", "2", "client"}
    squares = [path.get("d").count("M") for path in svgs(view())[0].iter("path")]
    assert sum(squares) == 4  # none where a client has no image
    path.write_text("client,domain,train\na,x,many\n")
    with pytest.raises(FedReproError, match="clients.csv: cannot be read"):
        view()


def test_examples_of_every_domain_are_stored_where_the_data_are(root, paper):
    data = {"data": {"set": "digits", "domains": {"B": "bright", "A": "dark"}}}
    scenarios = PAPER["scenarios"] | {"balanced": PAPER["scenarios"]["balanced"] | data}
    view = paper({"kind": "images"}, scenarios=scenarios)
    assert not view()
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.full((1, 8, 8, 1), 40, np.uint8)
    meta = {"set": "digits", "domains": ["dark", "bright"], "classes": ["0", "1", "2"], "source": "bundled"}
    meta |= {"deviation": "", "inputs": {}, "official_split": False}
    labels, domains = np.array([0, 1, 0, 1, 2]), np.array([0, 0, 1, 1, 1])
    store.write(root / "data/digits", images, labels, domains, np.zeros(5, np.uint8), meta)
    written = geometry.update("fedcrl", root=root)
    assert [path.name for path in written] == ["figure4-mini.png", "figure4-balanced.png"]
    assert 'src="../papers/fedcrl/figures/figure4-balanced.png"' in view()
    with Image.open(written[1]) as picture:
        grey, step = np.asarray(picture.convert("L")), pictures.EXAMPLE + pictures.GAP
    rows = [{int(value) for value in grey[top, pictures.MARGIN + 20 :: step]} for top in (30, 30 + step)]
    assert rows == [{80, 120, 160, 255}, {0, 40, 255}]  # a row per printed domain, the first of each class
    written[0].write_text("no picture")
    with pytest.raises(FedReproError, match="figure4-mini.png: not a picture"):
        view()


def test_what_a_method_has_spent_when_every_seed_reaches_the_target(measured):
    """Two rounds: half of the measure in the first, the whole in the second; 12,000 bytes a round."""
    study = Study.of("fedcrl", collect(measured), measured)
    reached, missed = (additional.spent(study, FEDAVG, target) for target in (60.0, 61.0))
    assert (reached["rounds"], reached["sent"], reached["seconds"]) == (2.0, 0.024, 0.75)
    assert np.isnan(missed["rounds"])
    assert np.isnan(missed["sent"])
    assert np.isnan(missed["memory"])


def test_costs_take_the_devices_memory_where_it_has_some(measured):
    result = collect(measured)[FEDAVG]

    def memory(**more):
        return measures.numbers(FEDAVG, result | more, "run.memory")

    process = {"process_mb": [400, 500], "device_mb": [None, None]}
    assert measures.numbers(FEDAVG, result, "run.seconds") == {0: 0.75, 1: 0.75}
    assert memory() == {}
    assert memory(memory=process) == {0: 400, 1: 500}
    assert memory(memory=process | {"device_mb": [7, 8]}) == {0: 7, 1: 8}


def test_teachers_are_shown_where_they_are_recorded(root, paper):
    """Clients 0 and 1 learn from each other in round 1, client 1 alone in round 2."""
    paper(methods=PAPER["methods"] | {"ours": {"label": PAPER["name"]}})
    run(root, OURS)
    study = Study.of("fedcrl", collect(root), root)
    assert additional._teachers(study, "balanced").panels == []
    path = OURS.folder(root) / "history.csv"
    table = pd.read_csv(path)
    table["method.learns.0.1"], table["method.learns.1.0"] = [np.nan, 1, 0] * 2, [np.nan, 1, 1] * 2
    table.to_csv(path, index=False)
    panels = additional._teachers(study, "balanced").panels
    squares = [sum(path.get("d").count("z") for path in svgs(panel.svg)[0].iter("path")) for panel in panels]
    assert [panel.title for panel in panels] == ["first half", "second half"]
    assert squares == [2, 1]


def test_costs_and_signals_are_drawn(pages):
    for key, page in pages.items():
        ours = {"cost", "signals"} if key == "fedcrl" else {"cost"}
        assert ours <= {view.key for view in page.figures}
