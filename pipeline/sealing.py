"""Store a JSON document's SHA-256 hash inside it, so that later changes and damage are detected.

It guards against mistakes and damage, not against intent.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """`document` with `self`, the sha256 of its other keys as canonical JSON. ValueError for NaN."""
    return {**document, "self": content_hash(document)}


def is_sealed(document: Mapping[str, Any]) -> bool:
    """Whether `self` is the hash of the rest, which has to be JSON. KeyError where there is none."""
    stated = document["self"]
    content = {key: value for key, value in document.items() if key != "self"}
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if stated == _hash(content):  # as of all that was read from a JSON file
            return True
    try:
        return stated == content_hash(document)
    except (TypeError, ValueError, RecursionError):  # a date of YAML's, NaN
        return False


def content_hash(document: Mapping[str, Any]) -> str:
    """sha256 of the canonical JSON of a document without its key `self`."""
    # The round trip gives the values as they are read back from a file.
    return _hash(json.loads(json.dumps({key: value for key, value in document.items() if key != "self"})))


def _hash(content: dict) -> str:
    """sha256 of canonical JSON."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
