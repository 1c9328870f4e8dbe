"""Operations equal Pillow's on real images; draws have AugMix's probabilities, and differ by image."""

from collections import Counter

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as TF
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from sklearn.datasets import load_sample_images
from torchvision.transforms import ColorJitter, RandomResizedCrop
from views_of_images import VIEWS, draw

from pipeline.data import augmentations as views
from pipeline.data import image_operations as ops
from pipeline.engine.public import AUGMENTATIONS
from pipeline.schema import load_paper

N = 128
BILINEAR = Image.Resampling.BILINEAR


@pytest.fixture(scope="module")
def arrays():
    """(N, 32, 32, 3): patches of two photographs, from cloudless sky to petals."""
    cut = [
        photo[:416].reshape(13, 32, 20, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
        for photo in load_sample_images().images
    ]
    return np.ascontiguousarray(np.concatenate(cut)[::4][:N])


@pytest.fixture(scope="module", params=["RGB", "L"])
def batch(request, arrays):
    """(tensor, Pillow images), coloured and grey."""
    pillow = [Image.fromarray(array).convert(request.param) for array in arrays]
    return stack(pillow), pillow


def stack(pillow):
    arrays = np.stack([np.asarray(image) for image in pillow])
    arrays = arrays if arrays.ndim == 4 else arrays[..., None]
    return torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous()


def assert_pillow(ours, pillow, levels=0, share=0.0):
    """At most `share` of the values differ, by at most `levels` grey levels; uint8 of the same shape."""
    expected = stack(pillow)
    assert ours.dtype == torch.uint8
    assert ours.shape == expected.shape
    gap = (ours.int() - expected.int()).abs()
    assert gap.max() <= levels
    assert (gap > 0).double().mean() <= share


def each(pillow, operation, *strengths):
    return [
        operation(image, *(strength[i].item() for strength in strengths)) for i, image in enumerate(pillow)
    ]


def test_operations_on_values_are_pillows(batch):
    images, pillow = batch
    assert_pillow(ops.autocontrast(images), each(pillow, ImageOps.autocontrast))
    assert_pillow(ops.equalize(images), each(pillow, ImageOps.equalize))
    ends = ((1, 9), (0, 257))
    bits, threshold = (torch.randint(*end, (N,), generator=draw(*end)) for end in ends)
    assert_pillow(ops.posterize(images, bits), each(pillow, ImageOps.posterize, bits))
    assert_pillow(ops.solarize(images, threshold), each(pillow, ImageOps.solarize, threshold))
    assert_pillow(ops.grey(images), each(pillow, lambda image: image.convert("L")))
    assert_pillow(ops.grayscale(images), each(pillow, lambda image: image.convert("L").convert(image.mode)))


ENHANCERS = ["brightness", "contrast", "color", "sharpness"]


@pytest.mark.parametrize("name", ENHANCERS)
def test_enhancers_are_pillows(batch, name):
    images, pillow = batch
    factor = torch.rand(N, generator=draw(name), dtype=torch.float64) * 2
    enhancer = getattr(ImageEnhance, name.capitalize())
    enhanced = each(pillow, lambda image, f: enhancer(image).enhance(f), factor)
    assert_pillow(getattr(ops, name)(images, factor), enhanced)


@pytest.mark.parametrize("column", [1, 3, 2, 5, None])
def test_rotations_shears_and_translations_are_pillows(batch, column):
    images, pillow = batch
    maps = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64).repeat(N, 1)
    whole = torch.randint(-3, 4, (N,), generator=draw(str(column)))
    if column is None:
        maps = ops.rotation(3 * whole, 32, 32)
        moved = each(pillow, lambda image, degrees: image.rotate(degrees, BILINEAR), 3 * whole)
    else:
        maps[:, column] += whole if column in (2, 5) else 0.03 * whole
        affine = Image.Transform.AFFINE
        moved = [im.transform((32, 32), affine, row.tolist(), BILINEAR) for im, row in zip(pillow, maps)]
    # Other than by whole pixels, sums are in another order.
    assert_pillow(ops.affine(images, maps), moved, levels=1, share=0 if column in (2, 5) else 1e-4)


