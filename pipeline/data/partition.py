"""Who gets which image: Dirichlet, pathological, by domain, fixed private subsets (FedCRL Sec. V-A2 with
PFLlib's rules, FedLSA and FedCCL with FPL's and FedPCL's counts, FCCL+ Table 5, RAHFL Sec. 4.1).

Every function works on index arrays. `Pool` is what a partition may use; `Parts` is what it gives.
"""

import hashlib
import itertools
import json
import math
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.errors import ParamError, unknown
from pipeline.schema import Data, Dirichlet, Domains, Partition, Pathological, Subset, shorten

BLOCK = 4096  # Dirichlet draws tried at once
PRIVATE, PUBLIC, HELDOUT = 0, 1, 2  # purposes, whose random numbers are independent of each other


@dataclass(frozen=True)
class Pool:
    """Labels, domains and official split of a stored set, and the printed names of the domains in use.

    labels (N,), domains (N,) index into `names`, -1 where the scenario leaves the domain out; test (N,) bool.
    """

    labels: np.ndarray
    domains: np.ndarray
    test: np.ndarray
    names: list[str]
    classes: int

    @classmethod
    def of(cls, data: Data, labels, domains, split, meta: dict, where: str) -> "Pool":
        """The stored set seen through the scenario's printed domain names."""
        chosen = data.domains or {name: name for name in meta["domains"]}
        for printed, name in chosen.items():
            if name not in meta["domains"]:
                raise ParamError(f"{where}.domains.{printed}: {unknown('domain', name, meta['domains'])}")
        number = np.full(len(meta["domains"]), -1)
        for i, name in enumerate(chosen.values()):
            number[meta["domains"].index(name)] = i
        return cls(
            np.asarray(labels),
            number[np.asarray(domains)],
            np.asarray(split) == 1,
            list(chosen),
            len(meta["classes"]),
        )

    def of_domain(self, domain: int, test: bool | None = None) -> np.ndarray:
        """Indices of a domain's images, in stored order; only its test or training part when asked."""
        here = self.domains == domain
        return np.flatnonzero(here if test is None else here & (self.test == test))


@dataclass
class Parts:
    """Index arrays into the stored set: each client's training and own test images, each domain's test
    images, and the training images that no client gets; `public` indexes the public set."""

    clients: list[tuple[str, str]]  # (printed name, printed domain)
    train: list[np.ndarray]
    own_test: list[np.ndarray]
    domain_test: dict[str, np.ndarray]
    warnings: list[str] = field(default_factory=list)
    public: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    heldout: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def partition(settings: Partition, pool: Pool, where: str, draw: int = 0) -> Parts:
    """Partition the pool as `settings` says; another `draw` repeats all that is random in it with other
    random numbers. Raises ParamError, beginning with `where` (file and key), when it cannot."""
    return CUTS[settings.kind](settings, pool, draw, where)


def generator(settings: Partition, purpose: int, draw: int) -> np.random.Generator:
    """The random generator of one purpose in one draw. NumPy pads a key with zeros, so draw 0 has the same
    numbers as the key without a draw."""
    return np.random.default_rng([settings.seed, purpose, draw])


# -- label skew ----------------------------------------------------------------------------------------------


