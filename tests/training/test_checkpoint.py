"""Seeds and checkpoints on disk: what has another shape is set aside."""

import json

import pytest
import torch
from repository import ODD

from pipeline.cells.documents import Beginning
from pipeline.sealing import seal
from pipeline.training import checkpoint
from pipeline.training.checkpoint import SeedFiles, bit_sums, content_hash, fingerprint

SEED = {
    "seed": 0,
    "rows": [{"round": 0, "loss": None}, {"round": 1, "loss": 0.5, "average": 50.0, "state": "0" * 16}],
    "clients": [50.0, None],
    "holdings": {"images": [5, 6], "classes": [2, 2]},
    "traffic": [10, 20.5],
    "hook": "pre",
    "by_class": [10.0, None],
    "seconds": 1.5,
    "device": "cpu",
    "precision": "fp32",
    "executor": "sequential",
    "memory": {"process_mb": 300, "device_mb": None},
    "versions": {"torch": "2"},
    "started": "2026-01-01T00:00:00+00:00",
}


@pytest.fixture
def finished_seed(tmp_path):
    """A finished seed's files, and its document without the seal."""
    files = SeedFiles(tmp_path / "cell", 0)
    document = {name: value for name, value in files.finish(SEED, {}).items() if name != "self"}
    return files, document


def reread(finished_seed, **changes):
    """What is read of the seed with some keys changed, sealed again as by another version."""
    files, document = finished_seed
    files.finished.write_text(json.dumps(seal(document | changes)))
    return files.run()


def test_a_finished_seed_is_read(finished_seed):
    assert finished_seed[0].run()["rows"] == SEED["rows"]


@pytest.mark.parametrize("key", [*SEED, "pictures"])
def test_a_value_of_another_kind_is_not_read(finished_seed, key):
    """An odd value that a key may have is of the kind that it has; seconds may be any number."""
    _, document = finished_seed
    for value in ODD:
        if value in (document.get(key), True):
            continue
        run = reread(finished_seed, **{key: value})
        assert run is None or isinstance(run[key], type(document[key])) or key == "seconds", value


@pytest.mark.parametrize("key", [key for key in SEED if key not in ("holdings", "by_class")])
def test_a_seed_without_a_key_is_set_aside(finished_seed, key):
    files, document = finished_seed
    files.finished.write_text(json.dumps(seal({n: value for n, value in document.items() if n != key})))
    assert files.run() is None


@pytest.mark.parametrize("row", [*(value for value in ODD if value is not True), {"round": 2}], ids=repr)
def test_a_seed_with_an_odd_row_is_set_aside(finished_seed, row):
    assert reread(finished_seed, rows=[SEED["rows"][0], row]) is None


@pytest.mark.parametrize("value", [[], {}, "x"], ids=repr)
def test_a_number_of_a_row_that_is_none_is_set_aside(finished_seed, value):
    assert reread(finished_seed, rows=[{"round": 0, "x": value}]) is None


CHECKPOINT = {
    "state": {"kind": "dict", "value": {"x": 1}},
    "rows": SEED["rows"],
    "own": [None, 12.5],
    "seconds": 3.0,
}


@pytest.fixture
def files(tmp_path):
    files = SeedFiles(tmp_path / "cell", 0)
    files.save(CHECKPOINT)
    return files


CPU = torch.device("cpu")
ODD_STATES = ({}, {"kind": "params"}, [{"kind": "x"}])
ODD_VALUES = (None, "x", [[7]], {"a": []}, -1)


def test_a_checkpoint_is_read(files):
    assert files.resume(CPU) == CHECKPOINT


@pytest.mark.parametrize("value", ODD_STATES, ids=repr)
def test_a_checkpoint_with_another_state_is_set_aside(files, value):
    files.save(CHECKPOINT | {"state": value})
    assert files.resume(CPU) is None


@pytest.mark.parametrize("key", [key for key in CHECKPOINT if key != "state"])
@pytest.mark.parametrize("value", ODD_VALUES, ids=repr)
def test_a_checkpoint_of_another_shape_is_set_aside(files, key, value):
    files.save(CHECKPOINT | {key: value})
    assert files.resume(CPU) is None


@pytest.mark.parametrize("key", CHECKPOINT)
def test_a_checkpoint_without_a_key_is_set_aside(files, key):
    files.save({name: value for name, value in CHECKPOINT.items() if name != key})
    assert files.resume(CPU) is None


def test_a_document_without_rows_has_none_to_check():
    checkpoint._check_shape({"models": {}, "losses": [], "seconds": 1.5}, Beginning)


def test_of_a_long_reason_the_first_hundred_characters_are_told(tmp_path, capsys):
    path = tmp_path / "seed-0.pt"
    path.touch()

    def read():
        raise ValueError("x" * 300)

    SeedFiles(tmp_path, 0)._trusted(path, read)
    assert f"damaged ({'x' * 100})" in capsys.readouterr().err


# -- digests -------------------------------------------------------------------------------------------------

STATE = {
    "weight": torch.arange(6.0).view(2, 3) / 7,
    "parts": [torch.tensor(3), torch.zeros(0), (1, None, "x", 0.5)],
    "present": torch.tensor([True, False]),
}


# of the state above
DIGEST = "1459efe353333f008be9dbf4ac1c2b484f9e8da1b046d6fe9461daa9ff8d2246"


def test_a_digest_on_the_cpu_is_that_of_the_histories_in_git():
    """Computed by the code that wrote them."""
    assert fingerprint(STATE) == content_hash(STATE) == DIGEST


def drawn(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)


SIZES = (1, 5, checkpoint.WORDS - 6, checkpoint.WORDS, checkpoint.WORDS + 7)


def test_sums_of_bits_are_those_of_the_values():
    tensors = [drawn(size) for size in SIZES]
    assert bit_sums(tensors) == bit_sums([tensor.clone() for tensor in tensors])
    square = drawn(64).view(8, 8)
    assert bit_sums([square]) == bit_sums([square.t().contiguous().t()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("which", range(len(SIZES)))
def test_sums_of_bits_change_with_every_bit(dtype, which):
    """The lowest bit of the first, a middle and the last value of each tensor."""
    tensors = [(drawn(size) * 9).abs().to(dtype) for size in SIZES]
    before = bit_sums(tensors)
    for place in {0, SIZES[which] // 2, SIZES[which] - 1}:
        changed = [tensor.clone() for tensor in tensors]
        first_byte = place * changed[which].itemsize
        changed[which].view(torch.uint8)[first_byte] ^= 1
        assert bit_sums(changed) != before


def test_sums_of_bits_change_if_two_values_are_swapped():
    """Within a row, between rows, and between tensors."""
    tensors = [drawn(size) for size in SIZES]
    before = bit_sums(tensors)
    for (a, i), (b, j) in (((4, 0), (4, 9)), ((4, 1), (4, checkpoint.WORDS + 1)), ((1, 0), (2, 3))):
        changed = [tensor.clone() for tensor in tensors]
        changed[a][i], changed[b][j] = tensors[b][j], tensors[a][i]
        assert bit_sums(changed) != before


def test_sums_of_bits_in_several_blocks_are_the_same(monkeypatch):
    tensors = [drawn(size) for size in SIZES]
    before = bit_sums(tensors)
    monkeypatch.setattr(checkpoint, "AT_ONCE", checkpoint.WORDS)
    assert bit_sums(tensors) == before
