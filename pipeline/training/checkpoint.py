"""Save and load a seed's checkpoint and final results in .cells/<digest>/, and detect damaged files.

Every file contains the cell's digest, the seed and a hash of its content. A truncated, altered or foreign
file is named in one line and renamed to <name>.damaged, and the seed is trained again from what is left. The
hash guards against damage and mistakes, not against intent.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pipeline import files
from pipeline.cells.documents import Beginning, Run, UnfinishedSeed
from pipeline.devices import to_device_of
from pipeline.engine.state import unpack
from pipeline.errors import FedReproError, ParamError, TrainingError, warn
from pipeline.provenance import modules
from pipeline.schema import check, shorten
from pipeline.schema.checker import check_known
from pipeline.sealing import is_sealed, seal

FORCE = "FEDREPRO_FORCE"  # set: nothing of earlier runs is used


Document = TypeVar("Document")


@dataclass(frozen=True)
class SeedFiles:
    """The files of one seed; the name of `folder` is the cell's digest."""

    folder: Path
    seed: int

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"seed-{self.seed}.pt"

    @property
    def finished(self) -> Path:
        return self.folder / f"seed-{self.seed}.json"

    @property
    def representations(self) -> Path:
        return self.folder / f"seed-{self.seed}.npz"

    def save(self, content: dict) -> None:
        """Write a checkpoint: nested mappings and lists of tensors, numbers and texts. FedReproError where
        the disk is full; the older checkpoint then stays."""
        marked = {"cell": self.folder.name, "seed": self.seed, "content": content}
        buffer = io.BytesIO()
        torch.save({**marked, "hash": content_hash(content)}, buffer)
        files.write_bytes(self.checkpoint, buffer.getvalue())

    def resume(self, device: torch.device) -> dict | None:
        """The content of the checkpoint, its tensors on `device`; None where there is none to go on from."""
        return self._trusted(
            self.checkpoint,
            lambda: self._checked(torch.load(self.checkpoint, weights_only=True, map_location=device)),
        )

    def finish(self, run: dict[str, Any], arrays: dict[str, np.ndarray]) -> Run:
        """Write the results and representations of a finished seed, and remove its checkpoint; returns what
        `run` will read. TrainingError where representations are not numbers: the models have diverged. A row
        of `vectors` may be NaN: of a class that no client has."""
        if broken := [
            name
            for name, values in arrays.items()
            if name != "vectors" and values.dtype.kind == "f" and np.isnan(values).any()
        ]:
            what = f"seed {self.seed}: the models diverged, their {broken[0]} are not numbers"
            raise TrainingError(f"{what}; a smaller learning rate may help")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # none is `allow_pickle`
        files.write_bytes(self.representations, buffer.getvalue())
        marked: dict = {"cell": self.folder.name, "pictures": files.sha256(self.representations)}
        if not run.get("adopted"):
            marked["modules"] = modules.loaded()
        document = seal({**run, **marked})
        files.write_json(self.finished, document)
        self.checkpoint.unlink(missing_ok=True)
        return json.loads(json.dumps(document, sort_keys=True))

    def run(self) -> Run | None:
        """The results of a finished seed; None where it is not finished."""
        return self._trusted(self.finished, self._read)

    def forget(self) -> None:
        """Remove the files, so that the seed is trained from the beginning."""
        for path in (self.finished, self.representations, self.checkpoint):
            path.unlink(missing_ok=True)

    def _read(self) -> Run:
        run = json.loads(self.finished.read_text(encoding="utf-8"))
        if not is_sealed(run):
            raise ValueError("it is not what training wrote")
        self._check_owner(run)
        if not self.representations.exists() or run["pictures"] != files.sha256(self.representations):
            raise ValueError(f"{self.representations.name} is not what was written with it")
        _check_shape(run, Run)
        if len(run["traffic"]) != 2:
            raise ValueError("traffic: not what a client sends and receives")
        return run

    def _checked(self, marked: dict) -> dict:
        self._check_owner(marked)
        if marked["hash"] != content_hash(marked["content"]):
            raise ValueError("it is not what training wrote")
        content = check(dict[str, Any], marked["content"], "content")
        _check_shape(content, Beginning if "models" in content else UnfinishedSeed)
        unpack(content["models" if "models" in content else "state"])
        return content

    def _check_owner(self, marked: dict) -> None:
        if (marked["cell"], marked["seed"]) != (self.folder.name, self.seed):
            raise ValueError("it belongs to another cell or seed")

    def _trusted(self, path: Path, read: Callable[[], Document]) -> Document | None:
        try:
            if path.exists() and not path.is_file():  # to open a pipe would wait for ever
                raise ValueError("it is no file")
            return read()
        except FileNotFoundError:
            return None
        except (MemoryError, OSError) as error:
            raise FedReproError(f"{shorten(path)}: cannot be read: {error}") from None
        except Exception as error:  # noqa: BLE001  # a damaged pickle or archive raises nearly anything
            reason = " ".join(str(error).split())[:100] or type(error).__name__
            damaged = path.with_name(path.name + ".damaged")
            try:
                os.replace(path, damaged)
            except FileNotFoundError:  # another process has renamed it
                return None
            warn(f"{shorten(path)}: damaged ({reason}); renamed to {damaged.name}, and trained again")
            return None


