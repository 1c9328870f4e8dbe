"""FedAvg+: FedAvg on attacked images."""

import torch
from federation import pictures

from pipeline.attacks import pgd
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import State
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg_plus import FedAvgPlus


def test_the_loss_is_that_of_the_attacked_images_alone():
    world = pictures()
    model, client = Handle(world.network(0, world.new_model())), world.clients[0]
    batch = Batch(client.images, client.labels)
    value = FedAvgPlus(eps=0.1, random_start=False, steps=2).loss(model, batch, State(), None)
    attacked = pgd(model, client.images, client.labels, 0.1, 0.025, 2, random_start=False)
    assert torch.equal(value, cross_entropy(model(attacked), client.labels))