def test_hue_and_nearest_rotations_are_pillows(batch):
    images, pillow = batch
    turn = torch.rand(N, generator=draw("hue"), dtype=torch.float64) - 0.5
    assert_pillow(ops.hue(images, turn), each(pillow, TF.adjust_hue, turn))
    degrees = torch.rand(N, generator=draw("nearest"), dtype=torch.float64) * 30 - 15
    turned = ops.affine_nearest(images, ops.rotation(degrees, 32, 32))
    assert_pillow(turned, each(pillow, Image.Image.rotate, degrees))
    radius = torch.rand(N, generator=draw("blur"), dtype=torch.float64) * 1.9 + 0.1
    blurred = each(pillow, lambda image, r: image.filter(ImageFilter.GaussianBlur(r)), radius)
    # 32-bit sums: ties fall elsewhere
    assert_pillow(ops.gaussian_blur(images, radius), blurred, levels=1, share=1e-3)


@pytest.mark.parametrize("size", [32, 20])
def test_resized_crops_are_pillows(batch, size):
    """Up and down. Pillow resizes rows first, since version 13 not always: both passes are asked for."""
    images, pillow = batch
    boxes = torch.randint(4, 33, (2, N), generator=draw("box", size))
    corners = (torch.rand(2, N, generator=draw("corner", size)) * (33 - boxes)).long()
    cut = [
        image.crop((x, y, x + w, y + h))
        for image, y, x, h, w in zip(pillow, *corners.tolist(), *boxes.tolist())
    ]
    twice = [image.resize((size, image.height), BILINEAR).resize((size, size), BILINEAR) for image in cut]
    ours = ops.resized_crop(images, *corners, *boxes, size)
    assert_pillow(ours, twice)
    assert_pillow(ours, [image.resize((size, size), BILINEAR) for image in cut], levels=1, share=0.1)


def reference_augmix(image, depth, drawn, level, sign, weights, share):
    """Alg. 1 with Pillow, one image."""
    total = np.zeros_like(np.asarray(image), dtype=np.float64)
    for i, weight in enumerate(weights):
        chained = image.copy()
        for step in range(depth[i]):
            chained = reference_operation(chained, views.ALL[drawn[i][step]], level[i][step], sign[i][step])
        total += weight * np.asarray(chained, dtype=np.float64)
    return (1 - share) * np.asarray(image, dtype=np.float64) + share * total


def reference_operation(image, name, level, sign):
    """AugMix's table, as its code (google-research/augmix) reads it."""
    shear, pixels = sign * 0.03 * level, sign * int(level * 32 / 30)
    affine = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, pixels, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, pixels),
    }
    if name in affine:
        return image.transform((32, 32), Image.Transform.AFFINE, affine[name], BILINEAR)
    if name in ENHANCERS:
        return getattr(ImageEnhance, name.capitalize())(image).enhance(0.18 * level + 0.1)
    return {
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
        "posterize": lambda: ImageOps.posterize(image, 4 - int(0.4 * level)),
        "rotate": lambda: image.rotate(sign * int(3 * level), BILINEAR),
        "solarize": lambda: ImageOps.solarize(image, 256 - int(25.6 * level)),
    }[name]()


def draws(n, names):
    g = draw("augmix", n, names)
    shape = (n, 3, 3)
    return (
        torch.randint(1, 4, (n, 3), generator=g),
        torch.randint(names, shape, generator=g),
        torch.rand(shape, generator=g, dtype=torch.float64) * 2.9 + 0.1,
        torch.randint(0, 2, shape, generator=g).double() * 2 - 1,
    )


@pytest.mark.parametrize("names", [9, 13])
def test_augmix_is_its_algorithm_on_pillow_images(batch, names):
    images, pillow = batch
    depth, drawn, level, sign = draws(N, names)
    weights = torch.rand(N, 3, generator=draw("weights")).softmax(1)
    share = torch.rand(N, generator=draw("share"))
    ours = views.mix(images, views.chains(images, depth, drawn, level, sign), weights, share)
    parts = [part.tolist() for part in (depth, drawn, level, sign, weights, share)]
    expected = [reference_augmix(image, *drawn) for image, *drawn in zip(pillow, *parts)]
    expected = torch.from_numpy(np.stack(expected)).reshape(N, 32, 32, -1).permute(0, 3, 1, 2)
    gap = (ours - expected).abs()
    # a bilinear value one level off may be taken across a threshold by the operation after it
    assert (gap > 1e-3).double().mean() < 1e-3
    assert gap.median() < 1e-4


def chance(condition):
    return condition.double().mean().item()


