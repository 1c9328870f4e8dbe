"""Clients of different networks, and worked logits of three of them."""

import dataclasses

import torch
from federation import image_clients, training

from pipeline.engine.handle import Batch
from pipeline.engine.world import World
from pipeline.schema import Model, Optimiser, Public


def numbers(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# logits of three clients, and features of three views
Z = numbers(
    [
        [[2, 0, -1], [0.5, 1.5, 0], [-1, 0, 2], [1, -1, 0.5]],
        [[1, 0.5, -0.5], [0, 2, -1], [0.5, -0.5, 1], [0, 1, 1]],
        [[3, -1, 0], [1, 1, -1], [0, 0.5, 1.5], [2, -0.5, -1]],
    ]
)
Z1, Z2, Z3 = Z
SIZES = (20, 33, 0, 1, 12)
HETERO = (Model("cnn4"), Model("cnn2", features=32), Model("cnn4"), Model("cnn2", features=32), Model("cnn5"))


def small_world(
    sizes=SIZES,
    models=None,
    projector=None,
    public=40,
    settings=None,
    heldout=30,
    dtype=torch.float32,
    **changes,
) -> World:
    models = (
        [dataclasses.replace(m, projector=projector) for m in HETERO[: len(sizes)]]
        if models is None
        else models
    )
    clients = [
        dataclasses.replace(c, images=c.images.to(dtype), labels=c.labels)
        for c in image_clients(sizes, models)
    ]
    drawn = torch.Generator().manual_seed(9)
    images = torch.rand(public, 1, 16, 16, generator=drawn).to(dtype) * 2 - 1
    apart, test = (
        Batch(
            torch.rand(n, 1, 16, 16, generator=drawn).to(dtype) * 2 - 1,
            torch.randint(0, 10, (n,), generator=drawn),
        )
        for n in (heldout, 50)
    )
    return World.create(
        clients,
        training(**{"optimiser": Optimiser("adam", 0.003), **changes}),
        10,
        0,
        public=(images, settings or Public("made up", batch_size=16)),
        heldout=apart if heldout else None,
        test=test,
    )
