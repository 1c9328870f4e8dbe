"""Compute, store and read the representations of a data set under a frozen network (ViT-Ti/16).

They are computed once, into data/<set>-<features>/, and used by every method.

features.npy float32 (N, d), row i belongs to image i of data/<set>; meta.json with the origin and SHA-256 of
the weights and the digest of the images. Reading needs only NumPy; computing needs timm.
"""

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import files
from pipeline.data import store
from pipeline.data.store import Stored
from pipeline.errors import DataError
from pipeline.schema import Count, shorten
from pipeline.sealing import seal

# FedCCL's "Tiny-ViT" with 192 features: ViT-Ti/16 with AugReg weights, as in FedPCL's code
# (exps/federated_main.py). No public source that we know states a digest of its file, so none is compared;
# the digest of the weights that were loaded is in meta.json.
VIT_TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
WIDTH, SIDE, BATCH = 192, 224, 64
ARRAY = "features.npy"
KEYS = {"images": str, "width": Count, "digest": str, "trained": bool}


def read(folder: Path, stored: Stored) -> tuple[np.ndarray, dict]:
    """(N, d) float32 and meta.json. Raises DataError when they are not there, are not what `write` wrote, or
    were made from other images than `stored`."""
    described, path = meta(folder), folder / ARRAY
    if described["images"] != stored.meta["digest"]:
        name = stored.meta["set"]
        raise DataError(f"{shorten(folder)}: made from other images than data/{name}; {_again(folder)}")
    with store.readable(path, _again(folder)):
        vectors = np.load(path, allow_pickle=False)
        altered = hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest() != described["digest"]
    if altered or vectors.shape != (len(stored), described["width"]) or vectors.dtype != np.float32:
        raise DataError(f"{shorten(path)} was altered; {_again(folder)}")
    return vectors, described


def meta(folder: Path) -> dict:
    """meta.json with the keys of KEYS. Raises DataError where it is not what `write` wrote."""
    return store.document(folder, KEYS, _again(folder))


def _again(folder: Path) -> str:
    return f"run `python -m stages.features {folder.name.rpartition('-')[0]}`"


def write(
    folder: Path,
    stored: Stored,
    pretrained: bool,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> dict:
    """Compute the features of every image and write `folder` as a whole; returns its meta.

    Images are resized to 224, three channels, normalised with mean and deviation 0.5; the class token behind
    the last norm is the representation, in evaluation mode. Raises DataError when the pretrained weights
    cannot be had.
    """
    import torch

    from pipeline.data.tensors import to_tensor
    from pipeline.schema import Data

    model, origin = vit_tiny(pretrained)
    how = Data(stored.meta["set"], size=SIDE)
    with files.replace_folder(folder) as new:
        out = np.empty((len(stored), WIDTH), np.float32)  # a memory map on a full disk ends the process
        with torch.inference_mode():
            for first in range(0, len(stored), BATCH):
                images = to_tensor(stored.images[first : first + BATCH], how)
                out[first : first + BATCH] = model.forward_features(images)[:, 0].numpy()
                report(min(first + BATCH, len(stored)), len(stored))
        np.save(new / ARRAY, out)
        files.sync(new / ARRAY)
        digest = hashlib.sha256(out.tobytes()).hexdigest()
        described = seal({**origin, "images": stored.meta["digest"], "width": WIDTH, "digest": digest})
        files.write_json(new / store.META, described)
    return described


def vit_tiny(pretrained: bool) -> tuple[Any, dict[str, Any]]:
    """(frozen ViT-Ti/16, {model, weights, weights_digest, trained}). The untrained one is drawn from a fixed
    seed: a network to try the pipeline with, not the paper's."""
    import torch

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it reports every retry
    try:
        import timm

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = timm.create_model(VIT_TINY, pretrained=pretrained, num_classes=0).eval()
    except Exception as error:  # no timm, or whatever the hub raises: no network, a bad file
        raise DataError(
            f"the weights of {VIT_TINY} cannot be had ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:80]}...); connect to the "
            "hub once, or set `data.weights: untrained` in params.yaml, which every report will say"
        ) from None
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return model.requires_grad_(False), {
        "model": VIT_TINY,
        "weights": "timm, pretrained" if pretrained else "untrained, seed 0",
        "weights_digest": digest.hexdigest(),
        "trained": pretrained,
    }
