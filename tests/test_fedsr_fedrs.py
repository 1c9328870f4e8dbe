"""Identities and worked numbers of FedSR and FedRS."""

import math

import pytest
import torch
import torch.nn.functional as F
from federation import close, image_world, rows, run, same
from test_server_methods import GAUSSIAN

from pipeline.engine import federation as engine
from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedrs import FedRS, restricted_cross_entropy, restricted_scale
from pipeline.methods.fedsr import FedSR, conditional_information, gaussian_divergence
from pipeline.schema import Model, Optimiser

MU, SIGMA = rows([1, 2]), rows([0.5, 1])


def reference(scale=1.0, classes=3, d=2):
    return Params(mean=torch.zeros(classes, d), rho=torch.ones(classes, d), scale=torch.tensor(scale))


def test_fedsr_worked_numbers():
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference()), 2.050130)
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference(2.0)), 6.099702, 2e-6)
    z = rows([3, 4], [0, 2])

    class Fixed:
        def features(self, images):
            return torch.cat([z, torch.zeros(2, 2)], dim=1)

        def normal(self, like):
            return torch.zeros_like(like)

        def head(self, z):
            return torch.zeros(2, 2)

    for norm, wanted in (("plain", 3.5), ("squared", 14.5)):
        value = FedSR(l2r=1.0, cmi=0, norm=norm).loss(Fixed(), Batch(z, torch.tensor([0, 1])), None, None)
        close(value, math.log(2) + wanted, 2e-6)
    rng = torch.Generator().manual_seed(0)
    mu, other = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    sigma, spread = torch.rand(2, 9, 4, generator=rng, dtype=torch.float64) + 0.1
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mu, sigma), normal(other, spread)).sum(1)
    actual = gaussian_divergence(mu, sigma, other, spread)
    close(actual, wanted, 1e-5)
    assert (actual > 0).all() and gaussian_divergence(mu, sigma, mu, sigma).abs().max() < 1e-12
    matching = Params(
        mean=2 * mu[:3], rho=(2 * sigma[:3]).expm1().log(), scale=torch.tensor(2.0, dtype=torch.float64)
    )
    assert conditional_information(mu[:3], sigma[:3], torch.arange(3), matching).abs() < 1e-12
    assert conditional_information(mu[:3], sigma[:3], torch.tensor([0, 2, 1]), matching) > 1e-3


def test_fedsr_without_terms_and_noise_is_fedavg_on_the_same_network(monkeypatch):
    fedavg = run(FedAvg(), image_world(model=GAUSSIAN))
    assert not same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-5)
    monkeypatch.setattr(Handle, "normal", lambda self, like: torch.zeros_like(like))
    assert same(run(FedSR(l2r=0, cmi=0), image_world(model=GAUSSIAN)).model, fedavg.model, within=1e-6)


def test_fedsr_references_start_as_released_and_learn_for_the_classes_at_home():
    world = image_world((20, 33, 0, 1), model=GAUSSIAN, one_class=True)
    start = FedSR().init(world).references
    assert not start[0]["mean"].any() and (start[0]["rho"] == 1).all() and start[0]["scale"] == 1
    state = run(FedSR(), world)
    for k in (0, 1, 3):
        moved = (state.references[k]["mean"] != 0).any(1)
        assert moved.nonzero().flatten().tolist() == [k] and state.references[k]["scale"] != 1
        assert (state.references[k]["rho"] != 1).any(1).nonzero().flatten().tolist() == [k]
    assert same(state.references[2], start[2])


def test_fedsr_reference_of_a_client_does_not_depend_on_the_others():
    """Where they are local; a round is enough, afterwards the averaged model carries news of the others."""
    two, three = (run(FedSR(), image_world(sizes, model=GAUSSIAN), 1) for sizes in ((20, 33), (20, 33, 40)))
    assert same(two.references[0], three.references[0]) and same(two.references[1], three.references[1])
    assert not same(three.references[0], three.references[1])
    shared = [
        run(FedSR(share_reference=True, norm="squared"), image_world(sizes, model=GAUSSIAN), 1).references
        for sizes in ((20, 33), (20, 33, 40))
    ]
    assert same(shared[0][0], shared[0][1]) and not same(shared[0][0], shared[1][0])


