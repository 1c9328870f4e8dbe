"""Archives of images by domain and class, as strangers pack them; MATLAB files."""

import io
import zipfile

import numpy as np
import pytest
from PIL import Image

from pipeline.data import formats, registry
from pipeline.errors import DataError

FOLDERS = ("x/a", "x/b", "y/a", "y/b")


def encoded(grey, kind="PNG", side=8):
    buffer = io.BytesIO()
    image = grey
    if not isinstance(grey, Image.Image):
        image = Image.fromarray(np.full((side, side, 3), grey, np.uint8))
    image.save(buffer, kind, **({"lossless": True} if kind == "WEBP" else {}))
    return buffer.getvalue()


def read(tmp_path, members, domains=("x", "y"), classes=2):
    """The arrays of an archive with these members, images in memory."""
    archive = tmp_path / "set.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    entry = registry.DataSet("", [8, 8, 3], classes, domains=list(domains))
    arrays = formats.folders([archive], tmp_path / "unpacked", entry)
    return np.concatenate(list(arrays.images)), arrays


NAMES = "照片/素描|-15/15|15/-15|Photo/photo2|صورة/رسم|é/è|a b/ab|+1/1".split("|")


@pytest.mark.parametrize("domains", [names.split("/") for names in NAMES])
def test_every_domain_is_read_from_its_folder(tmp_path, domains):
    members = {
        f"set/{name}/{label}/0.png": encoded(20 + 200 * d) for d, name in enumerate(domains) for label in "ab"
    }
    images, arrays = read(tmp_path, members, domains)
    assert [images[arrays.domains == d].mean() for d in (0, 1)] == [20, 220]


def test_folders_that_one_name_could_mean_are_none(tmp_path):
    folders = ("Real World", "real_world", "art")
    members = {f"set/{name}/{label}/0.png": encoded(9) for name in folders for label in "ab"}
    with pytest.raises(DataError, match="set.zip: no folder in it has the subfolders realworld, art"):
        read(tmp_path, members, ("realworld", "art"))


def test_classes_of_other_names_are_other_classes(tmp_path):
    members = {f"set/{classes}/0.png": encoded(9) for classes in ("x/猫", "x/狗", "y/猫", "y/马")}
    with pytest.raises(DataError, match="set.zip: y has 2 classes"):
        read(tmp_path, members)


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "GIF", "PPM", "BMP", "PNG", "TGA"])
def test_every_format_that_pillow_decodes_is_read(tmp_path, kind):
    end = {"TIFF": "tif"}.get(kind, kind.lower())
    both = {"0.png": encoded(40), f"1.{end}": encoded(40, kind)}
    members = {f"{folder}/{name}": image for folder in FOLDERS for name, image in both.items()}
    images, arrays = read(tmp_path, members)
    assert len(images) == len(arrays.labels) == 8 and {*images.ravel().tolist()} == {40}


def test_what_is_no_image_is_left_out_by_name(tmp_path, capsys):
    members = {f"{folder}/0.png": encoded(40) for folder in FOLDERS}
    others = {"x/a/notes.eps": b"%!PS", "x/stray.png": encoded(1), "y/b/Thumbs.db": b""}
    images, _ = read(tmp_path, members | others)
    output = "".join(capsys.readouterr())
    assert len(images) == 4 and all(name in output for name in others)


def test_a_class_without_an_image_is_named(tmp_path):
    members = {f"{folder}/0.png": encoded(40) for folder in FOLDERS[:3]}
    with pytest.raises(DataError, match="set.zip: y/b has no image"):
        read(tmp_path, members | {"y/b/0.eps": b""})


def test_sixteen_bits_keep_their_grey(tmp_path):
    ramp = np.tile(np.linspace(0, 255, 8).astype(np.uint8), (8, 1))
    deep = Image.fromarray(ramp.astype(np.uint16) * 257)
    pictures = {
        "8.png": encoded(Image.fromarray(ramp)),
        "16.png": encoded(deep),
        "16.tif": encoded(deep, "TIFF"),
    }
    members = {f"{folder}/{name}": picture for folder in FOLDERS for name, picture in pictures.items()}
    images, _ = read(tmp_path, members)
    assert all((image == ramp[..., None]).all() for image in images)


def test_pixels_without_a_range_are_refused(tmp_path):
    float_image = encoded(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF")
    with pytest.raises(DataError, match="x/a/0.tif: cannot be read"):
        read(tmp_path, {f"{folder}/0.tif": float_image for folder in FOLDERS})


@pytest.mark.parametrize("name", ["synth_digits", "svhn"])
def test_a_matlab_file_of_another_version_is_named(tmp_path, name):
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan 01 00:00:00 2024 HDF5 schema 1.00 ."
    path = tmp_path / "syn_number.mat"
    start = (head.ljust(116) + bytes(8) + b"\x00\x02IM").ljust(512, b"\0")
    path.write_bytes(start + b"\x89HDF\r\n\x1a\n" + bytes(2000))
    with pytest.raises(DataError, match="syn_number.mat: cannot be read"):
        formats.READERS[name]([path] * 2, tmp_path, registry.sets()[name])
