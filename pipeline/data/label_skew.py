"""Partition one pool of images over clients: IID, label skew (Dirichlet, shards), quantity skew, by user.

Each function here returns the images of every client, chosen from the indices (n,) of the pool. What all
kinds share, the choice of the pool and the split into training and test images, is in `divide`.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from pipeline.data.parts import PRIVATE, Parts, Pool, generator
from pipeline.errors import ParamError, unknown
from pipeline.schema import Pooled
from pipeline.schema.partitions import (
    BalancedDirichlet,
    Dirichlet,
    ExtendedDirichlet,
    Iid,
    Natural,
    Pathological,
    QuantitySkew,
    Shards,
)

# Dirichlet draws whose random numbers are used up together ...
BLOCK = 4096
# ... unless they are more numbers than this
LARGEST = 1 << 27
# numbers of Dirichlet draws in memory
AT_ONCE = 1 << 21
TRIES = 10_000
# a chance that nobody waits for
HOPELESS = 0.1
# draws after which it is estimated first
LOOK = 32
# so many times a kind of draw may have been due that was not seen
UNSEEN = 10

Indices = np.ndarray
Random = np.random.Generator
Kind = Callable[..., list[Indices]]


def divide(kind: Kind, settings: Pooled, pool: Pool, draw: int, where: str) -> Parts:
    """Choose the images, divide them by `kind`, and split each client's part where `settings.pool` says so.

    Raises ParamError, beginning with `where`, where a client would have no image. Clients below
    `min_samples`, and classes that no client holds, are warnings.
    """
    rng = generator(settings, PRIVATE, draw)
    usable = np.flatnonzero(pool.domains >= 0)
    train, test = usable[~pool.test[usable]], usable[pool.test[usable]]
    whole = settings.pool == "train+test"
    indices = np.concatenate([train, test]) if whole else train
    if settings.samples is not None:
        if settings.samples > len(indices):
            raise ParamError(f"{where}.samples: {settings.samples} of only {len(indices)} images")
        indices = indices[np.sort(rng.permutation(len(indices))[: settings.samples])]
    if settings.clients > len(indices):
        raise ParamError(f"{where}.clients: {settings.clients} clients for only {len(indices)} images")
    wanted = 0 if isinstance(settings, Pathological) else settings.min_samples or 0
    if wanted * settings.clients > len(indices):
        raise ParamError(f"{where}.min_samples: {wanted} for each, of only {len(indices)} images")
    try:
        held = kind(settings, pool, indices, rng)
    except ValueError as error:
        text = str(error)  # `.beta: ...`, of a key of the kind
        raise ParamError(f"{where}{'' if text.startswith('.') else ': '}{text}") from None
    warnings = list(_warnings(held, settings, pool, indices, where))
    splits = [train_test(part, settings.train_share, rng) if whole else (part, test) for part in held]
    domain = pool.names[0] if len(pool.names) == 1 else "all"
    tests = {name: pool.of_domain(i, test=True) for i, name in enumerate(pool.names)}
    if whole:
        tests = {domain: np.sort(np.concatenate([b for _, b in splits]))}
    clients = [(name, domain) for name in settings.names]
    return Parts(clients, [a for a, _ in splits], [b for _, b in splits], tests, warnings)


def _warnings(
    held: list[Indices], settings: Pooled, pool: Pool, indices: Indices, where: str
) -> Iterator[str]:
    """What is left out or small. ParamError where a client has no image."""
    sizes = [len(part) for part in held]
    if len(held) != settings.clients or not min(sizes):
        first = sizes.index(0) if 0 in sizes else len(held)
        many = f"{settings.clients} clients are too many"
        raise ParamError(f"{where}.clients: {many}: client {first} gets no image")
    least = minimum_size(len(indices), settings)
    if small := [str(k) for k, size in enumerate(sizes) if size < least]:
        yield f"clients {', '.join(small)} have fewer than {least} images"
    owned = np.unique(pool.labels[np.concatenate(held)])
    unowned = np.setdiff1d(pool.labels[indices], owned)
    if len(unowned):
        unused = int(np.isin(pool.labels[indices], unowned).sum())
        classes = ", ".join(map(str, unowned))
        yield f"classes {classes} belong to no client; their {unused} images are not used"


def minimum_size(total: int, settings: Pooled) -> int:
    """The smallest client of a pool of `total` images: `min_samples`, else PFLlib's
    floor(min(10 / (1 - train_share), total / clients / 2)) (dataset/utils/dataset_utils.py)."""
    if settings.min_samples is not None:
        return settings.min_samples
    share = settings.train_share
    batch = 10 / (1 - share) if share < 1 else math.inf
    return math.floor(min(batch, total / settings.clients / 2))


def train_test(part: Indices, share: float, rng: Random) -> tuple[Indices, Indices]:
    """A client's images split at random, floor(share * m) of them for training, but at least one."""
    order = rng.permutation(len(part))
    n = min(max(1, math.floor(share * len(part))), len(part))
    return np.sort(part[order[:n]]), np.sort(part[order[n:]])


