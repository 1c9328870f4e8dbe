"""What figures show: computed once from representations, stored, and drawn as SVG without them."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from reporting import PAPER, write_run

from pipeline.cells import geometry
from pipeline.cells.results import collect
from pipeline.data import pictures, store
from pipeline.errors import FedReproError, ParamError
from pipeline.report import drawings, extras, figures
from pipeline.report.study import Study
from pipeline.schema import ROOT, Cell, load_paper, papers
from pipeline.sealing import seal

OURS, FEDAVG = Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "balanced", "fedavg")
STYLE = (ROOT / "reports/templates/style.css").read_text()
ONE = {"number": "4", "title": "t", "scenarios": ["balanced"], "methods": ["fedavg", "ours"]}


def svgs(html):
    """The drawings of a page's part, parsed."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.S)]


def keys(html):
    """The names of the series of every drawing."""
    return [{node.get("data-key") for node in svg.iter() if node.get("data-key")} for svg in svgs(html)]


def words(html):
    """The texts inside every drawing."""
    return [[node.text for node in svg.iter("text")] for svg in svgs(html)]


def marks(html, key):
    """How many strokes the paths of a series have in the first drawing."""
    groups = [node for node in svgs(html)[0].iter("g") if node.get("data-key") == key]
    return sum(path.get("d").count("M") for group in groups for path in group.iter("path"))


@pytest.fixture
def paper(root):
    """FedCRL's paper.yaml with what a test changes; returns the view of one of its figures."""

    def change(kind=None, key="figure4", **document):
        if kind:
            document["figures"] = {key: ONE | (kind if isinstance(kind, dict) else {"kind": kind})}
        (root / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(PAPER | document, sort_keys=False))
        load_paper.cache_clear()

        def view():
            study = Study.of("fedcrl", collect(root), root)
            return next(view for view in drawings.figures(study) if view.key == key)

        return view

    return change


def run(root, cell, mean=50.0, **hyper):
    """A result with its headline at mean -1 and +1."""
    path = write_run(root, f"{cell.scenario}/{cell.method}", {"average": [mean - 1, mean + 1]})
    document = json.loads(path.read_text()) | {"hyper": hyper}
    document.pop("self")
    path.write_text(json.dumps(seal(document)))


