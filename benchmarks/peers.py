"""Rounds of other frameworks' own loops, one at a time: for against_peers.py and many_clients_peers.py."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any


class Turns:
    """Two threads by turns: a framework's own loop, and the one that times its rounds."""

    def __init__(self) -> None:
        self.begin = threading.Semaphore(0)
        self.end = threading.Semaphore(0)

    def rounds(self, loop: Callable[[], object]) -> Iterator[None]:
        """Everything until a `yield` is one round of this loop."""
        threading.Thread(target=loop, daemon=True).start()
        while True:
            yield
            self.begin.release()
            self.end.acquire()


def pfl_rounds(
    network: Callable[[], Any],
    user: Callable[[int], tuple],
    clients: int,
    taking_part: int,
    batch: int,
    lr: float,
    sampler: str = "random",
) -> Iterator[None]:
    """FedAvg of pfl-research: SGD, one local epoch, no evaluation; everything until a `yield` is one round.

    network      a new model
    user         number of a client -> its images and labels
    clients      how many there are
    taking_part  how many of them are drawn for a round
    batch        images of a local step
    lr           local learning rate
    sampler      how pfl-research draws them
    """
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    turns = Turns()

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()

        def loss(self, images, labels):
            return torch.nn.functional.cross_entropy(self.network(images), labels)

        def metrics(self, images, labels):
            return {}

    class Marked(TrainingProcessCallback):
        def on_train_begin(self, *, model):
            turns.begin.acquire()
            return Metrics()

        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            turns.end.release()
            turns.begin.acquire()
            return False, Metrics()

    module = Module()
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    users = FederatedDataset(
        lambda k: Dataset(user(k), user_id=k), get_user_sampler(sampler, list(range(clients)))
    )
    algorithm = NNAlgorithmParams(
        central_num_iterations=1000,
        evaluation_frequency=10**9,
        train_cohort_size=taking_part,
        val_cohort_size=0,
    )
    training = NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=lr)

    def loop() -> None:
        asyncio.set_event_loop(asyncio.new_event_loop())
        FederatedAveraging().run(
            algorithm,
            SimulatedBackend(users, users),
            model,
            training,
            callbacks=[Marked()],
            send_metrics_to_platform=False,
        )

    return turns.rounds(loop)
