"""What a walk compares tells each method from its own ablation: the term off, or the plain mean in the place
of the server's step. Compared are the digests of the state after each round, as histories have them."""

import dataclasses

import pytest
from all_methods import of, world_for

from pipeline.cells.seeds import _digest

# Rounds within which the ablation has to differ; the first stamp of a cell is of as many at least.
ROUNDS = 3
# algorithm -> what switches its idea off
ABLATIONS = {
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0},
    "scaffold": {"server_lr": 0.0},
    "feddyn": {"alpha": 1e-12},
    "fednova": {"server_momentum": 0.5},
    "fedavgm": {"beta": 0.0},
    "fedadam": {"tau": 1e9},
    "fedproto": {"lam": 0.0},
    "fedproc": {"alpha": 1.0},
    "fedpcl": {"global_weight": 0.0, "local_weight": 0.0},
    "fedccl": {"local_contrast": False, "global_contrast": False},
    "fedtgp": {"lam": 0.0},
    "fedlsa": {"lam": 0.0},
    "fedga": {"step": 0.0},
    "fedsr": {"cmi": 0.0},
    "fedrs": {"alpha": 1.0},
    "fedgh": {"server_lr": 0.0},
    "fedcrl": {"gamma": 0.0, "alpha": 0.0},
    "fedpac": {"lam": 0.0},
    "fedamp": {"lam": 0.0},
    "fedala": {"eta": 0.0},
    "ditto": {"lam": 0.0},
    "pfedme": {"lam": 0.0},
    "perfedavg": {"alpha": 0.0},
    "fccl": {"lam": 0.0},
    "fcclplus": {"fccm": False},
    "rhfl": {"beta": 0.0},
    "rahfl": {"asymmetric": False},
    "aughfl": {"mu": 0.0},
    "ktpfl": {"lam": 0.0},
    "fedmatch": {"lam_s": 0.0},
}


def digests(method) -> list[str]:
    """Of the state after each round, on the same small clients."""
    world = world_for(method, (20, 33, 7))
    state, found = method.init(world), []
    for number in range(1, ROUNDS + 1):
        state = method.round(state, world.at(number))
        found.append(_digest(state))
    return found


@pytest.mark.parametrize("algorithm", ABLATIONS)
def test_a_method_is_told_from_its_ablation_and_agrees_with_itself(algorithm):
    method = of(algorithm)
    as_it_is = digests(method)
    assert digests(method) == as_it_is
    assert digests(dataclasses.replace(method, **ABLATIONS[algorithm])) != as_it_is
