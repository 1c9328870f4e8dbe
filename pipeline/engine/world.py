"""World: the functions that methods call: new models, local training, public data, class means, averages."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline import keys
from pipeline.engine.federation import Federation, new_network
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import LocalOptions, Loss, Part, Phase, Step, Views, least_batch, of_client
from pipeline.engine.public import ClientOutput, Collaboration, Output, Public, PublicBatch
from pipeline.engine.state import Clients, Params, weighted_mean
from pipeline.engine.trained import ClassMeans, FiniteCheck, Trained, check_finite, streams
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.models import Network
from pipeline.schema import Model, Optimiser

EVALUATION_BATCH = 1024


@dataclass(frozen=True, eq=False, repr=False)
class World(Federation):
    """A federation in one round, with the functions that a method may call. `Federation` lists its fields.

    A method reads it and cannot change it: every function returns its result and stores nothing.
    """

    # -- models -------------------------------------------------------------------------------------------

    def new_model(self) -> Params:
        """New parameters of the network that all clients share; every method gets the same ones under this
        seed.

        TrainingError if clients have different networks.
        """
        if not self.homogeneous:
            raise TrainingError(
                f"this method averages models, but the clients hold different networks: "
                f"{', '.join(sorted({client.model.name for client in self.clients}))}; give all the same one"
            )
        return self._initial(self.clients[0].model, "shared")

    def new_models(self, pretraining: int = 0, *, individual: bool = False) -> Clients:
        """Parameters for every client: the same for all if they share one network, otherwise drawn for each
        client.

        pretraining: number of epochs (default 0) that each client then trains alone with cross-entropy, if
            the scenario does not set `training.pretraining`
        individual: for methods without a model at the server: draw parameters for each client even if all
            have one network, provided that the scenario has public data and averages no models, as in RAHFL's
            code (init_nets). If it averages models, all clients start from one (FCCL+, Sec. 4.4).
        """
        separate = individual and self.public_data is not None and self.training.averaging is None
        if self.homogeneous and not separate:
            models = self.everyone(self.new_model())
        else:
            models = Clients(self._initial(client.model, client.name) for client in self.clients)
        if epochs := self.training.pretraining or pretraining:
            options = LocalOptions(epochs=epochs, stream="pretraining")
            models = self.local_epochs(models, supervised, options=options).models
        return models

    def everyone(self, model: Params) -> Clients:
        """The server's model for every client.

        model: it is not copied; functions of the world return new tensors, so clients do not see each other's
            changes
        """
        return Clients([model] * len(self.clients))

    def renewed(self, old: Clients, new: Clients) -> Clients:
        """What clients store after a round in which some are absent: the new value of participants, the old
        one of others.

        old: the values of all clients before the round
        new: the values of all clients after the round
        """
        if len(self.participants) == len(self.clients):
            return new
        present = frozenset(self.participants)
        return Clients(new[k] if k in present else old[k] for k in range(len(self.clients)))

    def scalars(self, part: Part = "all") -> float:
        """Number of floating-point scalars (parameters and buffers) of a model; mean over the clients.

        part: `all` (default), `features` or `head`
        """
        prefix = "" if part == "all" else part

        def count(network: Network) -> int:
            named = network.state_dict().items()
            return sum(v.numel() for k, v in named if k.startswith(prefix) and v.is_floating_point())

        counts = {model: count(network) for model, network in self.networks.items()}
        if self.homogeneous:
            return float(counts[self.clients[0].model])
        return sum(counts[client.model] for client in self.clients) / len(self.clients)

    # -- training -----------------------------------------------------------------------------------------

    def local_epochs(
        self,
        models: Clients,
        loss: Loss,
        *,
        server_state: object = None,
        client_state: object = None,
        options: LocalOptions | None = None,
        views: Views | None = None,
    ) -> Trained:
        """Every client trains its model on its data with a new optimiser. A client without data keeps its
        model.

        models: the model from which each client starts
        loss: loss(model, batch, server_state, client_state) returns the scalar loss of one mini-batch, or
            (scalar, {name: scalar}) to log more values; see `Trained.logged`
        server_state: given to the loss of every client; default None
        client_state: Clients, a tensor (clients, ...) or a dict of these; the loss of a client gets the part
            that belongs to the client; default None
        options: how this training differs from the scenario's, see `LocalOptions`; None: not at all
        views: views(images, generator) maps the pixels of a batch, uint8 (B, C, H, W), to a tuple of batches
            with as many images each, uint8 or floating in [0, 255]. The first becomes batch.images, the
            others batch.views. None: the scenario's augmentation

        Batches are drawn from the key (seed, stream, round, client, epoch). TrainingError for a loss that is
        not finite.

        Example, FedAvg's round:

            models = world.local_epochs(world.everyone(state.model), self.loss, server_state=state).models
            return State(model=world.average(models))
        """
        return self._train(
            models,
            options,
            loss=loss,
            server_state=server_state,
            client_state=client_state,
            views=self._inputs_of(views),
        )

    def local_steps(
        self,
        models: Clients,
        step: Step,
        *,
        server_state: object = None,
        client_state: object = None,
        options: LocalOptions | None = None,
        batches_per_step: int = 1,
    ) -> Trained:
        """Like `local_epochs`, for methods that define the step themselves instead of using an optimiser.

        step: step(model, batches, server_state, client_state) returns (new trainable parameters, new client
            state), or (parameters, client state, {name: scalar}) to log values, see `Trained.logged`; a
            logged scalar `loss` is the training loss. A step computes with `model.gradient` and `model.at`.
        batches_per_step: number of mini-batches that one step gets; default 1
        models, server_state, client_state, options: as in `local_epochs`

        TrainingError for a parameter that is not finite.
        """
        return self._train(
            models,
            options,
            step=step,
            server_state=server_state,
            client_state=client_state,
            batches_per_step=batches_per_step,
            views=self._inputs_of(None),
        )

    def local_mean(
        self,
        model: Params,
        loss: Loss,
        *,
        server_state: object = None,
        options: LocalOptions | None = None,
        views: Views | None = None,
    ) -> Params:
        """The `average` of the models that all clients make of one by `local_epochs`, bit for bit.

        Where the clients train one after another and nobody else reads their models, each is added to the sum
        and dropped, so that the memory does not grow with the clients.

        model: from which every client starts
        loss, server_state, options, views: as in `local_epochs`

        TrainingError for a loss that is not finite, or if no client has data.
        """
        phase = self._phase(
            self.everyone(model),
            options,
            loss=loss,
            server_state=server_state,
            client_state=None,
            views=self._inputs_of(views),
        )
        if not streams(self.executor) or phase.epochs == 0:
            return self.average(self._run(phase).models)
        weights = self.weights
        return weighted_mean(self._one_by_one(phase), [weights[k] for k in phase.present])

    def _one_by_one(self, phase: Phase) -> Iterator[Params]:
        """The trained models of the clients with data."""
        check = FiniteCheck(phase)
        for k, (model, loss, *_) in self.executor.each(phase):
            check.client(k, loss)
            yield model

    def _train(self, models: Clients, options: LocalOptions | None, **rule: Any) -> Trained:
        return self._run(self._phase(models, options, **rule))

    def _phase(self, models: Clients, options: LocalOptions | None, **rule: Any) -> Phase:
        options = options or LocalOptions()
        return Phase(
            clients=self.clients,
            models=models,
            trainable=options.trainable,
            epochs=self.training.local_epochs if options.epochs is None else options.epochs,
            optimiser=options.optimiser or self.training.optimiser,
            trains_state=options.trains_state,
            work=self.work,
            key=(self.seed, options.stream, self.round),
            **rule,
        )

    def _run(self, phase: Phase) -> Trained:
        if phase.epochs == 0:
            losses = [math.nan] * len(self.clients)
            return Trained(phase.models, losses, client_state=phase.client_state)
        trained = self.executor.run(phase)
        check_finite(phase, trained)
        return trained

    def _inputs_of(self, views: Views | None) -> Views | None:
        """The views as network inputs; without any, the scenario's augmentation, if it has one."""
        augment: Any = self.augmentation
        if views is None and augment is None:
            return None
        made = views or (lambda pixels, numbers: (augment(pixels, numbers),))
        return lambda images, numbers: tuple(
            self.pixels.inputs(view, images) for view in made(self.pixels.bytes(images), numbers)
        )

    # -- public data --------------------------------------------------------------------------------------

    @property
    def public_images(self) -> Tensor:
        """All public images, (N, C, H, W), as network inputs.

        TrainingError if the scenario has none.
        """
        return self._public().images

    def _public(self) -> Public:
        if self.public_data is None:
            raise TrainingError("this method needs public data: give the scenario a `public` set")
        return self.public_data

    def public_batches(
        self, views: Views | None = None, *, unaugmented: bool = False
    ) -> Iterator[PublicBatch]:
        """The public batches of the round, one after another, augmented as the scenario says.

        views: as in `local_epochs`; each client then gets (images, view, ...) from its own draws; None: all
            clients see the same
        unaugmented: make the views of the original public images, not of the augmented ones; default False

        TrainingError if the scenario has no public data.
        """
        public = self._public()
        for batch, stored in public.batches(self.seed, self.round, least_batch(*self.networks.values())):
            viewed = stored if unaugmented else batch.images
            yield batch if views is None else public.of_clients(self.clients, batch, views, viewed)

    def collaborate(
        self,
        models: Clients,
        batch: PublicBatch,
        client_output: ClientOutput,
        aggregate: Callable[[list[Output]], list],
        loss: Callable[[Any, Any, Any], Tensor],
        *,
        client_state: object = None,
        optimiser: Optimiser | None = None,
    ) -> Clients:
        """Learn from each other on one public batch (FCCL+, Algorithm 1).

        Every client sends the outputs of its model. The server computes from them what each client receives.
        Then each client takes one step of a new optimiser. All outputs are computed before the first client
        steps.

        models: the model from which each client starts
        batch: one of `public_batches`
        client_output: client_output(model, images, client_state) returns a tensor or a dict of tensors, with
            their graph; the model is in training mode, so BatchNorm's statistics change
        aggregate: aggregate(outputs) gets the outputs of all clients, as constants, and returns what each
            client receives; None for a client that takes no step
        loss: loss(output, received, client_state) returns the scalar loss of a client
        client_state: as in `local_epochs`; default None
        optimiser: None: Adam with the scenario's rate and without weight decay
        """
        optimiser = optimiser or Optimiser("adam", self.training.optimiser.lr)
        return Collaboration(
            self, models, batch, client_output, aggregate, loss, client_state, optimiser
        ).run()

    # -- looking at clients -------------------------------------------------------------------------------

    def each(self, models: Clients, function: Callable, client_state: object = None) -> list:
        """The value of a function for every client with data; None for the others.

        It is meant for computations that are no loop over mini-batches, such as statistics or adaptive
        aggregation.

        models: one for each client; they are in evaluation mode
        function: function(model, images, labels, client_state) gets the client's whole training set, (n, C,
            H, W) and (n,) int64
        client_state: as in `local_epochs`; default None
        """
        return [
            function(Handle(self.network(k, model)), client.images, client.labels, of_client(client_state, k))
            if len(client.labels)
            else None
            for k, (client, model) in enumerate(zip(self.clients, models, strict=True))
        ]

    @torch.no_grad()
    def representations(self, client: int, model: Params) -> Tensor:
        """(n, d): the features of a client's training set, in evaluation mode and without gradient.

        client: its index
        model: whose features
        """
        network = self.network(client, model)
        return torch.cat(
            [network.features(part) for part in self.clients[client].images.split(EVALUATION_BATCH)]
        )

    @torch.no_grad()
    def outputs(self, client: int, model: Params, images: Tensor) -> Tensor:
        """(n, classes): the logits of a client's model, in evaluation mode and without gradient.

        client: its index
        model: the values for the client's network
        images: (n, C, H, W), as network inputs
        """
        network = self.network(client, model)
        return torch.cat([network(part) for part in images.split(EVALUATION_BATCH)])

    @property
    def class_counts(self) -> Tensor:
        """(clients, classes) int64: the number of training samples of every class at each client."""
        return torch.stack([torch.bincount(client.labels, minlength=self.classes) for client in self.clients])

    @torch.no_grad()
    def class_means(
        self, models: Clients, embed: Callable[[Handle, Tensor], Tensor] = lambda _, z: z
    ) -> ClassMeans:
        """Mean representation of each class at each client, over the whole training set.

        It is computed in evaluation mode and without gradient (FedCRL Eq. 3; FedCCL, Algorithm 1, after local
        training).

        models: one for each client
        embed: embed(model, representations (n, d)) returns what is averaged; by default the representations
        """
        means, counts = [], self.class_counts
        for k, (client, model) in enumerate(zip(self.clients, models, strict=True)):
            z = self.representations(k, model)
            z = embed(Handle(self.networks[client.model]), z)
            # (C, n): as a matrix product, the sum has a fixed order.
            member = torch.nn.functional.one_hot(client.labels, self.classes).T.to(z.dtype)
            means.append(member @ z / counts[k].clamp(min=1)[:, None])
        return ClassMeans(torch.stack(means), counts)

    # -- at the server ------------------------------------------------------------------------------------

    @property
    def weights(self) -> list[int]:
        """The weight of each client in a mean: its number of training samples n_k; 0 without data.

        If the scenario averages uniformly, every client with data has weight 1. TrainingError if no client
        has data.
        """
        return self._weights(self.training.averaging == "uniform")

    def average(self, models: Iterable[Params], uniform: bool = False) -> Params:
        """The mean of the clients' models.

        models: one for each client, or parts of models
        uniform: give all clients with data the same weight; default False: use `weights`

        TrainingError if no client has data.
        """
        return weighted_mean(models, self._weights(True) if uniform else self.weights)

    def _weights(self, uniform: bool) -> list[int]:
        weights = [int(n > 0) if uniform else n for n in self.sizes]
        if not any(weights):
            raise TrainingError(
                f"seed {self.seed}, round {self.round}: no client has enough images for one step with "
                f"batches of {self.training.batch_size}, so there is no model to average"
            )
        return weights

    def network(self, client: int, model: Params) -> Network:
        """A client's network in evaluation mode, valid until the next call.

        client: its index
        model: the values that the network holds
        """
        network = self.networks[self.clients[client].model]
        network.load_state_dict(model)
        return network.eval()

    def _initial(self, model: Model, owner: str) -> Params:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(keys.key(self.seed, "init", model.name, owner))
            network = new_network(model, self.clients[0].images, self.classes, self.device)
        return Params((name, value.clone()) for name, value in network.state_dict().items())


def supervised(model: Handle, batch: Batch, server_state: object, client_state: object) -> Tensor:
    """The loss of pretraining: the cross-entropy of a mini-batch."""
    return cross_entropy(model(batch.images), batch.labels)
