"""Base class of federated methods: first state, a round, local loss, scored models, communication."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Objective, State, World
from pipeline.engine.phase import split_loss
from pipeline.losses import cross_entropy


@dataclass(frozen=True)
class Method:
    """Base class of all methods. A subclass overrides what differs; its fields are its hyper-parameters.

    Four facts about a method can be read without torch. Each is a class attribute, or a property whose body
    is a single `return` of an expression of hyper-parameters. Subclasses inherit them.

    headline: which models a paper's tables score: `pre` (those of `deployed`, before local training; the
        default) or `post` (those of `after_training`, before they are sent). Both are measured.
    requires: what a scenario must provide, as names of `schema.REQUIREMENTS`; by default one network for all
        clients
    supports: which demands of a scenario (names of `schema.DEMANDS`) the method can meet, because its paper
        says how; by default none. A subclass that needs all clients in every round sets an empty set.
    copies: number of models that a client holds in memory while it trains; by default 1. These are the one
        that it trains and those that its loss reads, such as the server's or an earlier one (FCCL+, Tables 3
        and 4: the parameter space, in |theta|).
    """

    @property
    def headline(self) -> Literal["pre", "post"]:
        return "pre"

    @property
    def requires(self) -> frozenset[str]:
        return frozenset({"one network"})

    @property
    def supports(self) -> frozenset[str]:
        return frozenset()

    @property
    def copies(self) -> int:
        return 1

    def init(self, world: World) -> State:
        """What the server and the clients hold before the first round.

        world: the federation in round 0
        """
        raise NotImplementedError

    def round(self, state: State, world: World) -> State:
        """The state after one communication round, which begins with the server's message and ends with its
        aggregation.

        state: after the previous round, or from `init` in round 1; do not change it
        world: the federation in this round
        """
        raise NotImplementedError

    def deployed(self, state: State, world: World) -> Clients:
        """The model that each client would use after the server's message and before it trains again.

        state: by default its entry `model`, the server's model, or else `models`, one for each client
        world: the federation in this round. If the scenario scores a sample of the clients, the others have
            no data in it, and what they would use is not needed
        """
        return world.everyone(state.model) if "model" in state else state.models

    def after_training(self, state: State, trained: Clients | None) -> Clients | None:
        """The model of each client after the round's local training; None before the first round.

        state: after the round
        trained: result of the last local training; an absent client has the model with which it began. None
            before the first round
        """
        return trained

    def adapted(self, state: State, world: World) -> Clients:
        """The models with which clients are scored that join after the last round, if `unseen clients` is
        supported.

        By default these are the models that such clients would receive.

        state: after the last round
        world: with these clients only; `training.local_epochs` is the scenario's `adaptation` if it has one,
            and so is `training.adaptation`, for methods that set their epochs themselves
        """
        return self.deployed(state, world)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """(up, down): number of floating-point scalars that a client sends and receives in a round, mean over
        clients.

        world: the federation in this round
        state: after the round, for methods whose messages depend on it; None: before the first round
        """
        raise NotImplementedError

    def loss(self, model: Handle, batch: Batch, server_state: Any, client_state: Any) -> Objective:
        """The local loss on one mini-batch, by default cross-entropy: a scalar, or (scalar, {name: scalar})
        to log more.

        model: the client's, in training mode
        batch: images (B, C, H, W), labels (B,), further views
        server_state, client_state: what `round` gave to `World.local_epochs`; the latter is this client's
            part
        """
        return cross_entropy(model(batch.images), batch.labels)

    def plain_loss(self, model: Handle, batch: Batch) -> Tensor:
        """The scalar of `loss`, without states and logged values, for the steps of `World.local_steps`.

        model, batch: as in `loss`
        """
        return split_loss(self.loss(model, batch, None, None))[0]

    def diagnostics(self, state: State) -> dict[str, float]:
        """Further numbers to record in every round, in the columns `method.<name>` of history.csv; by default
        none.

        state: after the round
        """
        return {}

    def vectors(self, state: State) -> Tensor | None:
        """(classes, d): the vector that the server sends for each class, for figures; None if it sends none.

        state: after the last round
        """
        return None

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        """(B, classes): scores with which the method predicts; larger means likelier. By default the logits.

        model: the scored one, in evaluation mode
        images: (B, C, H, W)
        state: after the round
        """
        return model(images)