def _by_label(settings, pool, draw, where) -> Parts:
    rng = generator(settings, PRIVATE, draw)
    whole = settings.pool == "train+test"
    usable = np.flatnonzero(pool.domains >= 0)
    train, test = usable[~pool.test[usable]], usable[pool.test[usable]]
    indices = np.concatenate([train, test]) if whole else train
    if settings.samples is not None:
        if settings.samples > len(indices):
            raise ParamError(f"{where}.samples: {settings.samples} of only {len(indices)} images")
        indices = indices[np.sort(rng.permutation(len(indices))[: settings.samples])]
    if settings.clients > len(indices):
        raise ParamError(f"{where}.clients: {settings.clients} clients for only {len(indices)} images")
    sizes = np.bincount(pool.labels[indices], minlength=pool.classes)
    least = (
        minimum_size(len(indices), settings.clients, settings.train_share)
        if settings.min_samples is None
        else settings.min_samples
    )
    warnings = []
    if isinstance(settings, Dirichlet):
        counts = dirichlet_counts(
            sizes,
            settings.clients,
            settings.beta,
            rng,
            least=least,
            cap=settings.cap,
            tries=settings.tries,
            where=where,
        )
        by_class = [rng.permutation(indices[pool.labels[indices] == c]) for c in range(pool.classes)]
    else:
        counts = pathological_counts(sizes, settings, rng, least, where)
        by_class = [indices[pool.labels[indices] == c] for c in range(pool.classes)]
        unowned = np.flatnonzero((counts.sum(0) == 0) & (sizes > 0))
        if len(unowned):
            warnings.append(
                f"classes {', '.join(map(str, unowned))} belong to no client; their {sizes[unowned].sum()} "
                "images are not used"
            )
    held = [
        np.concatenate(
            [by_class[c][counts[:k, c].sum() : counts[: k + 1, c].sum()] for c in range(pool.classes)]
        )
        for k in range(settings.clients)
    ]
    splits = [train_test(part, settings.train_share, rng) if whole else (part, test) for part in held]
    domain = pool.names[0] if len(pool.names) == 1 else "all"
    tests = {name: pool.of_domain(i, test=True) for i, name in enumerate(pool.names)}
    if whole:
        tests = {domain: np.sort(np.concatenate([own for _, own in splits]))}
    return Parts(
        [(str(k), domain) for k in range(settings.clients)],
        [a for a, _ in splits],
        [b for _, b in splits],
        tests,
        warnings,
    )


def minimum_size(total: int, clients: int, train_share: float) -> int:
    """PFLlib's smallest client, floor(min(10 / (1 - train_share), total / clients / 2))
    (dataset/utils/dataset_utils.py)."""
    batch = 10 / (1 - train_share) if train_share < 1 else math.inf
    return math.floor(min(batch, total / clients / 2))


def dirichlet_counts(
    sizes: np.ndarray,
    clients: int,
    beta: float,
    rng: np.random.Generator,
    *,
    least: int = 0,
    cap: bool = True,
    tries: int = 1_000_000,
    where: str = "partition",
) -> np.ndarray:
    """(clients, classes) counts with every client at least `least`, by rejection on the counts alone.

    Raises ParamError with the best minimum seen when `tries` draws give none.
    """
    best = -1
    for first in range(0, tries, BLOCK):
        draws = rng.dirichlet(np.full(clients, beta), (min(BLOCK, tries - first), len(sizes)))
        counts = cut(draws, sizes, cap)
        smallest = counts.sum(2).min(1)
        good = np.flatnonzero(smallest >= least)
        if len(good):
            return counts[good[0]]
        best = max(best, int(smallest.max()))
    raise ParamError(
        f"{where}.beta: in {tries:,} draws of Dir({beta:g}) over {clients} clients no draw gave every client "
        f"{least} images; the best smallest client had {max(best, 0)}. Raise beta, or lower min_samples"
    )


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


def pathological_counts(
    sizes: np.ndarray, settings: Pathological, rng: np.random.Generator, least: int, where: str
) -> np.ndarray:
    """(clients, classes) counts where each client owns `settings.classes` classes (PFLlib's `pat`)."""
    classes, clients, k = len(sizes), settings.clients, settings.classes
    if k > classes:
        raise ParamError(f"{where}.classes: {k} classes per client, but the set has {classes}")
    owned = (
        _owners_in_order(classes, clients, k)
        if settings.owners == "in_order"
        else _owners_random(classes, clients, k, rng, where)
    )
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
    if counts.sum(1).min() < 1:
        raise ParamError(
            f"{where}.clients: {clients} clients are too many: client {int(counts.sum(1).argmin())} gets no "
            "image"
        )
    return counts


def _owners_in_order(classes: int, clients: int, k: int) -> list[list[int]]:
    """PFLlib's `pat`: class after class goes to the first ceil(N / C * k) clients with a free slot."""
    slots, per_class = np.full(clients, k), math.ceil(clients / classes * k)
    owned = []
    for _ in range(classes):
        owners = np.flatnonzero(slots > 0)[:per_class].tolist()
        slots[owners] -= 1
        owned.append(owners)
    return owned


def _owners_random(
    classes: int, clients: int, k: int, rng: np.random.Generator, where: str, tries: int = 10_000
) -> list[list[int]]:
    """Each client draws k classes without replacement; drawn again until every class has an owner."""
    for _ in range(tries):
        drawn = [set(rng.permutation(classes)[:k].tolist()) for _ in range(clients)]
        owned = [[i for i in range(clients) if c in drawn[i]] for c in range(classes)]
        if all(owned):
            return owned
    raise ParamError(
        f"{where}.classes: in {tries:,} draws some class had no owner; give each client more classes"
    )


