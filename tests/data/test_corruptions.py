"""The corruptions against numbers of the reference code (hendrycks/robustness) and against slow loops; the
corrupted set on disk, and what is trained and tested on it."""

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from federation import image_clients
from PIL import Image
from reporting import described
from scipy import ndimage
from sklearn.datasets import load_sample_image

import stages.corrupt as stage
from pipeline.cells import inputs, loading
from pipeline.cells.test_sets import TestSet
from pipeline.data import corrupted, store
from pipeline.data.corruptions import KINDS, corrupt, corrupt_set, tools, weather
from pipeline.data.corruptions.tools import Draws
from pipeline.data.partition import Parts
from pipeline.engine.handle import Batch
from pipeline.errors import DataError
from pipeline.methods.rahfl import RAHFL
from pipeline.schema import load_paper
from pipeline.training import progress
from pipeline.training.evaluation import measure

LEVELS = (1, 2, 3, 4, 5)
# without a draw
FIXED = ("brightness", "contrast", "defocus_blur", "jpeg_compression", "pixelate", "zoom_blur")


def grid():
    h, w, c = np.meshgrid(np.arange(32), np.arange(32), np.arange(3), indexing="ij")
    return ((7 * h + 13 * w + 31 * c + h * w // 3) % 256).astype(np.uint8)


def photos(count=6):
    """Images with edges and flat parts; not the same one twice."""
    flower = Image.fromarray(load_sample_image("flower.jpg"))
    image = np.asarray(flower.resize((32, 32), Image.Resampling.LANCZOS, box=(150, 0, 570, 420)))
    return np.stack([np.roll(image, 5 * i, 1) for i in range(count)])


@pytest.mark.parametrize(
    "name, expected, tolerance",
    [
        ("brightness", (7.9229, 15.2347, 21.4551, 27.0270, 36.3896), 0.01),
        ("contrast", (15.8549, 31.6989, 38.0439, 44.3848, 53.8919), 0.01),
        ("defocus_blur", (2.8031, 6.4378, 9.4388, 12.9564, 15.8975), 0.03),
        ("zoom_blur", (21.0785, 21.9606, 25.6172, 28.9479, 32.3193), 0.01),
        ("pixelate", (3.4183, 6.7035, 7.6045, 11.5537, 16.3076), 0.01),
        ("jpeg_compression", (22.91, 26.64, 27.40, 28.07, 29.04), 0.5),
    ],
)
def test_mean_change_of_the_image(name, expected, tolerance):
    changed = (corrupt(grid()[None], name, severity)[0].astype(int) - grid() for severity in LEVELS)
    assert [np.abs(change).mean() for change in changed] == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("severity", LEVELS)
@pytest.mark.parametrize(
    "name",
    ["defocus_blur", "zoom_blur", "pixelate", "glass_blur", "motion_blur", "contrast", "elastic_transform"],
)
def test_a_constant_image_stays(name, severity):
    flat = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None, None], (256, 32, 32, 3)).copy()
    flat[..., 1] = 255 - flat[..., 1]
    assert np.array_equal(corrupt(flat, name, severity), flat)


@pytest.mark.parametrize(
    "severity, std, photons", [*zip(LEVELS, (10.2, 15.3, 20.4, 22.95, 25.5), (500, 250, 100, 75, 50))]
)
def test_noise_on_mid_grey(severity, std, photons):
    grey = np.full((64, 32, 32, 3), 128, np.uint8)
    noisy = corrupt(grey, "gaussian_noise", severity).astype(float)
    assert noisy.std() == pytest.approx(std, rel=0.01)
    assert noisy.mean() == pytest.approx(127.5, abs=0.3)
    shot = corrupt(grey, "shot_noise", severity).astype(float)
    assert shot.std() == pytest.approx(255 * (128 / 255 / photons) ** 0.5, rel=0.02)


