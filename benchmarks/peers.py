"""Rounds of other frameworks' own loops, one at a time: for against_peers.py and many_clients_peers.py."""

import asyncio
import threading
from collections import OrderedDict
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


def flower_rounds(
    network: Callable[[], Any], train: Callable[[Any, int], int], clients: int, taking_part: int
) -> Iterator[None]:
    """FedAvg of Flower, whose clients are processes of Ray on one core; everything until a `yield` is one
    round, without evaluation.

    network      a new model
    train        (model, number of a client) -> number of its samples; trains the model in place
    clients      how many there are
    taking_part  how many of them are drawn for a round
    """
    import torch
    from flwr.client import NumPyClient
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerConfig
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.strategy import FedAvg
    from flwr.simulation import start_simulation

    turns = Turns()

    def values_of(model) -> list:
        return [value.numpy() for value in model.state_dict().values()]

    class Member(NumPyClient):
        def __init__(self, k: int) -> None:
            self.k = k

        def fit(self, parameters, config):
            torch.set_num_threads(1)
            model = network()
            values = zip(model.state_dict(), map(torch.tensor, parameters))
            model.load_state_dict(OrderedDict(values))
            samples = train(model, self.k)
            return values_of(model), samples, {}

    class Marked(FedAvg):
        def configure_fit(self, *arguments, **keywords):
            turns.begin.acquire()
            return super().configure_fit(*arguments, **keywords)

        def aggregate_fit(self, server_round, results, failures):
            assert len(results) == taking_part
            assert not failures
            mean = super().aggregate_fit(server_round, results, failures)
            turns.end.release()
            return mean

    strategy = Marked(
        fraction_fit=taking_part / clients,
        fraction_evaluate=0.0,
        min_fit_clients=taking_part,
        min_available_clients=clients,
        initial_parameters=ndarrays_to_parameters(values_of(network())),
    )
    return turns.rounds(
        lambda: start_simulation(
            client_fn=lambda context: Member(int(context.node_config["partition-id"])).to_client(),
            num_clients=clients,
            config=ServerConfig(num_rounds=1000),
            strategy=strategy,
            client_manager=SimpleClientManager(),
            client_resources={"num_cpus": 1},
            ray_init_args={"num_cpus": 1, "include_dashboard": False, "log_to_driver": False},
        )
    )
