"""Tables that figures store: computed once from representations, and drawn without them."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from drawn import FEDAVG, OURS, keys, represent, svgs, words
from federation import close
from reporting import write_run

from pipeline.errors import FedReproError
from pipeline.methods.fccl import cross_correlation
from pipeline.report import drawings, geometry


def crossed(**changed):
    """Client one's features of 40 images of three domains: on M they lie by label, elsewhere not."""
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


def test_an_embedding_is_stored_and_drawn_without_the_representations(root, drawn):
    view = drawn("embedding")
    assert not view()
    written = geometry.update("fedcrl", root=root)
    assert [path.name for path in written] == ["figure4-balanced-fedavg.csv", "figure4-balanced-ours.csv"]
    first = [path.read_bytes() for path in written]
    lines = written[1].read_text().splitlines()
    assert lines[0] == "x,y,label,client"
    assert len(lines) == 49
    assert all(re.fullmatch(r"-?\d+\.\d{3},-?\d+\.\d{3},[012],[01]", line) for line in lines[1:])
    assert [path.read_bytes() for path in geometry.update("fedcrl", root=root)] == first
    for path in root.glob("papers/*/representations/*/*.npz"):
        path.unlink()
    picture = view()
    mixed, clear = (geometry.read("embedding", "figure4", cell, root) for cell in (FEDAVG, OURS))
    assert clear.attrs["silhouette"] > 0.9 > mixed.attrs["silhouette"]
    assert keys(picture) == [{"0", "1", "2"}] * 2
    assert f"silhouette {mixed.attrs['silhouette']:.3f}" in picture


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
        ("corruptions", {}, "no answers of every client on corrupted images"),
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


def test_margins_and_correlations_by_hand():
    points = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    margins = geometry.margins(points)
    assert margins[:3].tolist() == [1.0, pytest.approx(18**0.5), 1.0]
    assert np.isnan(margins[3])
    assert np.isnan(geometry.margins(points[[0, 3]])).all()  # no other one
    # Two clients whose classes lie 2 from each other, crosswise: their means coincide (FedLSA Fig. 1).
    prototypes, labels, clients = np.array([[1.0, 0], [-1, 0], [-1, 0], [1, 0]]), [0, 1, 0, 1], [0, 0, 1, 1]
    table = geometry.margin_table(prototypes, np.array(labels), np.array(clients))
    assert table[["label", "clients", "mean"]].values.tolist() == [[0, 2, 0], [1, 2, 0]]
    lacking = geometry.margin_table(prototypes[:3], np.array(labels[:3]), np.array(clients[:3]))
    assert lacking[["clients", "mean"]].values.tolist() == [[2, 1], [2, 1]]  # client 1 lacks class 1
    assert table["vectors"].isna().all()  # the server sends nothing per class
    vectors = np.array([[0, 0], [3, 4], [0, 1], [np.nan, np.nan]])
    sent = geometry.margin_table(prototypes[:3], np.array([0, 1, 3]), np.zeros(3, int), vectors)["vectors"]
    assert sent[:2].tolist() == [1.0, pytest.approx(18**0.5)]
    assert np.isnan(sent[2])
    logits = np.random.default_rng(0).normal(size=(3, 20, 4))
    ours = geometry.cross_correlation(logits[0], logits.mean(0))
    theirs = cross_correlation(torch.from_numpy(logits[0]), torch.from_numpy(logits.mean(0)), pearson=True)
    close(ours, theirs)
    logits[0][:, 2] = 7.0
    assert (geometry.cross_correlation(logits[0], logits[1])[2] == 0).all()


def test_matrices_on_private_images_follow_those_on_public_ones(root, drawn):
    """Clients a and b share the domain M; each is compared with the mean on its domain's images."""
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
    assert len(svgs(view())) == 6
    assert f"diagonal {np.diag(expected).mean():.2f}" in view()
    represent(root, OURS, logits=logits)
    assert set(geometry.compute("matrix", OURS, root)["client"]) == {"client 0", "client 1", "client 2"}


