"""FedSR: a Gaussian representation, its two terms and its prediction."""

import math

import pytest
import torch
import torch.nn.functional as F
from federation import GAUSSIAN, close, image_world, rows, run, same

from pipeline.engine.handle import Batch, Handle
from pipeline.engine.state import Params
from pipeline.errors import TrainingError
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedsr import FedSR, conditional_information, gaussian_divergence

MU, SIGMA = rows([1, 2]), rows([0.5, 1])


def reference(scale=1.0, classes=3, d=2):
    return Params(mean=torch.zeros(classes, d), rho=torch.ones(classes, d), scale=torch.tensor(scale))


@pytest.mark.parametrize("scale, wanted", [(1.0, 2.050130), (2.0, 6.099702)])
def test_conditional_information_of_the_worked_example(scale, wanted):
    close(conditional_information(MU, SIGMA, torch.tensor([0]), reference(scale)), wanted, 2e-6)


@pytest.mark.parametrize("norm, wanted", [("plain", 3.5), ("squared", 14.5)])
def test_the_loss_adds_the_mean_length_of_representations(norm, wanted):
    z = rows([3, 4], [0, 2])

    class Fixed:
        def features(self, images):
            return torch.cat([z, torch.zeros(2, 2)], dim=1)

        def normal(self, like):
            return torch.zeros_like(like)

        def head(self, z):
            return torch.zeros(2, 2)

    value = FedSR(l2r=1.0, cmi=0, norm=norm).loss(Fixed(), Batch(z, torch.tensor([0, 1])), None, None)
    close(value, math.log(2) + wanted, 2e-6)


def gaussians():
    """Means of two sets of Gaussians, and their deviations."""
    rng = torch.Generator().manual_seed(0)
    mu, other = torch.randn(2, 9, 4, generator=rng, dtype=torch.float64)
    sigma, spread = torch.rand(2, 9, 4, generator=rng, dtype=torch.float64) + 0.1
    return mu, sigma, other, spread


def test_the_divergence_is_torchs():
    mu, sigma, other, spread = gaussians()
    normal = torch.distributions.Normal
    wanted = torch.distributions.kl_divergence(normal(mu, sigma), normal(other, spread)).sum(1)
    actual = gaussian_divergence(mu, sigma, other, spread)
    close(actual, wanted, 1e-5)
    assert (actual > 0).all()


def test_equal_gaussians_do_not_diverge():
    mu, sigma, _, _ = gaussians()
    assert gaussian_divergence(mu, sigma, mu, sigma).abs().max() < 1e-12


def test_conditional_information_is_zero_at_the_references_alone():
    mu, sigma, _, _ = gaussians()
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


def test_references_start_as_released():
    start = FedSR().init(image_world(model=GAUSSIAN)).references
    assert not start[0]["mean"].any()
    assert (start[0]["rho"] == 1).all()
    assert start[0]["scale"] == 1


def test_references_learn_for_the_classes_at_home():
    """Client k holds class k; the third has no images."""
    world = image_world((20, 33, 0, 1), model=GAUSSIAN, one_class=True)
    state = run(FedSR(), world)
    for k in (0, 1, 3):
        moved = (state.references[k]["mean"] != 0).any(1)
        assert moved.nonzero().flatten().tolist() == [k]
        assert state.references[k]["scale"] != 1
        assert (state.references[k]["rho"] != 1).any(1).nonzero().flatten().tolist() == [k]
    assert same(state.references[2], FedSR().init(world).references[2])


def test_references_may_be_shared():
    method = FedSR(share_reference=True, norm="squared")
    shared = [run(method, image_world(n, model=GAUSSIAN), 1).references for n in ((20, 33), (20, 33, 40))]
    assert same(shared[0][0], shared[0][1])
    assert not same(shared[0][0], shared[1][0])


def predicting():
    """The state after a round, a fresh handle of its model, and the first client's images."""
    world = image_world(model=GAUSSIAN)
    state = run(FedSR(), world, 1)
    return state, lambda: Handle(world.network(0, state.model)), world.clients[0].images


def test_it_predicts_by_the_mean_softmax_over_twenty_draws():
    state, fresh, images = predicting()
    model = fresh()
    mu, rho = model.features(images).chunk(2, dim=1)
    noise = fresh().normal(mu.expand(20, *mu.shape))
    assert float((noise[0] - noise[1]).abs().max()) > 0.5  # every draw differs
    wanted = torch.stack([model.head(mu + F.softplus(rho) * eps).softmax(1) for eps in noise]).mean(0)
    actual = FedSR().scores(model, images, state)
    close(actual.exp(), wanted, 1e-5)
    close(actual.exp().sum(1), [1.0] * 20)


def test_its_draws_are_the_same_in_every_evaluation():
    state, fresh, images = predicting()
    assert torch.equal(FedSR().scores(fresh(), images, state), FedSR().scores(fresh(), images, state))


def test_with_deviation_zero_it_predicts_as_the_classifier_of_the_mean():
    state, fresh, images = predicting()
    state.model["features.projector.0.bias"][128:] = -1e4
    state.model["features.projector.0.weight"][128:] = 0
    model = fresh()
    close(FedSR().scores(model, images, state), model(images).log_softmax(1), 1e-5)


def test_a_network_without_deviation_is_refused():
    with pytest.raises(TrainingError, match="256 numbers for a head of 128; 'cnn4' gives 128: set the"):
        FedSR().init(image_world())


def test_it_sends_the_model_whose_last_layer_is_twice_as_wide():
    plain, gaussian, d = image_world(), image_world(model=GAUSSIAN), 128
    assert gaussian.scalars() == plain.scalars() + 20 * d + d
    assert FedSR().traffic(gaussian) == (gaussian.scalars(),) * 2


def test_shared_references_are_sent():
    gaussian = image_world(model=GAUSSIAN)
    assert FedSR(share_reference=True).traffic(gaussian) == (gaussian.scalars() + 2 * 10 * 128 + 1,) * 2


def test_the_default_weights_are_those_of_the_released_code():
    assert (FedSR().l2r, FedSR().cmi) == (0.01, 0.0005)
