"""WenkeHuang/FCCL, fccl+: the journal's code of FCCL+, FCCL and FedDF, among networks of several widths with
BatchNorm."""

import copy
import importlib
from pathlib import Path
from typing import Any

from benchmarks.originals import federated_model
from benchmarks.originals.federated_model import Theirs, steps_of_sgd
from benchmarks.originals.federation import WIDTHS, Ours, Table, World, ours, public_images, world
from pipeline.schema import Optimiser

REPOSITORY, MARK = "WenkeHuang/FCCL", "fccl+/models/fcclplus.py"
RATE = 0.01
RULE = Optimiser("sgd", RATE, weight_decay=1e-5)
TRAINED, SGD = "clients' models", "SGD in Adam's place on both sides"


def prepare(checkout: Path) -> None:
    federated_model.prepare(checkout / "fccl+")
    for module in ("fccl", "fcclplus", "feddf"):
        steps_of_sgd(importlib.import_module(f"models.{module}"))


def federation_of() -> World:
    return world(widths=WIDTHS, batchnorm=True, optimiser=RULE, public=public_images())


def kind(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"models.{module}"), name)


def begun(run: Ours) -> Any:
    return run.states[0].models


def feddf(table: Table) -> None:
    federation = federation_of()
    run, without = ours("feddf", federation), ours("local", federation)
    theirs = Theirs(kind("feddf", "FedDF"), federation, begun(run), RATE).train(public=True)
    table.add("feddf", TRAINED, run, theirs.models, without=without, remark=SGD)


def fcclplus(table: Table) -> None:
    # as theirs: tau^2 before FNTD, where Eq. 14 has no factor
    options = {"mu": 0.05, "omega": 3.0, "tau": 3.0, "tau_squared": True, "public_optimiser": "sgd"}
    federation = federation_of()
    without, theirs = ours("local", federation), None
    for more, differs, remark in (
        ({"second_forward": True}, "", SGD),
        ({}, "", SGD + "; ours by default has no second forward, which moves BatchNorm's statistics alone"),
        ({"teacher_mode": "eval"}, "reading", SGD + "; teachers in evaluation mode, which theirs never sets"),
    ):
        run = ours("fcclplus", federation, **options, **more)
        if theirs is None:
            theirs = Theirs(kind("fcclplus", "FCCLPLUS"), federation, begun(run), RATE)
            theirs.model.ini()
            theirs.train(public=True)
        table.add(
            "fcclplus",
            TRAINED,
            run,
            theirs.models,
            without=without,
            differs=differs,
            remark=remark,
            **options,
            **more,
        )


def fccl(table: Table) -> None:
    """The pretrained models are ours: theirs are read from files."""
    federation, options = federation_of(), {"pretraining": 1, "public_optimiser": "sgd"}
    run, without = ours("fccl", federation, **options), ours("local", federation)
    theirs = Theirs(kind("fccl", "FCCL"), federation, begun(run), RATE)
    theirs.model.intr_nets_list = copy.deepcopy(theirs.model.nets_list)
    theirs.model.prev_nets_list = copy.deepcopy(theirs.model.nets_list)
    theirs.train(public=True)
    table.add("fccl", TRAINED, run, theirs.models, without=without, remark=SGD, **options)


CASES = (feddf, fcclplus, fccl)
