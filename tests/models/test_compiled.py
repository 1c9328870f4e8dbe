"""The compiled convolution: torch's values and gradients, built once, and a sentence where it cannot be."""

import hashlib
import multiprocessing
import os
import shutil
import signal
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from pipeline.errors import FedReproError
from pipeline.models import compiled
from pipeline.models.compiled import INPUTS, KERNEL, POOL, conv_relu_pool, covers
from pipeline.models.compiled_source import SOURCE
from pipeline.models.small import STACKS

CLOSE = 2e-6  # relative norm of a difference
# Between values that are closer, rounding decides which the pooling takes and whether ReLU is off.
UNDECIDED = 1e-4
BATCHES = (1, 7, 16, 64)
# channels and side of the papers' images
IMAGES = ((1, 16), (1, 28), (3, 32))
# is quickly built
PLAIN = (*compiled.FLAGS, "-O0")
FORK = multiprocessing.get_context("fork")


def convolutions() -> list[tuple[int, int, int, int]]:
    """(inputs, outputs, height, width) of every convolution of the small networks, and of odd images."""
    shapes = {(3, 5, 11, 18), (10, 17, 9, 6)}
    for stack in STACKS.values():
        for channels, side in IMAGES:
            inputs = channels
            for outputs in stack.convolutions:
                shapes.add((inputs, outputs, side, side))
                inputs = outputs
                side = (side - KERNEL + 1) // POOL
    return sorted(shapes)


SHAPES = convolutions()


@pytest.fixture(scope="module")
def kernel():
    why = compiled.unavailable()
    if why:
        pytest.skip(why)


def drawn(shape, batch, seed=0):
    """Images, weight and bias, each of which needs a gradient."""
    inputs, outputs, height, width = shape
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, inputs, height, width, generator=generator)
    weight = torch.randn(outputs, inputs, KERNEL, KERNEL, generator=generator) / (25 * inputs) ** 0.5
    bias = torch.randn(outputs, generator=generator) / 10
    return [tensor.requires_grad_() for tensor in (images, weight, bias)]


def whole(shape, batch, seed=0):
    """As `drawn`, of small whole numbers: float32 adds them exactly, and many values are equal."""
    images, weight, bias = drawn(shape, batch, seed)
    scaled = images * 0.7, weight / weight.std() * 0.7, bias * 20
    return [tensor.detach().round().requires_grad_() for tensor in scaled]


def by_torch(images, weight, bias):
    return F.relu(F.max_pool2d(F.conv2d(images, weight, bias), POOL))


def exactly(tensors):
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def decided(images, weight, bias):
    """Whether rounding cannot change which value the pooling takes, nor whether ReLU is off."""
    values = F.conv2d(images, weight, bias).detach()
    windows = values.unfold(2, POOL, POOL).unfold(3, POOL, POOL).flatten(4)
    best, second = windows.topk(2, dim=-1).values.unbind(-1)
    return (best - second > UNDECIDED) & (best.abs() > UNDECIDED)


def distance(tensor, exact):
    difference = (tensor.detach().double() - exact.detach()).norm()
    return float(difference / exact.detach().norm())


def distances(shape, batch, function=conv_relu_pool):
    """Relative distances to float64 of values and of the gradients of images, weight and bias."""
    tensors = drawn(shape, batch)
    exact_tensors = exactly(tensors)
    values, exact_values = function(*tensors), by_torch(*exact_tensors)
    generator = torch.Generator().manual_seed(1)
    incoming = torch.randn(values.shape, generator=generator) * decided(*exact_tensors)
    gradients = torch.autograd.grad(values, tensors, incoming)
    exact_gradients = torch.autograd.grad(exact_values, exact_tensors, incoming.double())
    pairs = zip((values, *gradients), (exact_values, *exact_gradients))
    return [distance(tensor, exact) for tensor, exact in pairs]


def results(function, tensors, incoming=None):
    """Values and gradients."""
    values = function(*tensors)
    if incoming is None:
        incoming = torch.ones_like(values)
    return [values.detach(), *torch.autograd.grad(values, tensors, incoming.to(values.dtype))]


