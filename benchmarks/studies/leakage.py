"""What an honest but curious server reconstructs of the clients' images in FedCRL's miniature, from what each
method sends it (benchmarks/studies/inversion.py has the attacks).

The server knows the protocol: networks, initial models, labels of a batch (of one image it infers the label),
and that images are scans of 8 x 8 pixels enlarged; of every class it knows the mean image over the other
clients, at which its search begins. Gradients are of one SGD step, without dropout; the miniature's own
updates, of an epoch of Adam, are not attacked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.studies.inversion import infer_label, invert_gradients, invert_representations, matched, ssim
from pipeline import keys, methods
from pipeline.cells.experiment import Experiment
from pipeline.cells.loading import load_world
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.trained import Watch
from pipeline.engine.world import World
from pipeline.losses import cross_entropy
from pipeline.schema import ROOT, Cell

CELLS = ("fedcrl/mini/fedavg", "fedcrl/mini/fedcrl", "fedcrl/mini/fedproto", "fedcrl/across/fedccl")
BATCHES = (1, 4, 8)
SCAN = 8  # pixels of a side before images are enlarged
STEPS, TV = 200, 0.001  # chosen on an initial model of another seed
NOISE = 0.5  # range around the mean image at which a batch begins


@dataclass(frozen=True)
class Attempt:
    """One attack. `ssim`, `random`, `mean`: the likeness to the target of the reconstruction, of random
    images of the same classes from other clients, and of these classes' mean images over the other
    clients."""

    method: str
    sent: str
    seed: int
    round: int
    client: str
    images: int  # of the batch, or of the class
    target: str  # batch, nearest (image of the client) or class mean
    ssim: float
    random: float
    mean: float
    shown: tuple[Tensor, ...] = ()  # an image, its reconstruction, its class's mean (H, W)


def measure(
    seeds: tuple[int, ...] | None = None, rounds: int | None = None, root: Path = ROOT, steps: int = STEPS
) -> list[Attempt]:
    """Every attack, in the first and in the last round; seeds and rounds by default those of the
    miniature."""
    experiments = [Experiment.of(Cell.parse(name), root) for name in CELLS]
    return [
        one
        for experiment in experiments
        for seed in seeds or experiment.scenario.seeds
        for one in _attempts(experiment, seed, rounds, steps)
    ]


def _attempts(experiment: Experiment, seed: int, rounds: int | None, steps: int) -> Iterator[Attempt]:
    cell, hyper = experiment.cell, experiment.hyper
    method = methods.load(experiment.algorithm, hyper, experiment.where, cell.paper, experiment.root)
    whole, _ = load_world(experiment, seed)
    state, last = method.init(whole.at(0)), rounds or experiment.scenario.training.rounds
    for number in range(1, last + 1):
        world = whole.at(number, watch := Watch(whole.executor))
        before, state = state, method.round(state, world)
        if number in (1, last) and watch.trained is not None:
            yield from _sent(cell.method, world, before, state, watch.trained.models, steps)


def _sent(
    method: str, world: World, before: State, after: State, trained: Clients, steps: int
) -> Iterator[Attempt]:
    """The attacks on what a method sends in a round; `trained` are the clients' models behind it."""
    known, everyone = partial(Attempt, method), range(len(world.clients))
    if method == "fedavg":
        for size in BATCHES:
            yield from _gradients(partial(known, "gradient"), world, before.model, "", size, steps)
        return
    if method == "fedccl":
        actual = after.signals.everyone
        for k in everyone:
            own = actual.owners == k
            yield from _representations(
                partial(known, "cluster means"),
                world,
                k,
                trained[k],
                actual.vectors[own],
                actual.classes[own],
                steps,
            )
        return
    seen, initial = world.class_means(trained), world.new_model()
    for k in everyone:
        held = seen.counts[k].nonzero()[:, 0]
        extractor = trained[k] if method == "fedcrl" else initial
        yield from _representations(
            partial(known, "class means"), world, k, extractor, seen.means[k, held], held, steps
        )
    if method == "fedcrl" and world.round == 1:  # later the server does not know the heads
        for size in BATCHES:
            yield from _gradients(
                partial(known, "features' gradient"), world, initial, "features.", size, steps
            )