def represent(root, cell, spread=0.05, n=48, **changed):
    """Three classes of unit vectors in eight dimensions, `spread` around their centres."""
    rng, labels = np.random.default_rng(0), np.arange(n) % 3
    values = (np.eye(8)[labels] + spread * rng.normal(size=(n, 8))).astype(np.float16)
    arrays = {"values": values, "labels": labels, "clients": labels % 2, "ids": np.arange(n)} | changed
    path = cell.representations(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


PROTOTYPES = {
    "prototypes": np.array([[1, 0], [-1, 0], [0, 3]], np.float16),
    "prototype_labels": np.array([0, 1, 2]),
    "prototype_clients": np.zeros(3, int),
}


def crossed(**changed):
    """Client one's features of 40 images of three domains: on its own, M, they lie by label, 3 in 4 right; on
    the others they do not, 1 in 4 right."""
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


# -- the page's SVG ------------------------------------------------------------------------------------------


def history(*columns, seeds=2, rounds=100):
    table = pd.DataFrame([(s, r, r * 0.5 + s) for s in range(seeds) for r in range(rounds + 1)])
    return table.set_axis(["seed", "round", "average"], axis=1)


@pytest.fixture
def curves():
    names = ["FedAvg", "Ours", *(f"Method {i} (mu 0.001)" for i in range(18))]
    tables = {name: extras.over_seeds(history(), "average") for name in names}
    return figures.lines("A & B", "accuracy, %", "round", tables, figures.inks(names, "Ours"))


def test_a_drawing_has_variables_for_colours_and_neither_ids_nor_fonts(curves):
    assert not re.search(r'#[0-9a-f]{6}|font-family| id="|xlink|<style|<defs|clip-path', curves.html)
    used = set(re.findall(r"var\(--([\w-]+)\)", curves.html))
    assert used >= {"accent", "line", "mute", "line-1", "line-6"} and used <= {*figures.PAINT}
    for name in used - {"accent", "ink", "mute", "line", "bg"}:
        assert re.search(rf"--{name}: light-dark\(#[0-9a-f]{{6}}, #[0-9a-f]{{6}}\);", STYLE)
    assert "currentColor" in curves.html and "A &amp; B" in curves.html


def test_every_line_has_its_name_and_numbers_for_the_pointer(curves):
    (names,) = keys(curves.html)
    assert {"FedAvg", "Ours", "Method 17 (mu 0.001)"} <= names and len(names) == 20
    titles = [node.text for node in svgs(curves.html)[0].iter("title")]
    assert "Ours: 50.5 [50.0, 51.0] at 100" in titles and len(titles) == 20
    assert "Method 17 (mu 0.001)" in words(curves.html)[0]


def test_a_trailing_mean_counts_the_rounds_there_are():
    values = pd.Series([0.0, 2.0, 4.0, 9.0], index=[0, 1, 2, 4])
    assert extras.trailing_mean(values, 2).to_dict() == {1: 2.0, 2: 3.0, 4: 9.0}
    assert extras.trailing_mean(values, 1) is values


def test_a_curve_begins_where_it_enters_the_range_of_the_later_rounds():
    rounds = pd.DataFrame({"x": range(11), "mean": [0.0, 20, *[60] * 8, 80]})
    rounds = rounds.assign(low=rounds["mean"] - 10, high=rounds["mean"] + 10)
    curve = extras.entering({"A": rounds})["A"]
    assert curve.iloc[[0, -1]].values.tolist() == [[2, 60, 50, 70], [10, 80, 70, 90]]
    constant = rounds.assign(mean=5.0, low=5.0, high=5.0)
    assert extras.entering({"A": constant})["A"]["x"].tolist() == [*range(11)]


def test_a_square_is_the_fuller_the_larger_its_number():
    drawn = figures.squares("t", "", np.array([[1.0, 0.5], [0.0, -1.0]]), (), (), "").html
    paths = {path.get("style"): path.get("d").count("M") for path in svgs(drawn)[0].iter("path")}
    full = {style: n for style, n in paths.items() if "fill:var" in style}
    assert sorted(full.values()) == [1, 1, 1] and sum("accent" in style for style in full) == 1
    assert sum("opacity:0.5" in style for style in full) == 1


# -- sweeps, pairs, data -------------------------------------------------------------------------------------


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
    assert not view().svg and view().miniature is None
    run(root, Cell("fedcrl", "dir-0", "fedavg"), 90)
    assert not view().svg  # a point is no line
    run(root, Cell("fedcrl", "dir-1", "fedavg"), 60)
    run(root, Cell("fedcrl", "dir-0", "ours"), 95)
    picture = view()
    assert (
        keys(picture.svg) == [{"FedAvg"}] and marks(picture.svg, "FedAvg") == 6
    )  # line, 2 dots, 2 bars, name
    assert {"0.05", "5", "β"} <= set(words(picture.svg)[0])
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
    assert "α" in words(view().svg)[0] and "λ" in words(view().svg)[1]


@pytest.mark.parametrize(
    "figure, message",
    [
        ({"kind": "sweep"}, "figures.figure4: a figure of kind 'sweep' needs 'over'"),
        ({"kind": "curves", "over": ["tau"]}, "figures.figure4: a figure of kind 'sweep' needs 'over'"),
        ({"kind": "swep", "over": ["tau"]}, "unknown value 'swep' .nearest: 'sweep'."),
        ({"kind": "pairs", "measures": ["clean.AVG"]}, "a figure of kind 'pairs' needs two 'measures'"),
    ],
)
def test_a_figure_needs_what_its_kind_draws(paper, figure, message):
    with pytest.raises((FedReproError, ParamError), match=message):
        paper(figure)()


def test_curves_need_their_column(root, paper):
    view = paper({"kind": "curves", "measures": ["weighted", "loss"]})
    write_run(root, "balanced/fedavg", {"average": [5.0, 5.0], "weighted": [6.0, 6.0]})
    assert len(svgs(view().svg)) == 2
    path = FEDAVG.folder(root) / "history.csv"
    path.write_text(path.read_text().replace("weighted", "other"))
    with pytest.raises(FedReproError, match="history.csv: the column 'weighted' is missing or empty"):
        view()


def test_images_per_class_and_client_need_the_partition_alone(root, paper):
    view = paper({"kind": "clients", "scenarios": ["skewed"]})
    assert not view().svg
    path = root / "papers/fedcrl/runs/skewed/clients.csv"
    path.parent.mkdir(parents=True)
    path.write_text("client,domain,train,test,0,1,2\na,x,6,2,1,2,3\nb,x,4,2,4,0,0\n")
    assert set(words(view().svg)[0]) == {"a", "b", "0", "1", "2", "client"}
    squares = [path.get("d").count("M") for path in svgs(view().svg)[0].iter("path")]
    assert sum(squares) == 4  # none where a client has no image
    path.write_text("client,domain,train\na,x,many\n")
    with pytest.raises(FedReproError, match="clients.csv: not the images per class and client"):
        view()


def test_examples_of_every_domain_are_stored_where_the_data_are(root, paper):
    data = {"data": {"set": "digits", "domains": {"B": "bright", "A": "dark"}}}
    scenarios = PAPER["scenarios"] | {"balanced": PAPER["scenarios"]["balanced"] | data}
    view = paper({"kind": "images"}, scenarios=scenarios)
    assert not view().svg
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.full((1, 8, 8, 1), 40, np.uint8)
    meta = {"set": "digits", "domains": ["dark", "bright"], "classes": ["0", "1", "2"], "source": "bundled"}
    meta |= {"deviation": "", "inputs": {}, "official_split": False}
    labels, domains = np.array([0, 1, 0, 1, 2]), np.array([0, 0, 1, 1, 1])
    store.write(root / "data/digits", images, labels, domains, np.zeros(5, np.uint8), meta)
    written = geometry.update("fedcrl", root=root)
    assert [path.name for path in written] == ["figure4-mini.png", "figure4-balanced.png"]
    assert 'src="../papers/fedcrl/figures/figure4-balanced.png"' in view().svg
    with Image.open(written[1]) as picture:
        grey, step = np.asarray(picture.convert("L")), pictures.EXAMPLE + pictures.GAP
    rows = [{int(value) for value in grey[top, pictures.MARGIN + 20 :: step]} for top in (30, 30 + step)]
    assert rows == [{80, 120, 160, 255}, {0, 40, 255}]  # a row per printed domain, the first of each class
    written[0].write_text("no picture")
    with pytest.raises(FedReproError, match="figure4-mini.png: not a picture"):
        view()


# -- stored tables -------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(root, paper):
    """Two methods of a scenario with representations, and a figure that shows them."""
    run(root, OURS), run(root, FEDAVG)
    represent(root, OURS), represent(root, FEDAVG, 0.6)
    return paper


def test_an_embedding_is_stored_and_drawn_without_the_representations(root, drawn):
    view = drawn("embedding")
    assert not view().svg
    written = geometry.update("fedcrl", root=root)
    assert [path.name for path in written] == ["figure4-balanced-fedavg.csv", "figure4-balanced-ours.csv"]
    first = [path.read_bytes() for path in written]
    lines = written[1].read_text().splitlines()
    assert lines[0] == "x,y,label,client" and len(lines) == 49
    assert all(re.fullmatch(r"-?\d+\.\d{3},-?\d+\.\d{3},[012],[01]", line) for line in lines[1:])
    assert [path.read_bytes() for path in geometry.update("fedcrl", root=root)] == first
    for path in root.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    picture = view()
    mixed, clear = (geometry.read("embedding", "figure4", cell, root) for cell in (FEDAVG, OURS))
    assert clear.attrs["silhouette"] > 0.9 > mixed.attrs["silhouette"]
    assert keys(picture.svg) == [{"0", "1", "2"}] * 2
    assert f"silhouette {mixed.attrs['silhouette']:.3f}" in picture.svg


@pytest.mark.parametrize("labels, expected", [([0, 1] * 2, 1.0), ([0, 0, 1, 1], -0.5)])
def test_silhouette_is_that_of_the_representations(root, labels, expected):
    values = np.array([[1, 0], [0, 1]] * 2, np.float16)
    represent(root, OURS, 0, 4, values=values, labels=np.array(labels))
    assert geometry.compute("embedding", OURS, root).attrs["silhouette"] == expected


@pytest.mark.parametrize(
    "kind, changed, message",
    [
        ("embedding", {"values": None}, "not representations"),
        ("embedding", {"labels": np.zeros(5, int)}, "not representations"),
        ("embedding", {"labels": np.zeros(48, int)}, "not representations"),
        ("margins", {}, "no class means of the clients"),
        ("matrix", {}, "no logits of all clients on common images"),
        ("transfer", crossed(names=None), "no features of every client on every domain's images: .*names"),
        ("transfer", crossed(cross_domains=np.repeat("M", 120)), "no features of every client"),
    ],
)
def test_broken_representations_are_named(root, kind, changed, message):
    represent(root, OURS, **changed)
    with pytest.raises(FedReproError, match=f"balanced/ours.npz: .*{message}"):
        geometry.compute(kind, OURS, root)


def test_a_cell_needs_a_figure_and_representations(root, drawn):
    drawn("embedding")
    OURS.representations(root).write_bytes(b"PK")
    with pytest.raises(FedReproError, match="ours.npz: not representations"):
        geometry.update("fedcrl/balanced/ours", root=root)
    OURS.representations(root).unlink()
    with pytest.raises(FedReproError, match="ours.npz: no such file"):
        geometry.update("fedcrl/balanced/ours", root=root)
    with pytest.raises(FedReproError, match="no figure that is computed shows fedcrl/balanced/fedprox"):
        geometry.update("fedcrl/balanced/fedprox", root=root)
    assert [path.name for path in geometry.update("fedcrl", root=root)] == ["figure4-balanced-fedavg.csv"]


@pytest.mark.parametrize(
    "change",
    [
        lambda csv: csv.with_suffix(".json").unlink(),
        lambda csv: csv.with_suffix(".json").write_text("{}"),
        lambda csv: csv.write_text(csv.read_text() + "1.000,1.000,1,1\n"),
        lambda csv: csv.write_text("a,b\n1,2\n"),
        lambda csv: csv.write_text(csv.read_text().replace("1.000,1.000", "abc,1.000")),
        lambda csv: csv.write_text(csv.read_text().replace("1.000,1.000", "inf,1.000")),
    ],
)
def test_a_stored_file_that_does_not_fit_is_refused(root, change):
    points = pd.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], "label": [0, 1], "client": [0, 0]})
    points.attrs["silhouette"] = 0.5
    path = geometry.write("embedding", "figure4", OURS, points, root)
    assert geometry.read("embedding", "figure4", OURS, root).attrs == {"silhouette": 0.5}
    change(path)
    with pytest.raises(FedReproError, match="figures/figure4-balanced-ours.csv: not the embedding"):
        geometry.read("embedding", "figure4", OURS, root)


