"""Partitions: distribute a scenario's images to clients; read, write and verify the folder of a partition.

The kinds are those of schema.partitions; PFLlib's rules are described in FedCRL, Sec. V-A2. The folder of a
partition contains indices.npz and meta.json.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.data import label_skew, store
from pipeline.data.domain_skew import domains, subset
from pipeline.data.listed import listed
from pipeline.data.parts import Parts, Pool
from pipeline.errors import DataError, FedReproError, ParamError, cause
from pipeline.schema import Pooled, shorten
from pipeline.schema.partitions import Partition

AGAIN = "run the partition stage of this scenario again"
INDICES = "indices.npz"
# of meta.json
KINDS: dict[str, Any] = {
    "digest": str,
    "data": dict[str, str],
    "public": dict[str, str] | None,
    "clients": list[list[str]],
    "tests": list[str],
    "warnings": list[str],
}
# How one pool of images is divided ...
CUTS: dict[str, label_skew.Kind] = {
    "dirichlet": label_skew.dirichlet,
    "pathological": label_skew.pathological,
    "iid": label_skew.iid,
    "shards": label_skew.shards,
    "quantity_skew": label_skew.quantity_skew,
    "extended_dirichlet": label_skew.extended_dirichlet,
    "balanced_dirichlet": label_skew.balanced_dirichlet,
    "natural": label_skew.natural,
}
# ... and what chooses the pools, domains or lists, itself.
DEALS: dict[str, Callable[..., Parts]] = {"domains": domains, "subset": subset, "listed": listed}


def partition(settings: Partition, pool: Pool, where: str, draw: int = 0) -> Parts:
    """Divide a pool as `settings` says.

    draw: another number repeats all that is random with other random numbers. where: file and key, with which
    the ParamError begins where it cannot be done.
    """
    if settings.kind in DEALS:
        return DEALS[settings.kind](settings, pool, draw, where)
    assert isinstance(settings, Pooled)  # as the schema has checked
    if settings.kind in CUTS:
        return label_skew.divide(CUTS[settings.kind], settings, pool, draw, where)
    try:
        return label_skew.divide(type(settings).cut, settings, pool, draw, where)
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


def content_digest(arrays: dict[str, np.ndarray], sources: dict[str, dict | None]) -> str:
    """sha256 over the arrays of indices.npz and the digests of the data sets that they index."""
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(key.encode() + np.ascontiguousarray(arrays[key], np.int64).tobytes())
    for source in sources.values():
        digest.update((source or {}).get("digest", "").encode())
    return digest.hexdigest()


def folder_of_draw(folder: Path, draw: int) -> Path:
    """Where a draw lies in the folder of a scenario's partition. Draw 0 lies in the folder itself, where code
    from before there were several draws reads it."""
    return folder / f"seed-{draw}" if draw else folder


def write(folder: Path, parts: Parts, sources: dict[str, dict | None]) -> None:
    """Write indices.npz and meta.json. sources: `data` and `public`, the facts of the indexed sets."""
    arrays = to_arrays(parts)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / INDICES, **arrays)  # type: ignore[arg-type]  # none is `allow_pickle`
    meta = {
        "clients": parts.clients,
        "tests": list(parts.domain_test),
        "warnings": parts.warnings,
        "digest": content_digest(arrays, sources),
        **sources,
    }
    files.write_json(folder / store.META, meta)


def read(folder: Path) -> tuple[Parts, dict]:
    """The partition in `folder` and its meta.json; DataError, naming the stage, where it is damaged."""
    meta = store.document(folder, KINDS, AGAIN)
    with store.readable(folder / INDICES, AGAIN), np.load(folder / INDICES, allow_pickle=False) as arrays:
        clients = [(name, domain) for name, domain in meta["clients"]]
        return Parts(
            clients,
            [arrays[f"train.{k}"] for k in range(len(clients))],
            [arrays[f"own_test.{k}"] for k in range(len(clients))],
            {name: arrays[f"domain_test.{name}"] for name in meta["tests"]},
            meta["warnings"],
            arrays["public"],
            arrays["heldout"],
        ), meta


def verify(folder: Path) -> tuple[Parts, dict]:
    """As `read`, and recompute the digest. Raises DataError also where the partition was altered."""
    parts, meta = read(folder)
    with store.readable(folder / INDICES, AGAIN):
        digest = content_digest(to_arrays(parts), {key: meta[key] for key in ("data", "public")})
    if digest != meta["digest"]:
        raise DataError(f"{shorten(folder)}: was altered; {AGAIN}")
    return parts, meta
