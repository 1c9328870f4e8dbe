"""SGD, Adam and AdamW on plain tensors, lighter than torch.optim's classes, and gradient clipping.

The classes of torch.optim compute the same. But creating the first one imports torch's compiler, which takes
1.5 s of CPU time in every worker, longer than some cells of miniatures train. Adam is torch's fused form,
whose square root is correctly rounded. The plain form uses MKL's square root, which is not, and which rounds
differently on another maker's processor.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pipeline.schema import Optimiser

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
_adam = partial(adam, fused=True, beta1=BETA1, beta2=BETA2, eps=EPS, amsgrad=False, maximize=False)
_sgd = partial(sgd, dampening=0.0, nesterov=False, maximize=False, foreach=False)


class Steps:
    """A new optimiser of some tensors: SGD, Adam or AdamW.

    SGD has momentum without damping and Nesterov. Adam has betas 0.9 and 0.999, eps 1e-8. Weight decay is
    added to the gradient, except in AdamW. The gradient is clipped first.
    """

    def __init__(self, settings: Optimiser, parameters: Sequence[Tensor]):
        self.settings, self.parameters = settings, list(parameters)
        # of SGD
        self.momentum: list[Tensor | None] = [None] * len(self.parameters)
        # of Adam: first moments, second ones, step counts
        self.moments: tuple[list[Tensor], ...] = ([], [], [])
        if settings.name != "sgd":
            zeros = [[torch.zeros_like(p) for p in self.parameters] for _ in range(2)]
            self.moments = *zeros, [torch.zeros((), device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """Update every parameter that has a gradient; the other parameters and their moments stay
        unchanged."""
        used = [k for k, gradient in enumerate(gradients) if gradient is not None]
        if not used:
            return

        def of_used(values: Sequence) -> list:
            return [values[k] for k in used]

        s, slopes, parameters = self.settings, of_used(gradients), of_used(self.parameters)
        if s.clip is not None:
            norms = torch.stack([torch.linalg.vector_norm(slope) for slope in slopes])
            scale = clipping(torch.linalg.vector_norm(norms), s.clip)
            slopes = [slope * scale for slope in slopes]
        if s.name == "sgd":
            buffers = of_used(self.momentum)
            _sgd(parameters, slopes, buffers, lr=s.lr, weight_decay=s.weight_decay, momentum=s.momentum)
            for k, buffer in zip(used, buffers):
                self.momentum[k] = buffer
            return
        # The fused form walks through memory and ignores strides: a gradient needs the strides of its
        # parameter.
        slopes = [
            g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
            for p, g in zip(parameters, slopes)
        ]
        first, second, counts = map(of_used, self.moments)
        adam_step = partial(_adam, lr=s.lr, weight_decay=s.weight_decay)
        adam_step(parameters, slopes, first, second, [], counts, decoupled_weight_decay=s.name == "adamw")


def clipping(norm: Tensor, most: float) -> Tensor:
    """The factor, at most 1, by which a gradient of this norm is multiplied (as
    torch.nn.utils.clip_grad_norm_)."""
    return (most / (norm + 1e-6)).clamp(max=1.0)
