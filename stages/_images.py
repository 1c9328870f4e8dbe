"""Refuse a data set whose samples are no images."""

from pipeline.data import store
from pipeline.data.store import META
from pipeline.errors import ParamError
from pipeline.schema import ROOT, shorten


def check_images(name: str) -> None:
    """ParamError, with the file and its key, where the data set `name` is here and holds no images."""
    folder = ROOT / "data" / name
    if not (folder / META).exists():
        return
    meta = store.read_meta(folder)
    if "dtype" in meta:
        holds = f"{meta['dtype']} of shape {tuple(meta['shape'][1:])}"
        raise ParamError(f"{shorten(folder / META)}: dtype: expected images, and {name} holds {holds}")
