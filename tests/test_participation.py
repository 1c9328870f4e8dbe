"""Rounds in which only some clients take part, and clients that come after the last round."""
import dataclasses

import pytest
import torch
from federation import equal, image_clients, image_world, one_round, params, run, tiny_world, training
from test_executors import SIZES, largest_difference, world

from pipeline import methods
from pipeline.engine.alike import tensors_of
from pipeline.engine.state import Clients, Params, State
from pipeline.engine.world import World
from pipeline.losses import cross_entropy
from pipeline.methods.base import Method
from pipeline.methods.ditto import Ditto
from pipeline.methods.fedadam import FedAdam
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedavgm import FedAvgM
from pipeline.methods.feddyn import FedDyn
from pipeline.methods.fednova import FedNova
from pipeline.methods.fedper import FedPer
from pipeline.methods.fedproto import FedProto
from pipeline.methods.fedprox import FedProx
from pipeline.methods.fedrep import FedRep
from pipeline.methods.lgfedavg import LGFedAvg
from pipeline.methods.local import Local
from pipeline.methods.moon import Moon
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.methods.scaffold import Scaffold
from pipeline.schema import DEMANDS

PARTIAL = [
    FedAvg(), FedProx(mu=0.1), Moon(mu=1.0, buffer=2), FedAvgM(), FedAdam(), Scaffold(), FedNova(), FedDyn(alpha=0.1),
    FedPer(), FedRep(head_epochs=1), LGFedAvg(), Ditto(), PFedMe(), PerFedAvg(alpha=0.05, beta=0.05), Local(),
]
LATE = [method for method in PARTIAL if "unseen clients" in method.can] + [FedProto()]


def named(method) -> str:
    return type(method).__name__


def same(a, b) -> bool:
    """Every tensor of two values, bit for bit."""
    x, y = tensors_of(a), tensors_of(b)
    return len(x) == len(y) and all(map(torch.equal, x, y))


def of_clients(state: State) -> dict[str, Clients]:
    """What a state holds for every client, as its own."""
    found = {name: value for name, value in state.items() if isinstance(value, Clients)}
    return found | {f"previous {age}": value for age, value in state.get("previous", {}).items()}


# -- who takes part ------------------------------------------------------------------------------------------

def test_the_draw_depends_on_seed_and_round_alone(monkeypatch):
    """The same for every executor, order of rounds and number of earlier draws; a share is of all clients."""
    drawn = {}
    for executor in ("sequential", "stacked"):
        w = world(executor, monkeypatch, sizes=(20,) * 10, participation=0.3)
        drawn[executor] = [w.at(round).participants for round in (1, 2, 3, 4)]
        assert w.at(4).at(2).participants == drawn[executor][1]
    assert drawn["sequential"] == drawn["stacked"] and len(set(drawn["stacked"])) > 1
    assert all(len(present) == 3 and sorted(present) == list(present) for present in drawn["stacked"])
    others = image_world((20,) * 10, seed=1, participation=0.3)
    assert [others.at(round).participants for round in (1, 2, 3, 4)] != drawn["stacked"]


@pytest.mark.parametrize(("wanted", "count"), [(0.01, 1), (1, 1), (4, 4), (0.5, 3), (1.0, 5), (6, 5)])
def test_how_many_take_part(wanted, count):
    """At least one, and never a client without data: with none that can train there is nothing to average."""
    w = image_world((9, 9, 0, 9, 9, 9), participation=wanted)
    assert all(len(w.at(round).participants) == count and 2 not in w.at(round).participants
               for round in range(1, 30))
    assert w.participants == w.at(0).participants == tuple(range(6))          # all initialise


def test_a_round_shows_absent_clients_without_data_and_the_whole_with_it():
    w = image_world((9, 9, 9), participation=1)
    once = w.at(1)
    [k] = once.participants
    assert [len(client.labels) for client in once.clients] == [9 * (j == k) for j in range(3)] == list(once.sizes)
    assert once.whole.clients is w.clients and once.whole.sizes == (9, 9, 9) and once.whole.round == 1
    assert w.whole is w and image_world((9, 9, 9)).at(1).whole.round == 1


# -- what a round of some does -------------------------------------------------------------------------------

@pytest.mark.parametrize("method", PARTIAL, ids=named)
def test_all_take_part_is_no_participation_at_all(method):
    ends = [run(method, image_world((20, 33, 7), **given), 2) for given in ({}, {"participation": 1.0})]
    assert same(*ends)


@pytest.mark.parametrize("method", PARTIAL, ids=named)
def test_the_absent_keep_what_is_their_own(method):
    """Bit for bit; what a client does hangs on no other's absence, and data of the absent enter nowhere."""
    w = image_world((20, 33, 7, 12), participation=2)
    state, _ = one_round(method, method.init(w), w.at(1))
    before = {name: list(value) for name, value in of_clients(state).items()}
    after, _ = one_round(method, state, w.at(2))
    for name, kept in before.items():
        if name == "previous 1":                                  # MOON's second last model may be its last one
            continue
        moved = [not same(old, new) for old, new in zip(kept, of_clients(after)[name], strict=True)]
        assert moved == [k in w.at(2).participants for k in range(4)], name
    clients = [c if k in w.at(1).participants + w.at(2).participants
               else dataclasses.replace(c, images=c.images * 1e6) for k, c in enumerate(w.clients)]
    poisoned = World(clients, w.training, 10, 0)
    if len(set(w.at(1).participants + w.at(2).participants)) < 4:
        assert same(run(method, poisoned, 2), after)


@pytest.mark.parametrize("method", PARTIAL, ids=named)
def test_both_executors(method, monkeypatch):
    ends = [run(method, world(executor, monkeypatch, participation=0.5))
            for executor in ("sequential", "stacked")]
    assert largest_difference(State(plain(ends[0])), State(plain(ends[1]))) < 1e-9


def plain(state: State) -> dict:
    """Its models alone."""
    return {name: value for name, value in state.items() if isinstance(value, (Params, Clients))}
