"""Base class of federated methods: initial state, a round, local loss, evaluated models, communication."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from pipeline.engine import Batch, Clients, Handle, Objective, State, World
from pipeline.engine.phase import split_loss
from pipeline.losses import cross_entropy


@dataclass(frozen=True)
class Method:
    """Base of all methods: a subclass overrides what differs, and its fields are its hyper-parameters.

    Four facts about a method are a class attribute, or a property whose body is one `return` of an expression
    of hyper-parameters, so that they can be read without torch. Subclasses inherit them.

    headline: which models a paper's tables score, `pre` (what `deployed` returns, before local training; the
        default) or `post` (`after_training`, before upload). Both are measured.
    requires: what a scenario must provide, names of `schema.REQUIREMENTS`; by default one network for all.
    supports: what a scenario may demand because the paper has a rule for it, names of `schema.DEMANDS`; by
        default nothing. A subclass that needs all clients in every round empties it.
    copies: models that a client holds while it trains, 1 by default: the one it moves, and those that its
        loss reads, such as the server's or an earlier one (FCCL+, Tables 3 and 4: the parameter space,
        in |theta|).
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
        """What server and clients hold before the first round.

        world: the federation in round 0
        """
        raise NotImplementedError

    def round(self, state: State, world: World) -> State:
        """The state after one communication round, from the server's message to its next aggregate.

        state: after the round before, of `init` in round 1; it must not be changed
        world: the federation in this round
        """
        raise NotImplementedError

    def deployed(self, state: State, world: World) -> Clients:
        """The model each client would use now, after the server's message and before it trains again.

        state: by default its `model`, the server's, or its `models`, each client's
        world: the federation in this round
        """
        return world.everyone(state.model) if "model" in state else state.models

    def after_training(self, state: State, trained: Clients | None) -> Clients | None:
        """What the clients hold after the round's local training; None before the first.

        state: after the round
        trained: the models that its last local phase left, of an absent client the one that it began with;
            None before the first round
        """
        return trained

    def adapted(self, state: State, world: World) -> Clients:
        """The models by which clients are scored that come after the last round, for methods that support
        `unseen clients`. By default what they would receive.

        state: after the last round
        world: of these clients alone; its `training.local_epochs` is the scenario's `adaptation` where it has
            one, and so is `training.adaptation`, for methods with options for their epochs
        """
        return self.deployed(state, world)

    def traffic(self, world: World, state: State | None = None) -> tuple[float, float]:
        """(up, down): floating scalars that a client sends and receives in a round, mean over clients.

        world: the federation in this round
        state: after the round, for methods whose messages depend on it; None: as before the first
        """
        raise NotImplementedError

    def loss(self, model: Handle, batch: Batch, server_state: Any, client_state: Any) -> Objective:
        """Local objective on one mini-batch, by default the cross-entropy: a scalar, or (scalar, {name:
        scalar}) to log more.

        model: the client's, in training mode
        batch: images (B, C, H, W), labels (B,), further views
        server_state, client_state: what the round gives `World.local_epochs`, the latter of this client
        """
        return cross_entropy(model(batch.images), batch.labels)

    def plain_loss(self, model: Handle, batch: Batch) -> Tensor:
        """`loss` without states and logged numbers, for the rules of `World.local_steps`: a scalar.

        model, batch: as of `loss`
        """
        return split_loss(self.loss(model, batch, None, None))[0]

    def diagnostics(self, state: State) -> dict[str, float]:
        """Further numbers to record in every round, in columns `method.<name>` of history.csv; default none.

        state: after the round
        """
        return {}

    def vectors(self, state: State) -> Tensor | None:
        """(classes, d): the vector per class that the server sends, for figures; None where there is none.

        state: after the last round
        """
        return None

    def scores(self, model: Handle, images: Tensor, state: State) -> Tensor:
        """(B, classes), larger is likelier: how the method predicts; by default the classifier's logits.

        model: the scored one, in evaluation mode
        images: (B, C, H, W)
        state: after the round
        """
        return model(images)
