"""What a data set from outside may hold: types, ranges, labels, left-out files, pictures that occur twice."""

import gzip
import io
import random
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pipeline.data import gate, registry, sources, store, twins
from pipeline.data.image_trees import listing
from pipeline.data.parts import Parts
from pipeline.data.store import Arrays
from pipeline.errors import DataError

PICTURES = np.random.default_rng(0).integers(0, 256, (30, 4, 4, 1)).astype(np.uint8)
PICTURES[0, 0, 0], PICTURES[0, 0, 1] = 0, 255
LABELS = np.arange(30) % 3


def form(name):
    """The pictures as people store them."""
    floats = PICTURES.astype(np.float64)
    return {
        "uint8": PICTURES,
        "int64": PICTURES.astype(np.int64),
        "uint16": PICTURES.astype(np.uint16),
        "float of bytes": floats.astype(np.float32),
        "float32 of 1": (floats / 255).astype(np.float32),
        "float16 of 1": (floats / 255).astype(np.float16),
        "float64 of -1 to 1": floats / 127.5 - 1,
        "float with noise of rounding": floats / 255 + 1e-6,
        "grey without a channel": PICTURES[..., 0] / 255.0,
        "big-endian": PICTURES.astype(">i2"),
    }[name]


FORMS = (
    *("uint8", "int64", "uint16", "float of bytes", "float32 of 1", "float16 of 1", "float64 of -1 to 1"),
    *("float with noise of rounding", "grey without a channel", "big-endian"),
)


@pytest.mark.parametrize("name", FORMS)
def test_every_usual_form_gives_the_same_picture(name):
    [images] = gate.pixels({"x": form(name)})
    assert images.dtype == np.uint8
    assert np.array_equal(images, PICTURES)


@pytest.mark.parametrize("kind", [bool, np.uint8, np.int64])
def test_true_is_white(kind):
    [images] = gate.pixels({"x": (PICTURES > 127).astype(kind)})
    assert set(np.unique(images)) == {0, 255}
    assert np.array_equal(images == 255, PICTURES > 127)