def equal(some, others):
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))


# -- values and gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_convolution_of_the_small_networks_is_covered(shape):
    assert covers(*drawn(shape, 2))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_float64(kernel, shape, batch):
    assert max(distances(shape, batch)) < CLOSE


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_first_of_equal_values_gets_the_gradient(kernel, shape):
    tensors = whole(shape, 7)
    exact_tensors = exactly(tensors)
    assert not decided(*exact_tensors).all()  # there are equal values
    incoming = torch.randn(by_torch(*tensors).shape).mul(4).round()
    assert equal(
        [result.double() for result in results(conv_relu_pool, tensors, incoming)],
        results(by_torch, exact_tensors, incoming),
    )


def test_equal_pixels_give_their_gradient_to_the_first_place(kernel):
    images = torch.ones(1, 1, 6, 6, requires_grad=True)
    weight, bias = torch.ones(1, 1, KERNEL, KERNEL), torch.zeros(1)
    (gradient,) = torch.autograd.grad(conv_relu_pool(images, weight, bias).sum(), images)
    assert torch.equal(gradient[0, 0], F.pad(torch.ones(KERNEL, KERNEL), (0, 1, 0, 1)))


def test_what_is_zero_after_relu_passes_no_gradient(kernel):
    images, weight, _ = drawn((3, 6, 12, 12), 2)
    zero = torch.zeros(6, requires_grad=True)
    values, *gradients = results(conv_relu_pool, (torch.zeros_like(images).requires_grad_(), weight, zero))
    assert not values.any()
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), -float("inf")])
def test_nan_and_infinity_in_an_image_pass_as_in_torch(kernel, odd):
    images, weight, bias = whole((3, 17, 14, 14), 2)
    with torch.no_grad():
        images[1, 2, 5, 6] = odd
    exact = results(by_torch, exactly((images, weight, bias)))
    values, of_images, of_weight, of_bias = results(conv_relu_pool, (images, weight, bias))
    same = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)
    assert same(values.double(), exact[0])
    assert not values.isfinite().all()
    assert same(of_images.double(), exact[1])
    assert same(of_bias.double(), exact[3])
    # torch has it in more of a channel's weights, from 0 * NaN, and in no other channels
    reached = [~gradient.isfinite().flatten(1).all(1) for gradient in (of_weight, exact[2])]
    assert not (reached[0] & ~reached[1]).any()
    assert reached[0].any()


@pytest.mark.parametrize("inputs", INPUTS)
def test_nan_in_a_gradient_reaches_only_its_own_pixels(kernel, inputs):
    tensors = whole((inputs, 7, 14, 14), 2)
    values = by_torch(*tensors)
    incoming = torch.ones_like(values)
    place = (values > 0).nonzero()[-5]
    incoming[tuple(place)] = float("nan")
    ours, exact = results(conv_relu_pool, tensors, incoming), results(by_torch, exactly(tensors), incoming)
    assert equal([result.isnan() for result in ours], [result.isnan() for result in exact])
    assert ours[1].isnan().sum() == KERNEL * KERNEL * inputs


@pytest.mark.parametrize("inputs", INPUTS)
def test_a_batch_without_images_has_gradients_of_zero(kernel, inputs):
    tensors = drawn((inputs, 6, 10, 10), 0)
    values, of_images, of_weight, of_bias = results(conv_relu_pool, tensors)
    assert values.shape == (0, 6, 3, 3)
    assert of_images.shape == tensors[0].shape
    assert not of_weight.any()
    assert not of_bias.any()


@pytest.mark.parametrize("inputs", INPUTS)
def test_the_order_of_an_image_in_memory_changes_no_bit(kernel, inputs):
    images, weight, bias = drawn((inputs, 20, 12, 12), 5)
    expected = results(conv_relu_pool, (images, weight, bias))
    channels_last = images.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    wider = torch.randn(5, inputs, 12, 30)
    wider[..., 4:28:2] = images.detach()
    strided = wider[..., 4:28:2].requires_grad_()
    last = weight.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    assert equal(results(conv_relu_pool, (channels_last, last, bias)), expected)
    assert equal(results(conv_relu_pool, (strided, weight, bias)), expected)


