"""Convolution 5 x 5, ReLU and max pooling 2 x 2 of a CPU in one C++ kernel, with its gradient.

The system's C++ compiler builds the text in `compiled_source.py` when the kernel is first asked for. Values
and gradients are torch's up to rounding, so a training's numbers have other bits. The executor `compiled`
uses it (pipeline/engine/compiled.py, docs/decisions/compiled-convolutions.md).
"""

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pipeline import files
from pipeline.errors import FedReproError, cause
from pipeline.models.compiled_source import SOURCE
from pipeline.schema import ROOT

KERNEL = 5
POOL = 2
# Input channels of the convolutions of pipeline/models/small.py: for each, there is a kernel.
INPUTS = (1, 3, 6, 10, 32)
# Libraries, from the root.
FOLDER = Path(".cells") / "compiled"
COMPILERS = ("g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    # vectors as wide as this processor has
    "-march=native",
    # a * b + c is rounded once, so that all compilers and processors give the same bits
    "-ffp-contract=fast",
    "-DEACH_INPUTS(X)=" + " ".join(f"X({inputs})" for inputs in INPUTS),
)
# GCC would carry loaded values from one pass of a loop to the next, in registers that the sums need.
GCC_FLAGS = ("-fno-predictive-commoning",)
# seconds for a call of the compiler
PATIENCE = 300
# bytes of the SHA-256 behind a library: loading one that is cut off can kill the process
SEAL = 32
# Images whose gradients are listed at a time. With all 64 of a batch, the backward pass took 1.2 to 1.9 times
# as long.
IMAGES_AT_ONCE = 4
# Places in these images are 32-bit numbers.
MOST_NUMBERS = 2**31 // IMAGES_AT_ONCE


# -- the function --------------------------------------------------------------------------------------------


def unavailable() -> str:
    """Why the kernel cannot be used on this machine, in one sentence; empty where it can.

    The first call of a process loads the library, and builds it where the checkout has none: about two CPU
    seconds. Processes that call at once wait for one that builds. The answer holds for the whole process and
    those that it forks.
    """
    return _library_or_why()[1]