def drawn_by_augmix(**options):
    """What `augmix` draws for 50,000 tiny images: depth, operations, levels, signs, weights, shares."""
    seen, names = {}, ("depth", "drawn", "level", "sign")
    images = torch.zeros(50_000, 1, 1, 1, dtype=torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "chains", lambda images, *drawn: seen.update(zip(names, drawn)))
        patch.setattr(views, "mix", lambda *drawn: seen.update(weights=drawn[2], share=drawn[3]))
        views.augmix(images, draw("draws"), **options)
    return seen


def test_draws_of_augmix():
    """150,000 depths and weights, 450,000 operations and levels: tolerances of about four standard errors."""
    d = {name: values.double() for name, values in drawn_by_augmix().items()}
    assert d["depth"].mean().item() == pytest.approx(2, abs=0.009)
    assert [chance(d["depth"] == k) for k in (1, 2, 3)] == pytest.approx([1 / 3] * 3, abs=0.005)
    assert [chance(d["drawn"] == k) for k in range(9)] == pytest.approx([1 / 9] * 9, abs=0.002)
    assert chance(d["sign"] == 1) == pytest.approx(0.5, abs=0.003)
    assert set(d["sign"].unique().tolist()) == {-1, 1}
    assert d["level"].min() >= 0.1
    assert d["level"].max() <= 3
    assert d["level"].mean().item() == pytest.approx(1.55, abs=0.005)
    assert d["weights"].sum(1) == pytest.approx(torch.ones(50_000).numpy(), abs=1e-5)
    assert d["weights"].mean(0).tolist() == pytest.approx([1 / 3] * 3, abs=0.005)
    assert d["weights"].var(0).tolist() == pytest.approx([1 / 18] * 3, abs=0.0015)
    assert (d["share"].mean().item(), d["share"].var().item()) == pytest.approx((1 / 2, 1 / 12), abs=0.005)
    steps = d["drawn"].flatten(0, 1)
    assert chance(steps[:, 0] == steps[:, 1]) == pytest.approx(1 / 9, abs=0.004)  # drawn with replacement
    assert set(drawn_by_augmix(operations="all")["drawn"].unique().tolist()) == {*range(13)}


PADDED = {"reflect": views.plain, "constant": lambda *drawn: views.weak(*drawn, crop="padded")}


