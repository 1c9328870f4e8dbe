"""A GPU that is none: tensors on `card` keep their values in main memory and obey a GPU's rules.

Operations on tensors of both devices are refused, and on what another stream has made if nobody waited for
it. What makes the host wait for the card is noted, and refused while a graph is recorded. A graph keeps the
operations of its recording, none of which counts, and replays them in the memory and with the numbers of
then, as CUDA's do. Launches are counted as CUDA's kernels are launched. Importing this registers the device
with torch for the rest of the process.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    return_and_correct_aliasing,
)
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
# Their results' values or shapes are wanted on the host.
FETCHED = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
    aten._unique2.default,
}
NOT_LAUNCHED = {
    aten._unsafe_view,
    aten.detach,
    aten.empty,
    aten.empty_like,
    aten.empty_strided,
    aten.new_empty,
    aten.new_empty_strided,
}
# A kernel for every image.
ONE_BY_ONE = {aten.im2col, aten.col2im}
# Those that fill or count first.
SEVERAL = {aten.unfold_backward: 3, aten.constant_pad_nd: 2}
# One kernel takes so many tensors of each list, by how many lists there are (torch's multi_tensor_apply).
TOGETHER = {1: 110, 2: 64, 3: 48, 4: 36}
# One kernel joins so many plain tensors; others are copied one by one.
JOINED = 128
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend("card", backend_module=_Backend())
DEVICE = torch.device("card:0")
# What Module.to does by default, assigning to a parameter's `data`, does not reach this device's values.
torch.__future__.set_overwrite_module_params_on_conversion(True)


class OnCard(Tensor):
    """A tensor on the card."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor):
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        with torch.inference_mode(False):
            return return_and_correct_aliasing(func, args, kwargs or {}, _run(func, args, kwargs or {}))


class Card(TorchDispatchMode):
    """What has happened. `waits`: what the host waited for, in order; `launches` of the host, a replayed
    graph being one; `kernels` that ran, also in graphs; `moved`: bytes between host and card."""

    def __init__(self):
        super().__init__()
        self.waits: list[str] = []
        self.launches = self.kernels = self.moved = 0
        self.graphs: list[Graph] = []
        self.recording: Graph | None = None
        # None: the default stream; how often all of them were waited for
        self.stream, self.synchronised = None, 0
        # address of a memory -> its last writer: (stream, synchronised)
        self.made: dict[int, tuple[object, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # without gradients, composite operations come whole
                return func.decompose(*args, **kwargs or {})
        there = any(isinstance(leaf, OnCard) for leaf in tree_leaves((args, kwargs)))
        return (
            OnCard.__torch_dispatch__(func, types, args, kwargs) if there else _run(func, args, kwargs or {})
        )

    def wait(self, why: str) -> None:
        if self.recording is not None:
            raise RuntimeError(f"{why}: operation not permitted when stream is capturing")
        self.waits.append(why)

    def read(self, func, values: list[Tensor]) -> None:
        for value in values:
            stream, when = self.made.get(value.untyped_storage().data_ptr(), (None, -1))
            if stream is not self.stream and when == self.synchronised:
                raise RuntimeError(f"{func}: reads what another stream may still be writing")

    def launched(self, launches: int, kernels: int) -> None:
        self.launches += launches
        self.kernels += kernels

    def written(self, values: list[Tensor]) -> None:
        for value in values:
            self.made[value.untyped_storage().data_ptr()] = self.stream, self.synchronised


class Graph:
    """In the place of torch.cuda.CUDAGraph."""

    def __init__(self):
        self.operations, self.replays, self.kernels = [], 0, 0
        self._before, self._made = {}, set()

    def record(self, func, args, kwargs) -> object:
        """Run an operation that counts for nothing until the replay; what it writes to is kept as it was."""
        written = _written(func, args, kwargs)
        for storage in (tensor.untyped_storage() for tensor in written):
            if storage.data_ptr() not in self._made:
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))
        out = func(*args, **kwargs)
        results = [] if written or _views(func) else _tensors(out)
        self._made |= {result.untyped_storage().data_ptr() for result in results}
        self.kernels += kernels_of(func, args)
        if written or results:
            self.operations.append((func, args, kwargs, results))
        return out

    def end(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)
        self._before.clear()

    def replay(self) -> None:
        self.replays += 1
        _card.launched(1, self.kernels)
        with _disable_current_modes(), torch.no_grad():
            for func, args, kwargs, results in self.operations:
                for mine, new in zip(results, _tensors(func(*args, **kwargs)), strict=False):
                    mine.copy_(new)


_card = Card()


def _run(func, args, kwargs) -> object:
    """An operation, carried out in main memory if a GPU would do it."""
    if func is aten._to_copy.default and not isinstance(args[0], Tensor):
        return torch.tensor(args[0], dtype=kwargs.get("dtype"))  # a plain number on its way into an operation
    target = _target(func, args, kwargs)
    kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
    if kwargs.get("device") is not None:
        kwargs["device"] = torch.device("cpu")
    _card.read(func, [leaf.held for leaf in _tensors((args, kwargs)) if isinstance(leaf, OnCard)])
    args, kwargs = tree_map_only(OnCard, lambda leaf: leaf.held, (args, kwargs))
    if target.type == "cpu":
        return func(*args, **kwargs)
    if _card.recording is None:
        kernels = kernels_of(func, args)
        _card.launched(kernels, kernels)
        out = func(*args, **kwargs)
    else:
        out = _card.recording.record(func, args, kwargs)
    if _written(func, args, kwargs) or not _views(func):
        _card.written(_tensors(out))
    return tree_map_only(Tensor, OnCard, out)


