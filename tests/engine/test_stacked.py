"""What the stacked executor adds for GPUs, on a CPU: idle rows, kept stacks, seeds side by side."""

import gc
import json
import math
import threading
import weakref
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from federation import difference, executor_world, run, watched
from torch.utils._python_dispatch import TorchDispatchMode
from views_of_images import VIEWS, draw

from pipeline.data.tensors import STATISTICS, to_tensor
from pipeline.engine import stacked
from pipeline.engine.phase import Client, LocalOptions
from pipeline.engine.stacked import convolution, pool, stack, values
from pipeline.engine.stacked.draws import can_join, joint
from pipeline.engine.stacked.optimisers import Rows, StackedSteps
from pipeline.engine.stacked.values import same_code, same_form
from pipeline.engine.state import Clients, Params, State, tensors_of, with_tensors
from pipeline.errors import TrainingError
from pipeline.losses import cross_entropy
from pipeline.methods.fedavg import FedAvg
from pipeline.methods.fedprox import FedProx
from pipeline.methods.fedsr import FedSR
from pipeline.methods.moon import Moon
from pipeline.methods.perfedavg import PerFedAvg
from pipeline.methods.pfedme import PFedMe
from pipeline.provenance.identity import machine
from pipeline.schema import Data, Model, Optimiser
from pipeline.training.lockstep import together

SIZES = (20, 33, 7, 65, 0, 1, 48, 33)
ADAM = Optimiser("adam", 0.003)
DROPOUT = Model("cnn2", dropout=0.4)


world = partial(executor_world, sizes=SIZES)


def test_idle_rows_and_kept_stacks_change_nothing(monkeypatch):
    monkeypatch.setattr(stack, "BUCKETS", 2)
    setting = {"model": DROPOUT, "optimiser": ADAM, "sizes": (20, 33, 0, 1)}
    w = world(monkeypatch=monkeypatch, **setting)
    actual, plain = run(FedAvg(), w), run(FedAvg(), world("sequential", monkeypatch, **setting))
    assert difference(actual.model, plain.model) < 1e-7
    steps = [step for stack in w.executor.cached for step in stack.steps.values()]
    idle = [turn for stack in w.executor.cached for turn in stack.turns if turn.active < len(turn.rows)]
    # one for each round at least: kept from round to round
    assert idle
    assert max(step.taken for step in steps) >= 3


def test_few_shapes(monkeypatch):
    monkeypatch.setattr(stack, "BUCKETS", 4)
    w = world(monkeypatch=monkeypatch, sizes=tuple(range(16, 16 * 21, 16)))
    run(FedAvg(), w, 1)
    assert {rows for _, rows, _ in w.executor.cached[0].steps} == {5, 10, 15, 20}


def test_steps_are_taken_one_by_one_where_they_cannot_be_recorded(monkeypatch, capsys):
    """What a GPU that refuses a recording leads to."""

    class Refused:
        def __init__(self, *_, **__):
            pass

        def __enter__(self):
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

        def __exit__(self, *_):
            return False

    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: "before")
    streams, devices = [], []
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "device", lambda device: devices.append(device) or nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", Refused)
    w = world(monkeypatch=monkeypatch)
    w.executor.records = True
    actual = run(FedAvg(), w)
    assert not w.executor.records
    assert capsys.readouterr().err.count("cannot be recorded") == 1
    assert streams == ["before"]  # whatever the recording left
    assert devices == [w.device]  # which need not be the current one
    assert difference(actual.model, run(FedAvg(), world("sequential", monkeypatch)).model) < 1e-9


def test_a_dropped_stack_gives_its_memory_back_at_once(monkeypatch):
    w = world(monkeypatch=monkeypatch, model=DROPOUT)
    run(FedAvg(), w, 1)
    held = weakref.ref(next(iter(w.executor.cached[0].steps.values())).batch.images)
    gc.disable()
    try:
        assert held() is not None
        w.executor.cached.clear()
        assert held() is None
    finally:
        gc.enable()