def train_test(part: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A client's images split at random, floor(share * m) of them for training, but at least one."""
    order = rng.permutation(len(part))
    n = min(max(1, math.floor(share * len(part))), len(part))
    return np.sort(part[order[:n]]), np.sort(part[order[n:]])


# -- domain skew ---------------------------------------------------------------------------------------------


def _by_domain(settings: Domains, pool: Pool, draw: int, where: str) -> Parts:
    rng = generator(settings, PRIVATE, draw)
    _known(settings.clients, pool.names, f"{where}.clients", "domain")
    if isinstance(settings.share, dict):
        _known(settings.share, settings.clients, f"{where}.share", "domain")
    names, train, tests = [], [], {}
    for domain, count in settings.clients.items():
        inside, tests[domain] = domain_split(pool, pool.names.index(domain), settings, rng)
        names += [(domain if count == 1 else f"{domain}-{i}", domain) for i in range(count)]
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
    return Parts(names, [np.sort(part) for part in parts], [tests[domain] for _, domain in names], tests)


def domain_split(pool: Pool, domain: int, settings: Domains | Subset, rng) -> tuple[np.ndarray, np.ndarray]:
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


def _at_most_per_class(indices, labels, most, rng) -> np.ndarray:
    if most is None:
        return np.sort(indices)
    kept = [rng.permutation(indices[labels[indices] == c])[:most] for c in np.unique(labels[indices])]
    return np.sort(np.concatenate(kept)) if kept else indices


def _equal_shares(inside, domain, count, share, where) -> list[np.ndarray]:
    share = share.get(domain) if isinstance(share, dict) else share
    if share is not None and share * count > 1 + 1e-9:
        raise ParamError(
            f"{where}.share: {count} clients with {share:g} of {domain} each are more than the whole"
        )
    size = len(inside) // count if share is None else math.floor(share * len(inside) + 1e-9)
    if size < 1:
        raise ParamError(f"{where}.clients.{domain}: {count} clients for only {len(inside)} images")
    return [inside[i * size : (i + 1) * size] for i in range(count)]


def _per_class(settings, pool, train, rng, where) -> list[np.ndarray]:
    """`per_class` images of every class for each client; with beta, int(per_class * N * p_k), p ~ Dir(beta)
    per class."""
    counts = list(settings.clients.values())
    n = sum(counts)
    wanted = np.full((n, pool.classes), settings.per_class)
    if settings.beta is not None:
        wanted = (settings.per_class * n * rng.dirichlet(np.full(n, settings.beta), pool.classes).T).astype(
            int
        )
    parts, client = [], 0
    for inside, count in zip(train, counts, strict=True):
        by_class = [inside[pool.labels[inside] == c] for c in range(pool.classes)]
        for _ in range(count):
            parts.append(np.concatenate([found[: wanted[client, c]] for c, found in enumerate(by_class)]))
            by_class = [found[wanted[client, c] :] for c, found in enumerate(by_class)]
            client += 1
    empty = [k for k, part in enumerate(parts) if not len(part)]
    if len(empty) == n:
        raise ParamError(f"{where}.per_class: no client gets any image")
    return parts


# -- fixed private subsets -----------------------------------------------------------------------------------


def _subsets(settings: Subset, pool: Pool, draw: int, where: str) -> Parts:
    """Client k draws sizes[k] images of the domain of its name, or of the one pool when there are no such
    domains."""
    rng = generator(settings, PRIVATE, draw)
    by_domain = set(settings.sizes) <= set(pool.names)
    if not by_domain and len(pool.names) > 1:
        _known(settings.sizes, pool.names, f"{where}.sizes", "domain")
    tests = {name: domain_split(pool, i, settings, rng) for i, name in enumerate(pool.names)}
    first = pool.names[0]
    apart = generator(settings, HELDOUT, draw).permutation(tests[first][0])[: settings.heldout or 0]
    tests = {name: (inside[~np.isin(inside, apart)], test) for name, (inside, test) in tests.items()}
    left = {name: rng.permutation(inside) for name, (inside, _) in tests.items()}
    clients, train, own_test = [], [], []
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
        own_test.append(tests[domain][1])
    return Parts(
        clients, train, own_test, {name: test for name, (_, test) in tests.items()}, heldout=np.sort(apart)
    )


def _choose(candidates, size, labels, settings, rng) -> np.ndarray:
    if settings.beta is None and not settings.stratified:
        return candidates[:size]
    classes, sizes = np.unique(labels[candidates], return_counts=True)
    p = sizes / sizes.sum() if settings.beta is None else rng.dirichlet(np.full(len(classes), settings.beta))
    counts = _fill(p, size, sizes)
    return np.concatenate(
        [candidates[labels[candidates] == c][:n] for c, n in zip(classes, counts, strict=True)]
    )


def _fill(p: np.ndarray, total: int, available: np.ndarray) -> np.ndarray:
    """Whole numbers near p * total (largest remainders rounded up) that sum to total, none above what is
    available."""
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


CUTS = {"dirichlet": _by_label, "pathological": _by_label, "domains": _by_domain, "subset": _subsets}


def _known(names, known, where, kind) -> None:
    for name in names:
        if name not in known:
            raise ParamError(f"{where}: {unknown(kind, name, known)}")


# -- on disk -------------------------------------------------------------------------------------------------


def to_arrays(parts: Parts) -> dict[str, np.ndarray]:
    """The arrays of indices.npz."""
    return {
        **{f"train.{k}": a for k, a in enumerate(parts.train)},
        **{f"own_test.{k}": a for k, a in enumerate(parts.own_test)},
        **{f"domain_test.{name}": a for name, a in parts.domain_test.items()},
        "public": parts.public,
        "heldout": parts.heldout,
    }


def content_digest(arrays: dict[str, np.ndarray], sources: list[str]) -> str:
    """sha256 over the arrays of indices.npz and the digests of the data sets that they index."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(key.encode() + np.ascontiguousarray(arrays[key], np.int64).tobytes())
    for source in sources:
        digest.update(source.encode())
    return digest.hexdigest()


def folder_of_draw(folder: Path, draw: int) -> Path:
    """Where a draw lies in the folder of a scenario's partition. Draw 0 lies in the folder itself, where code
    from before there were several draws reads it."""
    return folder / f"seed-{draw}" if draw else folder


def read(folder: Path) -> tuple[Parts, dict]:
    """The partition stored in `folder` and its meta.json. Raises ParamError naming the stage when it is not
    there or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        with np.load(folder / "indices.npz", allow_pickle=False) as arrays:
            count = len(meta["clients"])
            _ = meta["digest"], meta["data"]  # which readers use
            return Parts(
                [tuple(c) for c in meta["clients"]],
                [arrays[f"train.{k}"] for k in range(count)],
                [arrays[f"own_test.{k}"] for k in range(count)],
                {name: arrays[f"domain_test.{name}"] for name in meta["tests"]},
                meta["warnings"],
                arrays["public"],
                arrays["heldout"],
            ), meta
    except (
        OSError,
        EOFError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        NotImplementedError,
        RecursionError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        reason = " ".join(str(error).split())[:120]
        raise ParamError(
            f"{shorten(folder)}: not a complete partition ({reason}); run the partition stage of this "
            "scenario first"
        ) from None


def verify(folder: Path) -> tuple[Parts, dict]:
    """As `read`, and recompute the digest. Raises ParamError also where the partition was altered."""
    parts, meta = read(folder)
    listed = [*parts.clients, parts.domain_test, parts.warnings]
    if (
        any(len(client) != 2 for client in parts.clients)
        or not isinstance(parts.warnings, list)
        or not all(isinstance(text, str) for text in itertools.chain(*listed))
    ):
        raise ParamError(
            f"{shorten(folder / 'meta.json')}: expected clients as pairs of names, and texts; run the "
            "partition "
            "stage of this scenario again"
        )
    try:
        arrays = to_arrays(parts)
        sources = [(meta[key] or {}).get("digest", "") for key in ("data", "public")]
        found = content_digest(arrays, sources)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ParamError(
            f"{shorten(folder)}: not a partition ({error!r}); run its partition stage again"
        ) from None
    if found != meta.get("digest"):
        raise ParamError(f"{shorten(folder)}: was altered; run the partition stage of this scenario again")
    return parts, meta
