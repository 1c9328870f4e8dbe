"""Evaluate models: accuracy by client, domain, class and under attack; features and logits for figures.

Accuracy by client as in FedCRL Sec. V; by domain as in FedCCL Sec. 5.1 and FedLSA; by both as in FCCL+ Eq. 21
and 22; on one test set as in RAHFL Sec. 4.1.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pipeline import attacks
from pipeline.cells.test_sets import PUBLIC, TestSet
from pipeline.engine.handle import Handle
from pipeline.engine.state import Clients
from pipeline.engine.world import World
from pipeline.models import Network
from pipeline.schema.scenario import Attack, Evaluation

# images at once for figures: of 64 x 64 pixels a deep network takes 6 MB for each
EMBEDDED = 128
# test images of each domain that every client's model embeds
CROSSED = 200
# (network, images, client) -> (B, classes), larger is likelier
Scores = Callable[[Network, Tensor, int], Tensor]
# measure -> percent, and each client's accuracy in percent
Measured = tuple[dict[str, float], list[float]]


@torch.inference_mode()
def right(
    network: Network,
    test: TestSet,
    client: int,
    scores: Scores,
    top: int = 1,
    attack: Callable[..., Tensor] | None = None,
) -> Tensor:
    """(N,) bool: the test images that have their label among the `top` largest scores (ties by torch.topk).
    `attack` moves them first, through the scores that are to classify them (FedCCL Sec. 5.5)."""
    hits = [torch.zeros(0, dtype=torch.bool, device=test.labels.device)]
    for images, labels in test.batches():
        if attack is not None:
            with torch.inference_mode(False):
                images = attack(Handle(network), images, labels, scores=lambda x: scores(network, x, client))
        logits = scores(network, images, client)
        best = (
            logits.argmax(1, keepdim=True) if top == 1 else logits.topk(min(top, logits.shape[1]), 1).indices
        )
        hits.append((best == labels[:, None]).any(1))
    return torch.cat(hits)


def _raw(network: Network, images: Tensor, client: int) -> Tensor:
    return network(images)


def measure(
    models: Clients,
    world: World,
    tests: Sequence[TestSet],
    kind: str,
    scores: Scores = _raw,
    top: int = 1,
    attack: Callable[..., Tensor] | None = None,
    sample: Sequence[int] | None = None,
) -> tuple[dict[str, float], list[float]]:
    """The measures of `schema.Evaluation.tests` and each client's accuracy on its test set, in percent;
    scores, top and attack as in `right`.

    sample: the clients that are scored, if the kind is `clients`; None: all

    A model that several clients share is evaluated once per test set. An empty test set, or a client that is
    not scored, gives NaN and is left out of every mean.
    """

    def hits(network: Network, test: TestSet, client: int) -> Tensor:
        return right(network, test, client, scores, top, attack).sum()

    return _Table(models, world, tests, hits, sample).measures(kind)


def by_class(
    models: Clients,
    world: World,
    tests: Sequence[TestSet],
    scores: Scores = _raw,
    top: int = 1,
    sample: Sequence[int] | None = None,
) -> list[float]:
    """Accuracy on the test images of each class, in percent, of all clients' test sets together: (classes,),
    NaN for a class without test images.

    Every model is scored on its client's test set, else on that of its domain, else on the first (the
    clean images, where there are corrupted ones too). An image that several clients' models are scored on
    counts once, with their mean. models, world, tests, scores, top and sample as in `measure`.
    """
    hits = torch.zeros(world.classes, dtype=torch.float64)
    total = torch.zeros(world.classes, dtype=torch.float64)
    used = client_tests(world, tests)
    scored = range(len(used)) if sample is None else sample
    for j in sorted({used[k] for k in scored}):
        mates, labels = [k for k in scored if used[k] == j], tests[j].labels.cpu()
        known: dict[int, Tensor] = {}  # the hits of a model that several clients share
        for k in mates:
            if id(models[k]) not in known:
                hit = right(world.network(k, models[k]), tests[j], k, scores, top)
                known[id(models[k])] = torch.bincount(labels[hit.cpu()], minlength=world.classes)
            hits += known[id(models[k])].double() / len(mates)
        total += torch.bincount(labels, minlength=world.classes)
    return (100 * hits / total).tolist()  # 0 / 0 is NaN


def client_tests(world: World, tests: Sequence[TestSet]) -> list[int]:
    """Which test set is each client's: the one of its name, that of its domain, or the first."""
    places: dict[str, int] = {}
    for j, test in enumerate(tests):
        places.setdefault(test.name, j)
    return [places.get(client.name, places.get(client.domain, 0)) for client in world.clients]