def test_a_kept_stack_takes_models_in_any_order_and_other_numbers_not(monkeypatch):
    ends = []
    for executor in ("stacked", "sequential"):
        w = world(executor, monkeypatch)
        models = w.local_epochs(w.new_models(), FedAvg().loss).models
        ends.append(
            w.local_epochs(Clients(Params(reversed(model.items())) for model in models), FedAvg().loss).models
        )
        assert executor == "sequential" or len(w.executor.cached) == 1
    assert difference(*ends) < 1e-9

    def loss(model, batch, server_state, client_state):
        return cross_entropy(model(batch.images), batch.labels) * server_state

    w = world(monkeypatch=monkeypatch)
    for share in (0.5, 0.25, 0.25):
        w.local_epochs(w.new_models(), loss, server_state=share)
    assert len(w.executor.cached) == 2


def test_what_is_shared_goes_to_the_device(monkeypatch):
    """Methods leave their servers' small numbers on the CPU."""
    w = world(monkeypatch=monkeypatch)
    w.local_epochs(w.new_models(), FedAvg().loss, server_state=torch.ones(3))
    [made] = w.executor.cached
    w.executor.device = torch.device("meta")
    again = stack.Stack(w.executor, made.phases, made.members, made.clients)
    assert again.server_states[0].device.type == "meta"


def side_by_side(method, worlds, rounds):
    """Every world's end, trained together; rounds may differ."""

    def train(k, report, share):
        state, trained = watched(method, worlds[k].at(0, share(worlds[k].executor)), rounds[k])
        report({"seed": k, "loss": trained.mean_loss(worlds[k].sizes)})
        return k, state

    events = list(together(train, range(len(worlds))))
    assert sorted(row["seed"] for kind, row in events if kind == "row") == list(range(len(worlds)))
    ends = dict(value for kind, value in events if kind == "done")
    return [ends[k] for k in range(len(worlds))]


@pytest.mark.parametrize(
    "method, setting",
    [
        (FedAvg(), {"model": DROPOUT, "optimiser": ADAM}),
        (Moon(mu=1.0), {}),
        (PFedMe(inner_steps=2), {}),
        (FedSR(), {"model": Model("lenet_gaussian"), "optimiser": ADAM}),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, dict) else "",
)
def test_seeds_side_by_side_are_the_seeds_alone(method, setting, monkeypatch):
    """Each on its draw of the partition: other images, other sizes."""
    alone = [
        run(method, world("sequential", monkeypatch, seed, draw=seed, **setting), rounds)
        for seed, rounds in enumerate((2, 3, 1))
    ]
    worlds = [world("stacked", monkeypatch, seed, draw=seed, **setting) for seed in range(3)]
    widths, real = [], stacked.Stacked.run_all
    monkeypatch.setattr(
        stacked.Stacked,
        "run_all",
        lambda self, phases: widths.append(len(phases)) or real(self, phases),
    )
    for actual, plain in zip(side_by_side(method, worlds, (2, 3, 1)), alone, strict=True):
        for name in plain:
            if isinstance(plain[name], (Params, Clients)):
                assert difference(actual[name], plain[name]) < 1e-7
    phases_a_round = len(widths) // 3
    assert widths == [3] * phases_a_round + [2] * phases_a_round + [1] * phases_a_round


def test_seeds_side_by_side_share_a_stack_whoever_takes_part(monkeypatch):
    """Its rows are other clients of other seeds in each round, who are near their own servers' models."""
    method, setting = FedProx(mu=1.0), {"participation": 3}
    alone = [run(method, world("sequential", monkeypatch, seed, **setting)) for seed in range(2)]
    worlds = [world("stacked", monkeypatch, seed, **setting) for seed in range(2)]
    for actual, plain in zip(side_by_side(method, worlds, (3, 3)), alone, strict=True):
        assert difference(actual.model, plain.model) < 1e-7
    [shared] = worlds[0].executor.cached
    assert shared.whose.tolist() not in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])