def set_aside(seed: SeedFiles, reason: str) -> None:
    """Rename a finished seed that cannot be what training wrote, so that it is trained again."""
    damaged = seed.finished.with_name(seed.finished.name + ".damaged")
    os.replace(seed.finished, damaged)
    warn(f"{shorten(seed.finished)}: damaged ({reason}); renamed to {damaged.name}, and trained again")


def _check_shape(document: dict[str, Any], kind: Any) -> None:
    """ParamError unless the document is of a kind, and its `rows` have a line of numbers for every round."""
    check_known(kind, document, "document")
    if not (rows := document.get("rows", [{"round": 0}])):
        raise ParamError("rows: holds no round")
    for number, row in enumerate(rows):
        if row.get("round") != number:
            raise ParamError(f"rows[{number}].round: {row.get('round')!r:.80}, expected {number}")
        for name, value in row.items():
            if not isinstance(value, str if name == "state" else (int, float, NoneType)):
                raise ParamError(f"rows[{number}].{name}: {value!r:.80} is not a number")


# -- digests -------------------------------------------------------------------------------------------------

# Sums on a card: over so many words of 1, 2 or 4 bytes each, which are weighted by their place,
WORDS = 4096
# and of so many words at once.
AT_ONCE = 2**24
WORD = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32, 16: torch.int32}
# The weights are made of this text: another one gives other digests.
WEIGHTS = b"FedRepro: weights of the digest on a card"


def fingerprint(value: Any) -> str:
    """A digest of nested mappings, lists and tuples of tensors, numbers, texts and None.

    Of values on the CPU it is `content_hash`. Of tensors on a card it is another one: sums of their bits are
    computed there, and the sums are hashed, so that the host waits once and copies a two-thousandth of the
    bytes. It can be compared with digests from cards alone.
    """
    tensors = [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor) and leaf.device.type != "cpu"]
    if not tensors:
        return content_hash(value)
    sums = bit_sums(tensors)
    there = {id(tensor) for tensor in tensors}
    return hashlib.sha256(f"{_hash(value, there)} {sums}".encode()).hexdigest()


def content_hash(value: Any) -> str:
    """sha256 over nested mappings, lists and tuples of tensors, numbers, texts and None, wherever the tensors
    are."""
    return _hash(value, set())


def _hash(value: Any, left_out: set[int]) -> str:
    """`content_hash`, where of some tensors only types and shapes enter.

    left_out: the tensors' `id`
    """
    digest = hashlib.sha256()

    def feed(inner: Any) -> None:
        if isinstance(inner, Tensor):
            digest.update(f"{inner.dtype}{list(inner.shape)}".encode())
            if id(inner) not in left_out:
                flat = inner.detach().cpu().reshape(-1)
                digest.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(inner, (dict, list, tuple)):
            digest.update(f"{type(inner).__name__}{len(inner)}".encode())
            for item in inner.items() if isinstance(inner, dict) else inner:
                feed(item)
        else:
            digest.update(f"{type(inner).__name__} {inner!r};".encode())

    feed(value)
    return digest.hexdigest()


def _leaves(value: Any) -> Iterator[Any]:
    """What nested mappings, lists and tuples hold, in the order of `content_hash`."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        yield value
        return
    for inner in value:
        yield from _leaves(inner)


def bit_sums(tensors: list[Tensor]) -> str:
    """sha256 over sums of the tensors' bits, computed where they are; the host waits once.

    The bits of all tensors whose words have as many bytes are joined and cut into rows of WORDS. A row's sum
    is sum_j weight_j word_j modulo 2**64. The weights are odd, so that one changed word always changes the
    sum. For weights drawn at random, two rows that differ in more words have the same sum with a probability
    of at most 2**-32.
    """
    drawn = np.frombuffer(hashlib.shake_256(WEIGHTS).digest(8 * WORDS), "<i8") | 1
    weights = to_device_of(torch.from_numpy(drawn), tensors[0])
    sums = []
    for word in dict.fromkeys(WORD.values()):
        flat = [t.detach().reshape(-1).view(word) for t in tensors if WORD[t.itemsize] == word and t.numel()]
        if not flat:
            continue
        length = sum(len(part) for part in flat)
        filled = flat[0].new_zeros(-length % WORDS)
        rows = torch.cat([*flat, filled]).view(-1, WORDS)
        sums += [(block * weights).sum(1) for block in rows.split(AT_ONCE // WORDS)]
    return hashlib.sha256(torch.cat(sums).cpu().numpy().data if sums else b"").hexdigest()