@dataclass
class _Table:
    """accuracy[client, test set] in percent, once for equal models; `count` gives a network's hits; `sample`
    as in `measure`."""

    models: Clients
    world: World
    tests: Sequence[TestSet]
    count: Callable[[Network, TestSet, int], Tensor]
    sample: Sequence[int] | None = None
    started: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    known: dict[tuple[int, int], int] = field(default_factory=dict)

    def measures(self, kind: str) -> tuple[dict[str, float], list[float]]:
        """First starts all counts that the measures need, so that the host waits for a device once."""
        MEASURES[kind](self, self.world, self.tests)
        counts = torch.stack(list(self.started.values())).tolist() if self.started else []
        self.known = dict(zip(self.started, counts))
        return MEASURES[kind](self, self.world, self.tests)

    def hits(self, client: int, test: int) -> int:
        model = self.models[client]
        at = (id(model), test)
        if at not in self.started:
            self.started[at] = self.count(self.world.network(client, model), self.tests[test], client)
        return self.known.get(at, 0)

    def accuracy(self, client: int, test: int) -> float:
        n = len(self.tests[test].labels)
        return 100 * self.hits(client, test) / n if n else math.nan

    def shared(self) -> bool:
        """Do all clients hold the same model?"""
        return all(model is self.models[0] for model in self.models)


def under_attack(
    models: Clients,
    world: World,
    tests: Sequence[TestSet],
    protocol: Evaluation,
    scores: Scores,
    attack: Attack,
    sample: Sequence[int] | None = None,
) -> dict[str, float]:
    """`fgsm` and `pgd`: the headline number of the protocol on attacked images in [0, 1], in percent; the
    others as in `measure`."""
    once = replace(attack, step=attack.eps, steps=1, random_start=False)
    rules = {name: partial(attacks.pgd, **asdict(rule)) for name, rule in (("fgsm", once), ("pgd", attack))}
    of = models, world, tests, protocol.tests, scores, 1
    measured = {name: measure(*of, rule, sample) for name, rule in rules.items()}
    return {name: measures[protocol.measure] for name, (measures, _) in measured.items()}


def by_client(table: _Table, world: World, tests: Sequence[TestSet]) -> Measured:
    """Each client's model on its test part: mean, mean by test size, population std over clients."""
    scored = range(len(tests)) if table.sample is None else table.sample
    known = [table.accuracy(k, k) for k in scored]
    accuracies = [math.nan] * len(tests)
    for k, accuracy in zip(scored, known):
        accuracies[k] = accuracy
    total = sum(len(tests[k].labels) for k in scored)
    if not total:
        return dict.fromkeys(("average", "weighted", "clients_std"), math.nan), accuracies
    weighted = 100 * sum(table.hits(k, k) for k in scored) / total
    return {
        "average": _mean(known),
        "weighted": weighted,
        "clients_std": float(np.nanstd(known)),
    }, accuracies


def by_domain(table: _Table, world: World, tests: Sequence[TestSet]) -> Measured:
    """Unweighted mean over the domains' test sets; different models are averaged within a domain."""
    index = {test.name: j for j, test in enumerate(tests)}
    accuracies = [table.accuracy(k, index[client.domain]) for k, client in enumerate(world.clients)]
    if table.shared():
        measures = {test.name: table.accuracy(0, j) for j, test in enumerate(tests)}
    else:
        measures = {
            test.name: _mean([accuracies[k] for k, c in enumerate(world.clients) if c.domain == test.name])
            for test in tests
        }
    return {"average": _mean(list(measures.values())), **measures}, accuracies


def pooled(table: _Table, world: World, tests: Sequence[TestSet]) -> Measured:
    """Every client's model on one common test set, or on several variants of it (clean, corrupted)."""
    accuracies = [[table.accuracy(k, j) for k in range(len(world.clients))] for j in range(len(tests))]
    average = {"average": _mean(accuracies[0])}
    if len(tests) == 1:
        return average, accuracies[0]
    means = {f"{test.name}.AVG": _mean(values) for test, values in zip(tests, accuracies)}
    each = {
        f"{test.name}.{client.name}": value
        for test, values in zip(tests, accuracies)
        for client, value in zip(world.clients, values)
    }
    return average | means | each, accuracies[0]