def test_margins_are_distances_to_the_nearest_prototype():
    points = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    margins = geometry.margins(points)
    assert margins[:3].tolist() == [1.0, pytest.approx(18**0.5), 1.0] and np.isnan(margins[3])
    assert np.isnan(geometry.margins(points[[0, 3]])).all()  # no other one


def test_means_over_clients_can_lie_closer_than_those_of_any_client():
    """Two clients whose classes lie 2 from each other, crosswise: their means coincide (FedLSA Fig. 1)."""
    prototypes, labels, clients = np.array([[1.0, 0], [-1, 0], [-1, 0], [1, 0]]), [0, 1, 0, 1], [0, 0, 1, 1]
    table = geometry.margin_table(prototypes, np.array(labels), np.array(clients))
    assert table[["label", "clients", "mean"]].values.tolist() == [[0, 2, 0], [1, 2, 0]]
    lacking = geometry.margin_table(prototypes[:3], np.array(labels[:3]), np.array(clients[:3]))
    assert lacking[["clients", "mean"]].values.tolist() == [[2, 1], [2, 1]]  # client 1 lacks class 1
    assert table["vectors"].isna().all()  # the server sends nothing per class
    vectors = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    sent = geometry.margin_table(prototypes[:3], np.array([0, 1, 3]), np.zeros(3, int), vectors)["vectors"]
    assert sent[:2].tolist() == [1.0, pytest.approx(18**0.5)] and np.isnan(sent[2])