def test_phases_that_differ_run_apart(monkeypatch):
    def loss(model, batch, server_state, client_state):
        return cross_entropy(model(batch.images), batch.labels)

    def train(k, report, share):
        w = worlds[k].at(0, share(worlds[k].executor))
        return k, w.local_epochs(w.new_models(), loss, options=LocalOptions(epochs=1 + k)).models

    worlds = [world("stacked", monkeypatch) for _ in range(2)]
    ends = dict(value for _, value in together(train, range(2)))
    for k in range(2):
        plain = world("sequential", monkeypatch)
        alone = plain.local_epochs(plain.new_models(), loss, options=LocalOptions(epochs=1 + k)).models
        assert difference(ends[k], alone) < 1e-9


def test_a_seed_that_fails_ends_the_others():
    """Those that wait for the phase of the one that fails do not run theirs."""
    phases = []
    executor = SimpleNamespace(run_all=phases.append)

    def train(k, report, share):
        if k == 2:
            raise ValueError("seed 2 failed")
        share(executor).run(k)

    with pytest.raises(ValueError, match="seed 2 failed"):
        list(together(train, range(3)))
    assert not phases
    assert threading.active_count() < 4


def test_alike():
    a, b = FedProx(mu=0.1), FedProx(mu=0.1)
    assert same_code(a.loss, b.loss)
    assert not same_code(a.loss, FedProx(mu=0.2).loss)
    assert not same_code(a.loss, FedAvg().loss)
    assert same_code(cross_entropy, cross_entropy)
    assert same_code(None, None)
    bound = 3
    assert not same_code(*[lambda: bound] * 2)  # a closure
    value = State(model=Params(w=torch.zeros(2)), pairs=[(1, torch.ones(3)), None], name="x")
    twin = State(model=Params(w=torch.ones(2)), pairs=[(1, torch.zeros(3)), None], name="x")
    assert same_form(value, twin)
    assert not same_form(value, {**twin})
    assert not same_form(value, State(twin, name="y"))
    assert not same_form(value, State(twin, model=Params(w=torch.zeros(3))))
    again = with_tensors(value, iter(tensors_of(twin)))
    assert difference(again, twin) == 0
    assert type(again.model) is Params
    assert type(again.pairs[0]) is tuple


def test_stacked_values_lie_plainly_whatever_the_layout_of_the_models(monkeypatch):
    """Strides of channels-last kernels within a stack end in layouts that BatchNorm refuses under vmap."""
    w = world(monkeypatch=monkeypatch)
    assert any(not value.is_contiguous() for value in w.new_model().values())
    run(Moon(), w, 2)
    values = tensors_of(
        [[stack.tensors, stack.client_states, stack.server_states] for stack in w.executor.cached]
    )
    assert len(values) > 3 * len(w.new_model()) - 3
    assert all(value[0].is_contiguous() for value in values)


@pytest.mark.parametrize(("method", "wanted"), [(FedAvg(), set()), (FedProx(mu=0.1), {"model"})])
def test_of_what_is_shared_a_loss_gets_what_it_asks_for(method, wanted, monkeypatch):
    names, real = set(), values.Lazily.__getitem__
    monkeypatch.setattr(values.Lazily, "__getitem__", lambda self, name: names.add(name) or real(self, name))
    run(method, world(monkeypatch=monkeypatch), 1)
    assert names == wanted


def test_a_methods_steps_on_batchnorm_are_sent_to_the_other_executor(monkeypatch):
    w = world(monkeypatch=monkeypatch, model=Model("resnet10"), sizes=(8, 8))
    with pytest.raises(TrainingError, match="FEDREPRO_EXECUTOR=sequential"):
        run(PerFedAvg(), w, 1)


