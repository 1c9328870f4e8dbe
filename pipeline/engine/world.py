"""What a method sees of the federation, and the verbs that it composes."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pipeline import keys
from pipeline.data import augmentations
from pipeline.data.tensors import Pixels
from pipeline.engine.environment import EXECUTORS, PRECISIONS, executor_module, executor_name, precision
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import (
    Client,
    Loss,
    Part,
    Phase,
    Step,
    Views,
    batches,
    draw,
    least_batch,
    merged,
    of_client,
    without_data,
)
from pipeline.engine.public import Look, Public, PublicBatch, Shown, step_together
from pipeline.engine.state import Clients, Params, load, weighted_mean
from pipeline.engine.trained import ClassMeans, Trained
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.models import Network, build
from pipeline.schema import Data, Model, Optimiser, Training
from pipeline.schema import Public as PublicSettings

EVALUATION_BATCH = 1024
AUGMENTATIONS = {None: None, "crop_flip": augmentations.plain}


@dataclass(frozen=True, eq=False, init=False, repr=False)
class World:
    """The clients of one seed of a cell, and the engine's verbs, as they are in one round.

    A method reads it and cannot change it: a verb returns its result and stores nothing. The trainer makes
    the next round's world by `at`.

    A client with images but no usable batch cannot train, and is a client without data to every method: it
    has no weight and no class mean. See `batches`.
    """

    clients: tuple[Client, ...]
    training: Training
    classes: int
    seed: int
    device: torch.device
    round: int  # 0 while a method initialises, then 1, 2, ...
    sizes: tuple[int, ...]  # the clients' numbers of training samples, n_k
    heldout: Batch | None  # labelled images that no client has, where a scenario sets some aside
    test: Batch | None  # test images under the scenario's corruption
    scored: dict[str, Batch]  # the common test sets by which clients are scored, by name
    pixels: Pixels
    participants: tuple[int, ...]  # who takes part in the round; the others are absent
    executor: Any  # carries out local phases: Sequential, Stacked, or one around these
    _networks: dict[Model, Network]  # one of each, for any client's values
    _public: Public | None
    _augmentation: Callable[[Tensor, torch.Generator], Tensor] | None
    _whole: "World | None"  # where clients are absent: with their data

    def __init__(
        self,
        clients: Sequence[Client],
        training: Training,
        classes: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        data: Data | None = None,
        public: tuple[Tensor, PublicSettings] | None = None,
        heldout: Batch | None = None,
        test: Batch | None = None,
        scored: dict[str, Batch] | None = None,
    ):
        device, name = torch.device(device), executor_name(torch.device(device))
        pixels = Pixels() if data is None else Pixels(data.normalise)
        vars(self).update(
            clients=tuple(clients),
            training=training,
            classes=classes,
            seed=seed,
            device=device,
            round=0,
            participants=tuple(range(len(clients))),
            heldout=heldout,
            test=test,
            scored=scored or {},
            pixels=pixels,
        )
        networks = {
            model: self._new_network(model) for model in dict.fromkeys(client.model for client in clients)
        }
        vars(self).update(_networks=networks, _whole=None)
        vars(self).update(self._data_of(self._able()))
        executor = getattr(executor_module(name), EXECUTORS[name])(
            self.clients, networks, training, _precision(device)
        )
        vars(self).update(
            executor=executor,
            _public=None if public is None else Public(*public, pixels),
            _augmentation=AUGMENTATIONS[None if data is None else data.augmentation],
        )

    def at(self, round: int, executor: Any = None) -> "World":
        """The same federation in another round, for the trainer, which may wrap the executor in another one.

        Where the scenario has `participation`, the clients that take part are drawn from the key (seed,
        round). The others are clients without data in it: no verb trains, weighs or counts them, and each
        keeps what a verb was given for it.
        """
        world = copy.copy(self.whole)
        vars(world).update(round=round, executor=executor or self.executor)
        if round and self.training.participation is not None:
            whole, present = copy.copy(world), world._drawn(self.training.participation)
            vars(world).update(self._data_of(present), participants=present, _whole=whole)
        return world

    def stepping(self, together: int) -> "World":
        """The round for a rule whose steps take `together` batches: a client whose images do not make one
        such step is a client without data in it."""
        world = copy.copy(self)
        vars(world).update(self._data_of(self._able(together)), _whole=self.whole)
        return world

    def _able(self, together: int = 1) -> list[int]:
        """The clients with at least one usable batch."""
        return [
            k
            for k, client in enumerate(self.clients)
            if batches(len(client.labels), self.training, self._networks[client.model], together)
        ]

    def _data_of(self, present: Sequence[int]) -> dict[str, tuple]:
        """`clients` and `sizes` where only these have data."""
        clients = tuple(
            client if k in present or not len(client.labels) else without_data(client)
            for k, client in enumerate(self.whole.clients)
        )
        return {"clients": clients, "sizes": tuple(len(client.labels) for client in clients)}

    def _drawn(self, wanted: float | int) -> tuple[int, ...]:
        """The round's participants, among the clients with data."""
        candidates = [k for k, n in enumerate(self.sizes) if n]
        return draw(candidates, wanted, len(self.clients), "participants", self.seed, self.round)

    @property
    def whole(self) -> "World":
        """The round with everyone's data: for what a server knows of all clients, such as their sizes, and
        for scoring them."""
        return self._whole or self

    @property
    def pooled(self) -> "World":
        """The round with everyone's data at the first client that has any; it alone takes part."""
        whole, holder = self.whole, next(k for k, n in enumerate(self.whole.sizes) if n)
        clients = tuple(
            merged(whole.clients) if k == holder else without_data(client)
            for k, client in enumerate(whole.clients)
        )
        world, sizes = copy.copy(self), tuple(len(client.labels) for client in clients)
        vars(world).update(clients=clients, sizes=sizes, participants=(holder,), _whole=whole)
        return world

    @property
    def homogeneous(self) -> bool:
        """Do all clients hold one architecture?"""
        return len({client.model for client in self.clients}) == 1

    @property
    def width(self) -> int:
        """Length d of a representation; the same for all clients wherever representations are compared."""
        return self._networks[self.clients[0].model].width

    # -- models -------------------------------------------------------------------------------------------

    def new_model(self) -> Params:
        """Fresh parameters of the one network that all clients share, the same for every method at this
        seed."""
        if not self.homogeneous:
            raise TrainingError(
                f"this method averages models, but the clients hold different networks: "
                f"{', '.join(sorted({client.model.name for client in self.clients}))}"
            )
        return self._initial(self.clients[0].model, "shared")

    def new_models(self, pretraining: int = 0, *, own: bool = False) -> Clients:
        """Parameters for every client: the shared ones where all hold one network, else its own draw each.
        `own`, of a method without a model at the server: its own draw each, too, where the scenario has
        public data and averages no models, as in RAHFL's code (init_nets); where it does, all start from one
        (FCCL+, Sec. 4.4). Each has then trained alone on the cross-entropy for as many epochs as the scenario
        says, or where it says nothing, as the method does."""
        alone = own and self.shares_public and self.training.averaging is None
        if self.homogeneous and not alone:
            models = self.everyone(self.new_model())
        else:
            models = Clients(self._initial(client.model, client.name) for client in self.clients)
        if epochs := self.training.pretraining or pretraining:
            models = self.local_epochs(models, supervised, epochs=epochs, stream="pretraining").models
        return models

    def everyone(self, model: Params) -> Clients:
        """The server's model at every client."""
        return Clients(model for _ in self.clients)

    def renewed(self, old: Clients, new: Clients) -> Clients:
        """The new values of the clients that take part in the round, the old ones of the absent."""
        if len(self.participants) == len(self.clients):
            return new
        return Clients(new[k] if k in self.participants else old[k] for k in range(len(self.clients)))

    def scalars(self, part: Part = "all") -> float:
        """Floating scalars (parameters and buffers) of a model or of a part of it; mean over clients."""
        prefix = "" if part == "all" else part
        counts = {
            model: sum(
                v.numel()
                for k, v in network.state_dict().items()
                if k.startswith(prefix) and v.is_floating_point()
            )
            for model, network in self._networks.items()
        }
        return sum(counts[client.model] for client in self.clients) / len(self.clients)

    # -- training -----------------------------------------------------------------------------------------

    def local_epochs(
        self,
        models: Clients,
        loss: Loss,
        *,
        trainable: Part = "all",
        epochs: int | None = None,
        shared: object = None,
        own: object = None,
        extra: Clients | None = None,
        optimiser: Optimiser | None = None,
        stream: str = "local",
        views: Views | None = None,
    ) -> Trained:
        """Every client trains its model on its own data, with a new optimiser.

        `loss(model, batch, shared, own)` gives the scalar of one mini-batch, or (scalar, {name: scalar}) to
        have more averaged over the phase, see `Trained.logged`. `shared` is the same for all; `own` is
        Clients, a tensor (clients, ...) or a dict of these, of which a client sees its part. Instead of `own`
        there may be `extra`: floating tensors that a client trains beside its model, with the same optimiser,
        and that its loss sees as `own`. `trainable` freezes the other part. Batches are drawn from the key
        (seed, stream, round, client, epoch), so that methods with the same stream see the same batches. A
        client without data keeps its model.

        `views(images, generator)` maps a batch's pixels, uint8 (B, C, H, W), to a tuple of batches of as many
        images, uint8 or floating in [0, 255]: the first becomes batch.images, the others batch.views. Without
        it the scenario's augmentation applies.
        """
        return self._run(
            self._phase(
                models,
                loss,
                None,
                trainable,
                epochs,
                shared,
                own,
                stream,
                optimiser=optimiser,
                views=views,
                extra=extra,
            )
        )

    def local_steps(
        self,
        models: Clients,
        step: Step,
        *,
        trainable: Part = "all",
        epochs: int | None = None,
        shared: object = None,
        own: object = None,
        together: int = 1,
        stream: str = "local",
    ) -> Trained:
        """As `local_epochs` for methods whose rule is a step of their own: `step(model, batches, shared,
        own)` returns (new trainable params, new own) or (params, own, {name: scalar}), see `Trained.logged`,
        from `together` batches, with `model.gradient` and `model.at`; a scalar `loss` is the training
        loss."""
        return self._run(
            self._phase(models, None, step, trainable, epochs, shared, own, stream, together=together)
        )

    def _phase(
        self,
        models,
        loss,
        step,
        trainable,
        epochs,
        shared,
        own,
        stream,
        *,
        optimiser=None,
        together=1,
        views=None,
        extra=None,
    ) -> Phase:
        return Phase(
            self.clients,
            models,
            loss,
            step,
            trainable,
            self.training.local_epochs if epochs is None else epochs,
            shared,
            own,
            optimiser or self.training.optimiser,
            together,
            (self.seed, stream, self.round),
            self._inputs_of(views),
            extra,
        )

    def _inputs_of(self, views: Views | None) -> Views | None:
        """The views as network inputs; without any, the scenario's augmentation, if it has one."""
        augment = self._augmentation
        if views is None and augment is not None:

            def views(pixels, numbers):
                return (augment(pixels, numbers),)

        if views is None:
            return None
        return lambda images, numbers: tuple(
            self.pixels.inputs(view, images) for view in views(self.pixels.bytes(images), numbers)
        )

    def _run(self, phase: Phase) -> Trained:
        if phase.epochs == 0:
            return Trained(
                phase.models,
                [math.nan] * len(self.clients),
                own=phase.own if phase.extra is None else phase.extra,
            )
        trained, last = self.executor.run(phase), "none yet"
        for client, model, value in zip(self.clients, trained.models, trained.losses):
            if phase.loss is not None and len(client.labels) and not math.isfinite(value):
                raise TrainingError(
                    f"seed {self.seed}, round {self.round}, client {client.name}: the training loss is "
                    f"{value}; "
                    f"last finite loss of this phase: {last}"
                )
            if phase.step is not None and not all(tensor.isfinite().all() for tensor in model.values()):
                raise TrainingError(
                    f"seed {self.seed}, round {self.round}, client {client.name}: a parameter is no longer "
                    "finite; "
                    f"last finite loss of this phase: {last}"
                )
            last = f"{value:.4g} (client {client.name})" if math.isfinite(value) else last
        return trained

    # -- public data -----------------------------------------------------------------------------------------

    @property
    def shares_public(self) -> bool:
        return self._public is not None

    @property
    def public(self) -> Tensor:
        """All public images, (N, C, H, W)."""
        return self._forum.images

    @property
    def _forum(self) -> Public:
        if self._public is None:
            raise TrainingError("this method needs public data: give the scenario a `public` set")
        return self._public

    def public_batches(
        self, views: Views | None = None, *, unaugmented: bool = False
    ) -> Iterator[PublicBatch]:
        """The round's public batches, one after the other, augmented as the scenario says, the same for all
        clients. With `views`, see `local_epochs`, every client has its own: (images, view, ...). They are
        drawn from the augmented images, or with `unaugmented` from the public images as they are."""
        least = least_batch(*self._networks.values())
        for batch, stored in self._forum.batches(self.seed, self.round, least):
            viewed = stored if unaugmented else batch.images
            yield batch if views is None else self._forum.seen_by(self.clients, batch, views, viewed)

    def collaborate(
        self,
        models: Clients,
        batch: PublicBatch,
        look: Look,
        agree: Callable[[list[Shown]], list],
        loss: Callable[[Any, Any, Any], Tensor],
        *,
        own: object = None,
        optimiser: Optimiser | None = None,
    ) -> Clients:
        """One public batch (FCCL+, Algorithm 1): every client sends its model's outputs on it, the server
        turns these into what each client receives, and each takes one step of a new optimiser.

        look(model, images, own) -> tensor or dict of tensors, with their graph; training mode, so that
        BatchNorm's statistics move. agree(shown by each client, as constants) -> what each receives; None: no
        step for that client. loss(shown, received, own) -> scalar. `optimiser` by default Adam at the
        scenario's rate without weight decay. All clients compute their outputs before the first one steps.
        """
        return step_together(
            self.clients,
            self._networks,
            models,
            batch,
            look,
            agree,
            loss,
            own,
            optimiser or Optimiser("adam", self.training.optimiser.lr),
            _precision(self.device),
        )

    # -- looking at clients ---------------------------------------------------------------------------------

    def each(self, models: Clients, function: Callable, own: object = None) -> list:
        """`function(model, images, labels, own)` for every client with data, its model in evaluation mode,
        its whole training set at once; None for the others. For what is not a mini-batch loop: statistics,
        adaptive aggregation."""
        return [
            function(Handle(self.network(k, model)), client.images, client.labels, of_client(own, k))
            if len(client.labels)
            else None
            for k, (client, model) in enumerate(zip(self.clients, models, strict=True))
        ]

    @torch.no_grad()
    def representations(self, client: int, model: Params) -> Tensor:
        """The client's training set through the features, evaluation mode, no dropout: (n, d)."""
        network = self.network(client, model)
        return torch.cat(
            [network.features(part) for part in self.clients[client].images.split(EVALUATION_BATCH)]
        )

    @property
    def class_counts(self) -> Tensor:
        """(clients, classes) int64: each client's training samples of every class."""
        return torch.stack([torch.bincount(client.labels, minlength=self.classes) for client in self.clients])

    def class_means(self, models: Clients, scaled: Callable[[Tensor], Tensor] = lambda z: z) -> ClassMeans:
        """Mean representation per client and class over the whole training set, in evaluation mode, without
        gradient (FedCRL Eq. 3; FedCCL, Algorithm 1, after local training); of `scaled` representations (n, d)
        where a method asks for it."""
        means = torch.zeros(
            len(self.clients),
            self.classes,
            self.width,
            device=self.device,
            dtype=self.clients[0].images.dtype,
        )
        counts = self.class_counts
        for k, (client, model) in enumerate(zip(self.clients, models, strict=True)):
            if len(client.labels):
                # (C, n): as a matrix product, the sum has a fixed order.
                member = torch.nn.functional.one_hot(client.labels, self.classes).T.to(means.dtype)
                means[k] = member @ scaled(self.representations(k, model)) / counts[k].clamp(min=1)[:, None]
        return ClassMeans(means, counts)

    # -- at the server --------------------------------------------------------------------------------------

    @property
    def weights(self) -> list[int]:
        """What each client weighs in a mean: its number of training samples n_k, or 1 where the scenario
        averages uniformly; 0 without data."""
        uniform = self.training.averaging == "uniform"
        return [int(n > 0) if uniform else n for n in self.sizes]

    def average(self, models: Iterable[Params], uniform: bool = False) -> Params:
        """The mean of the clients' models (or parts) by their `weights`, or uniform over the clients with
        data. TrainingError where no client has any."""
        weights = [int(n > 0) for n in self.sizes] if uniform else self.weights
        if not any(weights):
            raise TrainingError(
                f"seed {self.seed}, round {self.round}: no client has enough images for one "
                f"step with batches of {self.training.batch_size}, so there is no model to "
                "average"
            )
        return weighted_mean(models, weights)

    def network(self, client: int, model: Params) -> Network:
        """The client's network in evaluation mode, holding `model`; valid until the next call."""
        network = self._networks[self.clients[client].model]
        load(network, model)
        return network.eval()

    # -- inside -------------------------------------------------------------------------------------------

    def _new_network(self, model: Model) -> Network:
        images = self.clients[0].images
        network = build(model, images.shape[1], images.shape[-1], self.classes)
        return network.to(self.device, images.dtype).to(memory_format=torch.channels_last)

    def _initial(self, model: Model, owner: str) -> Params:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(keys.key(self.seed, "init", model.name, owner))
            network = self._new_network(model)
        return Params((name, value.clone()) for name, value in network.state_dict().items())


def supervised(model: Handle, batch: Batch, shared: object, own: object) -> Tensor:
    """The loss of pretraining: the cross-entropy of a mini-batch."""
    return cross_entropy(model(batch.images), batch.labels)


def _precision(device: torch.device) -> torch.dtype | None:
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision() == "tf32"
        # cuDNN's faster gradient kernels add in the order of arrival, which varies.
        torch.backends.cudnn.deterministic = True
    return PRECISIONS[precision()]


@torch.no_grad()
def outputs(world: World, client: int, model: Params, images: Tensor) -> Tensor:
    """A client's model on images (n, C, H, W), in evaluation mode and without gradient: (n, classes)."""
    network = world.network(client, model)
    return torch.cat([network(part) for part in images.split(EVALUATION_BATCH)])
