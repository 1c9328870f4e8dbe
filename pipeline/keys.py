"""Random seeds derived from keys such as (seed, purpose, client, round), independent of earlier draws.

Therefore the order of clients, the number of workers, a crash and a resumed run change no result.
"""

import hashlib

import torch


def key(*parts: int | str) -> int:
    """A 63-bit seed from a tuple such as (seed, "batches", client, round, epoch)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def torch_generator(*parts: int | str) -> torch.Generator:
    """A CPU generator for this key."""
    return torch.Generator().manual_seed(key(*parts))
