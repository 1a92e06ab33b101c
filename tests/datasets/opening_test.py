"""Datasets: arrays, folders, CSV, TFRecord and TFDS; splits and errors."""

import hashlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import (
    PREPARED,
    needs_prepared,
    write_prepared,
    write_records,
)
from PIL import Image, ImageOps
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets, errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, split_spec
from tf_contrastive.doctor import memory

ROOT = Path(__file__).resolve().parents[2]
DIGITS = sklearn_datasets.load_digits()


def picture(index, size=(12, 10), mode="RGB"):
    rng = np.random.default_rng(index)
    shape = (*size, 4 if mode == "RGBA" else 3)
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    return Image.fromarray(pixels, "RGBA" if mode == "RGBA" else "RGB").convert(
        mode
    )


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def truncated_jpeg():
    contents = encoded(picture(0, (200, 200)), "JPEG")
    return contents[: len(contents) // 2]


def write(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def class_folders(root, classes=("cat", "dog"), per_class=3, start=0):
    for c, name in enumerate(classes):
        for i in range(per_class):
            image = picture(start + 100 * c + i)
            write(root / name / f"{i}.png", encoded(image))
    return root


def read(source):
    return list(source.examples().as_numpy_iterator())


def labels(source):
    return [int(example["label"]) for example in read(source)]


def refused(*words, **kwargs):
    with pytest.raises(errors.UserError) as caught:
        datasets.source(**kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def run_python(code, *words):
    """Runs code in a process of its own; returns what it prints."""
    path = os.pathsep.join([str(ROOT), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


# ---- Arrays and digits ---


def test_digits_are_stratified_splits_of_scikit_learn_s():
    train, test = (datasets.source("digits", s) for s in ("train", "test"))
    assert (train.info.num_examples, test.info.num_examples) == (1437, 360)
    assert train.info.image_shape == (8, 8, 3)
    assert train.info.num_classes == 10
    assert train.info.label_names == tuple("0123456789")
    rows = [
        (e["image"][..., 0], e["label"]) for s in (train, test) for e in read(s)
    ]
    ours = sorted((image.tobytes(), int(label)) for image, label in rows)
    grey = np.rint(DIGITS.images * 255 / 16).astype(np.uint8)
    theirs = sorted(
        (g.tobytes(), int(t)) for g, t in zip(grey, DIGITS.target, strict=True)
    )
    assert ours == theirs
    shares = np.bincount(labels(test)) / np.bincount(DIGITS.target)
    assert np.all(np.abs(shares - 0.2) < 0.01)


def test_load_gives_examples_and_info():
    data, info = datasets.load("digits", "test")
    assert data.element_spec["image"].dtype == tf.uint8
    assert data.element_spec["label"] == tf.TensorSpec([], tf.int64)
    assert len(list(data)) == info.num_examples == 360


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 6, 5, 1), (4, 6, 5, 3)])
def test_arrays_of_any_layout_become_rgb(shape):
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    source = datasets.from_arrays(images, [0, 2, 1, 0])
    got = np.stack([e["image"] for e in read(source)])
    expected = images if len(shape) == 4 else images[..., None]
    np.testing.assert_array_equal(got, np.broadcast_to(expected, got.shape))
    assert got.shape == (4, 6, 5, 3)
    assert source.info.num_classes == 3
    assert labels(source) == [0, 2, 1, 0]


def test_float_arrays_are_rounded_to_8_bits():
    source = datasets.from_arrays(np.array([[[0.0, 0.5, 1.0]]]))
    assert read(source)[0]["image"][0, :, 0].tolist() == [0, 128, 255]
    assert not source.info.has_labels and "label" not in read(source)[0]


@pytest.mark.parametrize(
    ("given", "names", "expected", "classes"),
    [
        (["dog", "cat", "dog"], None, [1, 0, 1], ("cat", "dog")),
        (["dog", "cat", "dog"], ("dog", "cat", "ox"), [0, 1, 0], 3),
        ([[0, 1, 0], [1, 0, 0], [0, 1, 0]], None, [1, 0, 1], 3),
        (np.eye(4)[[3, 0, 3]], None, [3, 0, 3], 4),
    ],
    ids=["names", "listed", "one-hot", "float"],
)
def test_labels_may_be_names_or_one_hot(given, names, expected, classes):
    images = np.zeros([3, 2, 2], np.uint8)
    source = datasets.from_arrays(images, given, names)
    assert labels(source) == expected
    if isinstance(classes, tuple):
        assert source.info.label_names == classes
        classes = len(classes)
    assert source.info.num_classes == classes


def test_a_label_without_a_name_is_refused():
    images = np.zeros([2, 2, 2], np.uint8)
    with pytest.raises(errors.UserError, match="label 'ox' is not one of"):
        datasets.from_arrays(images, ["cat", "ox"], ("cat", "dog"))


@pytest.mark.parametrize(
    ("images", "given", "words"),
    [
        (np.full([2, 4, 4], 255.0), None, "float images between 255 and 255"),
        (np.zeros([2, 4, 4], np.int32), None, "int32"),
        (np.zeros([2, 4, 4, 2], np.uint8), None, "[2, 4, 4, 2]"),
        (np.zeros([0, 4, 4], np.uint8), None, "at least one pixel"),
        (np.zeros([2, 4, 4], np.uint8), [0, 1, 2], "names [2]"),
        (np.zeros([2, 4, 4], np.uint8), [0, -1], "at least 0"),
        (np.zeros([2, 4, 4], np.uint8), [0.5, 1.0], "float64"),
        (np.zeros([2, 4, 4], np.uint8), [[1, 1], [0, 1]], "one-hot rows"),
    ],
)
def test_invalid_arrays_are_refused(images, given, words):
    with pytest.raises(errors.UserError) as caught:
        datasets.from_arrays(images, given)
    assert words in str(caught.value)


# ---- Splits ---


@pytest.mark.parametrize(
    "slice_",
    ["", "[:7]", "[10%:]", "[:33%]", "[5:20]", "[-12:]", "[:-5%]", "[20%:41%]"],
)
def test_slices_are_those_of_tfds(slice_):
    import tensorflow_datasets as tfds

    infos = {
        "train": tfds.core.SplitInfo(
            name="train", shard_lengths=[1437], num_bytes=0
        )
    }
    instruction = tfds.core.ReadInstruction.from_spec("train" + slice_)
    (theirs,) = instruction.to_absolute(infos)
    expected = (theirs.from_ or 0, 1437 if theirs.to is None else theirs.to)
    assert split_spec.bounds("train" + slice_, 1437) == expected


def test_the_random_order_needs_no_secure_hash(monkeypatch):
    names = ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    md5 = hashlib.md5

    def fips(*words, usedforsecurity=True):
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return md5(*words, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", fips)
    # Always the same: the test images of earlier runs depend on it.
    assert split_spec.random_order(names).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("trian", "did you mean 'train'?"),
        ("train[0]", "train[:1000]"),
        ("train[:2000]", "1437"),
        ("train[9:9]", "is empty"),
    ],
)
def test_wrong_splits_are_refused(split, words):
    refused(words, name="digits", split=split)


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_validation_splits_are_stratified_and_disjoint(name, tmp_path):
    if name == "folder":
        class_folders(tmp_path, per_class=10)
        name = f"folder:{tmp_path}"
    source = datasets.source(name)
    train, validation = source.split_validation(0.1, seed=3)
    again = source.split_validation(0.1, seed=3)[1]
    other = source.split_validation(0.1, seed=4)[1]
    classes = np.bincount(labels(source))
    cut = np.bincount(labels(validation))
    np.testing.assert_array_equal(cut, np.rint(0.1 * classes))
    whole, kept, cut, cut_again, cut_other = (
        sorted(e["image"].tobytes() for e in read(s))
        for s in (source, train, validation, again, other)
    )
    assert sorted(kept + cut) == whole
    assert cut == cut_again != cut_other
    assert len(kept) == train.info.num_examples


def test_an_empty_validation_split_is_refused():
    source = datasets.from_arrays(np.zeros([4, 2, 2], np.uint8))
    with pytest.raises(errors.UserError, match=r"cuts 0 of the 4 examples"):
        source.split_validation(0.01, seed=0)


# ---- Folders ---


def test_class_folders_are_labels_in_sorted_order(tmp_path):
    class_folders(tmp_path, ("dog", "ant", "cat"))
    write(tmp_path / "cat" / "deep" / "x.PNG", encoded(picture(7)))
    write(tmp_path / "cat" / "notes.txt", b"no image")
    write(tmp_path / ".cache" / "y.png", encoded(picture(8)))
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("ant", "cat", "dog")
    assert source.info.num_classes == 3
    assert source.info.image_shape == (12, 10, 3)
    assert labels(source) == [0] * 3 + [1] * 4 + [2] * 3
    np.testing.assert_array_equal(  # ant is the second of the call above.
        read(source)[0]["image"], np.asarray(picture(100))
    )


def test_listings_of_object_stores_are_walked(tmp_path, monkeypatch):
    class_folders(tmp_path / "train")
    listdir = tf.io.gfile.listdir

    def of_store(path):
        names = listdir(path)
        slash = [n + "/" * os.path.isdir(f"{path}/{n}") for n in names]
        return [*slash, "/"]

    monkeypatch.setattr(tf.io.gfile, "listdir", of_store)
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("cat", "dog")
    assert source.info.num_examples == 6


def test_a_class_name_has_no_line_break(tmp_path):
    class_folders(tmp_path, ("a\nb", "c"))
    refused("'a\\nb'", "rename", name=f"folder:{tmp_path}")


@pytest.mark.parametrize("where", ["direct", "single"])
def test_trees_without_classes_are_unlabelled(where, tmp_path):
    below = tmp_path if where == "direct" else tmp_path / "photos"
    write(below / "a.png", encoded(picture(1)))
    write(below / "2020" / "b.jpg", encoded(picture(2, (20, 20)), "JPEG"))
    write(below / "2021" / "c.gif", encoded(picture(3), "GIF"))
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.num_examples == 3
    assert source.info.image_shape is None
    assert not source.info.has_labels
    assert all("label" not in example for example in read(source))


def test_a_slice_of_a_folder_is_a_sample_of_all_classes(tmp_path):
    class_folders(tmp_path, ("ant", "cat", "dog"), per_class=20)
    name = f"folder:{tmp_path}"
    parts = [datasets.source(name, s) for s in ("train[:70%]", "train[70%:]")]
    assert all(np.bincount(labels(part)).min() > 1 for part in parts)
    files = [{e["image"].tobytes() for e in read(part)} for part in parts]
    assert [len(f) for f in files] == [42, 18] and not files[0] & files[1]


def test_a_test_split_is_held_out_of_each_class(tmp_path):
    root = tmp_path / "images"
    class_folders(root, ("ant", "dog"), per_class=20)
    class_folders(root, ("cat",), per_class=2, start=500)
    name = f"folder:{root}"
    with pytest.raises(errors.AbsentSplitError, match="test_fraction"):
        datasets.source(name, "test")
    reading = Reading(test_fraction=0.1)
    found = {}
    for split in ("train", "test"):
        source = datasets.source(name, split, reading=reading)
        assert source.info.label_names == ("ant", "cat", "dog")
        found[split] = {e["image"].tobytes() for e in read(source)}
        expected = [18, 1, 18] if split == "train" else [2, 1, 2]
        assert np.bincount(labels(source)).tolist() == expected
    assert not found["train"] & found["test"]
    # The same images, wherever the folder is.
    root.rename(tmp_path / "moved")
    moved = datasets.from_folder(tmp_path / "moved", "test", test_fraction=0.1)
    assert {e["image"].tobytes() for e in read(moved)} == found["test"]


def test_a_test_split_is_held_out_of_a_single_split_folder(tmp_path):
    class_folders(tmp_path / "train", ("ant", "dog"), per_class=20)
    (tmp_path / "annotations").mkdir()
    name = f"folder:{tmp_path}"
    with pytest.raises(errors.AbsentSplitError, match="or set test_fraction"):
        datasets.source(name, "test")
    assert datasets.source(name).info.num_examples == 40
    parts = [
        datasets.source(name, split, reading=Reading(test_fraction=0.1))
        for split in ("train", "test")
    ]
    counts = [np.bincount(labels(part)).tolist() for part in parts]
    assert counts == [[18, 18], [2, 2]]
    train, test = ({e["image"].tobytes() for e in read(p)} for p in parts)
    assert not train & test


@pytest.mark.parametrize(
    "name",
    [
        "digits",
        "subset:fraction=0.5,of=digits",
        "tfrecord:{}/a.tfrecord",
        "packed:{}/packed",
        "folder:{}/both",
        "csv:{}/{{split}}.csv",
    ],
)
def test_a_fraction_that_cannot_be_held_out_is_refused(name, tmp_path):
    for split in ("train", "test"):
        class_folders(tmp_path / "both" / split)
    datasets.pack(
        datasets.source(f"folder:{tmp_path}/both"), f"{tmp_path}/packed", 8
    )
    csv(tmp_path / "train.csv", "both/train/cat/0.png,a")
    write_records(tmp_path / "a.tfrecord", [{"image": encoded(picture(0))}])
    name = name.format(tmp_path)
    datasets.source(name)
    reading = Reading(test_fraction=0.2)
    refused("test_fraction=0.2 has no effect", name=name, reading=reading)


def test_empty_and_linked_folders_are_no_classes(tmp_path):
    root = tmp_path / "images"
    class_folders(root, ("cat", "dog"))
    (root / "empty" / "deep").mkdir(parents=True)
    (root / "alias").symlink_to(root / "dog")
    (root / "cat" / "loop").symlink_to(root)
    class_folders(tmp_path / "far", ("elk",))
    (root / "elk").symlink_to(tmp_path / "far" / "elk")
    source = datasets.source(f"folder:{root}")
    assert source.info.label_names == ("cat", "dog", "elk")
    assert source.info.num_examples == 9


def test_paths_without_a_scheme_get_one(tmp_path):
    class_folders(tmp_path)
    refused(f"folder:{tmp_path}", name=str(tmp_path))
    refused("is a file", name=f"folder:{tmp_path}/cat/0.png")


# Root may read everything.
_WITHOUT_PERMISSION = """
import os, sys
from tf_contrastive import datasets, errors
folder = sys.argv[1]
if os.getuid() == 0:
    # First what TensorFlow imports late, which another user may not read.
    datasets.source(f"folder:{folder}/images")
    datasets.source(f"tfrecord:{folder}/a.tfrecord")
    os.setuid(65534)
source = datasets.source(f"folder:{folder}/images")
print(source.info.label_names, source.info.num_examples)
for name in ("folder:{}/locked", "csv:{}/list.csv", "tfrecord:{}/a.tfrecord"):
    try:
        datasets.source(name.format(folder))
    except errors.UserError as error:
        print(error)
"""


def test_files_without_permission_are_an_error_of_one_line():
    # Not in tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        class_folders(path / "images")
        (path / "images" / "lost+found").mkdir()
        (path / "locked").mkdir()
        csv(path / "list.csv", "images/cat/0.png,a")
        write_records(path / "a.tfrecord", [{"image": encoded(picture(0))}])
        for name in ("images/lost+found", "locked", "list.csv", "a.tfrecord"):
            (path / name).chmod(0)
        printed = run_python(_WITHOUT_PERMISSION, folder)
    first, *others = printed.splitlines()
    assert first == "('cat', 'dog') 6"
    assert len(others) == 3
    for line, name in zip(
        others, ("locked", "list.csv", "a.tfrecord"), strict=True
    ):
        assert name in line and "ermission denied" in line


def test_split_folders_share_their_classes(tmp_path):
    class_folders(tmp_path / "train", ("ant", "bee", "cat"))
    class_folders(tmp_path / "test", ("ant", "cat"), start=50)
    source = datasets.source(f"folder:{tmp_path}", "test")
    assert labels(source) == [0, 0, 0, 2, 2, 2]
    assert source.info.num_classes == 3
    assert datasets.source(f"folder:{tmp_path}").info.num_examples == 9
    refused("test, train", name=f"folder:{tmp_path}", split="val")


@pytest.mark.parametrize("split", ["train", "test", "train[:50%]"])
def test_a_class_called_like_a_split_is_refused(split, tmp_path):
    class_folders(tmp_path, ("bus", "car", "train"))
    refused(
        "bus, car",
        "rename train",
        "move the others",
        name=f"folder:{tmp_path}",
        split=split,
    )
    # By its name any folder is a split.
    source = datasets.source(f"folder:{tmp_path}", "bus")
    assert source.info.num_examples == 3
    (tmp_path / "train").rename(tmp_path / "trains")
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("bus", "car", "trains")


def test_folders_without_images_may_be_beside_splits(tmp_path):
    for split in ("train", "val"):
        class_folders(tmp_path / split)
        write(tmp_path / "annotations" / split / "0.xml", b"")
    class_folders(tmp_path / ".thumbnails")
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("cat", "dog")


def test_every_image_format_becomes_rgb(tmp_path):
    big = (30, 20)
    rgba = picture(3, big, "RGBA")
    sixteen = Image.fromarray(
        np.arange(600, dtype=np.uint16).reshape(big) * 100
    )
    frames = [picture(i, big).convert("P") for i in (4, 5)]
    kinds = {
        "a_grey.jpg": encoded(picture(1, big, "L"), "JPEG"),
        "b_cmyk.JPEG": encoded(picture(2, big, "CMYK"), "JPEG"),
        "c_rgba.png": encoded(rgba),
        "d_16bit.png": encoded(sixteen),
        "e_moving.gif": encoded(
            frames[0], "GIF", save_all=True, append_images=frames[1:]
        ),
        "f_rgba.bmp": encoded(rgba, "BMP"),
        "g_palette.png": encoded(frames[0]),
    }
    for name, contents in kinds.items():
        write(tmp_path / name, contents)
    examples = read(datasets.source(f"folder:{tmp_path}"))
    assert [e["image"].shape for e in examples] == [(30, 20, 3)] * len(kinds)
    without_alpha = np.asarray(rgba)[..., :3]
    np.testing.assert_array_equal(examples[2]["image"], without_alpha)
    np.testing.assert_array_equal(examples[5]["image"], without_alpha)
    upper = np.asarray(sixteen) >> 8
    np.testing.assert_allclose(examples[3]["image"][..., 0], upper, atol=1)
    first_frame = np.asarray(frames[0].convert("RGB"))
    np.testing.assert_array_equal(examples[4]["image"], first_frame)
    np.testing.assert_array_equal(examples[6]["image"], first_frame)


def test_images_of_extreme_sizes_are_read(tmp_path):
    sizes = {
        "a.jpg": (4_000, 5_000),
        "b.png": (1, 1),
        "c.jpg": (1, 5_000),
        "d.png": (5_000, 1),
    }
    for name, (height, width) in sizes.items():
        Image.new("L", (width, height), 77).save(tmp_path / name)
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.num_examples == 4 and not source.info.bad_images
    for example, size in zip(
        source.examples().as_numpy_iterator(), sizes.values(), strict=True
    ):
        assert example["image"].shape == (*size, 3)
        assert np.all(example["image"][:, -1] == 77)


@pytest.mark.parametrize("endian", ["<", ">"])
def test_exif_orientation_is_that_of_pillow(endian, tmp_path):
    picture(0, (30, 20)).save(tmp_path / "0.jpg", quality=95)
    for turn in range(1, 9):
        exif = Image.Exif()
        exif.endian = endian
        exif[0x010F] = "maker"  # Another entry, before the orientation.
        exif[0x0112] = turn
        contents = encoded(picture(turn, (30, 20)), "JPEG", exif=exif)
        write(tmp_path / f"{turn}.jpg", contents)
    # Without EXIF, and with what only looks like it.
    write(tmp_path / "9.png", encoded(picture(9)))
    write(tmp_path / "a.png", encoded(picture(9)) + b"Exif\0\0II*\0")
    name = f"folder:{tmp_path}"
    for exif in ("apply", "ignore"):
        source = datasets.source(name, reading=Reading(exif=exif))
        for path, example in zip(
            sorted(tmp_path.iterdir()), read(source), strict=True
        ):
            expected = Image.open(path)
            if exif == "apply":
                expected = ImageOps.exif_transpose(expected)
            pixels = np.asarray(expected, int)
            assert example["image"].shape == pixels.shape, path
            assert np.abs(example["image"] - pixels).mean() < 2, path


@pytest.mark.parametrize("turn", [1, 6])
def test_images_of_one_turned_shape_have_it(turn, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = turn
    for i in range(3):
        contents = encoded(picture(i, (30, 20)), "JPEG", exif=exif)
        write(tmp_path / f"{i}.jpg", contents)
    source = datasets.source(f"folder:{tmp_path}")
    expected = (30, 20, 3) if turn == 1 else (20, 30, 3)
    assert source.info.image_shape == expected
    assert all(e["image"].shape == expected for e in read(source))


def test_pillow_decodes_what_tensorflow_cannot(tmp_path):
    pixels = np.asarray(picture(0, (30, 20)))
    sixteen = np.arange(600, dtype=np.uint16).reshape(30, 20) * 100
    write(
        tmp_path / "a.webp", encoded(picture(0, (30, 20)), "WEBP", lossless=1)
    )
    write(tmp_path / "b.tiff", encoded(picture(0, (30, 20)), "TIFF"))
    write(tmp_path / "c.tif", encoded(Image.fromarray(sixteen), "TIFF"))
    write(tmp_path / "d.ppm", encoded(picture(0, (30, 20)), "PPM"))
    write(tmp_path / "e.png", encoded(picture(0, (30, 20))))
    write(tmp_path / "f.webp", encoded(picture(1), "WEBP")[:-40])
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.bad_images == (str(tmp_path / "f.webp"),)
    images = [example["image"] for example in read(source)]
    for number in (0, 1, 3, 4):
        np.testing.assert_array_equal(images[number], pixels)
    np.testing.assert_array_equal(images[2][..., 0], sixteen >> 8)


def test_other_files_of_a_folder_are_counted(tmp_path, caplog):
    class_folders(tmp_path)
    for name in ("cat/a.xyz", "dog/b.xyz", "dog/c.txt", ".hidden.xyz"):
        write(tmp_path / name, b"")
    with caplog.at_level("INFO"):
        datasets.source(f"folder:{tmp_path}")
    assert "2 .xyz, 1 .txt" in caplog.text


def add_bad_images(root):
    return {
        str(write(root / "cat" / "bad1.jpg", truncated_jpeg())),
        str(write(root / "dog" / "bad2.png", encoded(picture(1))[:-40])),
        str(write(root / "dog" / "bad3.jpg", b"")),
        str(write(root / "dog" / "bad4.gif", b"<html>not found</html>")),
    }


def test_unreadable_images_are_left_out_and_named(tmp_path):
    class_folders(tmp_path)
    bad = add_bad_images(tmp_path)
    source = datasets.source(f"folder:{tmp_path}")
    assert set(source.info.bad_images) == bad
    assert source.info.num_examples == 6
    assert labels(source) == [0, 0, 0, 1, 1, 1]
    name = f"folder:{tmp_path}"
    refused(
        "4 of 10 images",
        "max_bad_images=3",
        "bad1.jpg",
        "max_bad_images=4",
        name=name,
        reading=Reading(max_bad_images=3),
    )


def verified(monkeypatch):
    """Returns the list of the images that are verified from now on."""
    verify, seen = decoding.verify, []

    def counted(contents, *options):
        seen.append(contents)
        return verify(contents, *options)

    monkeypatch.setattr(decoding, "verify", counted)
    return seen


def test_only_new_and_changed_files_are_verified_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "images"
    class_folders(root)
    seen = verified(monkeypatch)

    def opened(expected, **options):
        seen.clear()
        info = datasets.source(f"folder:{root}", **options).info
        assert len(seen) == expected
        return info

    first = opened(6)
    assert opened(0) == first
    opened(0, split="train[:50%]")
    monkeypatch.chdir(tmp_path)
    assert datasets.source("folder:images").info.image_shape
    assert len(seen) == 0
    # A changed file, a new one, a damaged one, which is tried at each start.
    (changed, *_) = sorted((root / "cat").iterdir())
    changed.write_bytes(encoded(picture(3, (20, 30))))
    write(root / "dog" / "new.png", encoded(picture(4)))
    bad = write(root / "dog" / "new.jpg", truncated_jpeg())
    info = opened(3)
    assert info.image_shape is None and info.bad_images == (str(bad),)
    assert opened(1) == info
    # A damaged store is as none.
    (store,) = (tmp_path / "cache" / "tf_contrastive" / "images").iterdir()
    store.write_bytes(store.read_bytes()[:100])
    assert opened(8) == info


def test_an_image_of_too_many_pixels_is_left_out_by_its_header(tmp_path):
    class_folders(tmp_path)
    large = write(
        tmp_path / "cat" / "large.jpg", encoded(picture(0, (40, 50)), "JPEG")
    )
    name = f"folder:{tmp_path}"
    assert datasets.source(name).info.num_examples == 7
    for pixels, bad in (1999, (str(large),)), (2000, ()):
        reading = Reading(max_image_pixels=pixels)
        assert datasets.source(name, reading=reading).info.bad_images == bad
    # A header that declares 10 GB, which no decoder is asked to allocate.
    bomb = bytearray(encoded(picture(1)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    bomb = write(tmp_path / "dog" / "bomb.png", bytes(bomb))
    assert datasets.source(name).info.bad_images == (str(bomb),)


def test_only_the_first_image_of_a_gif_is_decoded(tmp_path):
    first = np.zeros([1200, 1200], np.uint8)
    first[:600] = 1
    # Different images, or Pillow merges them; together 86 MB.
    others = [Image.fromarray(first[::-1]), Image.fromarray(first)] * 30
    image = Image.fromarray(first)
    image.save(tmp_path / "a.gif", save_all=True, append_images=others)
    Path("/proc/self/clear_refs").write_text("5")  # Forgets earlier peaks.
    before = memory.peak_resident()
    (example,) = read(datasets.source(f"folder:{tmp_path}"))
    assert memory.peak_resident() - before < 40e6
    assert (example["image"] == first[..., np.newaxis]).all()


def test_names_of_files_are_utf_8(tmp_path):
    for inside in (b"caf\xe9.png", b"a/caf\xe9/1.png"):
        root = tmp_path / str(len(inside))
        class_folders(root)
        path = os.path.join(os.fsencode(root), inside)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(encoded(picture(0)))
        refused("UTF-8", r"caf\xe9", name=f"folder:{root}")


# ---- CSV ---


def csv(path, text):
    path.write_text(text)
    return f"csv:{path}"


@pytest.fixture
def five(tmp_path):
    for i in range(5):
        write(tmp_path / "images" / f"{i}.png", encoded(picture(i)))
    return tmp_path


def test_csv_of_names_with_header_and_both_kinds_of_path(five):
    name = csv(
        five / "list.csv",
        "path,label\nimages/3.png,pear\nimages/1.png,apple\n"
        f'"{five}/images/0.png", pear\n\n',
    )
    source = datasets.source(name)
    assert source.info.label_names == ("apple", "pear")
    assert labels(source) == [1, 0, 1]
    for example, i in zip(read(source), (3, 1, 0), strict=True):
        np.testing.assert_array_equal(example["image"], np.asarray(picture(i)))


def test_csv_of_numbers_and_of_paths_alone(five):
    lines = [f"images/{i}.png" for i in range(5)]
    numbered = csv(
        five / "n.csv", "".join(f"{p},{2 * i}\n" for i, p in enumerate(lines))
    )
    source = datasets.source(numbered, "train[1:3]")
    assert labels(source) == [2, 4]
    assert source.info.num_classes == 9
    bare = datasets.source(csv(five / "bare.csv", "\n".join(lines)))
    assert bare.info.num_examples == 5 and not bare.info.has_labels


def test_csv_per_split_shares_its_classes(five):
    csv(five / "train.csv", "images/0.png,a\nimages/1.png,b\nimages/2.png,c\n")
    csv(five / "test.csv", "images/3.png,c\nimages/4.png,a\n")
    source = datasets.source(f"csv:{five}/{{split}}.csv", "test")
    assert labels(source) == [2, 0] and source.info.num_classes == 3


def test_wrong_csv_files_are_refused(five):
    refused("no file", name=f"csv:{five}/none.csv")
    refused("empty", name=csv(five / "empty.csv", "path,label\n"))
    mixed = csv(five / "mixed.csv", "images/0.png,1\nimages/1.png\n")
    refused("images/1.png has no label", name=mixed)
    missing = csv(five / "missing.csv", "images/0.png\nimages/9.png\n")
    assert datasets.source(missing).info.bad_images == (
        str(five / "images/9.png"),
    )
    refused("{split}", name=missing, split="test")


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("path,label\nimages/0.png,a\nimages/1.png,b\n", {}),
        ("\ufeffimage_path,label\r\nimages/0.png,a\r\nimages/1.png,b\r\n", {}),
        ("id;class;image\n7;a;images/0.png\n8;b;images/1.png\n", {}),
        ("photograph\tkind\nimages/0.png\ta\nimages/1.png\tb\n", {}),
        ("a,images/0.png\nb,images/1.png\n", {}),
        (
            "x,y,z\n1,images/0.png,a\n2,images/1.png,b\n",
            {"csv_label_column": "Z"},
        ),
        (
            "images/0.png,images/1.png,a\nimages/1.png,images/0.png,b\n",
            {"csv_path_column": "1", "csv_label_column": "3"},
        ),
    ],
)
def test_columns_of_a_csv_file_are_found(text, reading, five):
    name = csv(five / "list.csv", text)
    source = datasets.source(name, reading=Reading(**reading))
    assert source.info.label_names == ("a", "b")
    for number, example in enumerate(read(source)):
        assert example["label"] == number
        np.testing.assert_array_equal(example["image"], picture(number))


def test_columns_that_cannot_be_found_are_told(five):
    name = csv(five / "list.csv", "id,file,kind\n1,images/0.png,a\n")
    refused("id, file, kind", "csv_label_column", name=name)
    reading = Reading(csv_label_column="sort")
    refused("sort", "id, file, kind", name=name, reading=reading)
    name = csv(five / "minus.csv", "images/0.png,1\nimages/1.png,-1\n")
    refused("label -1", name=name)


@pytest.mark.parametrize(
    "label", ["100000", str(2**31), str(2**63), "9" * 5000]
)
def test_a_label_beyond_the_classes_is_refused(label, five):
    name = csv(five / "large.csv", f"images/0.png,0\nimages/1.png,{label}\n")
    assert len(refused("from 0", label[:5], name=name)) < 300
    if int(label[:20]) < 2**63:
        path = five / "large.tfrecord"
        image = encoded(picture(0))
        write_records(path, [{"image": image, "label": x} for x in (0, label)])
        refused("max_classes", label, name=f"tfrecord:{path}")


# ---- TFRecord ---


@pytest.mark.parametrize(
    ("image", "label", "ending"),
    [
        ("image", "label", ""),
        ("image/encoded", "image/class/label", ".gz"),
        ("image_raw", None, ""),
    ],
)
def test_tfrecords_of_several_files(image, label, ending, tmp_path):
    for shard in range(2):
        rows = [
            {image: encoded(picture(10 * shard + i)), "height": 12}
            | ({label: i} if label else {})
            for i in range(4)
        ]
        rows[2][image] = truncated_jpeg() if shard else rows[2][image]
        write_records(
            tmp_path / f"train-{shard}.tfrecord{ending}",
            rows,
            "GZIP" if ending else None,
        )
    name = f"tfrecord:{tmp_path}/{{split}}-*"
    source = datasets.source(name)
    assert source.info.num_examples == 7
    assert len(source.info.bad_images) == 1
    assert source.info.num_classes == (4 if label else None)
    got = sorted(e["image"].tobytes() for e in read(source))
    good = [*range(4), 10, 11, 13]
    assert got == sorted(np.asarray(picture(i)).tobytes() for i in good)
    if label:
        assert sorted(labels(source)) == [0, 0, 1, 1, 2, 3, 3]
    halves = [datasets.source(name, f"train[{s}]") for s in (":50%", "50%:")]
    both = [e["image"].tobytes() for half in halves for e in read(half)]
    assert sorted(both) == got
    train, validation = source.split_validation(0.3, seed=0)
    parts = [e["image"].tobytes() for s in (train, validation) for e in read(s)]
    assert sorted(parts) == got


def test_labels_of_records_start_at_0_or_1(tmp_path):
    rows = [{"image": encoded(picture(i)), "label": i + 1} for i in range(3)]
    write_records(tmp_path / "a.tfrecord", rows)
    name = f"tfrecord:{tmp_path}"
    refused("start at 1", "first_label=1", name=name)
    for first, expected in (1, [0, 1, 2]), (0, [1, 2, 3]):
        source = datasets.source(name, reading=Reading(first_label=first))
        assert labels(source) == expected
        assert source.info.num_classes == expected[-1] + 1


def test_only_changed_files_of_records_are_verified_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write_file(file, count, label=0):
        rows = [
            {"image": encoded(picture(10 * file + i)), "label": label + i}
            for i in range(count)
        ]
        write_records(tmp_path / f"{file}.tfrecord", rows)

    for file, count in enumerate((3, 0, 5)):
        write_file(file, count)
    seen = verified(monkeypatch)
    name = f"tfrecord:{tmp_path}/*.tfrecord"

    def opened(expected, **options):
        seen.clear()
        source = datasets.source(name, **options)
        assert len(seen) == expected
        assert labels(source) == [int(x) for x in source.labels()]
        return source

    first = opened(8)
    assert labels(first) == [0, 1, 2, 0, 1, 2, 3, 4]
    again = opened(0)
    assert again.info == first.info and labels(again) == labels(first)
    assert labels(opened(0, split="train[2:5]")) == [2, 0, 1]
    write_file(1, 2, label=7)
    changed = opened(2)
    assert changed.info.num_classes == 9
    assert labels(changed) == [0, 1, 2, 7, 8, 0, 1, 2, 3, 4]
    # A file with an unreadable image is tried at each start.
    bad = {"image": truncated_jpeg(), "label": 0}
    write_records(tmp_path / "3.tfrecord", [bad])
    for _ in range(2):
        assert opened(1).info.bad_images == ("record 10",)


def test_a_part_of_records_may_lack_the_last_classes(tmp_path):
    image = encoded(picture(0))
    for split, classes in ("train", 6), ("test", 5), ("val", 7):
        rows = [{"image": image, "label": i} for i in range(classes)]
        write_records(tmp_path / f"{split}.tfrecord", rows)
    name = f"tfrecord:{tmp_path}/{{split}}.tfrecord"
    assert datasets.source(name, "train[:50%]").info.num_classes == 6
    train, test, other = (
        datasets.source(name, split).info for split in ("train", "test", "val")
    )
    assert datasets.check_scorable(train, test).num_classes == 6
    with pytest.raises(errors.UserError, match=r"train has 6 .* val 7"):
        datasets.check_scorable(train, other)


def test_a_record_that_is_no_example_is_refused(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    write_records(path, [{"image": encoded(picture(0)), "label": 0}])
    good = next(tf.data.TFRecordDataset(path).as_numpy_iterator())
    for record in (b"", b"\xff\xfe text", good[:-3], good[::-1]):
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(good)
            writer.write(record)
        message = refused("write it again", name=f"tfrecord:{path}")
        assert "{{" not in message


# ---- TensorFlow Datasets ---


@needs_prepared
@pytest.mark.parametrize(
    ("name", "split", "shape", "count"),
    [
        ("cifar10", "train", (32, 32, 3), 50_000),
        ("cifar10:3.0.2", "test[10%:]", (32, 32, 3), 9_000),
        ("mnist", "train[:100]+test[:5]", (28, 28, 3), 105),
    ],
)
def test_prepared_datasets_are_read_as_tfds_reads_them(
    name, split, shape, count
):
    import tensorflow_datasets as tfds

    source = datasets.source(name, split, data_dir=str(PREPARED))
    assert source.info.num_examples == count
    assert source.info.image_shape == shape
    assert source.info.num_classes == len(source.info.label_names) == 10
    assert source.records.element_spec["image"].dtype == tf.string
    theirs = tfds.load(
        name,
        split=split,
        data_dir=str(PREPARED),
        download=False,
        read_config=tfds.ReadConfig(interleave_cycle_length=1),
    )
    pairs = zip(
        source.examples().take(100).as_numpy_iterator(),
        theirs.take(100).as_numpy_iterator(),
        strict=True,
    )
    for our, their in pairs:
        assert our["label"] == their["label"]
        np.testing.assert_array_equal(
            our["image"], np.broadcast_to(their["image"], shape)
        )


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_errors_of_unprepared_datasets_say_how_to_prepare_them(
    tmp_path, no_network
):
    message = refused(
        "not found in", name="cifar10", data_dir=str(tmp_path / "none")
    )
    assert "tfds.load('cifar10', data_dir=" in message
    assert not (tmp_path / "none").exists()
    refused("did you mean 'cifar10'?", name="cifra10", data_dir=str(tmp_path))
    refused("did you mean 'digits'?", name="digit", data_dir=str(tmp_path))
    refused("prepare it", name="imagenet2012", data_dir=str(tmp_path))


@needs_prepared
def test_wrong_parts_of_prepared_datasets_are_refused(no_network):
    here = str(PREPARED)
    refused("train, test", name="cifar10", split="validation", data_dir=here)
    refused("has no split", name="cifar10", split="train[:1x]", data_dir=here)
    refused("not found", name="cifar10:9.9.9", data_dir=here)


def test_an_absent_split_of_a_prepared_dataset_is_an_absent_split(tmp_path):
    write_prepared(
        tmp_path,
        lambda f: {"image": f.Image(shape=(6, 5, 3))},
        {"train": {"image": np.zeros([2, 6, 5, 3], np.uint8)}},
    )
    for split in ("test", "test[:50%]", "train+test"):
        with pytest.raises(errors.AbsentSplitError, match="splits are train"):
            datasets.source("mine", split, data_dir=str(tmp_path))
    # Commands that use train where test is absent do not hide this one.
    with pytest.raises(errors.UserError, match="1x") as caught:
        datasets.source("mine", "train[:1x]", data_dir=str(tmp_path))
    assert not isinstance(caught.value, errors.AbsentSplitError)


def test_datasets_of_other_layouts(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, [4, 6, 5, 3], "uint8")
    bits = np.array([[0, 1], [1, 1], [1, 0], [0, 0]])

    def prepared(features, **columns):
        folder = tmp_path / "-".join(columns)
        write_prepared(folder, features, {"train": columns})
        return {"name": "mine", "data_dir": str(folder)}

    named = prepared(
        lambda f: {
            "photo": f.Image(shape=(None, None, 3)),
            "label": f.ClassLabel(num_classes=2),
        },
        photo=pixels,
        label=[0, 1, 1, 0],
    )
    source = datasets.source(**named)
    assert source.info.num_examples == 4 and source.info.num_classes == 2
    assert source.info.image_shape is None
    got = [e["image"].tobytes() for e in read(source)]
    assert got == [p.tobytes() for p in pixels]
    named = prepared(
        lambda f: {"image": f.Image(shape=(6, 5, 3)), "text": f.Text()},
        image=pixels,
        text=[b"x", b"y", b"z", b""],
    )
    source = datasets.source(**named)
    assert not source.info.has_labels and "label" not in read(source)[0]
    named = prepared(
        lambda f: {
            "image": f.Image(shape=(6, 5, 3)),
            "extra": f.Tensor(shape=(2,), dtype=np.int64),
        },
        image=pixels,
        extra=bits,
    )
    source = datasets.source(**named)
    assert source.info.extra_channels == 2
    for kind in (source, source.cached(), source.select(np.arange(4))):
        assert [e["extra"].tolist() for e in read(kind)] == bits.tolist()
    named = prepared(lambda f: {"text": f.Text()}, text=[b"x"])
    refused("no feature that is an image", "features present: text", **named)


def test_the_package_imports_tensorflow_datasets_only_when_needed():
    code = (
        "import sys; from tf_contrastive import datasets;"
        "datasets.source('digits'); assert 'tensorflow_datasets' not in"
        " sys.modules"
    )
    run_python(code)
