"""python tests/on_a_card.py [method ...]: three rounds of every method on a pretended GPU and on the CPU,
with what its paper's miniature sets and made-up images. A line of JSON each; test_card.py reads them."""

import json
import os
import sys
from pathlib import Path
from unittest import mock

os.environ |= {"OMP_NUM_THREADS": "1", "FEDREPRO_EXECUTOR": "stacked"}
sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from federation import miniature_cells, miniature_world
from pretend_card import DEVICE, OnCard, there_is_a_card

from pipeline import methods
from pipeline.engine.handle import Handle
from pipeline.engine.stacked import stack
from pipeline.engine.state import tensors_of, with_tensors
from pipeline.engine.world import World
from pipeline.schema import Cell
from pipeline.training import evaluation

ROUNDS = 3


def trained(cell: Cell, device) -> tuple[list[torch.Tensor], list[float], World]:
    """(every number of the deployed models, their accuracies, the world)."""
    scenario, algorithm, hyper = cell.resolve()
    method, made = methods.load(algorithm, hyper, str(cell)), miniature_world(scenario, ROUNDS, device)
    state = method.init(made)
    for number in range(1, ROUNDS + 1):
        made = made.at(number)
        # as from a checkpoint
        state = method.round(
            with_tensors(state, iter([value.to(device) for value in tensors_of(state)])), made
        )
    method.diagnostics(state), method.traffic(made, state), method.vectors(state)
    models = method.deployed(state, made)
    tests = [evaluation.TestSet(c.name, c.images, c.labels) for c in made.clients]
    accuracies = evaluation.measure(
        models,
        made,
        tests,
        "clients",
        lambda network, images, client: method.scores(Handle(network, client=client), images, state),
    )[1]
    evaluation.representations(models, made, tests)
    return [value.cpu() for model in models for value in model.values()], accuracies, made


def compared(cell: Cell) -> dict:
    """equal: the same models and accuracies bit for bit? again: steps taken of a shape that was taken before;
    replays of recorded ones; waits: what the host waited for in them; scored: how often it waited while the
    models were."""
    with there_is_a_card() as card:
        again: list[list[str]] = []

        def take(step, turn, chosen):
            known, before = step.taken > 0, len(card.waits)
            real(step, turn, chosen)
            again.extend([card.waits[before:]] if known else [])

        def measure(*args):
            before = len(card.waits)
            measures = real_measure(*args)
            scored.append(len(card.waits) - before)
            return measures

        real, real_measure, scored = stack.Step.take, evaluation.measure, []
        with mock.patch.object(stack.Step, "take", take), mock.patch.object(evaluation, "measure", measure):
            there, accuracies, made = trained(cell, DEVICE)
    here, expected, _ = trained(cell, torch.device("cpu"))
    assert all(isinstance(c.images, OnCard) for c in made.clients)
    return {
        "equal": all(map(torch.equal, there, here)) and accuracies == expected,
        "again": len(again),
        "replays": sum(graph.replays for graph in card.graphs),
        "waits": sorted(set(sum(again, []))),
        "scored": scored,
    }


def rules() -> dict:
    """What the card refuses, and what a graph does."""
    with there_is_a_card() as card:

        def refused(operation) -> str:
            try:
                operation()
            except RuntimeError as error:
                return str(error)
            return ""

        there = torch.arange(3.0, device=DEVICE)
        total = torch.zeros(3, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(DEVICE)
        with torch.cuda.graph(graph):
            total += 2 * there
            fetched = refused(there.sum().item)
        recorded = total.tolist()
        there.add_(1)
        graph.replay(), graph.replay()
        with torch.cuda.stream(stream):
            early = refused(lambda: there + 1)
            torch.cuda.synchronize()
            late = refused(lambda: there + 1)
        return {
            "mixed": refused(lambda: there + torch.ones(3)),
            "fetched": fetched,
            "recorded": recorded,
            "replayed": total.tolist(),
            "early": early,
            "late": late,
            "waits": card.waits,
        }


if __name__ == "__main__":
    torch.set_num_threads(1)
    if "rules" in sys.argv:
        print(json.dumps(rules()), flush=True)
    for algorithm, cell in miniature_cells().items():
        if not sys.argv[1:] or algorithm in sys.argv[1:]:
            print(json.dumps({"algorithm": algorithm, **compared(cell)}), flush=True)