FLOATS = PICTURES / 255.0
REFUSED = {
    "12 bits": (PICTURES.astype(np.int16) * 16, "int16 from 0 to 4080"),
    "16 bits": (PICTURES.astype(np.uint16) * 257, "uint16 from 0 to 65535"),
    "negative": (PICTURES.astype(np.int16) - 128, "int16 from -128 to 127"),
    "standardised": ((FLOATS - 0.13) / 0.31, "float64 from -0.419355 to 2.80645"),
    "centred": (FLOATS - 0.5, "float64 from -0.5 to 0.5"),
    "divided twice": (FLOATS / 255, "float64 from 0 to 0.00392157"),
    "of 16": (FLOATS * 16, "float64 from 0 to 16"),
    "percent": (FLOATS * 100, "float64 from 0 to 100"),
    "NaN": (np.where(PICTURES == 255, np.nan, FLOATS), "no numbers"),
    "infinite": (np.where(PICTURES == 255, np.inf, FLOATS), "no numbers"),
    "complex": (FLOATS.astype(complex), "complex128"),
    "texts": (PICTURES.astype(str), "<U3"),
    "flat": (PICTURES.reshape(30, -1), r"shape \(30, 16\)"),
    "channels first": (np.zeros((5, 3, 8, 8), np.uint8), "channels come last"),
    "with transparency": (np.zeros((5, 8, 8, 4), np.uint8), r"shape \(5, 8, 8, 4\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_range_without_a_rule_is_refused_by_name(name):
    values, says = REFUSED[name]
    with pytest.raises(DataError, match=f"x_train.*{says}"):
        gate.pixels({"x_train": values})


@pytest.mark.parametrize("other", ["uint8", "float64 of -1 to 1", "float of bytes"])
def test_parts_of_different_rules_are_refused(other):
    with pytest.raises(DataError, match="x_train has values from 0 to 1; x_test has values"):
        gate.pixels({"x_train": form("float32 of 1"), "x_test": form(other)})


def test_parts_of_different_shapes_are_refused():
    with pytest.raises(DataError, match=r"x_test has images of shape \(4, 4, 3\)"):
        gate.pixels({"x_train": PICTURES, "x_test": np.repeat(PICTURES, 3, -1)})


# -- labels --------------------------------------------------------------------------------------------------

GOOD_LABELS = {
    "numbers": (LABELS.astype(np.uint8), [], ["0", "1", "2"]),
    "whole floats": (LABELS.astype(float), [], ["0", "1", "2"]),
    "of MATLAB": (LABELS[None], [], ["0", "1", "2"]),
    "yes and no": (LABELS > 0, [], ["0", "1"]),
    "texts": (np.array(["cat", "dog ", " owl"])[LABELS], [], ["cat", "dog", "owl"]),
    "bytes": (np.array([b"cat", b"dog", b"owl"])[LABELS], [], ["cat", "dog", "owl"]),
    "digits as texts": (LABELS.astype(str), [], ["0", "1", "2"]),
    "texts of given names": (np.array(["b", "a", "c"])[LABELS], ["b", "a", "c"], ["b", "a", "c"]),
}


@pytest.mark.parametrize("name", GOOD_LABELS)
def test_labels_of_every_usual_form(name):
    values, names, classes = GOOD_LABELS[name]
    [found], known = gate.labels({"y": values}, [30], names)
    assert known == classes
    assert found.dtype == np.int64
    assert found.tolist() == ((LABELS > 0) * 1 if len(classes) == 2 else LABELS).tolist()


BAD_LABELS = {
    "halves": (LABELS + 0.5, [], "the label 0.5"),
    "NaN": (np.where(LABELS == 1, np.nan, LABELS), [], "the label nan"),
    "one-hot": (np.eye(3)[LABELS], [], "argmax"),
    "minus two": (LABELS - 2, [], "from -2 to 0"),
    "huge": (LABELS * 2**40, [], "expected classes counted from 0"),
    "too many": (LABELS, ["a", "b"], "a label is 2, the 2 classes"),
    "other names": (np.array(["cat", "dog", "cow"])[LABELS], ["cat", "dog"], "'cow' is none of cat, dog"),
    "an empty text": (np.array(["cat", " ", "dog"])[LABELS], [], "a label is empty"),
    "not UTF-8": (np.array([b"\xff"] * 30), [], "not UTF-8"),
    "complex": (LABELS + 0j, [], "complex128"),
    "too few": (LABELS[:29], [], "29 labels for 30 images"),
}


@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_that_are_none_are_refused(name):
    values, names, says = BAD_LABELS[name]
    with pytest.raises(DataError, match=f"y_train.*{says}"):
        gate.labels({"y_train": values}, [30], names)


# -- prepared from files -------------------------------------------------------------------------------------


@pytest.fixture
def prepare(tmp_path, monkeypatch):
    """Prepares a set of these files and returns it, with what was found of it."""

    def prepared(reader, files, names=(), domains=("mine",), **more):
        canonical = registry.Canonical(reader, dict.fromkeys(files, ""), page="x")
        entry = registry.DataSet(
            "Mine", [4, 4, 3], names=list(names), domains=list(domains), canonical=canonical, **more
        )
        monkeypatch.setitem(registry.sets(), "mine", entry)
        for name, content in files.items():
            path = tmp_path / "raw" / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        sources.prepare("mine", tmp_path / "mine")
        return store.verify(tmp_path / "mine"), twins.read(tmp_path / "mine.found.json")

    return prepared


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return {"a.npz": file.getvalue()}


def pair(images=PICTURES, labels=LABELS):
    """Twenty images for training, ten for testing."""
    return {"x_train": images[:20], "y_train": labels[:20], "x_test": images[20:], "y_test": labels[20:]}


def picture(number):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(file, "PNG")
    return file.getvalue()


def archive(members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        for name, content in members.items():
            target.writestr(name, content)
    return file.getvalue()


def tree(*folders):
    """An image in each folder, no two the same."""
    return {f"top/{folder}/{at}.png": picture(255 - at) for at, folder in enumerate(folders)}


def test_floats_are_stored_as_the_bytes_that_they_were(prepare):
    stored, found = prepare("arrays", npz(**pair(PICTURES / 255.0)))
    assert np.array_equal(stored.images, PICTURES)
    assert not found


def test_classes_counted_from_one_are_refused(prepare):
    with pytest.raises(DataError, match="mine: the labels go from 1 to 3 and no image is of class 0"):
        prepare("arrays", npz(**pair(labels=LABELS + 1)))


def test_minus_one_and_one_are_no_classes(prepare):
    with pytest.raises(DataError, match="no image is of class 0"):
        prepare("arrays", npz(**pair(labels=np.where(LABELS > 0, 1, -1))))


def test_images_without_a_label_are_told(prepare):
    _, found = prepare("arrays", npz(**pair(labels=np.where(np.arange(30) < 4, -1, LABELS))))
    assert found == {"unlabelled": 4}


def test_arrays_that_nobody_takes_are_named(prepare, capsys):
    prepare("arrays", npz(**pair(), x_val=PICTURES, y_val=LABELS))
    assert "a.npz: left out, no part of the set: x_val, y_val" in capsys.readouterr().err


def test_a_dark_set_is_told(prepare):
    _, found = prepare("arrays", npz(**pair(PICTURES // 16)))
    assert found["dark"] == 15


def test_a_class_that_only_test_has_is_refused(prepare):
    members = tree("train/cat", "train/dog", "test/cat", "test/dog", "test/bird")
    with pytest.raises(DataError, match="a.zip: test/ has the class bird, which train/ lacks"):
        prepare("image_folder", {"a.zip": archive(members)})


def test_a_third_part_is_told_with_its_images(prepare):
    members = tree("train/cat", "train/dog", "val/cat", "val/dog", "test/cat", "test/dog")
    stored, found = prepare("image_folder", {"a.zip": archive(members)})
    assert len(stored) == 4
    assert found["left_out"] == {"top/val/cat": 1, "top/val/dog": 1}


@pytest.mark.parametrize(
    "train, test", [("Train", "TEST"), ("training", "validation"), ("imgs_train", "val")]
)
def test_parts_are_known_by_their_usual_names(prepare, train, test):
    members = tree(*(f"{part}/{label}" for part in (train, test) for label in ("cat", "dog")))
    stored, _ = prepare("image_folder", {"a.zip": archive(members)})
    assert stored.split.tolist() == [0, 0, 1, 1]
    assert stored.meta["classes"] == ["cat", "dog"]


def test_images_without_a_user_are_told(prepare):
    text = "file,label,writer\n0.png,a,w1\n1.png,b,\n2.png,a, \n"
    _, found = prepare("table", of_list(text))
    assert found["blank"] == {"writer": 2}


def test_a_part_is_no_class(prepare):
    with pytest.raises(DataError, match="expected train/ and test/, or a folder per class"):
        prepare("image_folder", {"a.zip": archive(tree("train/cat", "holdout/cat"))})


def test_a_domain_that_nobody_takes_is_told(prepare):
    members = tree(
        *(f"{domain}/{label}" for domain in ("photo", "art", "sketch") for label in ("cat", "dog"))
    )
    _, found = prepare("folders", {"a.zip": archive(members)}, domains=("photo", "art"))
    assert found["left_out"] == {"top/sketch/cat": 1, "top/sketch/dog": 1}


def test_classes_that_differ_in_capitals_are_refused(prepare):
    with pytest.raises(DataError, match="'Cat' and 'cat' differ in capitals alone"):
        prepare("image_folder", {"a.zip": archive(tree("Cat", "cat"))})


def of_list(text):
    return {"t.csv": text.encode(), "a.zip": archive({f"{at}.png": picture(150 + at) for at in range(6)})}


ROWS = "0.png,a,train\n1.png,b,train\n2.png,a,test\n3.png,b,test\n"


@pytest.mark.parametrize(
    "text",
    [
        f"file,label,split\n{ROWS}",
        f"File, LABEL ,Split\n{ROWS}",
        f"\ufefffile;label;split\n{ROWS}".replace(",", ";"),
        f"file,label,split\n{ROWS}".replace(",", "\t"),
        f"file,label,split\r\n{ROWS}".replace("\n", "\r\n").replace("\r\r", "\r"),
        f"file,label,split\n{ROWS}".replace(",a", ", a ").replace("train", "Train"),
        f'"file","label",split\n{ROWS}'.replace("0.png", "./0.png"),
        f'" file","label "," SPLIT "\n{ROWS}',
    ],
)
def test_a_list_means_the_same_however_it_is_written(prepare, text):
    stored, found = prepare("table", of_list(text))
    assert stored.split.tolist() == [0, 0, 1, 1]
    assert stored.meta["classes"] == ["a", "b"]
    assert stored.labels.tolist() == [0, 1, 0, 1]
    assert found["left_out"] == {".": 2}


@pytest.mark.parametrize(
    "text, says",
    [
        (
            f"file,label,split\n{ROWS}0.png,a,test\n",
            "t.csv:6: 0.png is in line 2 already, with another split",
        ),
        (f"file,label,split\n{ROWS}./0.png,a,train\n", "t.csv:6: 0.png is in line 2 already"),
        (f"path,label,split\n{ROWS}", "t.csv:1: expected the columns file and label"),
        (f"file,label,split,Split\n{ROWS}", "t.csv:1: the column 'split' is there twice"),
        ("file,label\n0.png,a\n1.png\n", "t.csv:3: cannot be read .1 fields, the columns are 2"),
        ("file,label,split\n0.png,a,holdout\n", "t.csv:2: split 'holdout' is none of train, test"),
        ("file,label\n0.png,\n", "t.csv:2: label '' is none of"),
        ("file,label\n9.png,a\n", "t.csv:2: '9.png' is not in .*a.zip"),
        ("file,label\n", "t.csv: lists no image"),
        ("", "t.csv: is empty"),
    ],
)
def test_a_wrong_list_is_one_line_that_names_the_line(prepare, text, says):
    with pytest.raises(DataError, match=says):
        prepare("table", of_list(text))


@pytest.mark.parametrize(
    "content, says",
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "a pointer of Git LFS"),
        (b"Rar!\x1a\x07\x01\x00", "a .rar archive"),
        (b"\n<!DOCTYPE html>\n<title>Sign in</title>", "a web page"),
        (b"", "is empty"),
        (archive(tree("cat", "dog"))[:200], "is a .zip archive that is cut or damaged"),
        (
            archive({"train.zip": archive(tree("cat", "dog"))}),
            r"it holds archives \(train.zip\): unpack them",
        ),
    ],
)
def test_what_is_no_archive_of_images_is_one_line(prepare, content, says):
    with pytest.raises(DataError, match=says) as error:
        prepare("image_folder", {"a.zip": content})
    assert "\n" not in str(error.value)


def tar(members):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as target:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            target.addfile(member, io.BytesIO(content))
    return file.getvalue()


def twice():
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as target:
        warnings.simplefilter("ignore")
        for name, content in [*tree("cat", "dog").items(), ("top/./cat/0.png", picture(3))]:
            target.writestr(name, content)
    return file.getvalue()


# a header and the one block of its picture
MEMBER = 1024
TAR = tar(tree("cat", "dog", "owl"))


@pytest.mark.parametrize(
    "content",
    [
        TAR[: 2 * MEMBER],
        TAR[: 2 * MEMBER + 100],
        TAR[: 2 * MEMBER] + b"x" + TAR[2 * MEMBER + 1 :],
        TAR + tar(tree("fox")),
        gzip.compress(TAR[: 2 * MEMBER] + b"x" + TAR[2 * MEMBER + 1 :]),
    ],
    ids=["cut behind a file", "cut in a header", "a damaged header", "two behind each other", "packed"],
)
def test_files_of_a_tar_that_tarfile_passes_over_are_noticed(prepare, content):
    with pytest.raises(DataError, match=r"a.tar: is a .tar.* archive that is cut or damaged"):
        prepare("image_folder", {"a.tar": content})


@pytest.mark.parametrize("form", ["tar", "tar.gz"])
def test_a_tar_that_ends_with_a_zip_is_a_tar(prepare, form):
    members = {**tree("cat", "dog"), "top/more.zip": archive(tree("owl", "fox"))}
    content = tar(members) if form == "tar" else gzip.compress(tar(members), 0)
    stored, found = prepare("image_folder", {f"a.{form}": content})
    assert stored.meta["classes"] == ["cat", "dog"]
    assert found["left_out"] == {"top": 1}


def test_two_files_of_one_name_are_refused(prepare):
    with pytest.raises(DataError, match="a.zip: holds two files of the name 'top/./cat/0.png'"):
        prepare("image_folder", {"a.zip": twice()})


def broken_reader(files, scratch, entry):
    return {}["no such key"]


def poor_reader(files, scratch, entry):
    return files


def float_reader(files, scratch, entry):
    none = np.zeros(30, np.int64)
    return Arrays(PICTURES / 255.0, LABELS.astype(float), none, none, ["a", "b", "c"])


@pytest.mark.parametrize(
    "reader, says", [(broken_reader, "its reader fails: KeyError"), (poor_reader, "its reader returns list")]
)
def test_a_paper_s_reader_that_fails_is_one_line(prepare, reader, says):
    with pytest.raises(DataError, match=f"mine: {says}"):
        prepare(reader, {"a.bin": b"1"})


def test_a_paper_s_reader_passes_the_same_gate(prepare):
    stored, _ = prepare(float_reader, {"a.bin": b"1"})
    assert np.array_equal(stored.images, PICTURES)
    assert stored.labels.tolist() == LABELS.tolist()


def own(**changes):
    """A reader whose arrays differ from good ones in this."""
    none = np.zeros(30, np.int64)
    good = {"images": PICTURES, "labels": LABELS, "domains": none, "split": none, "classes": ["a", "b", "c"]}

    def reader(files, scratch, entry):
        return Arrays(**(good | changes))

    return reader


def failing():
    yield PICTURES[:10]
    raise KeyError("no such file")


WRONG_ARRAYS = {
    "a split of halves": ({"split": LABELS / 2}, "the parts .* go from 0 to 1, expected 0 to 1"),
    "a split that wraps": ({"split": LABELS * 256}, "the parts .* go from 0 to 512, expected 0 to 1"),
    "a split of texts": ({"split": np.array(["train"] * 30)}, "the parts .* are <U5"),
    "a short split": ({"split": LABELS[:9] * 0}, r"the parts .* have the shape \(9,\)"),
    "domains of halves": ({"domains": np.full(30, 0.5)}, "the domains go from 0.5"),
    "an unknown domain": ({"domains": LABELS}, "the domains go from 0 to 2, expected 0 to 0"),
    "a class twice": ({"classes": ["a", "b", "a"]}, "the classes a, a, b are not each there once"),
    "classes of numbers": ({"classes": [0, 1, 2]}, "the class 0 is int, expected a text"),
    "a column of objects": ({"columns": {"user": np.array([None] * 30)}}, "the column 'user' holds object"),
    "blocks that fail": ({"images": failing()}, "its reader fails: KeyError: 'no such file'"),
    "blocks of two rules": (
        {"images": iter([PICTURES[:9], PICTURES[9:] / 255.0])},
        "values from 0 to 255; .* values from 0 to 1: expected the same",
    ),
    "a block of another range": ({"images": iter([PICTURES / 255.0 / 255.0])}, "a range without a rule"),
}


@pytest.mark.parametrize("name", WRONG_ARRAYS)
def test_what_a_reader_returns_is_not_bent(prepare, name):
    changes, says = WRONG_ARRAYS[name]
    with pytest.raises(DataError, match=f"^mine: .*{says}"):
        prepare(own(**changes), {"a.bin": b"1"})


def test_an_error_of_a_reader_names_the_set(prepare):
    short = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 2, 1, 1]))
    with pytest.raises(DataError, match="mine: the training images has the shape"):
        prepare("idx", {f"{at}.gz": short for at in range(4)})


# -- twins ---------------------------------------------------------------------------------------------------


def with_twins():
    """Two pictures of the training part are also tested on, one of them with another label."""
    arrays = pair(PICTURES.copy(), LABELS.copy())
    arrays["x_test"][:2] = arrays["x_train"][:2]
    arrays["y_test"][:2] = arrays["y_train"][0], arrays["y_train"][1] + 1
    return arrays


def test_pictures_in_both_parts_are_counted(prepare):
    _, found = prepare("arrays", npz(**with_twins()))
    assert found["twins"] == {"pictures": 2, "images": 4, "labels": 1, "across": 2, "tests": 10}


def test_twins_are_removed_from_the_training_part(prepare):
    stored, found = prepare("arrays", npz(**with_twins()), without_twins=True)
    assert (stored.split == 0).sum() == 18
    assert (stored.split == 1).sum() == 10
    assert not found
    assert stored.meta["deviation"] == "2 images left out that another is the same as"


def test_what_was_found_goes_when_the_set_has_none_any_more(prepare, tmp_path):
    prepare("arrays", npz(**with_twins()))
    prepare("arrays", npz(**pair()))
    assert not (tmp_path / "mine.found.json").exists()


def test_a_partition_counts_tested_images_that_are_trained_on():
    known = twins.keys(np.concatenate([PICTURES[:4], PICTURES[:2]]))
    parts = Parts(
        [("0", "all"), ("1", "all")], [np.array([0, 2]), np.array([3])], [], {"all": np.array([1, 4])}
    )
    parts.client_test = [np.array([4]), np.array([5])]
    assert twins.of_parts(parts, known) == {"all": [1, 2]}
    parts.domain_test = {}
    assert twins.of_parts(parts, known) == {"0": [1, 1], "1": [0, 1]}


@pytest.mark.parametrize("document", ["[]", "{", '{"twins": {}}', '{"twins": 3, "left_out": []}', "null"])
def test_a_damaged_note_says_nothing(tmp_path, document):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.found.json").write_text(document)
    assert gate.told("mine", tmp_path) == []


# -- properties ----------------------------------------------------------------------------------------------

TYPES = (
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "complex64",
    "<U3",
)
SHAPES = ((6, 4, 4), (6, 4, 4, 1), (6, 4, 4, 3), (6, 16), (6, 3, 4, 4), (6,), (6, 4, 4, 4), (0, 4, 4))
SCALES = (1, 255, 1 / 255, 1 / 127.5, 16, 1e9, float("nan"))
OFFSETS = (0, -1, -0.5, 7)
LABEL = st.one_of(st.integers(-3, 12), st.floats(), st.text("01 -.abé", max_size=3), st.booleans())


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(TYPES),
    st.sampled_from(SHAPES),
    st.sampled_from(SCALES),
    st.sampled_from((0, -1, -0.5, 7)),
)
def test_pixels_of_any_type_are_converted_or_refused_in_one_line(kind, shape, scale, offset):
    values = np.random.default_rng(1).integers(0, 256, shape)
    with np.errstate(all="ignore"):
        given_ = (values * scale + offset).astype(kind)
    try:
        [images] = gate.pixels({"x": given_})
    except DataError as error:
        assert str(error).startswith("x ")
        assert "\n" not in str(error)
        return
    assert images.dtype == np.uint8
    assert images.shape[:3] == shape[:3]
    if not images.size:
        return
    stored, before = images.ravel().astype(float), given_.ravel().astype(float)
    if np.ptp(before):  # grey levels lie on one line: nothing wrapped or was cut off
        slope = np.ptp(stored) / np.ptp(before)
        assert np.abs(stored - stored.min() - slope * (before - before.min())).max() <= 1
        assert np.ptp(stored) > 128 or kind.endswith(("int8", "int16", "int64"))  # a dark set is told


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.lists(
        st.one_of(st.integers(-3, 12), st.floats(), st.text("01 -.abé", max_size=3), st.booleans()),
        max_size=8,
    )
)
def test_labels_of_any_form_are_numbered_or_refused_in_one_line(values):
    given_ = np.array(values) if values else np.array([], np.int64)
    try:
        [found], classes = gate.labels({"y": given_}, [len(values)], [])
    except DataError as error:
        assert "\n" not in str(error)
        return
    assert len(found) == len(values)
    assert found.dtype == np.int64
    assert all(-1 <= label < len(classes) for label in found)
    same = [str(value).strip() for value in given_.tolist()]
    assert len(set(found.tolist())) >= len(set(same)) - sum(text.startswith("0") for text in set(same))


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.text(alphabet='file,label;\t\n" ab/.\\', max_size=60))
def test_a_list_of_any_text_is_read_or_refused_in_one_line(text):
    for start in ("", "file,label\n", "file;label;split\n"):
        try:
            lines = listing(start + text, "t.csv")
        except DataError as error:
            assert str(error).startswith("t.csv")
            assert "\n" not in str(error)
            continue
        assert all({"file", "label"} <= row.keys() and ".." not in row["file"].split("/") for _, row in lines)


def test_a_tree_of_any_folders_loses_no_image_silently(prepare):
    """Every image of the archive is stored, told as left out, or the set is refused."""
    draw = random.Random(0)
    names = ("train", "test", "val", "cat", "dog", "images", "Train", "a b")
    for _ in range(40):
        depth = draw.choice((1, 2, 2, 3))
        folders = {"/".join(draw.choice(names) for _ in range(depth)) for _ in range(draw.randint(1, 6))}
        members = tree(*sorted(folders))
        try:
            stored, found = prepare("image_folder", {"a.zip": archive(members)})
        except DataError as error:
            assert "\n" not in str(error)
            continue
        told = sum(found.get("left_out", {}).values())
        assert len(stored) + told == len(members), sorted(members)
