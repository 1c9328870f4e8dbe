"""Every method as it is and with the options that change what it does; the worlds that tests give to all."""

import dataclasses

import torch
from federation import image_clients, training

from pipeline import methods
from pipeline.engine.handle import Batch
from pipeline.engine.world import World
from pipeline.methods.base import Method
from pipeline.schema import Model, Optimiser, Public

PLUS = {"eps": 0.1, "steps": 3}
# Values that make a test short or a difference visible.
ALWAYS = {
    "fedprox": {"mu": 0.1},
    "feddyn": {"alpha": 0.1},
    "fedrep": {"head_epochs": 1},
    "pfedme": {"inner_steps": 2},
    "perfedavg": {"beta": 0.05},
    "fedamp": {"alpha": 1.0, "sigma": 1.0},
    "moon": {"buffer": 2},
    "fedtgp": {"server_epochs": 20},
    "fedlsa": {"server_epochs": 20},
    "fedavg_plus": PLUS,
    "fedccl_plus": PLUS,
    "fedmatch": {"kappa": 0.3},
    "fccl": {"pretraining": 2},
}
OPTIONS = [
    ("scaffold", {"option": "I"}),
    ("perfedavg", {"variant": "hf"}),
    ("perfedavg", {"meta": "adam"}),
    ("fedamp", {"penalty": "norm"}),
    ("fedproto", {"averaging": True}),
    ("fedtgp", {"candidates": "own", "means": "running"}),
    ("fedtgp", {"averaging": True}),
    ("fedlsa", {"compactness": "distance"}),
    ("fedga", {"metric": "accuracy"}),
    ("fedsr", {"share_reference": True, "norm": "squared"}),
    ("fedrs", {"mode": "soft", "bias": True}),
    ("fedproc", {"alpha": 0.5, "tau": 0.07, "weighted": False, "normalise_features": True}),
    ("fedpcl", {"averaging": False, "ce": False, "inference": "local_prototype", "normalise_head": True}),
    ("fedpcl", {"contrast": "official", "exclude_positive": True}),
    ("fpl", {"clusters": "first", "upcr": "sum", "means": "running", "tau": 0.5}),
    ("fpl", {"means": "last_epoch"}),
    (
        "fedccl",
        {
            "exclude_own": True,
            "local_signals": "mean",
            "global_signals": "mean",
            "reduction": "sum",
            "tau": 0.5,
        },
    ),
    ("fedmd", {"distance": "mse", "second_forward": True}),
    ("feddf", {"form": "original", "server_steps": 5}),
    ("fedmatch", {"decomposed": False}),
    ("rhfl", {"guarded": True, "schedule": "release"}),
    ("fccl", {"consensus": "conference", "teacher_mode": "eval"}),
    ("fcclplus", {"local": "fccl", "pretraining": 2, "fccm": False}),
    ("fcclplus", {"local": "ewc"}),
    ("fcclplus", {"kd_share": 0.5, "teacher": "collaborated"}),
    ("fcclplus", {"local": "kd", "second_forward": True, "renormalise": True}),
    ("ktpfl", {"update": "code", "tau": 2.0}),
    ("fedproto_hetero", {"weighted": True, "means": "eval"}),
    ("rahfl", {"contrast_form": "paper", "distillation_form": "paper", "acc_source": "test"}),
    ("rahfl", {"asymmetric": False, "augmix": False, "contrast": "none"}),
    ("rahfl", {"contrast": "supcon"}),
]
NETWORKS = {
    "fedsr": Model("cnn4_gaussian"),
    "fedlsa": Model("fedlsa"),
    "fedbn": Model("cnn3_bn"),
    "fedrs": Model("cnn4"),
    "scaffold": Model("cnn4"),
}
# The others train with Adam. FedAMP's attention would make much of rounding in its first steps.
SGD = ("scaffold", "fednova", "fedamp")
PROJECTED = [
    Model(name, projector=8, **options)
    for name, options in (("cnn4", {}), ("cnn2", {"features": 32, "dropout": 0.3}), ("cnn3_bn", {}))
]


def of(algorithm: str, **options) -> Method:
    return methods.load(algorithm, ALWAYS.get(algorithm, {}) | options, "test")


METHODS = [of(algorithm) for algorithm in methods.method_names() if algorithm != "centralised"]
METHODS += [of(algorithm, **options) for algorithm, options in OPTIONS]


def algorithm_of(method: Method) -> str:
    return type(method).__module__.rpartition(".")[2]


def name(method: Method) -> str:
    """A test's id."""
    fields = dataclasses.fields(method)
    changed = {f.name: getattr(method, f.name) for f in fields if getattr(method, f.name) != f.default}
    return f"{type(method).__name__}{changed or ''}"


def collaborates(method: Method) -> bool:
    """Between clients of different networks."""
    return "one network" not in method.requires and algorithm_of(method) != "local"


PUBLIC = Public("made up", 40, batch_size=16)


def small_world(
    sizes=(20, 33, 0, 1, 12),
    models=None,
    public: Public | None = PUBLIC,
    heldout: int = 30,
    dtype=torch.float32,
    one_class=False,
    **changes,
) -> World:
    """Clients with pixels in [0, 1], by default of different networks; public, held-out and test images."""
    models = [PROJECTED[k % 3] for k in range(len(sizes))] if models is None else models
    clients = image_clients(sizes, models, one_class=one_class)
    clients = [dataclasses.replace(c, images=c.images.to(dtype).sigmoid()) for c in clients]
    drawn = torch.Generator().manual_seed(9)

    def batch(n: int) -> Batch:
        images = torch.rand(n, 1, 16, 16, generator=drawn).to(dtype)
        return Batch(images, torch.randint(0, 10, (n,), generator=drawn))

    given = public and (batch(public.size).images, public)
    settings = training(**{"optimiser": Optimiser("adam", 0.003), **changes})
    apart = batch(heldout) if heldout else None
    return World.create(clients, settings, 10, 0, public=given, heldout=apart, test=batch(50))


def world_for(method, sizes=(20, 33, 0, 1, 12), **changes) -> World:
    """What a method needs: its network, public images."""
    algorithm, several = algorithm_of(method), collaborates(method)
    optimiser = Optimiser("sgd", 0.05) if algorithm in SGD else Optimiser("adam", 0.003)
    network = NETWORKS.get(algorithm, Model("cnn2", dropout=0.3))
    networks = [PROJECTED[k % 3] for k in range(len(sizes))] if several else network
    public = Public("made up", 24, batch_size=16) if several else None
    return small_world(sizes, networks, public, **{"optimiser": optimiser, **changes})
