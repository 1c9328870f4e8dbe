"""The executor for CPUs: clients one after another, each a plain loop over one tensor of images.

One thread, channels-last layout and data in memory are what counts there; stacking clients loses (benchmarks/README.md).
"""
import math

import torch
from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import Client, Outcome, Phase, batches, dropout_generator, of_client, order, pieces, split_loss, trainable_names
from pipeline.engine.optimisers import Steps
from pipeline.engine.state import Clients, Params
from pipeline.models import Network
from pipeline.models.layers import set_generator
from pipeline.params import Model, Training


class Sequential:
    """Walks the clients of a phase in their order."""

    def __init__(self, clients: list[Client], networks: dict[Model, Network], training: Training, autocast: torch.dtype | None = None):
        self.clients, self.networks, self.training, self.autocast = clients, networks, training, autocast

    def run(self, phase: Phase) -> Outcome:
        """Every client trains; those without data keep their model."""
        run = self._descend if phase.loss is not None else self._step
        results = [run(phase, k, client) for k, client in enumerate(self.clients)]
        names = next((logged.keys() for _, _, logged, _ in results if logged), ())
        missing = {name: torch.tensor(math.nan) for name in names}
        return Outcome(Clients(model for model, *_ in results), [loss for _, loss, *_ in results],
                       {name: torch.stack([(logged or missing)[name].cpu() for _, _, logged, _ in results]) for name in names},
                       phase.own if phase.step is None else _collect([own for *_, own in results]))

    def _descend(self, phase: Phase, k: int, client: Client) -> tuple[Params, float, dict[str, Tensor], object]:
        own = of_client(phase.own, k)
        if not len(client.labels):
            return phase.models[k], math.nan, {}, own
        network = self.networks[client.model].train()
        load(network, phase.models[k])
        named = dict(network.named_parameters())
        parameters = [named[name] for name in trainable_names(network, phase.trainable)]
        handle, optimise = Handle(network, trainable=set(trainable_names(network, phase.trainable))), Steps(phase.optimiser, parameters)
        total, sums, seen = torch.zeros((), device=client.images.device, dtype=torch.float64), {}, 0
        for epoch in range(phase.epochs):
            for batch in self._batches(phase, client, network, epoch):
                with torch.autocast(client.images.device.type, self.autocast, enabled=self.autocast is not None):
                    loss, logged = split_loss(phase.loss(handle, batch, phase.shared, own))
                optimise.step(torch.autograd.grad(loss, parameters, allow_unused=True))
                size = len(batch.labels)
                total += loss.detach() * size
                for name, value in logged.items():
                    sums[name] = sums.get(name, 0) + value.detach() * size
                seen += size
        model = Params((name, value.detach().clone()) for name, value in network.state_dict().items())
        return model, float(total) / seen if seen else math.nan, {name: value / seen for name, value in sums.items()}, own

    def _step(self, phase: Phase, k: int, client: Client) -> tuple[Params, float, dict[str, Tensor], object]:
        model, own = phase.models[k], of_client(phase.own, k)
        network = self.networks[client.model].train()
        names = set(trainable_names(network, phase.trainable))
        for epoch in range(phase.epochs):
            for batch in self._batches(phase, client, network, epoch):
                handle = Handle(network, model, names)
                moved, own = phase.step(handle, pieces(*batch, phase.together), phase.shared, own)
                model = model.joined(moved)
        return model, math.nan, {}, own

    def _batches(self, phase: Phase, client: Client, network: Network, epoch: int):
        """One gather per epoch, then views."""
        chosen = order(phase, client, epoch).to(client.images.device)
        set_generator(network, dropout_generator(phase, client, epoch))
        images, labels = client.images.index_select(0, chosen), client.labels.index_select(0, chosen)
        for first, last in batches(len(labels), self.training, network, phase.together):
            yield Batch(images[first:last], labels[first:last])


def load(network: Network, model: Params) -> None:
    """Put a model's values into a network."""
    with torch.no_grad():
        for name, value in network.state_dict().items():
            value.copy_(model[name])


def _collect(owns: list) -> object:
    """Per-client values as `own` takes them: Clients of Params, a tensor, a dict of these."""
    if not owns or owns[0] is None:
        return None
    if isinstance(owns[0], Params):
        return Clients(owns)
    if isinstance(owns[0], dict):
        return type(owns[0])((name, _collect([own[name] for own in owns])) for name in owns[0])
    return torch.stack(owns)
