"""One call makes the views of all clients' batches, with the numbers of each."""

import pytest
import torch
from test_augmentations import VIEWS, draw

from pipeline.engine.stacked_draws import can_join, joint


@pytest.fixture(params=[3, 1])
def images(request):
    """Of three clients, coloured and grey."""
    shape = 3, 32, request.param, 32, 32
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("view", VIEWS)
def test_one_call_gives_every_clients_views(view, images):
    """Three clients' batches: the numbers of each are from its generator, which moves as by one call."""
    joined, plain = ([draw(k) for k in range(3)] for _ in range(2))

    def both(pixels, numbers):
        return pixels.float(), view(pixels, numbers)

    assert can_join([both] * 3, images, joined)
    (_, first), (_, second) = joint(both, images, joined), joint(both, images, joined)
    for k in range(3):
        assert torch.equal(first[k], both(images[k], plain[k])[1])
        assert torch.equal(second[k], both(images[k], plain[k])[1])


@pytest.mark.parametrize(
    "view",
    [
        lambda pixels, numbers: (pixels[torch.randperm(len(pixels), generator=numbers)],),
        lambda pixels, numbers: (pixels + torch.rand((), generator=numbers),),
        lambda pixels, numbers: (
            pixels.float() * torch.rand(len(pixels), 3 * len(pixels), generator=numbers).mean(),
        ),
        lambda pixels, numbers: (pixels.flip(0),),
        lambda pixels, numbers: (pixels.float() - pixels.float().mean(),),
    ],
    ids=["order", "one number", "their mean", "neighbours", "mean"],
)
def test_views_that_mix_images_are_made_one_client_at_a_time(view, images):
    generators = [draw(k) for k in range(3)]
    before = [generator.get_state() for generator in generators]
    assert not can_join([view] * 3, images, generators)
    assert all(map(torch.equal, before, (generator.get_state() for generator in generators)))
