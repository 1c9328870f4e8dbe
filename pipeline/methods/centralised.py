"""Centralised: one model is trained on the images of all clients together; not a federated method, but an
upper reference."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from pipeline.engine import Client, Clients, LocalOptions, Params, State, World
from pipeline.engine.phase import Present
from pipeline.methods.base import Method


@dataclass(frozen=True)
class Centralised(Method):
    """In every round the scenario's local epochs over the union of the clients' training images, with its
    optimiser, new in every round as a client's is; pretraining likewise. Scored as a global model.

    None of the papers has it. Batches are drawn from the stream `local` (of pretraining: `pretraining`) under
    the name of the first client with data, so that with one client it is FedAvg and Local, bit for bit.
    Clients of different networks have no model in common: there a row gives one, or the scenario is refused.
    """

    def init(self, world: World) -> State:
        model, epochs = world.new_model(), world.training.pretraining
        options = LocalOptions(epochs=epochs, stream="pretraining")
        return State(model=self.trained(model, world, options) if epochs else model)

    def round(self, state: State, world: World) -> State:
        return State(model=self.trained(state.model, world))

    def trained(self, model: Params, world: World, options: LocalOptions | None = None) -> Params:
        world = pooled(world)
        models = world.local_epochs(world.everyone(model), self.loss, options=options).models
        return models[world.participants[0]]

    def after_training(self, state: State, trained: Clients | None) -> Clients | None:
        """The one model again, since no other client trains."""
        return None if trained is None else Clients(state.model for _ in trained)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """None: no model is exchanged. That the images themselves would have to move is not counted."""
        return 0.0, 0.0


def pooled(world: World) -> World:
    """The round with everyone's data at the first client that has any; it alone takes part."""
    whole = world.whole
    holder = next(k for k, n in enumerate(whole.sizes) if n)
    clients = list(Present(whole.clients, ()))
    clients[holder] = merged(whole.clients)
    return replace(world, clients=tuple(clients), participants=(holder,), full=whole)


@lru_cache(maxsize=8)
def merged(clients: tuple[Client, ...]) -> Client:
    """The first client that has data, with the training data of all, one client's after the other's. The same
    object for the same clients, by which an executor knows what it has on the device."""
    first = next(client for client in clients if len(client.labels))
    images = torch.cat([client.images for client in clients])
    return replace(first, images=images, labels=torch.cat([client.labels for client in clients]))
