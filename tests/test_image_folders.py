"""Archives of images by domain and class, as strangers pack them."""

import numpy as np
import pytest
from official import encoded, make_zip
from PIL import Image

from pipeline.data import image_trees, registry
from pipeline.errors import DataError

FOLDERS = ("x/a", "x/b", "y/a", "y/b")


def written(grey, kind="PNG"):
    """The bytes of a picture, or of one that has this grey everywhere."""
    image = grey if isinstance(grey, Image.Image) else Image.fromarray(np.full((8, 8, 3), grey, np.uint8))
    return encoded(image.save, kind, **({"lossless": True} if kind == "WEBP" else {}))


def read(tmp_path, members, domains=("x", "y"), classes=2):
    """The arrays of an archive with these members, images in memory."""
    archive = make_zip(tmp_path / "set.zip", members)
    entry = registry.DataSet("", [8, 8, 3], classes, domains=list(domains))
    arrays = image_trees.folders([archive], tmp_path / "unpacked", entry)
    return np.concatenate(list(arrays.images)), arrays


NAMES = "照片/素描|-15/15|15/-15|Photo/photo2|صورة/رسم|é/è|a b/ab|+1/1".split("|")


@pytest.mark.parametrize("domains", [names.split("/") for names in NAMES])
def test_every_domain_is_read_from_its_folder(tmp_path, domains):
    members = {
        f"set/{name}/{label}/0.png": written(20 + 200 * d) for d, name in enumerate(domains) for label in "ab"
    }
    images, arrays = read(tmp_path, members, domains)
    assert [images[arrays.domains == d].mean() for d in (0, 1)] == [20, 220]


@pytest.mark.parametrize(
    "paths, domains, message",
    [
        (
            ["Real World/a/0.png", "real_world/a/0.png", "art/a/0.png"],
            ("realworld", "art"),
            "no folder in it has the subfolders",
        ),
        (["x/猫/0.png", "x/狗/0.png", "y/猫/0.png", "y/马/0.png"], ("x", "y"), "y has 2 classes"),
        (["x/a/0.png", "x/b/0.png", "y/a/0.png", "y/b/0.eps"], ("x", "y"), "y/b has no image"),
    ],
)
def test_what_an_archive_lacks_is_named(tmp_path, paths, domains, message):
    members = {f"set/{path}": written(9) for path in paths}
    with pytest.raises(DataError, match=f"set.zip: {message}"):
        read(tmp_path, members, domains)


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "GIF", "PPM", "BMP", "PNG", "TGA"])
def test_every_format_that_pillow_decodes_is_read(tmp_path, kind):
    end = {"TIFF": "tif"}.get(kind, kind.lower())
    both = {"0.png": written(40), f"1.{end}": written(40, kind)}
    members = {f"{folder}/{name}": image for folder in FOLDERS for name, image in both.items()}
    images, arrays = read(tmp_path, members)
    assert len(images) == len(arrays.labels) == 8 and {*images.ravel().tolist()} == {40}


def test_what_is_no_image_is_left_out_by_name(tmp_path, capsys):
    members = {f"{folder}/0.png": written(40) for folder in FOLDERS}
    others = {"x/a/notes.eps": b"%!PS", "x/stray.png": written(1), "y/b/Thumbs.db": b""}
    images, _ = read(tmp_path, members | others)
    output = "".join(capsys.readouterr())
    assert len(images) == 4 and all(name in output for name in others)


def test_sixteen_bits_keep_their_grey(tmp_path):
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1))
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    pictures = {
        "8.png": written(Image.fromarray(ramp)),
        "16.png": written(deep),
        "16.tif": written(deep, "TIFF"),
    }
    members = {f"{folder}/{name}": picture for folder in FOLDERS for name, picture in pictures.items()}
    images, _ = read(tmp_path, members)
    assert all((image == ramp[..., None]).all() for image in images)


def test_pixels_without_a_range_are_refused(tmp_path):
    float_image = written(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF")
    with pytest.raises(DataError, match="x/a/0.tif: cannot be read"):
        read(tmp_path, {f"{folder}/0.tif": float_image for folder in FOLDERS})