def _dealt(by_class: list[Indices], counts: np.ndarray) -> list[Indices]:
    """Each client's images: of class c the next counts[k, c]."""
    ends = np.cumsum(counts, 0)
    starts = ends - counts
    return [
        np.concatenate([images[a:b] for images, a, b in zip(by_class, first, last, strict=True)])
        for first, last in zip(starts, ends, strict=True)
    ]


def iid(settings: Iid, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    return np.array_split(rng.permutation(indices), settings.clients)


def quantity_skew(settings: QuantitySkew, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    """Sizes drawn until the smallest client has its minimum."""
    least, shuffled = max(1, minimum_size(len(indices), settings)), rng.permutation(indices)
    alpha, watch = np.full(settings.clients, settings.beta), _Watch(settings, least)
    for _ in range(TRIES):
        ends = (np.cumsum(rng.dirichlet(alpha)) * len(indices)).astype(np.int64)
        ends[-1] = len(indices)
        if watch.enough(np.diff(ends, prepend=0)):
            return np.split(shuffled, ends[:-1])
    raise _no_draw(settings, TRIES, least, watch.best)


class _Watch:
    """Looks at the clients' sizes in draw after draw, and gives up as soon as there is no hope.

    How many clients are short of their minimum has a mean and a variance over draws. That none is short is as
    unlikely as Bennett's inequality says of a sum of independent events with these. The events of a Dirichlet
    draw are negatively associated (Joag-Dev and Proschan 1983), which makes it unlikelier still.
    """

    def __init__(self, settings: QuantitySkew | ExtendedDirichlet, least: int):
        self.settings, self.least = settings, least
        self.best = 0
        self.short: list[int] = []

    def enough(self, sizes: np.ndarray) -> bool:
        """Whether every client has its minimum. sizes: (clients,). ValueError where no later draw will."""
        short = int((sizes < self.least).sum())
        if not short:
            return True
        self.best = max(self.best, int(sizes.min()))
        self.short.append(short)
        tried = len(self.short)
        if tried >= LOOK and tried.bit_count() == 1 and self._chance() < HOPELESS:  # LOOK, twice that, ...
            raise self._given_up()
        return False

    def _chance(self) -> float:
        """About the chance that one of `TRIES` draws leaves no client short."""
        mean = float(np.mean(self.short))
        # What has not been seen in so many draws may still happen about once in them.
        variance = float(np.var(self.short)) + UNSEEN / len(self.short)
        u = mean / variance
        return TRIES * math.exp(-variance * ((1 + u) * math.log1p(u) - u))

    def _given_up(self) -> ValueError:
        clients, tried = self.settings.clients, len(self.short)
        return ValueError(
            f".beta: Dir({self.settings.beta:g}) leaves {np.mean(self.short):.3g} of {clients} clients below "
            f"{self.least} images, in each of {tried} draws at least {min(self.short)}: {TRIES:,} draws "
            "would give too few images again. Raise beta, or lower min_samples"
        )


def _no_draw(
    settings: QuantitySkew | Dirichlet | ExtendedDirichlet, tries: int, least: int, best: int
) -> ValueError:
    return ValueError(
        f".beta: in {tries:,} draws of Dir({settings.beta:g}) over {settings.clients} clients no draw gave "
        f"every client {least} images; the best smallest client had {best}. Raise beta, or lower min_samples"
    )


def natural(settings: Natural, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    if settings.column not in pool.columns:
        raise ValueError(f".column: {unknown('column', settings.column, pool.columns)}")
    named, at = np.unique(pool.columns[settings.column][indices], return_inverse=True)
    sizes = np.bincount(at)
    if named.dtype.kind == "U":
        blank = int(sizes[np.char.strip(named) == ""].sum())
        if blank:
            raise ValueError(
                f".column: {settings.column!r} is blank for {blank} of {len(indices)} images, which would be "
                "one client's: name their users in the data set, or leave them out of it"
            )
    large = np.flatnonzero(sizes >= max(1, settings.min_samples or 1))
    if settings.clients > len(large):
        raise ValueError(f".clients: {settings.clients} clients, of {len(large)} users with enough images")
    users = np.sort(rng.permutation(large)[: settings.clients])
    return [indices[at == user] for user in users]


def shards(settings: Shards, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    if settings.clients * settings.shards > len(indices):
        raise ValueError(f".shards: {settings.shards} for each client, of only {len(indices)} images")
    by_label = indices[np.argsort(pool.labels[indices], kind="stable")]
    pieces = np.array_split(by_label, settings.clients * settings.shards)
    order = rng.permutation(len(pieces)).reshape(settings.clients, settings.shards)
    return [np.concatenate([pieces[i] for i in row]) for row in order]


def dirichlet(settings: Dirichlet, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    sizes = np.bincount(pool.labels[indices], minlength=pool.classes)
    counts = dirichlet_counts(sizes, settings, rng)
    return _dealt([rng.permutation(images) for images in pool.by_class(indices)], counts)


def dirichlet_counts(sizes: np.ndarray, settings: Dirichlet, rng: Random) -> np.ndarray:
    """(clients, classes) counts with every client at its minimum, by rejection on the counts alone.

    Raises ValueError with the best minimum seen when `tries` draws give none.
    """
    clients, tries = settings.clients, settings.tries
    least, best = minimum_size(int(sizes.sum()), settings), 0
    alpha, numbers = np.full(clients, settings.beta), clients * len(sizes)
    block = min(BLOCK, max(1, LARGEST // numbers))
    batch = max(1, AT_ONCE // numbers)
    for first in range(0, tries, block):
        accepted = None
        of_block = min(block, tries - first)
        for done in range(0, of_block, batch):
            draws = rng.dirichlet(alpha, (min(batch, of_block - done), len(sizes)))
            if accepted is None:
                counts = cut(draws, sizes, settings.cap)
                smallest = counts.sum(2).min(1)
                good = np.flatnonzero(smallest >= least)
                accepted = counts[good[0]] if len(good) else None
                best = max(best, int(smallest.max()))
        # Later numbers are those behind a whole block, so that a batch's size changes no partition.
        if accepted is not None:
            return accepted
    raise _no_draw(settings, tries, least, best)


def cut(draws: np.ndarray, sizes: np.ndarray, cap: bool = True) -> np.ndarray:
    """Counts (draws, clients, classes) from proportions (draws, classes, clients), class by class.

    With `cap`, a client that already holds total / clients images gets no more. A draw whose masked
    proportions cannot be renormalised gives every client -1, which no minimum accepts.
    """
    tried, _, clients = draws.shape
    limit = sizes.sum() / clients
    counts = np.zeros((tried, clients, len(sizes)), np.int64)
    held = np.zeros((tried, clients), np.int64)
    broken = np.zeros(tried, bool)
    for c, size in enumerate(sizes):
        p = np.where(held < limit, draws[:, c], 0) if cap else draws[:, c]
        total = p.sum(1, keepdims=True)
        broken |= ~(np.isfinite(total[:, 0]) & (total[:, 0] > 0))
        p = p / np.where(total > 0, total, 1)
        ends = np.floor(np.cumsum(p, 1) * size).astype(np.int64)
        ends[:, -1] = size
        counts[:, :, c] = np.diff(ends, axis=1, prepend=0)
        held += counts[:, :, c]
    counts[broken] = -1
    return counts


def extended_dirichlet(
    settings: ExtendedDirichlet, pool: Pool, indices: Indices, rng: Random
) -> list[Indices]:
    """Every client draws its classes; of a class its owners get parts by Dir(beta), until all have their
    minimum."""
    clients, least = settings.clients, max(1, minimum_size(len(indices), settings))
    _enough_classes(settings.classes, pool.classes)
    _enough_owners(settings, pool.classes)
    by_class = [rng.permutation(images) for images in pool.by_class(indices)]
    watch = _Watch(settings, least)
    for _ in range(TRIES):
        owners = _drawn_owners(settings, pool.classes, rng)
        counts = np.zeros((clients, pool.classes), np.int64)
        for c in range(pool.classes):
            p = rng.dirichlet(np.full(owners[:, c].sum(), settings.beta))
            ends = np.append((np.cumsum(p)[:-1] * len(by_class[c])).astype(np.int64), len(by_class[c]))
            counts[owners[:, c], c] = np.diff(ends, prepend=0)
        if watch.enough(counts.sum(1)):
            return _dealt(by_class, counts)
    raise _no_draw(settings, TRIES, least, watch.best)


def _fewest_owners(settings: ExtendedDirichlet, classes: int) -> int:
    """Clients that every class has at least: half of what it would have if they were spread evenly."""
    return max(settings.clients * settings.classes // classes // 2, 1)


def _enough_owners(settings: ExtendedDirichlet, classes: int) -> None:
    """ValueError where no draw of `_drawn_owners` will do: each class has Binomial(clients, k / classes)
    owners, and that one has enough makes it no likelier that another has."""
    from scipy.special import bdtrc  # here, because no other kind needs it

    clients, k, fewest = settings.clients, settings.classes, _fewest_owners(settings, classes)
    enough = float(bdtrc(fewest - 1, clients, k / classes))
    if clients * k < classes or TRIES * enough**classes < HOPELESS:
        raise ValueError(
            f".classes: {k} classes for each of {clients} clients are too few to give each of the {classes} "
            f"classes {fewest} of the clients. Raise classes"
        )


def _drawn_owners(settings: ExtendedDirichlet, classes: int, rng: Random) -> np.ndarray:
    """(clients, classes) bools: each client draws its classes without regard to the others, again until every
    class has half the owners that it would have if they were spread evenly, at least one (Li and Lyu 2023;
    PFLlib's `exdir`). ValueError where no draw does."""
    clients, k, fewest = settings.clients, settings.classes, _fewest_owners(settings, classes)
    for _ in range(TRIES):
        # The ranks of random numbers: the first k of a row are a draw of k classes.
        owners = rng.random((clients, classes)).argsort(axis=1) < k
        if owners.sum(0).min() >= fewest:
            return owners
    raise ValueError(
        f".classes: in {TRIES:,} draws of {k} classes for each of {clients} clients no draw gave each of the "
        f"{classes} classes {fewest} of the clients. Raise classes"
    )


def balanced_dirichlet(
    settings: BalancedDirichlet, pool: Pool, indices: Indices, rng: Random
) -> list[Indices]:
    """Image by image: a client whose turn it is draws a class from its mixture; a class that is used up has
    the chance 0, and the others are renormalised."""
    left = np.array([len(images) for images in pool.by_class(indices)])
    mixtures = rng.dirichlet(np.full(pool.classes, settings.beta), settings.clients)
    turns = rng.permutation(np.repeat(np.arange(settings.clients), len(indices) // settings.clients))
    counts = np.zeros((settings.clients, pool.classes), np.int64)
    for k, u in zip(turns, rng.random(len(turns)), strict=True):
        chances = mixtures[k] * (left > 0)
        ends = np.cumsum(chances if chances.sum() > 0 else left)
        c = min(int(np.searchsorted(ends, u * ends[-1], side="right")), pool.classes - 1)
        counts[k, c] += 1
        left[c] -= 1
    return _dealt([rng.permutation(images) for images in pool.by_class(indices)], counts)


def pathological(settings: Pathological, pool: Pool, indices: Indices, rng: Random) -> list[Indices]:
    sizes = np.bincount(pool.labels[indices], minlength=pool.classes)
    return _dealt(pool.by_class(indices), pathological_counts(sizes, settings, rng))


def pathological_counts(sizes: np.ndarray, settings: Pathological, rng: Random) -> np.ndarray:
    """(clients, classes) counts where each client owns `settings.classes` classes (PFLlib's `pat`)."""
    classes, clients, k = len(sizes), settings.clients, settings.classes
    _enough_classes(k, classes)
    in_order = settings.owners == "in_order"
    owned = _owners_in_order(classes, clients, k) if in_order else _owners_random(classes, clients, k, rng)
    least = minimum_size(int(sizes.sum()), settings)
    counts = np.zeros((clients, classes), np.int64)
    for c, owners in enumerate(owned):
        if not owners:
            continue
        share = sizes[c] / len(owners)
        low = int(max(share / 10, least / classes))
        if settings.balanced or low >= int(share):
            parts = np.full(len(owners) - 1, int(share))
        else:
            parts = rng.integers(low, int(share), len(owners) - 1)
        counts[owners, c] = [*parts, sizes[c] - parts.sum()]
    return counts


def _enough_classes(per_client: int, classes: int) -> None:
    if per_client > classes:
        raise ValueError(f".classes: {per_client} classes per client, but the set has {classes}")


def _owners_in_order(classes: int, clients: int, k: int) -> list[list[int]]:
    """PFLlib's `pat`: class after class goes to the first ceil(N / C * k) clients with a free slot."""
    slots, per_class = np.full(clients, k), math.ceil(clients / classes * k)
    owned = []
    for _ in range(classes):
        owners = np.flatnonzero(slots > 0)[:per_class].tolist()
        slots[owners] -= 1
        owned.append(owners)
    return owned


def _owners_random(classes: int, clients: int, k: int, rng: Random) -> list[list[int]]:
    """Each client draws k classes without replacement; drawn again until every class has an owner."""
    for _ in range(TRIES):
        drawn = [set(rng.permutation(classes)[:k].tolist()) for _ in range(clients)]
        owned = [[i for i in range(clients) if c in drawn[i]] for c in range(classes)]
        if all(owned):
            return owned
    raise ValueError(f".classes: in {TRIES:,} draws some class had no owner; give each client more classes")