@pytest.mark.parametrize("severity, amount", [*zip(LEVELS, (0.01, 0.02, 0.03, 0.05, 0.07))])
def test_impulses_hit_values_not_pixels(severity, amount):
    out = corrupt(np.full((64, 32, 32, 3), 100, np.uint8), "impulse_noise", severity)
    hit = out != 100
    assert set(np.unique(out)) == {0, 100, 255}
    assert hit.mean() == pytest.approx(amount, rel=0.06)
    assert (out[hit] == 255).mean() == pytest.approx(0.5, abs=0.03)
    assert (hit[..., 0] & hit[..., 1]).mean() == pytest.approx(amount**2, abs=0.0006)


@pytest.mark.parametrize("severity, sigma, rounds", [(1, 0.05, 1), (4, 0.25, 2)])
def test_glass_blur_as_a_loop_over_pixels(severity, sigma, rounds):
    """As NumPy carries out `x[a], x[b] = x[b], x[a]` with views."""
    images, draws, expected = photos(3), Draws("glass_blur", range(3)), []
    steps = [draws.integers(-1, 1, 30, 30, 2) for _ in range(rounds)]

    def blurred(x):
        smooth = ndimage.gaussian_filter(x / 255, (sigma, sigma, 0), mode="nearest")
        return (smooth * 255 + 1e-6).astype(np.uint8)

    for n, image in enumerate(images):
        x = blurred(image)
        for step in steps:
            for h in range(31, 1, -1):
                for w in range(31, 1, -1):
                    dx, dy = step[n, h - 2, w - 2]
                    x[h, w], x[h + dy, w + dx] = x[h + dy, w + dx], x[h, w]
        expected.append(blurred(x))
    assert np.array_equal(corrupt(images, "glass_blur", severity), np.stack(expected))


@pytest.mark.parametrize("degrees", [-45.0, -20.0, 0.0, 33.3, -90.0, -135.0])
def test_motion_blur_as_imagemagick_has_it(degrees):
    image, angle = grid().astype(float), np.deg2rad(degrees)
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()
    expected = np.zeros_like(image)
    for y in range(32):
        for x in range(32):
            for i, weight in enumerate(weights):
                row = y + int(np.ceil(i * np.sin(angle) - 0.5))
                column = x + int(np.ceil(i * np.cos(angle) - 0.5))
                expected[y, x] += weight * image[min(max(row, 0), 31), min(max(column, 0), 31)]
    assert tools.motion(image[None], 6, 1.5, np.array([degrees]))[0] == pytest.approx(expected, abs=1e-9)


def test_zoom_and_plasma_by_hand():
    """1.25 times: 26 rows become 33 (32 without arange's last bit); the ramp keeps slope and place."""
    ramp = np.broadcast_to(np.arange(32.0), (32, 32))
    assert tools.zoomed(ramp, 1.2500000000000002)[5] == pytest.approx(3 + np.arange(32) * 25 / 32)
    assert tools.zoomed(ramp, 1.25)[5] == pytest.approx(3 + np.arange(32) * 25 / 31)
    assert np.array_equal(tools.zoomed(ramp, 1.0), ramp)
    # Noise 1 everywhere at the two coarsest levels: the wibble enters squared and is divided by the
    # decay once a level.
    noise = np.zeros((2, 1023))
    noise[0, 0] = 1  # the centre alone
    noise[1, : 3 + 12] = 1
    one, two = (weather.plasma(noise[i : i + 1], 2)[0] for i in range(2))
    assert one.min() == 0 == one[0, 0]
    assert one.max() == 1 == one[16, 16]
    # (0 + 0 + c + c) / 4, (0 + c/2 + c/2 + c) / 4
    assert [one[0, 16], one[16, 0], one[8, 8]] == pytest.approx([0.5, 0.5, 0.5])
    # With draws of 1: centre 100^2, middles of the sides 10000 / 2 + 100^2, then (0 + 15000 + 15000 + 10000)
    # / 4 + 50^2.
    rise = two[16, 16] - two[0, 0]
    assert [(two[0, 16] - two[0, 0]) / rise, (two[8, 8] - two[0, 0]) / rise] == pytest.approx([1.5, 1.25])


