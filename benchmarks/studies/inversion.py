"""Attacks of an honest but curious server on what a client sends, and how like the client's images their
results are.

Images here are pixels in [0, 1]; a victim takes them as they are and normalises them itself.
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import grad, vmap

RATE, MILESTONES = 0.1, (3 / 8, 5 / 8, 7 / 8)  # of the steps, where the rate falls to a tenth
WINDOW, SIGMA, K1, K2 = 11, 1.5, 0.01, 0.03

Gradient = Mapping[str, Tensor]
Loss = Callable[[Gradient, Tensor, Tensor], Tensor]  # (parameters, images (B, C, H, W), labels (B,)) -> ()


def invert_gradients(
    loss: Loss, parameters: Gradient, sent: Gradient, start: Tensor, labels: Tensor, steps: int, tv: float
) -> Tensor:
    """Images (N, B, C, H, W) whose gradients point where those that N clients sent do: the least of
    1 - cos(d loss(images) / d parameters, sent) + tv TV(images) (Geiping et al. 2020, Eq. 4; the matching is
    of Zhu et al. 2019).

    sent: (N, ...) for every name; the names that are missing there were not sent, and are known to the
    attacker. labels (N, B); start (N, B, C, H, W).
    """
    fixed = {name: value for name, value in parameters.items() if name not in sent}
    moved = {name: parameters[name] for name in sent}
    gradients = vmap(grad(lambda some, *batch: loss({**fixed, **some}, *batch)), (None, 0, 0))
    wanted = _flat(sent)

    def mismatch(images: Tensor) -> Tensor:
        return (1 - F.cosine_similarity(_flat(gradients(moved, images, labels)), wanted)).sum()

    return _descend(mismatch, start, steps, tv)


def invert_representations(
    features: Callable[[Tensor], Tensor], vectors: Tensor, start: Tensor, steps: int, tv: float
) -> Tensor:
    """Images (N, C, H, W) whose representations are nearest to vectors (N, d): the least of
    |features(image) - vector|^2 / |vector|^2 + tv TV(image) (Mahendran & Vedaldi 2015, Eq. 2; their TV is of
    squared differences, here it is of absolute ones, as in Geiping et al. 2020)."""
    scale = vectors.pow(2).sum(1).clamp(min=torch.finfo(vectors.dtype).tiny)

    def distance(images: Tensor) -> Tensor:
        return ((features(images) - vectors).pow(2).sum(1) / scale).sum()

    return _descend(distance, start, steps, tv)


def infer_label(head_gradient: Tensor) -> Tensor:
    """The label (...) of the one image behind d CE / d head weights (..., classes, d): representations being
    not negative, the only row with a negative sum is the label's (iDLG, Zhao et al. 2020)."""
    return head_gradient.sum(-1).argmin(-1)


def ssim(a: Tensor, b: Tensor) -> Tensor:
    """Structural similarity (N, M) of each of a (N, 1, H, W) with each of b (M, 1, H, W), pixels in [0, 1]:
    mean over all 11 x 11 Gaussian windows inside the image (Wang et al. 2004, Eq. 13 to 17). 1: the same."""
    line = torch.exp(-((torch.arange(WINDOW, dtype=a.dtype) - WINDOW // 2) ** 2) / (2 * SIGMA**2))
    window = torch.outer(line, line)[None, None] / line.sum() ** 2

    def local(x: Tensor) -> Tensor:
        return F.conv2d(x.flatten(0, -4), window).unflatten(0, x.shape[:-3])

    mean_a, mean_b = local(a)[:, None], local(b)[None]
    var_a, var_b = local(a * a)[:, None] - mean_a**2, local(b * b)[None] - mean_b**2
    covariance = local(a[:, None] * b[None]) - mean_a * mean_b
    likeness = (2 * mean_a * mean_b + K1**2) * (2 * covariance + K2**2)
    return (likeness / ((mean_a**2 + mean_b**2 + K1**2) * (var_a + var_b + K2**2))).mean((2, 3, 4))


def matched(recovered: Tensor, true: Tensor) -> tuple[float, list[int]]:
    """The mean SSIM of recovered (B, 1, H, W) to true (B, 1, H, W) where each belongs to another and the sum
    is the greatest (a gradient does not say the order of its batch); which true one is each one's."""
    scores = ssim(recovered, true).numpy()
    rows, columns = linear_sum_assignment(-scores)
    return float(scores[rows, columns].mean()), columns.tolist()


def _descend(objective: Callable[[Tensor], Tensor], start: Tensor, steps: int, tv: float) -> Tensor:
    """Adam on the signs of the gradient, its rate falling in three steps, pixels clipped to [0, 1], as
    Geiping et al. (2020) have it."""
    images = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([images], RATE)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [int(steps * share) for share in MILESTONES])
    for _ in range(steps):
        value = objective(images) + tv * _total_variation(images)
        images.grad = torch.autograd.grad(value, images)[0].sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()


def _total_variation(images: Tensor) -> Tensor:
    """Mean absolute difference of neighbours, down and across, of every image; summed over images."""
    return (images.diff(dim=-1).abs().mean((-3, -2, -1)) + images.diff(dim=-2).abs().mean((-3, -2, -1))).sum()


def _flat(gradients: Gradient) -> Tensor:
    return torch.cat([gradients[name].flatten(1) for name in sorted(gradients)], 1)