def test_fedsr_predicts_by_the_mean_softmax_over_draws():
    world = image_world(model=GAUSSIAN)
    state = run(FedSR(), world, 1)
    model, images = Handle(world.network(0, state.model)), world.clients[0].images
    mu, rho = model.features(images).chunk(2, dim=1)
    fixed = Handle(world.network(0, state.model))
    noise = fixed.normal(mu.expand(20, *mu.shape))
    wanted = torch.stack([model.head(mu + F.softplus(rho) * eps).softmax(1) for eps in noise]).mean(0)
    actual = FedSR().scores(model, images, state)
    close(actual.exp(), wanted, 1e-5)
    close(actual.exp().sum(1), [1.0] * 20)
    assert torch.equal(actual, FedSR().scores(Handle(world.network(0, state.model)), images, state))
    assert float((noise[0] - noise[1]).abs().max()) > 0.5  # every draw differs
    state.model["features.projector.0.bias"][128:] = -1e4  # sigma = 0: as the classifier of the mean
    state.model["features.projector.0.weight"][128:] = 0
    model = Handle(world.network(0, state.model))
    close(FedSR().scores(model, images, state), model(images).log_softmax(1), 1e-5)


def test_networks_that_do_not_fit_are_refused():
    with pytest.raises(TrainingError, match="256 numbers for a head of 128; 'cnn4' gives 128: set the"):
        FedSR().init(image_world())
    with pytest.raises(TrainingError, match="its network can have no dropout"):
        FedRS().init(image_world(model=Model("cnn2", dropout=0.3)))


Z, ZY, W = rows([1, 2], [0.5, 0]), torch.tensor([1, 0]), rows([1, 0], [0, 1], [1, 1], [-1, 1])
COUNTS = torch.tensor([4, 1, 0, 0])


@pytest.mark.parametrize(
    "mode, scale, loss",
    [("hard", (1, 1, 0.5, 0.5), 0.918678), ("soft", (1, 0.625, 0.5, 0.5), 1.156392)],
)
def test_fedrs_worked_numbers(mode, scale, loss):
    actual = restricted_scale(COUNTS, 0.5, mode)
    assert actual.tolist() == list(scale)
    close(restricted_cross_entropy(Z, ZY, W, actual.float()), loss)
    close(restricted_cross_entropy(Z, ZY, W, torch.ones(4)), 1.291929)


def test_fedrs_scale_is_one_with_alpha_one_or_equal_counts_or_every_class():
    for mode in ("hard", "soft"):
        assert restricted_scale(COUNTS, 1.0, mode).tolist() == [1.0] * 4
        assert restricted_scale(torch.tensor([3, 3, 3]), 0.3, mode).tolist() == [1.0] * 3
        # a client without data
        assert restricted_scale(torch.zeros(3, dtype=torch.int64), 0.5, mode).tolist() == [0.5] * 3
    assert restricted_scale(torch.tensor([9, 1, 4]), 0.3, "hard").tolist() == [1.0] * 3
    assert restricted_scale(COUNTS.expand(2, 4), 0.5, "soft").tolist() == [[1, 0.625, 0.5, 0.5]] * 2


def without_bias(monkeypatch):
    real = engine.build

    def build(*given):
        network = real(*given)
        network.head.register_parameter("bias", None)
        return network

    monkeypatch.setattr(engine, "build", build)


@pytest.mark.parametrize("method", [FedRS(alpha=1.0), FedRS(alpha=1.0, mode="soft")], ids=["hard", "soft"])
def test_fedrs_without_restriction_is_fedavg_with_a_classifier_without_bias(method, monkeypatch):
    optimiser = Optimiser("sgd", 0.1, momentum=0.9, weight_decay=1e-3)
    state = run(method, image_world(optimiser=optimiser)).model
    assert not state["head.bias"].any()
    without_bias(monkeypatch)
    fedavg = run(FedAvg(), image_world(optimiser=optimiser)).model
    assert same(Params((name, state[name]) for name in fedavg), fedavg)
    assert same(run(method, image_world(optimiser=optimiser)).model, fedavg)


def test_fedrs_rows_of_missing_classes_stay_with_alpha_zero():
    world = image_world((20, 33), one_class=True)
    model = FedRS().init(world).model
    trained = world.local_epochs(
        world.everyone(model),
        FedRS().loss,
        client_state=restricted_scale(
            torch.stack([torch.bincount(c.labels, minlength=10) for c in world.clients]), 0.0
        ).float(),
    ).models
    for k in (0, 1):
        moved = (trained[k]["head.weight"] != model["head.weight"]).any(1)
        assert moved.nonzero().flatten().tolist() == [k]


def test_fedrs_bias_is_an_option_and_not_scaled():
    world = image_world()
    state = run(FedRS(bias=True, alpha=1.0), world)
    assert same(state.model, run(FedAvg(), image_world()).model, within=1e-6)
    assert state.model["head.bias"].any()
    bias = torch.tensor([0.1, -0.2, 0.3, 0.4])
    wanted = F.cross_entropy((Z @ W.T) * torch.tensor([1, 1, 0.5, 0.5]) + bias, ZY)
    close(restricted_cross_entropy(Z, ZY, W, torch.tensor([1, 1, 0.5, 0.5]), bias), wanted, 1e-5)