@pytest.mark.parametrize("rim", PADDED)
def test_a_crop_is_one_of_the_162_crops_and_flips_of_the_padded_image(rim, arrays):
    image = stack([Image.fromarray(arrays[70])])
    padded = torch.nn.functional.pad(image.float(), (4, 4, 4, 4), mode=rim).to(torch.uint8)[0]
    crops = [padded[:, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
    possible = {crop.numpy().tobytes() for crop in crops} | {crop.flip(2).numpy().tobytes() for crop in crops}
    views_of = PADDED[rim](image.expand(3000, -1, -1, -1), draw("plain"))
    seen = Counter(view.numpy().tobytes() for view in views_of)
    assert set(seen) == possible
    assert len(possible) == 162
    counts = np.array([*seen.values()])
    assert ((counts - 3000 / 162) ** 2).sum() / (3000 / 162) < 230  # chi-square, 161 degrees: P < 0.0003


def test_fashion_mnist_is_strongly_augmented_as_in_the_release(arrays):
    """A padded crop, a flip and a turn to the nearest pixel."""
    scenarios = load_paper("fcclplus").scenarios
    public = scenarios["digits-fashion-mnist-strong"].public
    assert public.set == "fashion_mnist"
    assert public == scenarios["office31-fashion-mnist-strong"].public
    grey = stack([Image.fromarray(a).convert("L") for a in arrays]).expand(-1, 3, -1, -1).contiguous()
    seen = AUGMENTATIONS[public.augmentation](grey, draw("fashion"))
    degrees = draw("fashion")
    upright = views.weak(grey, degrees, crop="padded")
    turn = torch.rand(N, generator=degrees, dtype=torch.float64) * 30 - 15
    pillow = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in upright]
    assert_pillow(seen, each(pillow, TF.rotate, turn))


def boxes(n, side, monkeypatch):
    """Boxes that `weak` draws, and which images it turns over."""
    seen, ramp = [], torch.arange(side, dtype=torch.uint8).expand(n, 1, side, side)
    monkeypatch.setattr(ops, "resized_crop", lambda images, *box: seen.append(box) or images)
    turned = views.weak(ramp, draw("boxes", side))[:, 0, 0, 0] > 0
    return torch.stack(seen[0][:4]).double(), turned


@pytest.mark.parametrize("side", [32, 40])
def test_boxes_are_torchvisions(side, monkeypatch):
    """Mean and spread of height, width, area share and corner beside torchvision's draws."""
    ours, flipped = boxes(20_000, side, monkeypatch)
    assert chance(flipped) == pytest.approx(0.5, abs=0.015)
    torch.manual_seed(0)
    image = torch.zeros(1, side, side)
    drawn = [RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(10_000)]
    theirs = torch.tensor(drawn).double().T
    assert (ours[:2] >= 0).all()
    assert (ours[0] + ours[2] <= side).all()
    assert (ours[1] + ours[3] <= side).all()
    for mine, their in ((ours[i], theirs[i]) for i in range(4)):
        assert mine.mean().item() == pytest.approx(their.mean().item(), abs=4 * their.std().item() / 100)
        assert mine.std().item() == pytest.approx(their.std().item(), rel=0.03)
    share, ratio = ours[2] * ours[3] / side**2, ours[3] / ours[2]
    # whole pixels widen the bounds
    assert share.min() > 0.17
    assert share.max() <= 1
    assert ratio.min() > 0.65
    assert ratio.max() < 1.54
    assert chance((ours[2] == side) & (ours[3] == side)) < 0.02


def test_jitter_is_torchvisions_in_the_drawn_order(arrays):
    # the ranges below
    assert ColorJitter(0.4).brightness == (0.6, 1.4)
    assert ColorJitter(hue=0.1).hue == (-0.1, 0.1)
    pillow = [Image.fromarray(array) for array in arrays]
    ours = views._jittered(stack(pillow), draw("jitter"))
    generator = draw("jitter")
    chosen = torch.rand(N, generator=generator) < 0.8
    order = torch.rand(N, 4, generator=generator).argsort(1)
    factors = 0.6 + 0.8 * torch.rand(3, N, generator=generator, dtype=torch.float64)
    turn = -0.1 + 0.2 * torch.rand(N, generator=generator, dtype=torch.float64)
    adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    for i in chosen.nonzero()[:, 0].tolist():
        for operation in order[i].tolist():
            pillow[i] = adjust[operation](pillow[i], (*factors[:, i], turn[i])[operation].item())
    assert_pillow(ours, pillow)


def test_shares_of_grey_and_blurred_images(monkeypatch):
    """2,000 images; four standard errors are at most 0.045."""
    images, shares = torch.zeros(2000, 3, 8, 8, dtype=torch.uint8), {}
    for name in ("grayscale", "gaussian_blur"):
        counting = lambda some, *_, name=name: shares.update({name: len(some) / 2000}) or some  # noqa: E731
        monkeypatch.setattr(ops, name, counting)
    views.simple(images, draw("shares"))
    assert shares == pytest.approx({"grayscale": 0.2, "gaussian_blur": 0.5}, abs=0.045)


def test_strong_is_weak_with_other_colours(arrays):
    images = stack([Image.fromarray(a) for a in arrays])
    for crop in ("resized", "padded"):
        weak, strong = views.weak(images, draw("strong"), crop), views.strong(images, draw("strong"), crop)
        same = (weak == strong).flatten(1).all(1)
        assert 0 < chance(same) < 0.35  # 16 % see neither jitter nor grey
        assert torch.equal(weak[same], strong[same])


@pytest.mark.parametrize("view", VIEWS)
def test_a_seed_gives_one_result_and_images_have_their_draws(view, arrays):
    """As many numbers are drawn whatever the images: generators agree afterwards; inputs are left alone."""
    images = stack([Image.fromarray(arrays[70])]).expand(64, -1, -1, -1).contiguous()
    first, second, before = draw(1), draw(1), images.clone()
    seen = view(images, first)
    view(torch.zeros(64, 1, 32, 32, dtype=torch.uint8), second)
    assert torch.equal(first.get_state(), second.get_state())
    assert torch.equal(images, before)
    assert torch.equal(seen, view(images, draw(1)))
    assert not torch.equal(seen, view(images, draw(2)))
    assert len(seen.unique(dim=0)) > 50


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("view", VIEWS)
def test_a_gpu_gives_the_same_views(view, arrays):
    """Sums in another order may cross a rounding bound now and then."""
    images = stack([Image.fromarray(a) for a in arrays])
    here, there = view(images, draw()), view(images.cuda(), draw())
    assert there.is_cuda
    gap = (here.double() - there.cpu().double()).abs()
    assert (gap > 1e-3).double().mean() < 1e-3