def test_cross_correlation_is_the_one_of_the_loss():
    torch = pytest.importorskip("torch")
    from pipeline.methods.fccl import cross_correlation

    logits = np.random.default_rng(0).normal(size=(3, 20, 4))
    ours = geometry.cross_correlation(logits[0], logits.mean(0))
    theirs = cross_correlation(torch.from_numpy(logits[0]), torch.from_numpy(logits.mean(0)), pearson=True)
    assert np.allclose(ours, theirs.numpy())
    logits[0][:, 2] = 7.0
    assert (geometry.cross_correlation(logits[0], logits[1])[2] == 0).all()


def test_matrices_on_private_images_follow_those_on_public_ones(root, drawn):
    """Clients a and b share the domain M; each is compared with the mean on its own domain's images."""
    rng, view = np.random.default_rng(0), drawn({"kind": "matrix", "methods": ["ours"]})
    logits, of_m, of_u = (rng.normal(size=(3, n, 4)).astype(np.float16) for n in (30, 12, 9))
    arrays = {"logits": logits, "private.M": of_m}
    named = {"names": np.array(["a", "b", "c"]), "domains": np.array(["M", "M", "U"])}
    represent(root, OURS, **arrays, **named)
    with pytest.raises(FedReproError, match="no logits of all clients on common images: .*private.U"):
        geometry.compute("matrix", OURS, root)
    represent(root, OURS, **arrays, **named, **{"private.U": of_u})
    geometry.update("fedcrl", root=root)
    table = geometry.read("matrix", "figure4", OURS, root).set_index(["images", "client"])
    for k, (name, private) in enumerate(zip("abc", (of_m, of_m, of_u))):
        for images, answers in (("public", logits), ("private", private)):
            expected = geometry.cross_correlation(answers[k].astype(float), answers.astype(float).mean(0))
            assert table.loc[(images, name), "value"].to_numpy() == pytest.approx(expected.ravel(), abs=6e-5)
    assert len(svgs(view().svg)) == 6 and f"diagonal {np.diag(expected).mean():.2f}" in view().svg
    represent(root, OURS, logits=logits)
    assert set(geometry.compute("matrix", OURS, root)["client"]) == {"client 0", "client 1", "client 2"}


