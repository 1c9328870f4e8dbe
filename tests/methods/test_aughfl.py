"""AugHFL: answers that stay firm under augmentation weigh more."""

import pytest
import torch
from all_methods import PROJECTED, small_world
from federation import close
from public_data import collaborative
from tiny import Z1, Z2, Z3, Z, numbers

from pipeline.engine.state import State
from pipeline.methods import aughfl
from pipeline.methods.aughfl import AugHFL, firmness_weights, released_loss
from pipeline.schema import Model, Public


def test_aughfl_takes_nine_operations_or_all(monkeypatch):
    operations_of = []
    monkeypatch.setattr(
        aughfl, "augmix", lambda images, g, operations: operations_of.append(operations) or images
    )
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    assert len(AugHFL().views(pixels, torch.Generator().manual_seed(0))) == 3
    AugHFL(operations="all").mixed(pixels, torch.Generator())
    assert operations_of == ["nine", "nine", "all", "all"]


AUGMENTED = [(Z1, Z1 + 0.1, 0.9 * Z1), (Z2, 0.5 * Z2, Z2 + numbers([1, 0, 0])), (Z3, 1.1 * Z3, Z1)]


def outputs(views=AUGMENTED) -> list[dict]:
    return [AugHFL().client_output(lambda images: images, seen, None) for seen in views]


def test_firm_answers_weigh_more():
    close(firmness_weights(torch.stack([one["kappa"] for one in outputs()])), [0.966099, 0.017916, 0.015985])
    close(collaborative(AugHFL(), logits=outputs()), [0.008898, 0.291752, 0.218082])


def test_a_client_alone_takes_no_step():
    assert AugHFL().aggregate(outputs()[:1], None, None) == [None]


def test_the_released_loss_has_no_slope():
    z = Z1.clone().requires_grad_()
    value = released_loss(z, Z[1:], numbers([0.5, 0.5]))
    assert value.isfinite()
    assert torch.autograd.grad(value, z)[0].count_nonzero() == 0


@pytest.mark.parametrize("released", [True, False])
def test_the_released_code_moves_nothing_but_statistics(released):
    w = small_world((8, 8), [Model("cnn3_bn"), Model("cnn3_bn", dropout=0.1)])
    start = w.new_models()
    ends = AugHFL(released_bug=released).collaborate(State(models=start), w)
    for k in range(2):
        weights = [n for n in start[k] if n.endswith("weight") or n.endswith("bias")]
        assert all(torch.equal(ends[k][n], start[k][n]) for n in weights) is released
        assert any(not torch.equal(ends[k][n], start[k][n]) for n in start[k] if n.endswith("running_mean"))


def test_it_sends_logits_and_firmness():
    dropped = Public("made up", batch_size=256, drop_last=True)
    w = small_world((8,) * 4, PROJECTED[0], public=dropped)
    assert AugHFL().traffic(w) == (48_640 + 19, 145_920)


def test_where_models_are_averaged_they_are_sent_too():
    w = small_world((20, 12), [Model("cnn2")] * 2, averaging="uniform")
    apart = small_world((20, 12), [Model("cnn2")] * 2)
    up, down = AugHFL().traffic(apart)
    assert AugHFL().traffic(w) == (up + w.scalars(), down + w.scalars())