def _target(func, args, kwargs) -> torch.device:
    """Where the operation runs, after what a GPU would have to say about it."""
    if func in (aten._to_copy.default, aten.copy_.default):
        source = args[1] if func is aten.copy_.default else args[0]
        target = (
            args[0].device
            if func is aten.copy_.default
            else torch.device(kwargs.get("device") or source.device)
        )
        at_once = kwargs.get(
            "non_blocking", args[2] if func is aten.copy_.default and len(args) > 2 else False
        )
        if source.device.type != target.type and (
            _card.recording or not (at_once and getattr(source, "pinned", False))
        ):
            _card.wait(f"copy from {source.device.type} to {target.type}")
        if source.device.type != target.type:
            _card.moved += source.nbytes
        return target
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensors = _tensors((args, kwargs))
    if not any(isinstance(tensor, OnCard) for tensor in tensors):
        return torch.device("cpu")
    if func in INDEXED and any(
        not isinstance(tensor, OnCard) for tensor in tree_leaves(args[1]) if tensor is not None
    ):
        _card.wait(f"{func}: an index on the CPU")
        tensors = [args[0], *args[2:3]]
    if any(tensor.ndim and not isinstance(tensor, OnCard) for tensor in tensors):
        raise RuntimeError(f"{func}: expected all tensors to be on the same device, but found card:0 and cpu")
    if func in FETCHED:
        _card.wait(str(func))
    return DEVICE


def kernels_of(func, args) -> int:
    """How many kernels CUDA launches for an operation."""
    packet = func.overloadpacket
    if func.is_view or packet in NOT_LAUNCHED:
        return 0
    if packet in ONE_BY_ONE:
        return len(args[0])
    if packet in (aten.cat, aten.stack):
        plain = all(tensor.is_contiguous() for tensor in args[0])
        return math.ceil(len(args[0]) / JOINED) if plain else len(args[0])
    lists = [value for value in args if isinstance(value, (list, tuple)) and _tensors(value)]
    if lists and func.namespace == "aten" and packet.__name__.startswith(("_foreach", "_fused")):
        return math.ceil(len(lists[0]) / TOGETHER[min(len(lists), 4)])
    return SEVERAL.get(packet, 1)


def _written(func, args, kwargs) -> list[Tensor]:
    """The tensors that an operation writes to."""
    named = [
        (argument, args[k] if k < len(args) else kwargs.get(argument.name))
        for k, argument in enumerate(func._schema.arguments)
    ]
    return [
        leaf
        for argument, value in named
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in _tensors(value)
    ]


def _views(func) -> bool:
    return any(value.alias_info is not None for value in func._schema.returns)


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


# torch.tensor and lists as indices copy behind the dispatcher's back.
_library = torch.library.Library("aten", "IMPL")


@torch.library.impl(_library, "empty_strided", "PrivateUse1")
def _empty_strided(size, stride, dtype=None, layout=None, device=None, pin_memory=None):
    return OnCard(torch.empty_strided(size, stride, dtype=dtype))


@torch.library.impl(_library, "_copy_from", "PrivateUse1")
def _copy_from(source, target, non_blocking=False):
    _card.wait("values of Python's to the card")
    (target.held if isinstance(target, OnCard) else target).copy_(
        source.held if isinstance(source, OnCard) else source
    )
    return target


class _Lists(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return (
            func(args[0].cpu())
            if func is Tensor.tolist and isinstance(args[0], OnCard)
            else func(*args, **kwargs or {})
        )


@contextmanager
def there_is_a_card() -> Iterator[Card]:
    """The card as new, with its graphs and its memory in the place of CUDA's."""
    global _card
    _card = Card()

    @contextmanager
    def recording(graph, **_):
        _card.recording = graph
        try:
            yield
        finally:
            _card.recording = None
            graph.end()
        _card.graphs.append(graph)

    @contextmanager
    def on(stream):
        before, _card.stream = _card.stream, stream
        try:
            yield
        finally:
            _card.stream = before

    def synchronize(*_):
        _card.synchronised += 1

    def pinned(tensor):
        tensor.pinned = True
        return tensor

    instead = {
        "CUDAGraph": Graph,
        "graph": recording,
        "graph_pool_handle": lambda: None,
        "synchronize": synchronize,
        "Stream": lambda *_: object(),
        "stream": on,
        "device": lambda *_: nullcontext(),
        "empty_cache": lambda: None,
        "current_stream": lambda *_: None,
        "set_stream": lambda *_: None,
    }
    with (
        mock.patch.multiple(torch.cuda, **instead),
        mock.patch.object(Tensor, "pin_memory", pinned),
        _card,
        _Lists(),
    ):
        yield _card
