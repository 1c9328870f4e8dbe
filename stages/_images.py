"""Refuse a data set whose samples are not images."""

from collections.abc import Callable
from functools import wraps

from pipeline.data import store
from pipeline.data.store import META
from pipeline.errors import ParamError
from pipeline.schema import ROOT, shorten


def of_images(function: Callable[[str], None]) -> Callable[[str], None]:
    """A stage that raises ParamError, with file and key, where the data set is here and holds no images."""

    @wraps(function)
    def checked(name: str) -> None:
        folder = ROOT / "data" / name
        meta = store.read_meta(folder) if (folder / META).exists() else {}
        if "dtype" in meta:
            holds = f"{meta['dtype']} of shape {tuple(meta['shape'][1:])}"
            raise ParamError(f"{shorten(folder / META)}: dtype: expected images, and {name} holds {holds}")
        function(name)

    return checked
