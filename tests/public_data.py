"""Clients of small networks with public images, and the public phase written out."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from federation import close, one_round, run, training
from tiny import Z
from torch import nn

from pipeline.engine import federation as engine
from pipeline.engine.phase import Client
from pipeline.engine.public import PublicBatch
from pipeline.engine.state import Clients, Params
from pipeline.engine.world import World
from pipeline.models import Network
from pipeline.models.layers import conv_bn, pooled
from pipeline.schema import Model, Optimiser
from pipeline.schema import Public as PublicSettings

SIDE, CLASSES, DOUBLE = 8, 4, torch.float64
NETWORKS = ["bn", "plain", "dropout", "bn", "plain"]
SIZES = (12, 7, 9, 0, 1)


def network(model, channels, size, classes, like=None) -> Network:
    """Three small networks of different widths: with BatchNorm, without anything random, with dropout."""
    if model.name == "bn":
        return Network(pooled([conv_bn(channels, 6, 3, 2)]), nn.Linear(6, classes))
    width = {"plain": 5, "dropout": 8}[model.name]
    features = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(1), nn.Linear(4 * channels, width), nn.Tanh())
    return Network(features, nn.Linear(width, classes), 0.3 if model.name == "dropout" else 0.0)


def federation(
    monkeypatch, sizes=SIZES, names=NETWORKS, executor="sequential", public=20, batch=8, passes=1, **changes
) -> World:
    """Clients with three-channel images and `public` public ones."""
    monkeypatch.setattr(engine, "build", network)
    monkeypatch.setenv("FEDREPRO_EXECUTOR", executor)
    rng = torch.Generator().manual_seed(1)

    def images(n):
        return torch.rand(n, 3, SIDE, SIDE, generator=rng, dtype=DOUBLE) * 2 - 1

    clients = [
        Client(f"c{k}", "only", Model(name), images(n), torch.randint(0, CLASSES, (n,), generator=rng))
        for k, (n, name) in enumerate(zip(sizes, names))
    ]
    settings = training(**{"batch_size": 4, "optimiser": Optimiser("adam", 1e-2), **changes})
    return World.create(
        clients,
        settings,
        CLASSES,
        seed=0,
        public=(images(public), PublicSettings("made up", batch_size=batch, epochs=passes)),
    ).at(1)


def three(monkeypatch, **changes) -> World:
    return federation(monkeypatch, SIZES[:3], NETWORKS[:3], **changes)


def alike(monkeypatch, name="bn", sizes=(12, 7, 9), **changes) -> World:
    """One architecture for all."""
    return federation(monkeypatch, sizes, [name] * len(sizes), **changes)


def same_parameters(a: Clients, b: Clients, within=0.0) -> bool:
    """Without the statistics of BatchNorm."""
    return all(
        (x[name] - y[name]).abs().max() <= within
        for x, y in zip(a, b, strict=True)
        for name in x
        if "running" not in name and "num_batches" not in name
    )


def modules(world, models):
    """Ordinary modules holding the clients' models, in train mode."""
    made = []
    for client, model in zip(world.clients, models):
        made.append(network(client.model, 3, SIDE, CLASSES).to(DOUBLE))
        made[-1].load_state_dict(model)
    return [m.train() for m in made]


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-2)


def kl(teacher, student):
    p = F.softmax(teacher, 1)
    return (p * (p.log() - F.log_softmax(student, 1))).sum(1).mean()


def by_hand(world, models, loss, optimiser, forwards=1, batches=None) -> Clients:
    """`loss(k, zs, hs, shown)`: logits and features of the last forward, what all showed (constants)."""
    nets = modules(world, models)
    for images, _ in batches or world.public_batches():
        for _ in range(forwards):
            hs = [net.features(images) for net in nets]
            zs = [net.head(h) for net, h in zip(nets, hs)]
        answers = [z.detach() for z in zs], [h.detach() for h in hs]
        losses = [loss(k, zs, hs, answers) for k in range(len(nets))]
        for net, value in zip(nets, losses):
            step = optimiser(net.parameters())
            value.backward()
            step.step()
            step.zero_grad()
    return Clients(Params((n, v.detach().clone()) for n, v in net.state_dict().items()) for net in nets)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-2, weight_decay=1e-5)


def zbar(answers):
    return sum(answers[0]) / len(answers[0])


def fccm_by_hand(z, other):
    standard = [(a - a.mean(0)) / a.std(0) for a in (z, other)]
    c = standard[0].T @ standard[1] / len(z)
    return (1 - c.diagonal()).pow(2).sum() + 0.0051 * ((1 + c).pow(2).sum() - (1 + c.diagonal()).pow(2).sum())


def costs(method, sizes, clients=4, averaging=None, classes=10):
    world = SimpleNamespace(
        public_batches=lambda: [PublicBatch(range(n), ()) for n in sizes],
        classes=classes,
        clients=[None] * clients,
        homogeneous=True,
        scalars=lambda: 4_977_226.0,
        training=training(averaging=averaging),
    )
    return method.traffic(world)


B512, B256, RA = [512] * 9 + [392], [256] * 19 + [136], [256] * 19


def home(method, monkeypatch, rounds=1, world=None, **changes):
    """The calls of World.local_epochs in the last of some rounds: (models, keyword arguments), between the
    states around it, and what that round's training left."""
    world = world or three(monkeypatch, **changes)
    state, calls = run(method, world, rounds - 1) if rounds > 1 else method.init(world), []
    world, real = world.at(rounds), World.local_epochs
    monkeypatch.setattr(
        World,
        "local_epochs",
        lambda self, models, loss, **k: calls.append((models, loss, k)) or real(self, models, loss, **k),
    )
    after, trained = one_round(method, state, world)
    return state, after, calls, trained


def collaborates_as(method, loss, optimiser, forwards, monkeypatch) -> None:
    """Assert that a method's public phase moves plain modules as `by_hand` does: two networks with BatchNorm,
    one without, whose client has no images at home; two passes over the public images."""
    world = federation(monkeypatch, (12, 0, 9), ["bn", "plain", "bn"], passes=2)
    state = method.before_round(method.init(world), world)
    close(method.collaborate(state, world), by_hand(world, state.models, loss, optimiser, forwards), 1e-8)


def collaborative(method, state=None, logits=Z) -> list[float]:
    """Every client's loss on one public batch; 0 where it takes no step."""
    received = method.aggregate(list(logits), state, None)
    return [
        0.0 if r is None else float(method.distillation_loss(z, r, None))
        for z, r in zip(logits, received, strict=True)
    ]
