"""Which files are images: those with an ending of a format that Pillow decodes."""

from functools import cache

from PIL import Image

# Formats that Pillow lists and does not decode by itself: EPS starts Ghostscript, the others need a plug-in.
NOT_DECODED = {"EPS", "MPEG", "WMF", "HDF5", "GRIB", "BUFR"}


@cache
def suffixes() -> frozenset[str]:
    """Endings of the files that Pillow decodes, with their dots, in lower case."""
    return frozenset(
        end
        for end, kind in Image.registered_extensions().items()
        if kind in Image.OPEN and kind not in NOT_DECODED
    )