class Kernels(TorchDispatchMode):
    """Counts operations that launch a kernel on a GPU: all but views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not (func.is_view or func is torch.ops.aten._unsafe_view.default)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "settings", [ADAM, Optimiser("adam", 0.01, weight_decay=0.1), Optimiser("sgd", 0.1, 0.1, 0.9)]
)
def test_a_step_of_an_optimiser_is_at_most_ten_kernels(settings):
    shapes = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (128, 64), (128,), (10, 128), (10,)]
    stacked_values = {str(k): torch.randn(20, *shape) for k, shape in enumerate(shapes)}
    steps = StackedSteps(settings, stacked_values)
    rows = Rows(20, torch.tensor(18), certain=15)
    with Kernels() as kernels:
        steps.step({name: torch.randn_like(value) for name, value in stacked_values.items()}, rows)
    assert kernels.count - len(shapes) <= 10  # drawing the gradients is one each
    moved = [(steps.views[name] != value).flatten(1).any(1) for name, value in stacked_values.items()]
    assert all(rows[17:19].tolist() == [True, False] for rows in moved)


def test_incomplete_batches_of_one_length_are_one_step(monkeypatch):
    """Whichever batch of their clients it is: 3, 2 and 1 full batches of 16, then 5, 5 and 4 images."""
    w = world(monkeypatch=monkeypatch, sizes=(53, 37, 20))
    turns = []
    real = stack.Step.take
    monkeypatch.setattr(
        stack.Step, "take", lambda step, turn, *rest: [turns.append(turn), real(step, turn, *rest)]
    )
    w.local_epochs(w.new_models(), FedAvg().loss)
    assert [turn[1:] for turn in turns] == [(3, 16, 0), (2, 16, 1), (1, 16, 2), (2, 5, -1), (1, 4, -1)]


class Graphs:
    """In the place of CUDA's: a recording keeps nothing, replays are counted."""

    def __init__(self, monkeypatch):
        self.replays = 0
        self.replay = lambda: setattr(self, "replays", self.replays + 1)
        instead = {"CUDAGraph": lambda: self, "graph": lambda *_, **__: nullcontext()}
        instead |= dict.fromkeys(("synchronize", "current_stream", "set_stream"), lambda *_: None)
        instead |= {"device": lambda *_: nullcontext(), "get_device_name": lambda *_: "card"}
        for name, value in instead.items():
            monkeypatch.setattr(torch.cuda, name, value)


@pytest.mark.parametrize("text", ["", "[]", '{"card": 7}'])
def test_a_convolution_by_im2col_is_the_grouped_one(monkeypatch, tmp_path, text):
    """Tried as on a GPU, in a graph: either choice gives the same numbers, and is remembered."""
    results, graphs = {}, Graphs(monkeypatch)
    for wins in (False, True):
        monkeypatch.setattr(convolution, "DEVICES", ("cpu",))
        monkeypatch.setattr(convolution, "PATH", tmp_path / f"{wins}.json")
        (tmp_path / f"{wins}.json").write_text(text)
        monkeypatch.setattr(convolution, "used", used := {})
        monkeypatch.setattr(convolution, "SHARE", math.inf if wins else 0.0)
        w, graphs.replays = world(monkeypatch=monkeypatch, sizes=(17, 16)), 0
        results[wins] = run(FedAvg(), w, 1).model
        assert len(used) > 2
        assert graphs.replays == 2 * (1 + convolution.TRIES) * len(used)
        assert set(used.values()) == {wins}
        assert json.loads((tmp_path / f"{wins}.json").read_text()) == {"card": used}
        way = "im2col" if wins else "grouped"
        assert sorted(machine()["convolutions"].split("; ")) == sorted(f"{key} {way}" for key in used)
        assert {key.split()[-1] for key in used} == {"weights", "images"}  # a first layer, and later ones
        device = torch.device("cpu")
        assert all(convolution.chosen(device, key, pytest.fail) == wins for key in used)
    assert difference(results[True], results[False]) < 1e-9
    assert not all(torch.equal(results[True][name], results[False][name]) for name in results[True])


