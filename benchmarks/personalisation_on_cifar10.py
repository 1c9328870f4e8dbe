"""Do personalised methods beat FedAvg on real images? `FEDREPRO_MIRROR=... python benchmarks/personalisation_on_cifar10.py`

FedCRL's practical setting on CIFAR-10 (20 clients, Dir(0.1), its network and optimiser), cut down for a CPU: 8,000 images of
the pool and 8 rounds, one seed. Needs data/cifar10 (`dvc repro data/dvc.yaml:fetch@cifar10`). The table shows the accuracy before
and after local training in the last round, weighted by test images; it is written to benchmarks/results/.
"""
import dataclasses
import json
import multiprocessing
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
METHODS = ["fedavg", "fedper", "fedrep", "fedcrl", "ditto"]
SAMPLES, ROUNDS, SEED = 8_000, 8, 0


def train(key: str) -> dict:
    """One method in the cut-down scenario: accuracies of every round, before (pre) and after (post) local training."""
    import torch
    from pipeline import evaluation, methods
    from pipeline.data import partition, store
    from pipeline.data.tensors import to_tensor
    from pipeline.engine.handle import Handle
    from pipeline.engine.phase import Client
    from pipeline.engine.world import World
    from pipeline.params import Cell
    torch.set_num_threads(1)
    scenario, algorithm, hyper = Cell("fedcrl", "cifar10-dir-01", key).resolve()
    stored = store.read(ROOT / "data" / "cifar10")
    pool = partition.Pool.of(scenario.data, stored.labels, stored.domains, stored.split, stored.meta, "data")
    parts = partition.partition(dataclasses.replace(scenario.partition, samples=SAMPLES), pool, "partition")

    def tensors(indices):
        return to_tensor(stored.images[indices], scenario.data), torch.from_numpy(stored.labels[indices])

    clients = [Client(name, domain, scenario.model, *tensors(i)) for (name, domain), i in zip(parts.clients, parts.train)]
    tests = [evaluation.TestSet(name, *tensors(i)) for (name, _), i in zip(parts.clients, parts.own_test)]
    world = World(clients, scenario.training, 10, SEED)
    method = methods.load(algorithm, hyper, key)
    state, rows, start = method.init(world), [], time.process_time()
    for world.round in range(1, ROUNDS + 1):
        state = method.round(state, world)

        def weighted(models):
            def scores(network, images, client):
                return method.scores(Handle(network, client=client), images, state)
            return round(evaluation.measure(models, world, tests, "clients", 1, scores)[0]["weighted"], 2)
        rows.append({"round": world.round, "pre": weighted(method.deployed(state, world)), "post": weighted(world.trained)})
    return {"method": key, "headline": method.headline, "rounds": rows, "cpu_seconds": round(time.process_time() - start, 1)}


def main() -> None:
    from against_pfllib import machine
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        results = pool.map(train, METHODS, chunksize=1)
    print(f"{'method':10} {'before':>8} {'after':>8}   local training, weighted accuracy % after {ROUNDS} rounds")
    for result in results:
        last = result["rounds"][-1]
        print(f"{result['method']:10} {last['pre']:8.2f} {last['post']:8.2f}   ({result['cpu_seconds']} CPU s)")
    base = results[0]["rounds"][-1]["pre"]
    better = all(r["rounds"][-1]["pre"] > base for r in results[1:])
    print("every personalised method beats FedAvg before local training" if better else "NOT every personalised method beats FedAvg before local training")
    out = ROOT / "benchmarks" / "results" / "personalisation_on_cifar10.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps({"machine": machine(), "samples": SAMPLES, "seed": SEED, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
