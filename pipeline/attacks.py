"""White-box attacks on images in [0, 1], bounded by eps in every pixel, and training on attacked images (Goodfellow et al.
2015; Madry et al. 2018; FedCCL, Sec. 5.5)."""
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.phase import Logged
from pipeline.engine.state import State
from pipeline.engine.world import World
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.params import Count, NonNegative, Positive


def pgd(model: Handle, images: Tensor, labels: Tensor, eps: float, step: float, steps: int, random_start: bool = True) -> Tensor:
    """`steps` times x <- clip(x + step * sign(d CE(model(x), y) / d x)), clipped to [0, 1] and to eps around the images.

    images (B, C, H, W) in [0, 1], labels (B,); the result, of the same shape, is a constant. `random_start`: from
    x + u, u ~ U(-eps, eps), else from the images. The model is `Handle`-like (`input_gradient`, `uniform`). (FedCCL, Eq. 20.)
    """
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    attacked = images
    if random_start:
        attacked = (images + eps * (2 * model.uniform(images) - 1)).clamp(low, high)
    for _ in range(steps):
        slope = model.input_gradient(lambda x: cross_entropy(model(x), labels), attacked)
        attacked = (attacked + step * slope.sign()).clamp(low, high)
    return attacked.detach()


def fgsm(model: Handle, images: Tensor, labels: Tensor, eps: float) -> Tensor:
    """One step of eps from the images themselves (Goodfellow et al. 2015)."""
    return pgd(model, images, labels, eps, eps, 1, random_start=False)


@dataclass(frozen=True)
class AdversarialTraining:
    """Before a method's class: its local objective sees attacked images only, without a clean term (FedCCL, Eq. 21 to 24).

    The paper states no numbers. Those here are for MNIST; with eps = 0 nothing is attacked.
    """
    needs = frozenset({"one network", "pixels in [0, 1]"})
    eps: NonNegative = 0.3                # Fashion-MNIST: 0.1
    step: Positive | None = None          # None: eps / 4
    steps: Count = 10
    random_start: bool = True

    def init(self, world: World) -> State:
        for client in world.clients:
            if len(client.labels) and not (client.images.min() >= 0 and client.images.max() <= 1):
                raise TrainingError(f"client {client.name}: attacks need pixels in [0, 1]; set the scenario's data.normalise to none")
        return super().init(world)

    def loss(self, model: Handle, batch: Batch, shared: Any, own: Any) -> Tensor | tuple[Tensor, Logged]:
        if self.eps:
            step = self.eps / 4 if self.step is None else self.step
            attacked = pgd(model, batch.images, batch.labels, self.eps, step, self.steps, self.random_start)
            batch = batch._replace(images=attacked)
        return super().loss(model, batch, shared, own)