def test_fog_on_white_spans_what_the_cloud_allows():
    """(1 + c P) / (1 + c) with P from 0 to 1; black has maximum 0 and stays black."""
    white = np.full((4, 32, 32, 3), 255, np.uint8)
    for severity, amount in zip(LEVELS, (0.2, 0.5, 0.75, 1, 1.5), strict=True):
        foggy = corrupt(white, "fog", severity)
        assert (foggy.min((1, 2, 3)) == int(255 / (1 + amount))).all()
        assert (foggy.max((1, 2, 3)) >= 254).all()
        assert (foggy[..., 0] == foggy[..., 1]).all()
        assert (foggy[..., 0] == foggy[..., 2]).all()
        assert not corrupt(white * 0, "fog", severity).any()


@pytest.mark.parametrize(
    "severity, mean, std, zoom, threshold, radius, sigma, mix",
    [
        (1, 0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (2, 0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (3, 0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (4, 0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (5, 0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    ],
)
def test_snow_step_by_step(severity, mean, std, zoom, threshold, radius, sigma, mix):
    images, draws = photos(3), Draws("snow", range(3))
    noise, angles = mean + std * draws.normal(32, 32), draws.uniform(-135, -45)
    out = corrupt(images, "snow", severity)
    side = int(np.ceil(32 / zoom))
    top = (32 - side) // 2
    for image, layer, angle, actual in zip(images, noise, angles, out, strict=True):
        layer = ndimage.zoom(layer[top : top + side, top : top + side], zoom, order=1)
        layer = layer[(len(layer) - 32) // 2 :][:32, (len(layer) - 32) // 2 :][:, :32]
        layer = (np.clip(np.where(layer < threshold, 0, layer), 0, 1) * 255).astype(np.uint8)
        moved = tools.motion(layer[None, ..., None].astype(float), radius, sigma, np.array([angle]))[0]
        layer = moved.astype(np.uint8) / 255
        x = image / 255
        grey = (0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])[..., None]
        x = mix * x + (1 - mix) * np.maximum(x, grey * 1.5 + 0.5)
        expected = (np.clip(x + layer + np.rot90(layer, 2), 0, 1) * 255).astype(int)
        # sums of cut values may differ
        assert np.abs(expected - actual).max() <= 2
        assert (expected == actual).mean() > 0.99


def test_frost_cuts_every_picture_at_every_place(monkeypatch):
    """Corners are uniform over the picture's size minus 32, that number itself excluded."""

    def coded(which):
        rows, columns = np.mgrid[:36, :35]
        return np.stack([np.full_like(rows, which * 40), rows * 7, columns * 7], 2).astype(np.uint8)

    ice = weather.Ice(tuple(coded(i) for i in range(5)), {})
    monkeypatch.setattr(weather, "find_ice", lambda: ice)
    cuts = weather.frost(np.zeros((1200, 32, 32, 3), np.uint8), 5, Draws("frost", range(1200))) / 0.45
    places = np.rint(cuts[:, 0, 0] / (40, 7, 7))
    actual, times = np.unique(places, axis=0, return_counts=True)
    assert {tuple(place) for place in actual} == {*itertools.product(range(5), range(4), range(3))}
    assert times.min() > 5
    assert np.array_equal(np.rint(cuts[:, 31, 31] / (40, 7, 7)), places + (0, 31, 31))


@pytest.mark.parametrize(
    "severity, alpha, sigma, corner",
    [(1, 0, 0, 2.56), (2, 1.6, 6.4, 2.24), (3, 2.56, 1.92, 1.92), (4, 3.2, 1.28, 1.6), (5, 3.2, 0.96, 0.96)],
)
def test_elastic_by_scipys_sampling(severity, alpha, sigma, corner):
    """First the affine map with reflect-101 ("mirror" in SciPy), then the displacement with "reflect"."""
    images, draws = photos(3), Draws("elastic_transform", range(3))
    shift, noise = draws.uniform(-corner, corner, 3, 2), draws.uniform(-1, 1, 2, 32, 32)
    out = corrupt(images, "elastic_transform", severity)
    y, x = np.mgrid[:32, :32].astype(float)
    for n, image in enumerate(images):
        points = np.array([[26.0, 26], [26, 6], [6, 6]])
        forward = np.linalg.lstsq(np.c_[points, np.ones(3)], points + shift[n], rcond=None)[0].T  # (2, 3)
        columns, rows = np.linalg.inv(forward[:, :2]) @ (np.stack([x.ravel(), y.ravel()]) - forward[:, 2:])
        smooth = (ndimage.gaussian_filter(v, sigma, mode="reflect", truncate=3) for v in noise[n])
        dx, dy = (alpha * values for values in smooth)
        for channel in range(3):
            flat = image[..., channel] / 255
            warped = ndimage.map_coordinates(flat, [rows, columns], order=1, mode="mirror")
            warped = warped.reshape(32, 32)
            bent = ndimage.map_coordinates(warped, [y + dy, x + dx], order=1, mode="reflect")
            assert np.array_equal(out[n, ..., channel], (np.clip(bent, 0, 1) * 255 + 1e-6).astype(np.uint8))


@pytest.mark.parametrize("name", KINDS)
def test_an_image_does_not_depend_on_its_batch(name):
    images = photos()
    whole = corrupt(images, name, 3, seed=7)
    assert np.array_equal(corrupt(images[[4, 1]], name, 3, seed=7, indices=[4, 1]), whole[[4, 1]])
    others = [
        corrupt(images, name, 3, seed=8),
        corrupt(images, name, 3, seed=7, indices=range(6, 12)),
        corrupt(images, name, 3, seed=7, part="test"),
    ]
    assert all(np.array_equal(whole, other) == (name in FIXED) for other in others)


def test_photographs_are_found_without_an_import_and_shrunk_as_opencv_does(tmp_path, monkeypatch):
    folder = tmp_path / "imagecorruptions" / "frost"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise ImportError('heavy')")
    draw = np.random.default_rng(0)
    rgba = draw.integers(0, 256, (203, 252, 4)).astype(np.uint8)
    for name in weather.PHOTOS:
        image = Image.fromarray(rgba)
        (image if name.endswith("png") else image.convert("RGB")).save(folder / name)
    monkeypatch.syspath_prepend(str(tmp_path))
    ice = weather.find_ice.__wrapped__()
    assert ice.pictures[0].shape == (41, 50, 3)
    assert np.array_equal(ice.pictures[0][3, 4], rgba[17, 22, :3])
    assert set(ice.inputs) == set(weather.PHOTOS)
    assert "imagecorruptions" not in sys.modules


def test_corrupt_set_draws_types_severities_and_an_order():
    images = np.broadcast_to(grid(), (3000, 32, 32, 3))[:, :, :, :]
    made = corrupt_set(np.ascontiguousarray(images), seed=3)
    assert np.sort(made.rank).tolist() == list(range(3000))
    assert not np.array_equal(made.rank, np.arange(3000))
    assert np.bincount(made.kind, minlength=15) == pytest.approx(200, abs=60)  # over 4 standard deviations
    assert np.bincount(made.severity, minlength=6)[[0, 5]].tolist() == [0, 0]
    assert np.bincount(made.severity)[1:] == pytest.approx(750, abs=100)
    for i in (0, 17, 2999):
        alone = corrupt(images[i : i + 1], KINDS[made.kind[i]], int(made.severity[i]), seed=3, indices=[i])
        assert np.array_equal(made.images[i], alone[0])
    images, seen = np.repeat(photos(), 20, 0), []
    one = corrupt_set(images, 0, progress=seen.append)
    two = corrupt_set(images, 0)
    test = corrupt_set(images, 0, part="test")
    five = corrupt_set(images, 0, max_severity=5)
    assert all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one))
    assert not np.array_equal(one.kind, test.kind)
    assert not np.array_equal(one.rank, test.rank)
    assert set(five.severity) == {1, 2, 3, 4, 5}
    assert seen[-1] == len(images)
    assert seen == sorted(seen)
    assert len(corrupt_set(images[:0], 0).rank) == 0


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """data/tiny (32x32 RGB, 100 training and 20 test images) and data/tiny-corrupted."""
    root = tmp_path_factory.mktemp("root")
    images = np.repeat(photos(12), 10, 0)
    split = (np.arange(120) % 6 == 5).astype(np.uint8)
    meta = described("tiny", deviation="small")
    store.write(root / "data" / "tiny", images, np.arange(120) % 2, np.zeros(120), split, meta)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "ROOT", root)
        stage.corrupt("tiny")
    return root


def test_rates_choose_exactly_so_many_images(federation):
    clean = store.verify(federation / "data" / "tiny")
    dirty = corrupted.verify(federation / "data" / "tiny-corrupted")
    train = clean.split == 0
    before = np.zeros(120, bool)
    for xi, count in ((0.0, 0), (0.005, 0), (0.29, 29), (0.5, 50), (0.999, 99), (1.0, 100)):
        chosen = dirty.chosen(xi)
        assert chosen[train].sum() == count
        assert chosen[~train].all()
        assert (chosen | ~before).all()
        before = chosen & train
    assert (dirty.images != clean.images).any((1, 2, 3)).mean() > 0.95
    with pytest.raises(ValueError, match="rate 1.5"):
        dirty.chosen(1.5)


def test_the_corrupted_set_keeps_labels_and_says_how_it_was_made(federation):
    clean = store.verify(federation / "data" / "tiny")
    other = store.verify(federation / "data" / "tiny-corrupted")
    assert np.array_equal(clean.labels, other.labels)
    assert np.array_equal(clean.split, other.split)
    facts = other.meta["corruption"]
    assert facts == {
        "of": "tiny",
        "clean": clean.meta["digest"],
        "seed": 0,
        "max_severity": 4,
        "kinds": list(KINDS),
        "frost": "photographs of the package imagecorruptions",
        "digest": facts["digest"],
    }
    assert other.meta["deviation"] == "small"
    assert other.meta["inputs"] == {"tiny": clean.meta["digest"], **weather.find_ice().inputs}


def test_what_chooses_the_teachers_of_a_column_is_what_it_prints():
    """RAHFL as released: a client's accuracy by which it teaches is its printed number, column by column."""
    clients, rng = image_clients((20, 33)), torch.Generator().manual_seed(1)
    tests = tuple(
        TestSet(name, torch.randn(40, 1, 16, 16, generator=rng), torch.arange(40) % 10)
        for name in ("clean", "corrupted")
    )
    scenario = load_paper("rahfl").scenarios["mini"]
    actual = loading.Federation(
        tuple(clients), tests, 10, None, None, Batch(tests[1].images, tests[1].labels), "", None
    )
    world = loading._world(scenario, actual, 0)
    models = world.new_models()
    printed, _ = measure(models, world, tests, "pooled")
    for column in ("clean", "corrupted"):
        assert world.test_sets[column].images is {test.name: test for test in tests}[column].images
        chosen = RAHFL(acc_source=f"test_{column}").accuracies(models, world)[f"test_{column}"]
        assert [100 * share for share in chosen.tolist()] == [printed[f"{column}.c{k}"] for k in (0, 1)]
    protocol = dataclasses.replace(scenario.evaluation, tests="domains")
    by_domain = dataclasses.replace(scenario, evaluation=protocol)
    assert not loading._world(by_domain, actual, 0).test_sets


def pictures(federation, corruption=0.5):
    """The images of the mini scenario's clients, of data/tiny; stored and corrupted set."""
    scenario = load_paper("rahfl").scenarios["mini"]
    data = dataclasses.replace(scenario.data, set="tiny", channels=3)
    evaluation = dataclasses.replace(scenario.evaluation, tests="clients")
    scenario = dataclasses.replace(scenario, data=data, evaluation=evaluation, corruption=corruption)
    stored = store.verify(federation / "data" / "tiny")
    dirty = corruption and corrupted.verify(federation / "data" / "tiny-corrupted")
    checked = inputs.Inputs(None, stored, None, None, dirty)
    return scenario, loading._Pictures(scenario, checked, torch.device("cpu"), None), stored, dirty


def test_a_client_tests_on_its_images_as_it_has_them(federation):
    """As tuning does: half of its private images are corrupted, and so of those that it validates on."""
    scenario, images, stored, dirty = pictures(federation)
    at = np.flatnonzero(stored.split == 0)
    (test,) = loading._tests(scenario, Parts([("a", "tiny")], [at[:0]], [at], {}), at, images)
    changed = (test.images != images.clean(at)[0]).flatten(1).any(1).numpy()
    assert changed.sum() >= 45
    assert not (changed & ~dirty.chosen(0.5)[at]).any()


def test_every_test_image_is_known_by_its_corruption_and_severity(federation):
    _, images, _, dirty = pictures(federation)
    at = np.array([5, 11, 119])
    kinds, severities = images.corruption(at)
    assert kinds.tolist() == [KINDS[dirty.kind[i]] for i in at]
    assert severities.tolist() == dirty.severity[at].tolist()
    assert pictures(federation, None)[1].corruption(at) is None


def test_missing_and_damaged_files_are_named(federation, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    (tmp_path / "data").mkdir()
    subprocess.run(["cp", "-r", federation / "data" / "tiny", tmp_path / "data"], check=True)
    folder = tmp_path / "data" / "tiny-corrupted"
    with pytest.raises(DataError, match="meta.json is missing; .*: python -m stages.corrupt tiny"):
        corrupted.verify(folder)
    monkeypatch.setattr(stage, "HIGHEST", 5)
    stage.corrupt("tiny")
    read, paths = Path.read_text, []
    monkeypatch.setattr(Path, "read_text", lambda path, **more: paths.append(path) or read(path, **more))
    assert corrupted.verify(folder).severity.max() == 5
    assert paths == [folder / "meta.json"]
    for name in ("rank", "severity", "kind"):
        np.save(folder / f"{name}.npy", np.load(folder / f"{name}.npy")[::-1].copy())
        with pytest.raises(DataError, match=f"{name}.npy was altered"):
            corrupted.verify(folder)
    subprocess.run(["cp", folder.with_name("tiny") / "meta.json", folder], check=True)
    with pytest.raises(DataError, match="meta.json: corruption: expected a mapping"):
        corrupted.read_meta(folder)


def test_the_stage_makes_the_same_twice_and_keeps_the_old_if_it_fails(
    federation, tmp_path, monkeypatch, capsys
):
    folder = federation / "data" / "tiny-corrupted"
    before = corrupted.read_meta(folder)["corruption"]["digest"]
    monkeypatch.setattr(stage, "ROOT", federation)
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    stage.corrupt("tiny")
    output = capsys.readouterr()
    assert corrupted.read_meta(folder)["corruption"]["digest"] == before
    assert before[:12] in output.out
    assert "data/tiny-corrupted: 120 of 120" in output.err
    monkeypatch.setattr(
        corrupted.files, "sync", lambda path: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(Exception, match="No space left"):
        stage.corrupt("tiny")
    assert corrupted.read_meta(folder)["corruption"]["digest"] == before
    assert sorted(path.name for path in (federation / "data").iterdir()) == ["tiny", "tiny-corrupted"]