def test_one_client_on_its_domain_and_the_next(root, drawn):
    view = drawn("transfer")
    for cell in (FEDAVG, OURS):
        represent(root, cell, **crossed())
        measures = {"average": [50.0, 52.0], "intra.one": [90.0, 91.0], "inter.one": [40.0, 43.0]}
        write_run(root, f"{cell.scenario}/{cell.method}", measures)
    table = geometry.compute("transfer", OURS, root)
    assert table["domain"].tolist() == ["M"] * 40 + ["U"] * 40
    assert set(table["client"]) == {"one"}
    assert table.groupby("domain")["right"].mean().to_dict() == {"M": 0.75, "U": 0.25}
    nearest = {}
    for domain, part in table.groupby("domain"):
        xy = part[["x", "y"]].to_numpy()
        distance = np.linalg.norm(xy[:, None] - xy[None], axis=2) + np.diag([np.inf] * 40)
        nearest[domain] = (np.arange(40) % 4 == distance.argmin(1) % 4).mean()
    assert nearest["M"] > 0.9 > 0.6 > nearest["U"]  # neighbours share the label at home, by chance elsewhere
    geometry.update("fedcrl", root=root)
    picture = view()
    assert len(svgs(picture)) == 4
    assert "Ours: one → U" in picture
    assert "75.0 % of these right; intra-domain accuracy 90.5 %" in picture
    assert "25.0 % of these right; inter-domain accuracy 41.5 %" in picture


def test_accuracy_by_corruption_is_the_mean_over_clients_and_images(root, drawn):
    """Two clients' answers on fog at severities 1 and 2 and snow at 1; the second is never right at 2."""
    kinds, severities = np.repeat(["fog", "fog", "snow"], 4), np.repeat([1, 2, 1], 4)
    first = np.array([1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1], bool)
    arrays = {
        "corruptions": kinds,
        "severities": severities,
        "right": np.stack([first, first & (severities == 1)]),
    }
    view = drawn({"kind": "corruptions", "methods": ["ours"]})
    represent(root, OURS, **arrays)
    table = geometry.compute("corruptions", OURS, root)
    rows = [["fog", 1, 4, 100.0], ["fog", 2, 4, 25.0], ["snow", 1, 4, 25.0]]
    assert table.values.tolist() == rows
    assert drawings.pooled(table, "severity").to_dict() == {1: 62.5, 2: 25.0}
    geometry.update("fedcrl", root=root)
    assert keys(view())[0] == {"Ours"}
    assert {"fog", "snow"} <= set(words(view())[1])


def test_representations_of_one_length_lie_on_the_sphere():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 7))
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    labels, clients = np.arange(40) % 4, np.zeros(40)
    places = geometry.sphere_table(values, labels, clients)[["x", "y", "z"]]
    close(np.linalg.norm(places, axis=1), [1.0] * 40)
    longer = values * np.repeat([1.0, 3.0], 20)[:, None]  # mean length 2
    places = geometry.sphere_table(longer, labels, clients)[["x", "y", "z"]]
    close(np.linalg.norm(places, axis=1), np.repeat([0.5, 1.5], 20))
    flat = rng.normal(size=(12, 3))  # three dimensions keep every angle
    places = geometry.sphere_table(flat, labels[:12], clients[:12])[["x", "y", "z"]].to_numpy()
    close(places @ places.T, flat @ flat.T / np.linalg.norm(flat, axis=1).mean() ** 2)


def test_uniformity_of_two_opposite_directions():
    opposite = np.array([[2.0, 0, 0, 0], [-1.0, 0, 0, 0]])
    assert geometry.uniformity(opposite) == pytest.approx(-8)  # |u - v| = 2


def test_uniformity_is_that_of_the_representations_in_all_dimensions(root, drawn):
    view = drawn({"kind": "sphere", "methods": ["ours"]})
    geometry.update("fedcrl", root=root)
    table = geometry.read("sphere", "figure4", OURS, root)
    with np.load(OURS.representations(root)) as file:
        expected = geometry.uniformity(file["values"].astype(float))
    assert table.attrs["uniformity"] == pytest.approx(expected, abs=1e-3)
    assert f"uniformity {table.attrs['uniformity']:.3f}" in view()