def test_an_expanded_gradient_is_read_as_torch_reads_it(kernel):
    tensors = drawn((3, 6, 12, 12), 4)
    incoming = torch.ones(1, 1, 1, 1).expand(4, 6, 4, 4)
    assert equal(results(conv_relu_pool, tensors, incoming), results(conv_relu_pool, tensors))


def test_a_default_of_torch_changes_no_bit(kernel):
    tensors = drawn((3, 6, 12, 12), 4)
    expected = results(conv_relu_pool, tensors)
    torch.set_default_dtype(torch.float64)
    try:
        assert equal(results(conv_relu_pool, tensors), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_inputs_that_need_no_gradient_get_none(kernel):
    images, weight, bias = drawn((3, 6, 12, 12), 2)
    expected = results(conv_relu_pool, (images, weight, bias))
    fixed = conv_relu_pool(images.detach(), weight, bias.detach())
    fixed.sum().backward()
    assert torch.equal(weight.grad, expected[2])
    assert images.grad is None
    assert bias.grad is None
    with torch.no_grad():
        assert not conv_relu_pool(images, weight, bias).requires_grad


def test_a_second_derivative_is_refused(kernel):
    tensors = drawn((3, 6, 12, 12), 2)
    values = conv_relu_pool(*tensors)
    (gradient,) = torch.autograd.grad(values.square().sum(), tensors[1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_threads_at_once_get_the_bits_of_one(kernel):
    cases = [drawn((32, 64, 14, 14), 9, seed) for seed in range(4)]
    expected = [results(conv_relu_pool, case) for case in cases]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda case: results(conv_relu_pool, case), cases * 5))
    assert all(equal(*pair) for pair in zip(found, expected * 5, strict=True))


def test_processors_with_narrower_vectors_get_the_same_bits(kernel, monkeypatch):
    wide = compiled._library()
    if wide.lanes() == 8:
        pytest.skip("this processor has no wider vectors than those of AVX2")
    others = tuple(flag for flag in compiled.FLAGS if flag != "-march=native")
    narrow = compiled.load((*others, "-mavx2", "-mfma"), compiled.ROOT)
    assert (wide.lanes(), narrow.lanes()) == (16, 8)
    for shape in SHAPES:
        tensors = drawn(shape, 9)
        expected = results(conv_relu_pool, tensors)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "_library", lambda: narrow)
            assert equal(results(conv_relu_pool, tensors), expected), shape


# What is changed in the text, and into what.
FAULTS = {
    "offsets exchanged": ("{0, inputs, row, row + inputs, 0}", "{0, row, inputs, row + inputs, 0}"),
    "no gradient of the bias": ("db[c] += sum;", ""),
    "ReLU left out": ("at = off ? (Integers{} + OFF) : at;", ""),
    "rest of a row": ("if constexpr (rest > 0)", "if constexpr (false)"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_noticed(kernel, fault, tmp_path, monkeypatch):
    right, wrong = FAULTS[fault]
    assert SOURCE.count(right) == 1
    monkeypatch.setattr(compiled, "SOURCE", SOURCE.replace(right, wrong))
    faulty = compiled.load((*compiled.FLAGS, "-O0", "-DLANES=8"), tmp_path)
    monkeypatch.setattr(compiled, "_library", lambda: faulty)
    assert not max(distances((10, 10, 14, 14), 7)) < CLOSE


# -- what is not covered -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda images, weight, bias: (images.double(), weight.double(), bias.double()),
        lambda images, weight, bias: (images.to("meta"), weight.to("meta"), bias.to("meta")),
        lambda images, weight, bias: (images[:, :2], weight[:, :2], bias),
        lambda images, weight, bias: (images[:, :1], weight, bias),
        lambda images, weight, bias: (images, weight[..., 1:, 1:], bias),
        lambda images, weight, bias: (images, weight, None),
        lambda images, weight, bias: (images, weight, bias[1:]),
        lambda images, weight, bias: (images[0], weight, bias),
        lambda images, weight, bias: (images[..., :5], weight, bias),
    ],
    ids=[
        *("float64", "other device", "two channels", "other channels", "kernel 4", "no bias"),
        *("short bias", "one image", "five columns"),
    ],
)
def test_other_convolutions_are_not_covered(change):
    given = change(*drawn((3, 6, 12, 12), 2))
    assert not covers(*given)
    with pytest.raises(ValueError, match=r"does not cover images \(.*\) of torch.float\d\d on"):
        conv_relu_pool(*given)


