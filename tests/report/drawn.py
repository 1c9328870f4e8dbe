"""Figures of a small repository, and their SVG as a reader sees it."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from reporting import PAPER, write_run

from pipeline.cells.results import collect
from pipeline.report import drawings
from pipeline.report.study import Study
from pipeline.report.writing import environment
from pipeline.schema import Cell, load_paper
from pipeline.sealing import seal

OURS, FEDAVG = Cell("fedcrl", "balanced", "ours"), Cell("fedcrl", "balanced", "fedavg")
ONE = {"number": "4", "title": "t", "scenarios": ["balanced"], "methods": ["fedavg", "ours"]}


def shown(picture):
    """The HTML of a picture; empty without panels."""
    return str(environment().get_template("macros.html.j2").module.panels(picture)) if picture.panels else ""


def svgs(html):
    """The drawings of a page's part, parsed."""
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", html, re.S)]


def keys(html):
    """The names of the series of every drawing."""
    return [{node.get("data-key") for node in svg.iter() if node.get("data-key")} for svg in svgs(html)]


def words(html):
    """The texts inside every drawing."""
    return [[node.text for node in svg.iter("text")] for svg in svgs(html)]


@pytest.fixture
def paper(root):
    """FedCRL's paper.yaml with what a test changes; returns the HTML of one of its figures."""

    def change(kind=None, key="figure4", **document):
        if kind:
            document["figures"] = {key: ONE | (kind if isinstance(kind, dict) else {"kind": kind})}
        (root / "papers/fedcrl/paper.yaml").write_text(yaml.safe_dump(PAPER | document, sort_keys=False))
        load_paper.cache_clear()

        def view():
            study = Study.of("fedcrl", collect(root), root)
            return next(shown(view.picture) for view in drawings.figures(study) if view.key == key)

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


@pytest.fixture
def drawn(root, paper):
    """Two methods of a scenario with representations, and a figure that shows them."""
    run(root, OURS), run(root, FEDAVG)
    represent(root, OURS), represent(root, FEDAVG, 0.6)
    return paper
