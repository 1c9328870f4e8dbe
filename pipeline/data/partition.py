"""Partitions: deal a scenario's images to clients; read, write and verify the partition's folder.

The kinds are those of schema.partitions; FedCRL Sec. V-A2 has PFLlib's rules. A partition's folder holds
indices.npz and meta.json.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.data.domain_skew import domains, subset
from pipeline.data.label_skew import (
    balanced_dirichlet,
    dirichlet,
    divide,
    extended_dirichlet,
    iid,
    natural,
    pathological,
    quantity_skew,
    shards,
)
from pipeline.data.listed import listed
from pipeline.data.parts import Parts, Pool
from pipeline.errors import DAMAGED, FedReproError, ParamError, cause
from pipeline.schema import Pooled, check, shorten
from pipeline.schema.partitions import Partition

AGAIN = "run the partition stage of this scenario again"
META = {"digest": str, "data": dict[str, str], "clients": list[list[str]], "warnings": list[str]}
CUTS: dict[str, Callable[..., Parts]] = {
    "dirichlet": partial(divide, dirichlet),
    "pathological": partial(divide, pathological),
    "domains": domains,
    "subset": subset,
    "iid": partial(divide, iid),
    "shards": partial(divide, shards),
    "quantity_skew": partial(divide, quantity_skew),
    "extended_dirichlet": partial(divide, extended_dirichlet),
    "balanced_dirichlet": partial(divide, balanced_dirichlet),
    "natural": partial(divide, natural),
    "listed": listed,
}


def partition(settings: Partition, pool: Pool, where: str, draw: int = 0) -> Parts:
    """Divide a pool as `settings` says.

    draw: another number repeats all that is random with other random numbers. where: file and key, with which
    the ParamError begins where it cannot be done.
    """
    if settings.kind in CUTS:
        return CUTS[settings.kind](settings, pool, draw, where)
    assert isinstance(settings, Pooled)  # of a paper's kind, as the schema has checked
    try:
        return divide(type(settings).cut, settings, pool, draw, where)
    except FedReproError:
        raise
    except (Exception, SystemExit) as error:  # of the paper's code
        raise ParamError(f"{where}.kind: {settings.kind!r:.80} fails: {cause(error)}") from error


def to_arrays(parts: Parts) -> dict[str, np.ndarray]:
    """The arrays of indices.npz."""
    return {
        **{f"train.{k}": a for k, a in enumerate(parts.train)},
        **{f"own_test.{k}": a for k, a in enumerate(parts.client_test)},
        **{f"domain_test.{name}": a for name, a in parts.domain_test.items()},
        "public": parts.public,
        "heldout": parts.heldout,
    }


def content_digest(arrays: dict[str, np.ndarray], sources: list[str]) -> str:
    """sha256 over the arrays of indices.npz and the digests of the data sets that they index."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(key.encode() + np.ascontiguousarray(arrays[key], np.int64).tobytes())
    for source in sources:
        digest.update(source.encode())
    return digest.hexdigest()


def folder_of_draw(folder: Path, draw: int) -> Path:
    """Where a draw lies in the folder of a scenario's partition. Draw 0 lies in the folder itself, where code
    from before there were several draws reads it."""
    return folder / f"seed-{draw}" if draw else folder


def read(folder: Path) -> tuple[Parts, dict]:
    """The partition stored in `folder` and its meta.json. Raises ParamError naming the stage when it is not
    there or damaged."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        with np.load(folder / "indices.npz", allow_pickle=False) as arrays:
            count = len(meta["clients"])
            for key, kind in META.items():
                check(kind, meta[key], key)
            return Parts(
                [tuple(c) for c in meta["clients"]],
                [arrays[f"train.{k}"] for k in range(count)],
                [arrays[f"own_test.{k}"] for k in range(count)],
                {name: arrays[f"domain_test.{name}"] for name in meta["tests"]},
                meta["warnings"],
                arrays["public"],
                arrays["heldout"],
            ), meta
    except (*DAMAGED, ParamError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ParamError(f"{shorten(folder)}: not a complete partition ({reason}); {AGAIN}") from None


def verify(folder: Path) -> tuple[Parts, dict]:
    """As `read`, and recompute the digest. Raises ParamError also where the partition was altered."""
    parts, meta = read(folder)
    if any(len(client) != 2 for client in parts.clients):
        raise ParamError(f"{shorten(folder / 'meta.json')}: expected clients as pairs of names; {AGAIN}")
    try:
        sources = [(meta[key] or {}).get("digest", "") for key in ("data", "public")]
        digest = content_digest(to_arrays(parts), sources)
    except DAMAGED as error:
        raise ParamError(f"{shorten(folder)}: not a partition ({error!r}); {AGAIN}") from None
    if digest != meta["digest"]:
        raise ParamError(f"{shorten(folder)}: was altered; {AGAIN}")
    return parts, meta