def test_images_with_more_numbers_than_places_are_not_covered():
    weight, bias = torch.zeros(6, 1, KERNEL, KERNEL), torch.zeros(6)
    row = torch.zeros(1, 1, 1, 1)
    assert covers(row.expand(1, 1, 2**14, 2**14), weight, bias)
    assert not covers(row.expand(1, 1, 2**15, 2**14), weight, bias)


def test_autocast_and_transforms_are_not_covered():
    images, weight, bias = drawn((3, 6, 12, 12), 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert not covers(images, weight, bias)
    seen = []
    torch.vmap(lambda image: seen.append(covers(image[None], weight, bias)) or image)(images)
    assert seen == [False]


# -- the library ---------------------------------------------------------------------------------------------


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A checkout without a library, in which nothing has been asked for."""
    monkeypatch.setattr(compiled, "ROOT", tmp_path)
    monkeypatch.setattr(compiled, "FLAGS", PLAIN)
    compiled._library_or_why.cache_clear()
    yield tmp_path
    compiled._library_or_why.cache_clear()


@pytest.fixture(scope="module")
def built(kernel, tmp_path_factory):
    """A checkout with a library."""
    root = tmp_path_factory.mktemp("built")
    compiled.load(PLAIN, root)
    return root


def libraries(root):
    return sorted((root / compiled.FOLDER).glob("*.so"))


def program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def counting(root):
    """A compiler that notes in `calls` when it builds, and how long it takes at least."""
    compiler = " ".join(compiled._compiler())
    note = f'case "$*" in *-dM*) ;; *) echo $$ >> {root}/calls; sleep ${{PAUSE:-0}} ;; esac'
    return program(root / "counting", f'{note}\nexec {compiler} "$@"')


def says(root, expected):
    """Asserts the sentence of `unavailable`, and that of the error of a call; nothing is left behind."""
    why = compiled.unavailable()
    assert why.startswith("compiled convolutions: ")
    assert expected in why
    assert "\n" not in why
    with pytest.raises(FedReproError) as error:
        conv_relu_pool(*drawn((3, 6, 12, 12), 2))
    assert str(error.value) == why
    folder = root / compiled.FOLDER
    assert not folder.exists() or {path.suffix for path in folder.iterdir()} <= {".lock"}


def test_a_library_is_built_when_it_is_asked_for_and_only_then(kernel, fresh):
    assert not (fresh / ".cells").exists()
    assert compiled.unavailable() == ""
    assert len(libraries(fresh)) == 1


def test_a_program_that_is_not_there_is_named(fresh, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -v")
    says(fresh, "CXX: there is no program 'no-such-compiler'")


def test_a_machine_without_a_compiler_says_so(fresh, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(fresh))
    says(fresh, "there is no C++ compiler: install g++ or clang++, or set CXX")


@pytest.mark.parametrize("when", ["-dM", "-o"])
def test_a_compiler_that_fails_is_cited(fresh, monkeypatch, when):
    fails = f'case "$*" in *" {when} "*) echo lib.cpp:1: error: disk on fire >&2; exit 1 ;; esac'
    monkeypatch.setenv("CXX", program(fresh / "broken", fails))
    says(fresh, f"{fresh}/broken fails: lib.cpp:1: error: disk on fire")


def test_a_compiler_that_does_not_end_is_stopped(fresh, monkeypatch):
    monkeypatch.setattr(compiled, "PATIENCE", 0.2)
    monkeypatch.setenv("CXX", program(fresh / "slow", "exec sleep 60"))
    says(fresh, "timed out")


def test_what_does_not_load_when_it_was_built_is_told(fresh, monkeypatch):
    monkeypatch.setenv("CXX", program(fresh / "odd", 'for last in "$@"; do :; done; echo odd > "$last"'))
    monkeypatch.chdir(fresh)  # where it writes `-`, the last word when macros are asked for
    why = compiled.unavailable()
    assert why.startswith("compiled convolutions: ")
    assert why.endswith("was built and does not load")


def test_a_processor_without_the_instructions_is_told(kernel, fresh, monkeypatch):
    monkeypatch.setattr(compiled, "FLAGS", ("-fPIC", "-shared", "-march=x86-64"))
    says(fresh, "only for x86-64 processors with AVX2 and FMA")


def test_clang_gets_no_option_that_only_gcc_knows(kernel, fresh, monkeypatch):
    compiler = " ".join(compiled._compiler())
    says_clang = f'case "$*" in *-dM*) exec {compiler} -D__clang__ "$@" ;; esac'
    refuses = 'case "$*" in *commoning*) echo error: unknown option >&2; exit 1 ;; esac'
    monkeypatch.setenv("CXX", program(fresh / "clang", f'{says_clang}\n{refuses}\nexec {compiler} "$@"'))
    assert compiled.unavailable() == ""


def test_gcc_keeps_registers_for_the_sums(kernel, fresh, monkeypatch):
    monkeypatch.setenv("CXX", program(fresh / "gcc", f'echo "$*" >> {fresh}/options\nexec g++ "$@"'))
    if not shutil.which("g++"):
        pytest.skip("this machine has no g++")
    assert compiled.unavailable() == ""
    assert "-fno-predictive-commoning" in (fresh / "options").read_text()


def test_a_folder_that_cannot_be_written_is_told(kernel, fresh):
    (fresh / ".cells").write_text("")
    assert compiled.unavailable().startswith("compiled convolutions: ")
    assert ".cells" in compiled.unavailable()


def test_an_intact_library_is_not_built_again(built, monkeypatch):
    monkeypatch.setattr(compiled, "_build", None)
    assert compiled.load(PLAIN, built).lanes() in (8, 16)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: content[:3000] + bytes([content[3000] ^ 1]) + content[3001:],
        lambda content: b"",
        lambda content: b"text" + hashlib.sha256(b"text").digest(),
    ],
    ids=["cut", "one bit", "empty", "no library"],
)
def test_a_damaged_library_is_built_again(built, fresh, monkeypatch, damage):
    (library,) = libraries(built)
    content = library.read_bytes()
    path = fresh / library.relative_to(built)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage(content))
    made = []
    # The compiler's own work is in other tests.
    monkeypatch.setattr(compiled, "_build", lambda *given: made.append(given[-1].write_bytes(content)))
    assert compiled.unavailable() == ""
    assert len(made) == 1


def test_two_processes_at_once_build_one_library(kernel, fresh, monkeypatch):
    monkeypatch.setenv("CXX", counting(fresh))
    monkeypatch.setenv("PAUSE", "1")
    processes = [FORK.Process(target=compiled.load, args=(PLAIN, fresh)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert len((fresh / "calls").read_text().split()) == 1


def test_a_build_that_is_killed_leaves_nothing_that_the_next_would_use(kernel, fresh, monkeypatch):
    monkeypatch.setenv("CXX", counting(fresh))
    monkeypatch.setenv("PAUSE", "60")
    process = FORK.Process(target=compiled.load, args=(PLAIN, fresh))
    process.start()
    while not (fresh / "calls").exists() or not (fresh / "calls").read_text().endswith("\n"):
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    os.kill(int((fresh / "calls").read_text()), signal.SIGKILL)  # its compiler
    assert not libraries(fresh)
    monkeypatch.setenv("PAUSE", "0")
    assert compiled.unavailable() == ""
    assert {path.suffix for path in (fresh / compiled.FOLDER).iterdir()} == {".lock", ".so"}