def test_one_client_on_its_domain_and_the_next(root, drawn):
    view = drawn("transfer")
    for cell in (FEDAVG, OURS):
        represent(root, cell, **crossed())
        measures = {"average": [50.0, 52.0], "intra.one": [90.0, 91.0], "inter.one": [40.0, 43.0]}
        write_run(root, f"{cell.scenario}/{cell.method}", measures)
    table = geometry.compute("transfer", OURS, root)
    assert table["domain"].tolist() == ["M"] * 40 + ["U"] * 40 and set(table["client"]) == {"one"}
    assert table.groupby("domain")["right"].mean().to_dict() == {"M": 0.75, "U": 0.25}
    nearest = {}
    for domain, part in table.groupby("domain"):
        xy = part[["x", "y"]].to_numpy()
        distance = np.linalg.norm(xy[:, None] - xy[None], axis=2) + np.diag([np.inf] * 40)
        nearest[domain] = (np.arange(40) % 4 == distance.argmin(1) % 4).mean()
    assert nearest["M"] > 0.9 > 0.6 > nearest["U"]  # neighbours share the label at home, by chance elsewhere
    geometry.update("fedcrl", root=root)
    picture = view().svg
    assert len(svgs(picture)) == 4 and "Ours: one → U" in picture
    assert "75.0 % of these right; intra-domain accuracy 90.5 %" in picture
    assert "25.0 % of these right; inter-domain accuracy 41.5 %" in picture


