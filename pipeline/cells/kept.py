"""What a seed keeps under .cells/<digest>/ until its cell is complete: its checkpoint, and what it found when
it is finished.

Every file carries the cell's digest, the seed and a hash of its content. A torn, altered or foreign one is
named in one line and set aside as <name>.damaged, and what it held is trained again. The hash guards against
damage and slips, not against intent.
"""

import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from pipeline import files
from pipeline.errors import FedReproError, TrainingError
from pipeline.schema import shorten
from pipeline.sealing import is_sealed, seal

FORCE = "FEDREPRO_FORCE"  # set: what earlier runs have kept is not used


@dataclass(frozen=True)
class Kept:
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
    def pictures(self) -> Path:
        """The representations of a finished seed."""
        return self.folder / f"seed-{self.seed}.npz"

    def save(self, content: dict) -> None:
        """Write a checkpoint: nested mappings and lists of tensors, numbers and texts. FedReproError where
        the disk is full; the older checkpoint then stays."""
        marked = {
            "cell": self.folder.name,
            "seed": self.seed,
            "content": content,
            "hash": fingerprint(content),
        }

        def write(temporary: Path) -> None:
            with open(temporary, "wb") as file:
                _save(marked, file)

        files.write_with(self.checkpoint, write)

    def resume(self, device: torch.device) -> dict | None:
        """The content of the checkpoint, its tensors on `device`; None where there is none to go on from."""
        return self._trusted(
            self.checkpoint,
            lambda: self._checked(torch.load(self.checkpoint, weights_only=True, map_location=device)),
        )

    def finish(self, run: dict, arrays: dict[str, np.ndarray]) -> dict:
        """Write what a finished seed found, and its representations; its checkpoint goes away. Returns what
        `run` will read. TrainingError where representations are not numbers: the models have diverged, and
        their accuracy is that of the first class. A row of `vectors` may be NaN: of a class that no client
        has."""
        if broken := [
            name
            for name, values in arrays.items()
            if name != "vectors" and values.dtype.kind == "f" and np.isnan(values).any()
        ]:
            raise TrainingError(
                f"seed {self.seed}: the models diverged, their {broken[0]} are not numbers "
                "after the last round; a smaller learning rate may help"
            )

        def write(temporary: Path) -> None:
            with open(temporary, "wb") as file:  # a name would get the suffix .npz
                np.savez_compressed(file, **arrays)  # type: ignore[arg-type]    # none is `allow_pickle`

        files.write_with(self.pictures, write)
        marked = {"cell": self.folder.name, "pictures": files.sha256(self.pictures)}
        document = seal({**run, **marked})
        files.write_json(self.finished, document)
        self.checkpoint.unlink(missing_ok=True)
        return json.loads(json.dumps(document, sort_keys=True))

    def run(self) -> dict | None:
        """What the finished seed found; None where it is not finished."""
        return self._trusted(self.finished, self._read)

    def forget(self) -> None:
        """Remove what the seed has kept, so that it is trained from the beginning."""
        for path in (self.finished, self.pictures, self.checkpoint):
            path.unlink(missing_ok=True)

    def _read(self) -> dict:
        run = json.loads(self.finished.read_text(encoding="utf-8"))
        if not is_sealed(run):
            raise ValueError("it is not what training wrote")
        self._belongs(run)
        if not self.pictures.exists() or run["pictures"] != files.sha256(self.pictures):
            raise ValueError(f"{self.pictures.name} is not what was written with it")
        return run

    def _checked(self, marked: dict) -> dict:
        self._belongs(marked)
        if marked["hash"] != fingerprint(marked["content"]):
            raise ValueError("it is not what training wrote")
        return marked["content"]

    def _belongs(self, marked: dict) -> None:
        if (marked["cell"], marked["seed"]) != (self.folder.name, self.seed):
            raise ValueError("it belongs to another cell or seed")

    def _trusted(self, path: Path, read: Callable[[], dict]) -> dict | None:
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
            aside = path.with_name(path.name + ".damaged")
            try:
                os.replace(path, aside)
            except FileNotFoundError:  # another process has set it aside
                return None
            print(
                f"{shorten(path)}: damaged ({reason}); set aside as {aside.name}, what it held is trained "
                "again",
                file=sys.stderr,
                flush=True,
            )
            return None


class _Remembering(io.RawIOBase):
    """A file that remembers why it could not be written: torch.save tells only that it could not."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise


def _save(content: dict, file: BinaryIO) -> None:
    remembering = _Remembering(file)
    try:
        torch.save(content, remembering)  # type: ignore[arg-type]    # it only writes
    except RuntimeError:
        if remembering.error:
            raise remembering.error from None
        raise


def fingerprint(value: Any) -> str:
    """sha256 over nested mappings, lists and tuples of tensors, numbers, texts and None."""
    digest = hashlib.sha256()

    def feed(inner: Any) -> None:
        if isinstance(inner, Tensor):
            flat = inner.detach().cpu().reshape(-1)
            digest.update(f"{inner.dtype}{list(inner.shape)}".encode())
            digest.update(flat.view(torch.uint8).numpy().data)
        elif isinstance(inner, (dict, list, tuple)):
            digest.update(f"{type(inner).__name__}{len(inner)}".encode())
            for item in inner.items() if isinstance(inner, dict) else inner:
                feed(item)
        else:
            digest.update(f"{type(inner).__name__} {inner!r};".encode())

    feed(value)
    return digest.hexdigest()