def test_im2col_is_chosen_where_cudnn_has_no_grouped_convolution(monkeypatch):
    """Of a kind, such as double precision; other errors are raised."""

    def lacking(*_):
        raise RuntimeError(message)

    Graphs(monkeypatch)
    monkeypatch.setattr(convolution.F, "conv2d", lacking)
    tried = torch.ones(3, 2, 1, 6, 6), torch.ones(3, 4, 1, 3, 3), (1, 1), (0, 0)
    message = "GET was unable to find an engine to execute this computation"
    assert convolution.im2col_wins(*tried)
    message = "size mismatch"
    with pytest.raises(RuntimeError, match=message):
        convolution.im2col_wins(*tried)


@pytest.mark.filterwarnings("error")  # such as of clients that take turns
@pytest.mark.parametrize("kernel, stride, padding", [(5, 1, 0), (3, 2, 1), (1, 1, 0), (2, 3, 0)])
@pytest.mark.parametrize("channels", [1, 3])
def test_im2col_has_every_stride_and_padding(kernel, stride, padding, channels):
    """With first and second derivatives, for stacked clients."""
    shapes = (3, 2, channels, 9, 8), (3, 4, channels, kernel, kernel), (3, 4)
    values = [torch.randn(shape, dtype=torch.float64) for shape in shapes]

    def ends(way):
        def loss(*one):
            return way(*one, (stride, stride), (padding, padding)).pow(3).sum()

        slopes = torch.func.grad(loss, (0, 1, 2))
        steepness = torch.func.grad(lambda *one: sum(slope.pow(2).sum() for slope in slopes(*one)), (0, 1, 2))
        return [torch.func.vmap(function)(*values) for function in (slopes, steepness)]

    actual, plain = (tensors_of(ends(way)) for way in (convolution.unfolded, torch.nn.functional.conv2d))
    for mine, theirs in zip(actual, plain, strict=True):
        assert difference(mine, theirs) < 1e-12 * theirs.abs().max()


@pytest.mark.parametrize("normalise", STATISTICS)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_pool_gives_the_inputs_that_it_was_given(normalise, channels):
    """Of bytes, held as such; of other numbers, which may come later."""
    numbers = torch.Generator().manual_seed(0)

    def client(name: str, images: torch.Tensor) -> Client:
        return Client(name, "", Model("cnn4"), images, torch.arange(len(images)))

    stored = torch.randint(0, 256, (9, 16, 16, channels), dtype=torch.uint8, generator=numbers).numpy()
    images = to_tensor(stored, Data("mnist", channels=channels, size=16, normalise=normalise))
    held = pool.Pool()
    held.add([client("a", images[:4]), client("b", images[4:])])
    places = torch.tensor([8, 0, 3, 5])
    assert held.nbytes == images.numel() + 9 * 8
    assert torch.equal(held.take(places, (2, 2))[0].flatten(0, 1), images[places])
    others = torch.rand(2, channels, 16, 16, generator=numbers)
    held.add([client("c", others)])
    assert held.nbytes == 4 * (images.numel() + others.numel()) + 11 * 8
    taken, labels = held.take(torch.tensor([9, 8]), (1, 2))
    assert torch.equal(taken, torch.stack([others[0], images[8]])[None])
    assert labels.tolist() == [[0, 4]]


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_a_falling_rate_reaches_the_steps_of_a_kept_stack(name, monkeypatch):
    rule = Optimiser(name, 0.01, weight_decay=0.1, lr_decay=0.5)
    w, plain = (world(kind, monkeypatch, optimiser=rule) for kind in ("stacked", "sequential"))
    assert difference(run(FedAvg(), w).model, run(FedAvg(), plain).model) < 1e-9
    assert len(w.executor.cached) == 1


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