def cross(table: _Table, world: World, tests: Sequence[TestSet]) -> Measured:
    """FCCL+ Eq. 21 and 22: intra = the client's domain, inter = mean over the others; AVG over clients."""
    domains = [test.name for test in tests]
    accuracies, inter = [], []
    for k, client in enumerate(world.clients):
        accuracies.append(table.accuracy(k, domains.index(client.domain)))
        inter.append(_mean([table.accuracy(k, j) for j, name in enumerate(domains) if name != client.domain]))
    names = [client.name for client in world.clients]
    return {
        "average": _mean(accuracies),
        "intra.AVG": _mean(accuracies),
        "inter.AVG": _mean(inter),
        **{f"intra.{n}": v for n, v in zip(names, accuracies)},
        **{f"inter.{n}": v for n, v in zip(names, inter)},
    }, accuracies


MEASURES = {"clients": by_client, "domains": by_domain, "pooled": pooled, "cross": cross}


def _mean(values: list[float]) -> float:
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known) if known else math.nan


@torch.inference_mode()
def representations(
    models: Clients, world: World, tests: Sequence[TestSet], limit: int = 5000
) -> dict[str, np.ndarray]:
    """Features and logits of the models, for figures. Both are float16; features are taken before dropout.

    values (n, d), labels (n,), clients (n,) (whose model it was), ids (n,) (position in the concatenated test
    sets): every client embeds its test set, or the one of its domain; a domain's images are dealt to its
    clients in turn. At most `limit` images, balanced over the classes; the choice depends on the test sets
    alone. Left out where networks differ in d, as there is no common space to draw.

    Of corrupted test images also what `_corrupted` keeps. With public data also logits (clients, n, C) of the
    same public images, the first PUBLIC of them; and where every client's domain has a test set, what
    `_crossed` and `_private` keep (FCCL+ Fig. 8 and 9).
    """
    arrays = _sampled(models, world, tests, limit) | _corrupted(models, world, tests)
    if world.public_data is not None:
        arrays["logits"] = _logits(models, world, world.public_images[:PUBLIC])
        if {client.domain for client in world.clients} <= {test.name for test in tests}:
            arrays |= _crossed(models, world, tests) | _private(models, world)
    return arrays


@torch.inference_mode()
def local_prototypes(models: Clients, world: World) -> dict[str, np.ndarray]:
    """The clients' class means, for figures: the mean representation of a client's training images of a
    class by its model, in evaluation mode (FedLSA Eq. 1).

    prototypes (m, d) float32, prototype_labels (m,), prototype_clients (m,): a row per client and class that
    it holds, of the clients that take part in the round. `models` are the locally trained ones. Nothing where
    networks differ in d.
    """
    parts = []
    for k, client in enumerate(world.clients):
        if not len(client.labels):
            continue
        z = _features(world.network(k, models[k]), client.images)
        held, place, counts = client.labels.unique(return_inverse=True, return_counts=True)
        member = torch.nn.functional.one_hot(place, len(held)).T.to(z.dtype)
        means = (member @ z / counts[:, None]).float().cpu().numpy()
        owners = np.full(len(held), k)
        parts.append(
            {"prototypes": means, "prototype_labels": held.cpu().numpy(), "prototype_clients": owners}
        )
    return _stacked(parts, "prototypes")


def _sampled(models: Clients, world: World, tests: Sequence[TestSet], limit: int) -> dict[str, np.ndarray]:
    """values, labels, clients and ids of `representations`; nothing where networks differ in width."""
    labels = torch.cat([test.labels for test in tests]).cpu().numpy()
    starts = np.cumsum([0, *(len(test.labels) for test in tests)])
    sampled = np.zeros(len(labels), bool)
    sampled[_balanced(labels, limit)] = True
    used = client_tests(world, tests)
    sharing = Counter(used)  # how many clients have a test set
    seen: Counter[int] = Counter()
    parts = []
    for k, j in enumerate(used):
        ids = np.arange(starts[j], starts[j + 1])
        ids = ids[sampled[ids] & (ids % sharing[j] == seen[j])]
        seen[j] += 1
        if len(ids):
            images = tests[j].images[torch.from_numpy(ids - starts[j]).to(tests[j].images.device)]
            values = _features(world.network(k, models[k]), images).half().cpu().numpy()
            owners = np.full(len(ids), k)
            parts.append({"values": values, "labels": labels[ids], "clients": owners, "ids": ids})
    return _stacked(parts, "values")


