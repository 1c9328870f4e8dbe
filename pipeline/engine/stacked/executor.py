"""The executor for GPUs: trains the clients with the same architecture, of all seeds, together by torch.func.

Small models spend most of their time on launching kernels. Therefore one step of the whole stack replaces one
step of each client. Clients are sorted by size. Those with a full batch are the leading rows of the stack,
and their number falls as clients finish. Last incomplete batches are trained in groups of equal length.

On a GPU, a step of a given shape is recorded as a CUDA graph when it is run the second time, and replayed
from then on, for any participants and any learning rate: values, rows, batches and rates are written to the
memory from which the graph reads. The number of rows is a multiple of an eighth of the stack, so that there
are few shapes. Nothing is copied from the device before the phase has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from pipeline.devices import runs_ahead
from pipeline.engine.phase import Client, Phase
from pipeline.engine.stacked.pool import Pool
from pipeline.engine.stacked.stack import Stack, no_room
from pipeline.engine.stacked.values import Member, alike
from pipeline.engine.trained import Trained, outcome, untrained
from pipeline.errors import warn
from pipeline.models import Network
from pipeline.schema import Model, Training

CACHED = 8  # stacks whose recorded steps are cached for later phases


@dataclass(eq=False)
class Stacked:
    """Steps the clients of each network together, at most `most` of them at once."""

    networks: dict[Model, Network]
    training: Training
    precision: torch.dtype | None
    device: torch.device
    most: int | None = None
    cached: list[Stack] = field(default_factory=list)
    # clients of the stack that was stepped last
    _tried: int = 0
    # images and labels of all seeds' clients
    pool: Pool = field(default_factory=Pool)

    def __post_init__(self) -> None:
        self.records = runs_ahead(self.device)
        # One memory pool for all graphs: they are replayed one after another, and no value that outlives a
        # replay lies in it.
        self.memory = torch.cuda.graph_pool_handle() if self.records else None

    def run(self, phase: Phase) -> Trained:
        """As Sequential.run, with the same batches, dropout masks and arithmetic up to the order of sums."""
        return self.run_all([phase])[0]

    def run_all(self, phases: Sequence[Phase]) -> list[Trained]:
        """One phase of each of several seeds; those that run the same code on values of the same shapes are
        stacked. The clients may hold other images in each seed."""
        outcomes: dict[int, Trained] = {}
        while left := [i for i in range(len(phases)) if i not in outcomes]:
            mates = [i for i in left if i == left[0] or alike(phases[left[0]], phases[i])]
            outcomes |= zip(mates, self._within_memory([phases[i] for i in mates]), strict=True)
        return [outcomes[i] for i in range(len(phases))]

    def _within_memory(self, phases: list[Phase]) -> list[Trained]:
        """Run the phases; short of memory, drop the cached stacks, then halve the stack."""
        cleared = False
        while True:
            try:
                return self._run(phases)
            except RuntimeError as error:
                if not no_room(error) or cleared and self._tried == 1:
                    raise
            self.cached.clear()
            torch.cuda.empty_cache()
            if cleared:
                self.most = max(1, self._tried // 2)
                warn(f"not enough memory on the device, stacks of {self.most} clients from now on")
            cleared = True

    def _run(self, phases: list[Phase]) -> list[Trained]:
        clients = {(p, k): phase.clients[k] for p, phase in enumerate(phases) for k in phase.present}
        self.pool.add(clients.values())
        counts = [range(len(phase.clients)) for phase in phases]
        results = {(p, k): untrained(phase, k) for p, phase in enumerate(phases) for k in counts[p]}
        largest_first = sorted(clients, key=lambda member: (-len(clients[member].labels), *member[::-1]))
        for model in self.networks:
            members = [m for m in largest_first if clients[m].model == model]
            most = self.most or len(members) or 1
            for first in range(0, len(members), most):
                self._tried = len(members[first : first + most])
                stack = self._stack(phases, members[first : first + most], clients)
                stack.train()
                results |= zip(stack.members, stack.results(), strict=True)
        return [outcome(phases[p], [results[p, k] for k in counts[p]]) for p in range(len(phases))]

    def _stack(self, phases: list[Phase], members: list[Member], clients: dict[Member, Client]) -> "Stack":
        """A stack with these phases' values: an earlier one with its recorded steps, or a new one."""
        mine = [clients[member] for member in members]
        stack = next((s for s in self.cached if s.fits(phases, members, mine)), None)
        if stack is None:
            stack = Stack(self, phases, members, mine)
        else:
            stack.fill(phases, members, mine)
        self.cached = [s for s in self.cached if s is not stack][-CACHED + 1 :] + [stack]
        return stack
