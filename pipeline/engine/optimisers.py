"""SGD and Adam on torch's functional forms.

The classes of torch.optim do the same arithmetic, but making the first one imports torch's compiler: 1.5 s of CPU in
every worker, more than a miniature cell trains.
"""
import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from pipeline.params import Optimiser


class Steps:
    """A fresh optimiser over some tensors; `step` uses their `.grad` and clears it. Tensors without one stay.

    SGD with momentum (no damping, no Nesterov) or Adam (betas 0.9, 0.999, eps 1e-8); weight decay joins the gradient.
    """

    def __init__(self, settings: Optimiser, parameters: list[Tensor]):
        self.settings = settings
        self.parameters = parameters
        self.buffers: list[Tensor | None] = [None] * len(parameters)           # SGD: momentum
        self.moments: list[tuple[Tensor, Tensor, Tensor]] = []                 # Adam: first, second, step count
        if settings.name == "adam":
            self.moments = [(torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())) for p in parameters]

    @torch.no_grad()
    def step(self) -> None:
        used = [k for k, p in enumerate(self.parameters) if p.grad is not None]
        parameters = [self.parameters[k] for k in used]
        gradients = [p.grad for p in parameters]
        if self.settings.name == "adam":
            first, second, count = zip(*(self.moments[k] for k in used)) if used else ((), (), ())
            adam(parameters, gradients, list(first), list(second), [], list(count), foreach=False, amsgrad=False, beta1=0.9,
                 beta2=0.999, lr=self.settings.lr, weight_decay=self.settings.weight_decay, eps=1e-8, maximize=False)
        else:
            buffers = [self.buffers[k] for k in used]
            sgd(parameters, gradients, buffers, foreach=False, weight_decay=self.settings.weight_decay,
                momentum=self.settings.momentum, lr=self.settings.lr, dampening=0.0, nesterov=False, maximize=False)
            for k, buffer in zip(used, buffers):
                self.buffers[k] = buffer
        for p in parameters:
            p.grad = None
