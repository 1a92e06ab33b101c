"""Folders of images: one form, and what is refused."""

import os

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    encoded,
    labels,
    picture,
    read,
    refused,
    understood,
    write,
)

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import folders


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
    found = dict(source.info.found)
    assert found["files"] == "PNG"
    assert found["left_out"] == "1 .txt"
    # As of an object store.
    remote = datasets.source(f"folder:file://{tmp_path}")
    assert labels(remote) == labels(source)


def test_object_stores_are_walked(tmp_path, monkeypatch):
    class_folders(tmp_path / "train")
    write(tmp_path / "train" / "cat" / ".x" / "y.png", encoded(picture(8)))
    walk = tf.io.gfile.walk

    def of_store(path):
        for folder, names, files in walk(path.replace("gs:/", "")):
            yield "gs:/" + folder, [f"{name}/" for name in names], [*files, ""]

    monkeypatch.setattr(tf.io.gfile, "walk", of_store)
    images, _ = folders.walk(f"gs:/{tmp_path}")
    assert images == [
        f"train/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)
    ]


@pytest.mark.parametrize("inside", ["", "train"])
def test_a_test_split_is_held_out_of_each_class(inside, tmp_path):
    root = tmp_path / "images"
    class_folders(root / inside, ("ant", "dog"), per_class=20)
    class_folders(root / inside, ("cat",), per_class=2, start=500)
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
    name = f"folder:{tmp_path}/moved"
    moved = datasets.source(name, "testing", reading=reading)
    assert {e["image"].tobytes() for e in read(moved)} == found["test"]


def test_links_lead_to_other_folders_once(tmp_path):
    root = tmp_path / "images"
    class_folders(root, ("cat", "dog"))
    (root / "empty" / "deep").mkdir(parents=True)
    (root / "alias").symlink_to(root / "dog")
    (root / "cat" / "loop").symlink_to(root)
    (root / "cat" / "above").symlink_to(tmp_path)
    class_folders(tmp_path / "far", ("elk",))
    (root / "elk").symlink_to(tmp_path / "far" / "elk")
    (root / "fox").symlink_to(tmp_path / "far" / "elk")
    # What is hidden is only found by its link.
    class_folders(root / ".store", ("gnu",))
    (root / "gnu").symlink_to(root / ".store" / "gnu")
    source = datasets.source(f"folder:{root}")
    assert source.info.label_names == ("cat", "dog", "elk", "gnu")
    assert source.info.num_examples == 12
    # Queries, too.
    assert datasets.from_path(str(root)).info.num_examples == 12
    (tmp_path / "linked").symlink_to(root)
    linked = datasets.from_path(str(tmp_path / "linked"))
    assert linked.info.num_examples == 12
    np.save(tmp_path / "grey.npy", np.zeros([4, 4, 1], np.uint8))
    reading = datasets.Reading(channels=1)
    grey = datasets.from_path(str(tmp_path / "grey.npy"), reading)
    assert grey.info.colors == ()


def test_names_of_images_are_utf_8(tmp_path):
    for inside in (b"caf\xe9.png", b"a/caf\xe9/1.png"):
        root = tmp_path / str(len(inside))
        class_folders(root)
        path = os.path.join(os.fsencode(root), inside)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(encoded(picture(0)))
        refused("UTF-8", "caf", str(root), name=f"folder:{root}")


_TRAINED = "train/a/1.png train/b/1.png"
# Names of images in their order, and of texts -> (number of an image -> its
# class, a word of the warning or error; the split, if it is not train). Of {},
# which are refused, the error has the word; no word: no warning.
_TREES = {
    "1.png 2.png a.txt": ({0: None, 1: None}, ""),
    "all/1.png all/2.png": ({0: None, 1: None}, ""),
    "seg_train/a/1.png seg_test/a/1.png seg_pred/1.png": ({}, "seg_train"),
    "test_a/1.png train_b/1.png": ({0: "test_a", 1: "train_b"}, ""),
    "Train/1.png bus/1.png": ({}, "rename Train"),
    f"{_TRAINED} test/a/1.png x.png": ({}, "x.png"),
    "training/a/1.png Train/b/1.png": ({}, "training"),
    "a/train/1.png a/Test/1.png b/train/1.png": ({}, "named like a split"),
    "cat/1.png dog/1.png preview.png": ({}, "preview.png"),
    "a/1.png b/1.png unlabelled/2.png": ({}, "unlabelled=own_views"),
    "images/cat/1.png images/dog/1.png": ({}, "in folders cat, dog"),
    # As in Tiny ImageNet.
    "train/a/images/1.png train/b/images/1.png val/images/1.png": (
        *({2: None}, "", "val"),
    ),
    # The only class of train is one of test.
    "train/good/1.png test/bad/1.png test/good/1.png": ({0: "good"}, ""),
    "00000/1.png 00001/1.png 00000.parquet": ({}, "00000"),  # Shards.
    "A/1.png a/1.png b/1.png": ({0: "A", 1: "a", 2: "b"}, ""),
    # Two forms of Unicode.
    "train/caf\u00e9/1.png train/x/2.png test/cafe\u0301/3.png test/x/4.png": (
        *({}, "cafe\\u0301", "test"),
    ),
    "a/1.png b/2.png a/@eaDir/1.png/thumb.png #recycle/x.png lost+found/x.png"
    " .thumbnails/x.png a/._1.png __MACOSX/a/x.png": ({0: "a", 1: "b"}, ""),
    f"{_TRAINED} test/a/1.png test/c/1.png": (
        *({2: "a", 3: "c"}, "1 of the 2 classes of test", "test"),
    ),
    "a/1.png b/2.png b/3.heic": (
        *({0: "a", 1: "b"}, "HEIC needs pillow_heif"),
    ),
    "a/x.txt b/y.txt": ({}, "2 .txt"),
    "a\nb/1.png c/1.png": ({}, "'a\\nb'"),
}


@pytest.mark.parametrize("names", _TREES)
def test_trees_are_read_in_one_way_or_refused(names, tmp_path, caplog):
    expected, word, *given = _TREES[names]
    (split,) = given or ("train",)
    for number, path in enumerate(names.split(" ")):
        is_image = path.endswith(".png")
        content = encoded(picture(number)) if is_image else b"text"
        write(tmp_path / path, content)
    name = f"folder:{tmp_path}"
    if not expected:
        refused(word, name=name, split=split)
        return
    assert understood(name, split) == expected
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert bool(warnings) == bool(word) and word in caplog.text
