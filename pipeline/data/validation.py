"""Validation images for tuning: a part of each client's training images, never a test image."""

from collections.abc import Iterable

import numpy as np

from pipeline.data.parts import Parts

SHARE = 0.25  # of a client's training images


def tested(draws: Iterable[Parts]) -> np.ndarray:
    """The images on which any of the draws tests."""
    parts = [part for draw in draws for part in (*draw.client_test, *draw.domain_test.values())]
    return np.unique(np.concatenate([*parts, np.empty(0, np.int64)]))


def split(parts: Parts, forbidden: np.ndarray, rng: np.random.Generator) -> Parts:
    """The same clients, each with floor(SHARE n) of its n training images as test images instead, drawn at
    random, and with the rest to train on; `forbidden` images are left out first.

    What one client validates on no client trains on, also where clients share images.
    """
    allowed = [np.setdiff1d(part, forbidden) for part in parts.train]
    drawn = [rng.permutation(part)[: int(SHARE * len(part))] for part in allowed]
    validation = np.unique(np.concatenate(drawn))
    tests = [np.intersect1d(part, validation) for part in allowed]
    domains: dict[str, list[np.ndarray]] = {}
    for (_, domain), part in zip(parts.clients, tests, strict=True):
        domains.setdefault(domain, []).append(part)
    return Parts(
        parts.clients,
        [np.setdiff1d(part, validation) for part in allowed],
        tests,
        {domain: np.unique(np.concatenate(inside)) for domain, inside in domains.items()},
        parts.warnings,
        parts.public,
        np.setdiff1d(parts.heldout, forbidden),
    )
