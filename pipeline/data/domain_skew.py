"""Partition data by domain: divide each domain over its clients, or draw a fixed number of images for each.

FedLSA and FedCCL with FPL's and FedPCL's numbers, FCCL+ Table 5, RAHFL Sec. 4.1.
"""

import math
from collections.abc import Collection, Iterable

import numpy as np

from pipeline.data.parts import HELDOUT, PRIVATE, Parts, Pool, generator
from pipeline.errors import ParamError, unknown
from pipeline.schema import Domains, Subset


def domains(settings: Domains, pool: Pool, draw: int, where: str) -> Parts:
    """Every client's share of its domain; ParamError, beginning with `where`, where there is too little."""
    rng = generator(settings, PRIVATE, draw)
    _known(settings.clients, pool.names, f"{where}.clients", "domain")
    if isinstance(settings.share, dict):
        _known(settings.share, settings.clients, f"{where}.share", "domain")
    train, tests = [], {}
    for domain in settings.clients:
        inside, tests[domain] = domain_split(pool, pool.names.index(domain), settings, rng)
        train.append(rng.permutation(inside)[: settings.samples])
    if settings.per_class is None:
        parts = [
            part
            for (domain, count), inside in zip(settings.clients.items(), train, strict=True)
            for part in _equal_shares(inside, domain, count, settings.share, where)
        ]
    else:
        parts = _per_class(settings, pool, train, rng, where)
    if settings.validation:
        tests = {
            domain: np.setdiff1d(inside, np.concatenate(parts))
            for domain, inside in zip(settings.clients, train, strict=True)
        }
        if empty := [domain for domain, left in tests.items() if not len(left)]:
            raise ParamError(
                f"{where}.validation: the clients of {empty[0]} have all of its training images, none is "
                "left to score on"
            )
    of = [domain for domain, count in settings.clients.items() for _ in range(count)]
    clients = list(zip(settings.names, of, strict=True))
    return Parts(clients, [np.sort(part) for part in parts], [tests[domain] for domain in of], tests)