def test_representations_of_one_length_lie_on_the_sphere(root, drawn):
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 7))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    labels, clients = np.arange(40) % 4, np.zeros(40)
    places = geometry.sphere_table(values, labels, clients)[["x", "y", "z"]]
    assert np.allclose(np.linalg.norm(places, axis=1), 1)
    longer = values * np.repeat([1.0, 3.0], 20)[:, None]  # mean length 2
    places = geometry.sphere_table(longer, labels, clients)[["x", "y", "z"]]
    assert np.allclose(np.linalg.norm(places, axis=1), np.repeat([0.5, 1.5], 20))
    flat = rng.normal(size=(12, 3))  # three dimensions keep every angle
    places = geometry.sphere_table(flat, labels[:12], clients[:12])[["x", "y", "z"]].to_numpy()
    assert np.allclose(places @ places.T, flat @ flat.T / np.linalg.norm(flat, axis=1).mean() ** 2)


def test_uniformity_is_that_of_the_representations_in_all_dimensions(root, drawn):
    opposite = np.array([[2.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert geometry.uniformity(opposite) == pytest.approx(-8)  # |u - v| = 2
    view = drawn({"kind": "sphere", "methods": ["ours"]})
    geometry.update("fedcrl", root=root)
    table = geometry.read("sphere", "figure4", OURS, root)
    with np.load(OURS.representations(root)) as file:
        expected = geometry.uniformity(file["values"].astype(float))
    assert table.attrs["uniformity"] == pytest.approx(expected, abs=1e-3)
    assert f"uniformity {table.attrs['uniformity']:.3f}" in view().svg


# -- pictures of ours, and whole papers ----------------------------------------------------------------------


def test_what_a_method_has_spent_when_every_seed_reaches_the_target(measured):
    """Two rounds: half of the measure in the first, the whole in the second; 12,000 bytes a round."""
    study = Study.of("fedcrl", collect(measured), measured)
    reached, missed = (extras.spent(study, FEDAVG, target) for target in (60.0, 61.0))
    assert (reached["rounds"], reached["sent"], reached["seconds"]) == (2.0, 0.024, 0.75)
    assert np.isnan(missed["rounds"]) and np.isnan(missed["sent"]) and np.isnan(missed["memory"])


@pytest.mark.parametrize("key", papers())
def test_the_committed_figures_are_small_and_the_same_twice(key):
    study = Study.of(key, collect(ROOT))
    views = drawings.figures(study)
    html = "".join(view.svg + (view.miniature.svg if view.miniature else "") for view in views)
    sizes = [len(ElementTree.tostring(svg)) for svg in svgs(html)]
    assert max(sizes) < 40_000 and sum(sizes) < 200_000
    ours = {"cost", "signals"} if key == "fedcrl" else {"cost"}
    assert ours <= {view.key for view in views} and all(
        view.svg or view.miniature for view in views if not view.number
    )
    assert drawings.figures(replace(study)) == views
    scenario, cells = next((name, [*runs]) for name, runs in study.runs.items())
    assert len(keys(drawings.curves(study, scenario, cells))[0]) == len(cells)
    assert drawings.curves(study, scenario, []) == ""
