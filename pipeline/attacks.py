"""White-box attacks on images in [0, 1], FGSM and PGD (Goodfellow et al. 2015; Madry et al. 2018)."""

from collections.abc import Callable

from torch import Tensor

from pipeline.engine import Handle
from pipeline.losses import cross_entropy


def pgd(
    model: Handle,
    images: Tensor,
    labels: Tensor,
    eps: float,
    step: float,
    steps: int,
    random_start: bool = True,
    scores: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """`steps` times x <- clip(x + step * sign(d CE(model(x), y) / d x)), clipped to [0, 1] and to eps around
    the images, with the model's logits, or with the `scores` (images -> (B, classes)) by which it predicts.

    images (B, C, H, W) in [0, 1], labels (B,); the result, of the same shape, is a constant. `random_start`:
    from x + u, u ~ U(-eps, eps), else from the images. The model is `Handle`-like (`input_gradient`,
    `uniform`). One step of eps without a random start is FGSM. (FedCCL, Eq. 20.)
    """
    low, high = (images - eps).clamp(min=0), (images + eps).clamp(max=1)
    attacked = images
    if random_start:
        attacked = (images + eps * (2 * model.uniform(images) - 1)).clamp(low, high)
    for _ in range(steps):
        slope = model.input_gradient(lambda x: cross_entropy((scores or model)(x), labels), attacked)
        attacked = (attacked + step * slope.sign()).clamp(low, high)
    return attacked.detach()