def domain_split(
    pool: Pool, domain: int, settings: Domains | Subset, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A domain's (training, test) indices: the official parts, index mod 10 in {8, 9} of the class-sorted
    domain as test (RethinkFL, FCCL), or a random share."""
    inside = pool.of_domain(domain)
    inside = inside[np.argsort(pool.labels[inside], kind="stable")]
    if settings.test == "official":
        test = pool.test[inside]
    elif settings.test == "index_mod_10":
        test = np.arange(len(inside)) % 10 >= 8
    else:
        assert settings.test_share is not None  # the schema asks for it with `test: random`
        test = np.zeros(len(inside), bool)
        test[rng.permutation(len(inside))[: math.ceil(settings.test_share * len(inside))]] = True
    return inside[~test], _at_most_per_class(inside[test], pool.labels, settings.test_per_class, rng)


def _at_most_per_class(
    indices: np.ndarray, labels: np.ndarray, most: int | None, rng: np.random.Generator
) -> np.ndarray:
    if most is None:
        return np.sort(indices)
    chosen = [rng.permutation(indices[labels[indices] == c])[:most] for c in np.unique(labels[indices])]
    return np.sort(np.concatenate(chosen)) if chosen else indices


def _equal_shares(
    inside: np.ndarray, domain: str, count: int, shares: dict[str, float] | float | None, where: str
) -> list[np.ndarray]:
    share = shares.get(domain) if isinstance(shares, dict) else shares
    if share is not None and share * count > 1 + 1e-9:
        raise ParamError(
            f"{where}.share: {count} clients with {share:g} of {domain} each are more than the whole"
        )
    size = len(inside) // count if share is None else math.floor(share * len(inside) + 1e-9)
    if size < 1:
        raise ParamError(f"{where}.clients.{domain}: {count} clients for only {len(inside)} images")
    return [inside[i * size : (i + 1) * size] for i in range(count)]


def _per_class(
    settings: Domains, pool: Pool, train: list[np.ndarray], rng: np.random.Generator, where: str
) -> list[np.ndarray]:
    """`per_class` images of every class; with beta, int(per_class * N * p_k), p ~ Dir(beta) per class."""
    counts = list(settings.clients.values())
    n = sum(counts)
    assert settings.per_class is not None  # its caller asks for it
    wanted = np.full((n, pool.classes), settings.per_class)
    if settings.beta is not None:
        wanted = (settings.per_class * n * rng.dirichlet(np.full(n, settings.beta), pool.classes).T).astype(
            int
        )
    parts, client = [], 0
    for inside, count in zip(train, counts, strict=True):
        by_class = pool.by_class(inside)
        for _ in range(count):
            parts.append(np.concatenate([rows[: wanted[client, c]] for c, rows in enumerate(by_class)]))
            by_class = [rows[wanted[client, c] :] for c, rows in enumerate(by_class)]
            client += 1
    if not any(map(len, parts)):
        raise ParamError(f"{where}.per_class: no client gets any image")
    return parts


def subset(settings: Subset, pool: Pool, draw: int, where: str) -> Parts:
    """Client k draws sizes[k] images of the domain of its name, or of the one pool."""
    rng = generator(settings, PRIVATE, draw)
    by_domain = set(settings.sizes) <= set(pool.names)
    if not by_domain and len(pool.names) > 1:
        _known(settings.sizes, pool.names, f"{where}.sizes", "domain")
    tests = {name: domain_split(pool, i, settings, rng) for i, name in enumerate(pool.names)}
    first = pool.names[0]
    heldout = generator(settings, HELDOUT, draw).permutation(tests[first][0])[: settings.heldout or 0]
    tests = {name: (inside[~np.isin(inside, heldout)], test) for name, (inside, test) in tests.items()}
    left = {name: rng.permutation(inside) for name, (inside, _) in tests.items()}
    clients, train, client_test = [], [], []
    for name, size in settings.sizes.items():
        domain = name if by_domain else pool.names[0]
        if settings.overlap:
            left[domain] = rng.permutation(tests[domain][0])
        if size > len(left[domain]):
            raise ParamError(
                f"{where}.sizes.{name}: {size} images wanted, {len(left[domain])} left of "
                f"{len(tests[domain][0])} training images"
            )
        part = _choose(left[domain], size, pool.labels, settings, rng)
        left[domain] = left[domain][~np.isin(left[domain], part)]
        clients.append((name, domain))
        train.append(np.sort(part))
        client_test.append(tests[domain][1])
    return Parts(
        clients,
        train,
        client_test,
        {name: test for name, (_, test) in tests.items()},
        heldout=np.sort(heldout),
    )


def _choose(
    candidates: np.ndarray, size: int, labels: np.ndarray, settings: Subset, rng: np.random.Generator
) -> np.ndarray:
    if settings.beta is None and not settings.stratified:
        return candidates[:size]
    classes, sizes = np.unique(labels[candidates], return_counts=True)
    p = sizes / sizes.sum() if settings.beta is None else rng.dirichlet(np.full(len(classes), settings.beta))
    counts = _fill(p, size, sizes)
    return np.concatenate(
        [candidates[labels[candidates] == c][:n] for c, n in zip(classes, counts, strict=True)]
    )


def _fill(p: np.ndarray, total: int, available: np.ndarray) -> np.ndarray:
    """Whole numbers near p * total that sum to total, none above what is available."""
    counts = np.zeros(len(p), np.int64)
    while counts.sum() < total:
        room = available - counts
        weight = np.where(room > 0, np.maximum(p, 1e-12), 0)
        exact = weight / weight.sum() * (total - counts.sum())
        step = np.floor(exact).astype(np.int64)
        remainders = np.where(room > 0, exact - step, -1)
        step[np.argsort(-remainders, kind="stable")[: total - counts.sum() - step.sum()]] += 1
        counts += np.minimum(step, room)
    return counts


def _known(names: Iterable[str], known: Collection[str], where: str, kind: str) -> None:
    for name in names:
        if name not in known:
            raise ParamError(f"{where}: {unknown(kind, name, known)}")