def _gradients(
    known: Callable[..., Attempt], world: World, model: Params, part: str, size: int, steps: int
) -> Iterator[Attempt]:
    """Every client's gradient of one batch."""
    network, inputs = world.network(0, model), _normalised(world)

    def loss(parameters, images: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(functional_call(network, dict(parameters), (inputs(images),)), labels)

    drawn = [_batch(world, k, size) for k in range(len(world.clients))]
    true, labels = (torch.stack(parts) for parts in zip(*drawn))
    gradients = vmap(grad(loss), (None, 0, 0))(dict(model), true, labels)
    sent = {name: value for name, value in gradients.items() if name.startswith(part)}
    message = infer_label(sent["head.weight"])[:, None] if size == 1 and not part else labels
    others = [[_others(world, k, int(label)) for label in row] for k, row in enumerate(labels)]
    means = torch.stack([torch.stack([images.mean(0) for images in row]) for row in others])
    noise = torch.rand((*labels.shape, 1, SCAN, SCAN), generator=_key(world, "start", size)) - 0.5
    start = (_reduced(means) + NOISE * noise).clamp(0, 1)  # images of one class begin apart
    scans = invert_gradients(
        lambda parameters, images, of: loss(parameters, _enlarged(images, true), of),
        model,
        sent,
        start,
        message,
        steps,
        TV,
    )
    for k, client in enumerate(world.clients):
        random = torch.stack(
            [images[_draw(world, len(images), k, size, i)] for i, images in enumerate(others[k])]
        )
        actual = _enlarged(scans[k], true)
        score, of = matched(actual, true[k])
        yield known(
            world.seed,
            world.round,
            client.name,
            size,
            "batch",
            score,
            matched(random, true[k])[0],
            matched(means[k], true[k])[0],
            (true[k][of[0], 0], actual[0, 0], means[k, of[0], 0]),
        )


def _representations(
    known: Callable[..., Attempt],
    world: World,
    k: int,
    extractor: Params,
    vectors: Tensor,
    classes: Tensor,
    steps: int,
) -> Iterator[Attempt]:
    """A client's vectors (P, d) of the classes (P,), but for those of classes that nobody else holds."""
    client, network, inputs = world.clients[k], world.network(k, extractor), _normalised(world)
    others = {i: images for i, label in enumerate(classes) if len(images := _others(world, k, int(label)))}
    means = torch.stack([images.mean(0) for images in others.values()])
    scans = invert_representations(
        lambda images: network.features(inputs(_enlarged(images, means))),
        vectors[list(others)],
        _reduced(means),
        steps,
        TV,
    )
    for actual, mean, (i, images) in zip(_enlarged(scans, means), means, others.items()):
        own = _pixels(world, client.images[client.labels == classes[i]])
        shown = torch.stack([actual, images[_draw(world, len(images), k, int(classes[i]), i)], mean])
        each, to_mean = ssim(shown, own), ssim(shown, own.mean(0, keepdim=True))
        pictures = own[each[0].argmax(), 0], actual[0], mean[0]
        for target, row in (("nearest", each.amax(1)), ("class mean", to_mean[:, 0])):
            yield known(world.seed, world.round, client.name, len(own), target, *row.tolist(), pictures)


def _batch(world: World, k: int, size: int) -> tuple[Tensor, Tensor]:
    """Images drawn from a client, of classes that others hold, too, and their labels."""
    client = world.clients[k]
    order = torch.randperm(len(client.labels), generator=_key(world, "batch", k, size))
    shared = [i for i in order.tolist() if len(_others(world, k, int(client.labels[i])))][:size]
    return _pixels(world, client.images[shared]), client.labels[shared]


def _others(world: World, k: int, label: int) -> Tensor:
    """The images of a class that all clients but one hold."""
    return _pixels(
        world,
        torch.cat(
            [
                client.images[client.labels == label]
                for other, client in enumerate(world.clients)
                if other != k
            ]
        ),
    )


def _draw(world: World, many: int, *parts: int) -> int:
    return int(torch.randint(many, (1,), generator=_key(world, "other", *parts)))


def _key(world: World, *parts: int | str) -> torch.Generator:
    return keys.torch_generator(world.seed, "leakage", world.round, *parts)


def _pixels(world: World, images: Tensor) -> Tensor:
    """Network inputs as pixels in [0, 1]."""
    return world.pixels.bytes(images).contiguous() / 255


def _normalised(world: World):
    """Pixels in [0, 1] -> network inputs."""
    low, high = (
        world.pixels.inputs(torch.full((1, 1, 1, 1), value), torch.zeros(1, 1, 1, 1)).item()
        for value in (0, 255)
    )
    return lambda pixels: low + (high - low) * pixels


def _enlarged(scans: Tensor, like: Tensor) -> Tensor:
    """Scans (..., 8, 8) as the data's images are made of them."""
    return F.interpolate(scans, like.shape[-2:], mode="bilinear")


def _reduced(images: Tensor) -> Tensor:
    """Images (..., H, W) back to the size of scans."""
    return F.adaptive_avg_pool2d(images.flatten(0, -4), SCAN).unflatten(0, images.shape[:-3])