def _stacked(parts: list[dict[str, np.ndarray]], features: str) -> dict[str, np.ndarray]:
    """The rows of all parts; nothing where their features differ in width."""
    if len({part[features].shape[1] for part in parts}) > 1:
        return {}
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _corrupted(models: Clients, world: World, tests: Sequence[TestSet]) -> dict[str, np.ndarray]:
    """corruptions, severities (n,) of the corrupted test images, and right (clients, n) bool: whether each
    client's model scores their label highest; nothing without corrupted images."""
    damaged = [(test, *test.corruption) for test in tests if test.corruption is not None]
    if not damaged:
        return {}
    ((test, kinds, severities),) = damaged
    answers = [right(world.network(k, model), test, k, _raw).cpu().numpy() for k, model in enumerate(models)]
    return {"corruptions": kinds, "severities": severities, "right": np.stack(answers)}


def _crossed(models: Clients, world: World, tests: Sequence[TestSet]) -> dict[str, np.ndarray]:
    """Features and predictions of every client's model on every domain's test images (FCCL+ Fig. 9).

    names, domains (clients,): what each client and its domain are called. cross_domains, cross_labels (m,):
    domain and label of the images, about CROSSED of each domain, the same for all clients. For every client
    features.<name> (m, d of its network) and answers.<name> (m,) int16, the class that its model scores
    highest.
    """
    selected = [
        torch.from_numpy(_balanced(test.labels.cpu().numpy(), CROSSED)).to(test.images.device)
        for test in tests
    ]
    images = torch.cat([test.images[chosen] for test, chosen in zip(tests, selected)])
    labels = torch.cat([test.labels[chosen] for test, chosen in zip(tests, selected)])
    arrays = {
        "names": np.array([client.name for client in world.clients]),
        "domains": np.array([client.domain for client in world.clients]),
        "cross_domains": np.repeat([test.name for test in tests], [len(chosen) for chosen in selected]),
        "cross_labels": labels.cpu().numpy(),
    }
    for k, client in enumerate(world.clients):
        network = world.network(k, models[k])
        features = _features(network, images)
        arrays[f"features.{client.name}"] = features.half().cpu().numpy()
        arrays[f"answers.{client.name}"] = (
            network.head(features[:, : network.width]).argmax(1).cpu().numpy().astype(np.int16)
        )
    return arrays


def _private(models: Clients, world: World) -> dict[str, np.ndarray]:
    """private.<domain> (clients, n, C): every client's logits of the domain's private images, the first
    PUBLIC of its clients' in order (FCCL+ Fig. 8, right)."""
    owned = {
        domain: torch.cat([client.images for client in world.clients if client.domain == domain])[:PUBLIC]
        for domain in dict.fromkeys(client.domain for client in world.clients)
    }
    return {f"private.{domain}": _logits(models, world, images) for domain, images in owned.items()}


def _logits(models: Clients, world: World, images: Tensor) -> np.ndarray:
    """(clients, n, C) float16 of the same images."""
    return np.stack(
        [
            torch.cat([world.network(k, model)(part) for part in _parts(images)]).half().cpu().numpy()
            for k, model in enumerate(models)
        ]
    )


def _features(network: Network, images: Tensor) -> Tensor:
    """(n, d) before dropout."""
    return torch.cat([network.features(part) for part in _parts(images)])


def _parts(images: Tensor) -> tuple[Tensor, ...]:
    """At most EMBEDDED at once, in equal parts: a small rest might be rounded otherwise."""
    return images.tensor_split(max(1, math.ceil(len(images) / EMBEDDED)))


def _balanced(labels: np.ndarray, limit: int) -> np.ndarray:
    """Indices of at most `limit` images, from the classes in turn, each in a fixed shuffled order."""
    rng = np.random.default_rng(0)
    by_class = [rng.permutation(np.flatnonzero(labels == c)) for c in np.unique(labels)]
    dealt = sorted(
        (rank, c, index) for c, indices in enumerate(by_class) for rank, index in enumerate(indices)
    )
    return np.array([index for _, _, index in dealt[:limit]], dtype=np.int64)


def last_mean(rows: list[dict], measure: str, last: int) -> float:
    """Mean of a measure over the last `last` rounds that evaluated it; NaN when none did."""
    values = [row[measure] for row in rows if row.get(measure) is not None and not math.isnan(row[measure])]
    return _mean(values[-last:])


def rounded(value: float) -> float | None:
    """To the four decimals that are recorded; None for NaN."""
    return None if math.isnan(value) else round(value, 4)
