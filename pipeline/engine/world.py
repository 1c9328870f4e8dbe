"""What a method sees of the federation, and the verbs that it composes."""
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from pipeline import keys
from pipeline.engine.optimisers import Steps
from pipeline.engine.state import Clients, Params, weighted_mean
from pipeline.errors import TrainingError
from pipeline.models import Network, build
from pipeline.models.layers import set_generator
from pipeline.params import Model, Optimiser, Training

Part = Literal["all", "features", "head"]


class Batch(NamedTuple):
    """Images (B, C, H, W) in float32 and labels (B,) in int64."""
    images: Tensor
    labels: Tensor


class Handle:
    """One client's model inside a loss: callable (images -> logits), with `features`, `head` and trainable `params`.

    model(x) is model.head(model.features(x)); dropout, where the network has it, belongs to the head.
    """

    def __init__(self, network: Network):
        self._network = network
        self.features: Callable[[Tensor], Tensor] = network.features
        self.params = Params((name, p) for name, p in network.named_parameters() if p.requires_grad)

    def head(self, representations: Tensor) -> Tensor:
        return self._network.head(self._network.dropout(representations))

    def __call__(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


Loss = Callable[[Handle, Batch, object, object], Tensor]      # (model, batch, shared, own) -> scalar


@dataclass(frozen=True)
class Client:
    """A client's name, domain, network and training data, in memory on the device."""
    name: str
    domain: str
    model: Model
    images: Tensor                                            # (n, C, H, W), channels last
    labels: Tensor                                            # (n,)


class World:
    """The clients of one seed of a cell, and the engine's verbs. A method reads it and never changes it."""

    def __init__(self, clients: Sequence[Client], training: Training, classes: int, seed: int,
                 device: torch.device | str = "cpu"):
        self.clients = list(clients)
        self.training = training
        self.classes = classes
        self.seed = seed
        self.device = torch.device(device)
        self.round = 0                                        # 0 while a method initialises, then 1, 2, ...
        self.sizes = [len(client.labels) for client in self.clients]
        self.trained: Clients | None = None                   # what the clients hold after this round's last local phase
        self.loss: list[float] = []                           # mean training loss of each client in that phase
        self._last_finite = "none yet"
        channels, side = self.clients[0].images.shape[1], self.clients[0].images.shape[-1]
        self._networks = {model: self._new_network(model, channels, side) for model in {c.model for c in self.clients}}

    # -- models -------------------------------------------------------------------------------------------

    def new_model(self) -> Params:
        """Fresh parameters of the one network that all clients share, the same for every method at this seed."""
        models = {client.model for client in self.clients}
        if len(models) > 1:
            raise TrainingError(f"this method averages models, but the clients hold different networks: "
                                f"{', '.join(sorted(m.name for m in models))}")
        return self._initial(next(iter(models)), "shared")

    def new_models(self) -> Clients:
        """Fresh parameters for every client: the shared ones where all hold one network, else its own draw each."""
        if len({client.model for client in self.clients}) == 1:
            return self.everyone(self.new_model())
        return Clients(self._initial(client.model, client.name) for client in self.clients)

    def everyone(self, model: Params) -> Clients:
        """The server's model at every client."""
        return Clients(model for _ in self.clients)

    def scalars(self, part: Part = "all") -> float:
        """Floating scalars (parameters and buffers) of a model or of a part of it; mean over clients."""
        prefix = "" if part == "all" else part
        counts = {model: sum(v.numel() for k, v in network.state_dict().items() if k.startswith(prefix) and v.is_floating_point())
                  for model, network in self._networks.items()}
        return sum(counts[client.model] for client in self.clients) / len(self.clients)

    # -- training -----------------------------------------------------------------------------------------

    def local_epochs(self, models: Clients, loss: Loss, *, trainable: Part = "all", epochs: int | None = None,
                     shared: object = None, own: Sequence | None = None, optimiser: Optimiser | None = None,
                     stream: str = "local") -> Clients:
        """Every client trains its model on its own data, with a new optimiser, and returns it.

        `loss(model, batch, shared, own)` gives the scalar of one mini-batch; `own` holds one value per client.
        `trainable` freezes the other part. Batches are drawn from the key (seed, stream, client, round, epoch), so
        that methods with the same stream see the same batches. A client without data keeps its model.
        """
        own = [None] * len(self.clients) if own is None else own
        results = [self._train(k, model, loss, trainable, epochs or self.training.local_epochs, shared, own[k],
                               optimiser or self.training.optimiser, stream)
                   for k, model in enumerate(models)]
        self.trained = Clients(model for model, _ in results)
        self.loss = [value for _, value in results]
        return self.trained

    def average(self, models: Clients) -> Params:
        """The mean of the clients' models (or parts), weighted by their numbers of training samples n_k, or uniform
        over the clients with data where the scenario says so."""
        uniform = self.training.averaging == "uniform"
        return weighted_mean(models, [n > 0 for n in self.sizes] if uniform else self.sizes)

    def mean_loss(self) -> float:
        """Training loss of the last local phase, weighted by n_k; NaN before the first."""
        total = sum(n for n, value in zip(self.sizes, self.loss) if n and math.isfinite(value))
        return sum(n * value for n, value in zip(self.sizes, self.loss) if n and math.isfinite(value)) / total if total else math.nan

    def network(self, client: int, model: Params) -> Network:
        """The client's network in evaluation mode, holding `model`; valid until the next call."""
        network = self._networks[self.clients[client].model]
        _load(network, model)
        return network.eval()

    # -- inside -------------------------------------------------------------------------------------------

    def _new_network(self, model: Model, channels: int, side: int) -> Network:
        return build(model, channels, side, self.classes).to(self.device, memory_format=torch.channels_last)

    def _initial(self, model: Model, owner: str) -> Params:
        template = self._networks[model]
        first = self.clients[0].images
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(keys.key(self.seed, "init", model.name, owner))
            network = self._new_network(model, first.shape[1], first.shape[-1])
        return Params((name, value.clone()) for name, value in network.state_dict().items() if name in template.state_dict())

    def _train(self, client, model, loss, trainable, epochs, shared, own, optimiser, stream) -> tuple[Params, float]:
        data, n = self.clients[client], self.sizes[client]
        if n == 0:
            return model, math.nan
        network = self._networks[data.model]
        _load(network, model)
        network.train()
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(trainable == "all" or name.startswith(trainable))
        parameters = [p for p in network.parameters() if p.requires_grad]
        optimise = Steps(optimiser, parameters)
        handle, total, seen = Handle(network), torch.zeros((), device=self.device), 0
        for epoch in range(epochs):
            where = (self.seed, stream, data.name, self.round, epoch)
            set_generator(network, keys.torch_generator("dropout", *where))
            order = torch.randperm(n, generator=keys.torch_generator("batches", *where)).to(self.device)
            images, labels = data.images.index_select(0, order), data.labels.index_select(0, order)
            for start in self._starts(n, network):
                batch = Batch(images[start:start + self.training.batch_size], labels[start:start + self.training.batch_size])
                value = loss(handle, batch, shared, own)
                value.backward()
                optimise.step()
                total += value.detach() * len(batch.labels)
                seen += len(batch.labels)
        mean = float(total) / seen if seen else math.nan
        if seen and not math.isfinite(mean):
            raise TrainingError(f"seed {self.seed}, round {self.round}, client {data.name}: the training loss is {mean}; "
                                f"last finite loss: {self._last_finite}")
        self._last_finite = f"{mean:.4g} (round {self.round}, client {data.name})"
        return Params((name, value.detach().clone()) for name, value in network.state_dict().items()), mean

    def _starts(self, n: int, network: nn.Module) -> range | list[int]:
        """Where batches begin. A last incomplete one is kept unless drop_last; one of a single sample is left out
        where the network has BatchNorm, which cannot normalise it."""
        size = self.training.batch_size
        starts = range(0, n - size + 1, size) if self.training.drop_last else range(0, n, size)
        if n % size == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in network.modules()):
            return [start for start in starts if n - start > 1]
        return starts


@torch.no_grad()
def _load(network: nn.Module, model: Params) -> None:
    for name, value in network.state_dict().items():
        value.copy_(model[name])