def covers(images: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether `conv_relu_pool` computes this call where the kernel is available; everything else is torch's.

    It computes plain float32 tensors on a CPU, with gradients of first order: not under autocast, torch.func
    or torch.export. The kernel is 5 x 5, the images have a number of channels in INPUTS and at least 6 x 6
    pixels, and there is a bias. Any numbers of images and outputs, and any strides, are covered.

    images  (B, inputs, H, W)
    weight  (outputs, inputs, 5, 5)
    bias    (outputs,)
    """
    if torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return False
    if torch.is_autocast_enabled("cpu") or not (_plain(images) and _plain(weight) and _plain(bias)):
        return False
    if images.dim() != 4 or weight.dim() != 4 or images.shape[1] not in INPUTS:
        return False
    inputs, height, width = images.shape[1:]
    outputs = len(weight)
    fitting = weight.shape[1:] == (inputs, KERNEL, KERNEL) and bias is not None and bias.shape == (outputs,)
    least = KERNEL + POOL - 1
    large_enough = outputs > 0 and height >= least and width >= least
    return fitting and large_enough and inputs * height * width < MOST_NUMBERS


def _plain(tensor: Tensor | None) -> bool:
    if tensor is None or type(tensor) not in (Tensor, nn.Parameter):
        return False
    return tensor.is_cpu and tensor.dtype == torch.float32 and tensor.layout == torch.strided


def conv_relu_pool(images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(max_pool2d(conv2d(images, weight, bias), 2)), which equals max_pool2d(relu(...)).

    As in torch, the first of equal values gets a pooled value's gradient, NaN passes pooling and ReLU, and
    what is 0 after ReLU passes no gradient. Zeros that pooling and ReLU leave are not multiplied: where an
    image or a weight is NaN or infinite, torch's gradients have NaN from 0 * NaN in more places.

    images  (B, inputs, H, W), contiguous or channels_last; other strides are copied
    weight  (outputs, inputs, 5, 5)
    bias    (outputs,)

    Returns (B, outputs, (H - 4) // 2, (W - 4) // 2) as channels_last. Raises ValueError for what `covers`
    does not cover, and FedReproError with the sentence of `unavailable`.
    """
    if not covers(images, weight, bias):
        raise ValueError(f"conv_relu_pool does not cover images {_shape(images)} and weight {_shape(weight)}")
    return _ConvReluPool.apply(images, weight, bias)


def _shape(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype} on {tensor.device}"


class _ConvReluPool(torch.autograd.Function):
    """Holds no memory between calls, so threads may call it at once."""

    @staticmethod
    def forward(ctx, images, weight, bias):
        library = _library()
        count, inputs, height, width = images.shape
        outputs = len(weight)
        pixels = _pixels(images, library.lanes())
        weights, biases = _by_lanes(weight, bias, library.lanes())
        rows, columns = (height - KERNEL + 1) // POOL, (width - KERNEL + 1) // POOL
        values = images.new_empty(count, rows, columns, outputs).permute(0, 3, 1, 2)
        chosen = images.new_empty(values.numel(), dtype=torch.uint8)
        library.conv_relu_pool_forward(
            *(tensor.data_ptr() for tensor in (pixels, weights, biases, values, chosen)),
            *(count, inputs, height, width, outputs),
        )
        ctx.save_for_backward(pixels, weight, chosen)
        ctx.shape = tuple(images.shape)
        return values

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        library = _library()
        lanes = library.lanes()
        pixels, weight, chosen = ctx.saved_tensors
        count, inputs, height, width = ctx.shape
        outputs, numbers = len(weight), count * inputs * height * width
        gradient = gradient.contiguous(memory_format=torch.channels_last)

        of_images = gradient.new_zeros(numbers + lanes) if ctx.needs_input_grad[0] else None
        rows = _kernel_rows(weight, lanes)
        of_rows = torch.zeros_like(rows)
        of_bias = gradient.new_zeros(outputs, dtype=torch.float64)

        room = outputs * IMAGES_AT_ONCE * gradient[:1, 0].numel()
        places = gradient.new_empty(room, dtype=torch.int32)
        listed = gradient.new_empty(room)
        first = gradient.new_empty((IMAGES_AT_ONCE + 1) * outputs, dtype=torch.int32)
        library.conv_relu_pool_backward(
            *(tensor.data_ptr() for tensor in (pixels, rows, gradient, chosen)),
            None if of_images is None else of_images.data_ptr(),
            *(tensor.data_ptr() for tensor in (of_rows, of_bias, places, listed, first)),
            *(count, IMAGES_AT_ONCE, inputs, height, width, outputs),
        )

        if of_images is not None:
            of_images = of_images[:numbers].view(count, height, width, inputs).permute(0, 3, 1, 2)
        of_kernel = of_rows[..., : KERNEL * inputs].unflatten(2, (KERNEL, inputs)).permute(0, 3, 1, 2)
        return of_images, torch.empty_like(weight).copy_(of_kernel), of_bias.float()


# -- memory as the C++ text reads it -------------------------------------------------------------------------


def _pixels(images: Tensor, lanes: int) -> Tensor:
    """The images as [image][row][column][channel]. Where rows of the kernel are not whole vectors, there is
    room behind the last image for what the backward reads and does not use."""
    count, inputs, height, width = images.shape
    whole = KERNEL * inputs % lanes == 0
    if whole and images.is_contiguous(memory_format=torch.channels_last):
        return images
    pixels = images.new_empty(images.numel() + lanes)
    pixels[: images.numel()].view(count, height, width, inputs).copy_(images.permute(0, 2, 3, 1))
    return pixels


def _by_lanes(weight: Tensor, bias: Tensor, lanes: int) -> tuple[Tensor, Tensor]:
    """The weights as [outputs / lanes][kernel's row, column and input][lane], and the biases; zeros pad the
    outputs to a multiple of the lanes."""
    outputs = len(weight)
    groups = -(-outputs // lanes)
    padded = weight.new_zeros(groups * lanes, KERNEL * KERNEL * weight.shape[1])
    padded[:outputs].view(outputs, KERNEL, KERNEL, -1).copy_(weight.permute(0, 2, 3, 1))
    biases = bias.new_zeros(groups * lanes)
    biases[:outputs] = bias
    return padded.view(groups, lanes, -1).transpose(1, 2).contiguous(), biases


def _kernel_rows(weight: Tensor, lanes: int) -> Tensor:
    """The weights as [output][kernel's row][its columns and inputs]; zeros pad the rows to whole vectors."""
    outputs, inputs = weight.shape[:2]
    vectors = -(-KERNEL * inputs // lanes)
    rows = weight.new_zeros(outputs, KERNEL, vectors * lanes)
    rows[..., : KERNEL * inputs].unflatten(2, (KERNEL, inputs)).copy_(weight.permute(0, 2, 3, 1))
    return rows


# -- the library ---------------------------------------------------------------------------------------------


def _library() -> ctypes.CDLL:
    library, why = _library_or_why()
    if library is None:
        raise FedReproError(why)
    return library


@cache
def _library_or_why() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and the sentence of `unavailable`."""
    try:
        return load(FLAGS, ROOT), ""
    except (FedReproError, OSError, subprocess.SubprocessError) as error:
        why = str(error) if isinstance(error, FedReproError) else cause(error)
        return None, f"compiled convolutions: {why}"


def load(flags: tuple[str, ...], root: Path) -> ctypes.CDLL:
    """The library that the C++ compiler makes with these flags, from the folder FOLDER of the root.

    It is built where there is none, where it is damaged and where it does not load.

    flags  of the compiler; FLAGS but in tests
    root   folder of the repository

    Raises FedReproError where it cannot be built, or does not load when it has just been built; OSError where
    the compiler cannot be started, and subprocess.TimeoutExpired where it does not end.
    """
    compiler = _compiler()
    # All macros: version of the compiler, instructions of the processor, and the flags' effect on both.
    macros = _run([*compiler, *flags, "-x", "c++", "-E", "-dM", "-"], "", dict(os.environ))
    if "__clang__" not in macros:
        flags = (*flags, *GCC_FLAGS)
    parts = (SOURCE, macros, *compiler, *flags)
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    path = root / FOLDER / f"{digest}.so"
    library = _opened(path)
    if library is not None:
        return library
    with files.locked(path.with_suffix(".lock")):
        library = _opened(path)  # another process may have built it meanwhile
        if library is None:
            _build(compiler, flags, path)
            library = _opened(path)
    if library is None:
        raise FedReproError(f"{files.shorten(path)} was built and does not load")
    return library


def _compiler() -> list[str]:
    """CXX with its arguments, else the first of COMPILERS that is installed."""
    wanted = shlex.split(os.environ.get("CXX", ""))
    if wanted:
        if shutil.which(wanted[0]) is None:
            raise FedReproError(f"CXX: there is no program {wanted[0]!r}")
        return wanted
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    raise FedReproError(f"there is no C++ compiler: install {' or '.join(COMPILERS)}, or set CXX")


def _build(compiler: list[str], flags: tuple[str, ...], path: Path) -> None:
    """Write a library with its seal; all or nothing."""
    with files.temporary_folder(path) as folder:
        made = folder / "library.so"
        environment = {**os.environ, "TMPDIR": str(folder)}
        _run([*compiler, *flags, "-x", "c++", "-", "-o", str(made)], SOURCE, environment)
        content = made.read_bytes()
    files.write_bytes(path, content + hashlib.sha256(content).digest())


def _run(command: list[str], text: str, environment: dict[str, str]) -> str:
    """What a compiler prints that reads this text; FedReproError with its first error."""
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, env=environment, timeout=PATIENCE
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        errors = [line for line in lines if "error" in line]
        raise FedReproError(f"{command[0]} fails: {(errors or lines)[0].strip()}")
    return done.stdout


def _opened(path: Path) -> ctypes.CDLL | None:
    """The library of a file; None where it is missing, damaged or does not load."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-SEAL]).digest() != content[-SEAL:]:
            return None
        library: Any = ctypes.CDLL(str(path))
    except OSError:
        return None
    pointer = ctypes.c_void_p
    number = ctypes.c_int64
    library.lanes.argtypes = []
    library.lanes.restype = number
    library.conv_relu_pool_forward.argtypes = [pointer] * 5 + [number] * 5
    library.conv_relu_pool_forward.restype = None
    library.conv_relu_pool_backward.argtypes = [pointer] * 10 + [number] * 6
    library.conv_relu_pool_backward.restype = None
    return library
