"""Folders of images."""

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
    write,
)

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading


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
    (tmp_path / "splits").mkdir()
    (tmp_path / "splits" / "train").symlink_to(root)
    (tmp_path / "train").symlink_to(root)
    for path in (tmp_path / "train", root, tmp_path / "splits"):
        assert datasets.source(f"folder:{path}").info.num_examples == 9


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


def test_other_files_of_a_folder_are_counted(tmp_path, caplog):
    class_folders(tmp_path)
    for name in ("cat/a.xyz", "dog/b.xyz", "dog/c.txt", ".hidden.xyz"):
        write(tmp_path / name, b"")
    with caplog.at_level("INFO"):
        datasets.source(f"folder:{tmp_path}")
    assert "2 .xyz, 1 .txt" in caplog.text


def test_names_of_files_are_utf_8(tmp_path):
    for inside in (b"caf\xe9.png", b"a/caf\xe9/1.png"):
        root = tmp_path / str(len(inside))
        class_folders(root)
        path = os.path.join(os.fsencode(root), inside)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(encoded(picture(0)))
        refused("UTF-8", r"caf\xe9", name=f"folder:{root}")


def tree(root, *names):
    """Writes an image at each name, or a text if it ends in .txt or /."""
    for number, name in enumerate(names):
        if name.endswith("/"):
            (root / name).mkdir(parents=True)
        else:
            image = not name.endswith((".txt", ".db", ".heic"))
            write(root / name, encoded(picture(number)) if image else b"text")
    return f"folder:{root}"


def understood(name, split="train", **reading):
    """Returns name of a class, or None -> numbers of its images in `tree`."""
    source = datasets.source(name, split, reading=Reading(**reading))
    known = {np.asarray(picture(i)).tobytes(): i for i in range(20)}
    classes: dict = {}
    for example in read(source):
        label = None
        if source.info.has_labels:
            label = source.info.label_names[example["label"]]
        image = known[example["image"].tobytes()]
        classes.setdefault(label, []).append(image)
    return {label: sorted(images) for label, images in classes.items()}


_SPLITS = [
    ("train", "test", "validation"),
    ("Train", "Test", "Val"),
    ("TRAIN", "TEST", "VALID"),
    ("training", "testing", "val"),
    ("Training", "Testing", "eval"),
    ("train_set", "test_set", "dev_set"),
    ("trainset", "testset", "devset"),
    ("Train Images", "Test Images", "Validation Images"),
    ("training-data", "test-data", "evaluation-data"),
    ("train2017", "test2017", "val2017"),
]


@pytest.mark.parametrize("folders", _SPLITS)
def test_folders_of_splits_have_many_spellings(folders, tmp_path):
    one, two, three = folders
    name = tree(
        tmp_path,
        *(f"{one}/a/1.png", f"{one}/b/1.png"),
        *(f"{two}/a/1.png", f"{two}/b/1.png"),
        f"{three}/b/1.png",
    )
    assert understood(name) == {"a": [0], "b": [1]}
    assert understood(name, "test") == {"a": [2], "b": [3]}
    for split in ("validation", "val", three.replace(" ", "_")):
        if split == three or "-" not in split:
            assert understood(name, split) == {"b": [4]}
    refused("no split 'holdout'", one, name=name, split="holdout")


# What it is about -> (names of images in their order, split, name of a class ->
# numbers of its images, words of the warning or error). Of {} that are refused
# the error has the words; no words: no warning.
_TREES = {
    "numbered splits": (
        ("01_train/a/1.png", "02_val/a/1.png", "03_test/a/1.png"),
        ("train", {}, ["01_train, 02_val, 03_test", "look like splits"]),
    ),
    "two kinds of splits": (
        ("trainA/1.png", "trainB/1.png", "testA/1.png", "testB/1.png"),
        ("train", {}, ["trainA", "testA", "look like splits"]),
    ),
    "splits in a word": (
        ("xtrain/a/1.png", "xtest/a/1.png"),
        ("train", {}, ["xtest, xtrain", "look like splits"]),
    ),
    "folds": (
        ("one/a/1.png", "one/b/1.png", "two/a/1.png", "two/b/1.png"),
        (
            "train",
            {"one": [0, 1], "two": [2, 3]},
            ["have folders a, b: if those are the classes, move them"],
        ),
    ),
    "one folder in each class": (
        ("a/images/1.png", "b/images/1.png"),
        ("train", {"a": [0], "b": [1]}, []),
    ),
    "masks": (
        ("images/1.png", "Masks/1.png"),
        (
            "train",
            {"images": [0], "Masks": [1]},
            ["Masks, images in {root} are read as classes"],
        ),
    ),
    "splits in a folder": (
        ("images/train/a.png", "images/test/a.png"),
        ("train", {}, ["test, train", "use folder:{root}/images"]),
    ),
    "a split in folders": (
        ("x/y/train/a/1.png", "x/y/train/b/1.png"),
        ("train", {}, ["use folder:{root}/x/y"]),
    ),
    "splits in classes": (
        ("cat/train/1.png", "cat/Test/1.png", "dog/train/1.png"),
        ("train", {}, ["{root}/cat has the splits Test, train"]),
    ),
    "words for splits": (
        ("seg_train/a/1.png", "seg_test/a/1.png", "seg_pred/1.png"),
        ("train", {}, ["seg_test, seg_train", "look like splits"]),
    ),
    "words for splits in a split": (
        ("train/a/my_train/1.png", "train/a/my_test/1.png"),
        ("train", {}, ["my_test, my_train", "look like splits"]),
    ),
    "classes with such words": (
        ("test_tube/1.png", "train_station/1.png"),
        ("train", {"test_tube": [0], "train_station": [1]}, []),
    ),
    "a class called Train": (
        ("Train/1.png", "bus/1.png"),
        ("train", {}, ["rename Train", "bus"]),
    ),
    "classes valid and invalid": (
        ("valid/1.png", "invalid/1.png"),
        ("train", {"invalid": [1], "valid": [0]}, ["valid is read as a class"]),
    ),
    "rare spellings beside a folder": (
        ("training/a/1.png", "testing/a/1.png", "more/1.png"),
        ("train", {}, ["testing, training", "more"]),
    ),
    "one split twice": (
        ("training/a/1.png", "Train/b/1.png"),
        ("train", {}, ["Train and training all mean the split train"]),
    ),
    "one split twice, once by its name": (
        ("train/a/1.png", "train/b/1.png", "Train/b/1.png"),
        ("train", {"a": [0], "b": [1]}, ["only train is read"]),
    ),
    "images beside splits": (
        ("train/a/1.png", "train/b/1.png", "test/a/1.png", "x.png"),
        ("train", {"a": [0], "b": [1]}, ["1 image(s)", "x.png"]),
    ),
    "an image beside classes": (
        ("cat/1.png", "dog/1.png", "preview.png"),
        (
            "train",
            {None: [0, 1, 2]},
            ["no labels", "preview.png", "take the folders cat, dog"],
        ),
    ),
    "an image beside the classes of another split": (
        ("train/cat/1.png", "train/dog/1.png", "test/cat/1.png", "test/x.png"),
        ("test", {None: [2, 3]}, ["test has no labels", "x.png"]),
    ),
    "classes in a single folder": (
        ("images/cat/1.png", "images/dog/1.png"),
        (
            "train",
            {None: [0, 1]},
            ["all images are in", "cat, dog", "use folder:{root}/images"],
        ),
    ),
    "classes in a single folder of a split": (
        ("train/images/cat/1.png", "train/images/dog/1.png", "test/1.png"),
        ("train", {None: [0, 1]}, ["cat, dog", "move them to {root}/train"]),
    ),
    # As in Tiny ImageNet.
    "a split in a single folder": (
        ("train/a/images/1.png", "train/b/images/1.png", "val/images/1.png"),
        ("val", {None: [2]}, ["val has no labels", "no class of train"]),
    ),
    "classes of a split beside one without": (
        ("train/a/images/1.png", "train/b/images/1.png", "val/images/1.png"),
        ("train", {"a": [0], "b": [1]}, []),
    ),
    "a single class of several": (
        ("train/good/1.png", "test/bad/1.png", "test/good/1.png"),
        ("train", {"good": [0]}, []),
    ),
    "folders of images without classes": (
        ("images/1.png", "images/deep/2.png"),
        ("train", {None: [0, 1]}, []),
    ),
    "letter case": (
        ("Cat/1.png", "cat/1.png", "dog/1.png"),
        (
            "train",
            {"Cat": [0], "cat": [1], "dog": [2]},
            ["'Cat' and 'cat' are different classes"],
        ),
    ),
    "letter case in different splits": (
        (
            "train/Cat/1.png",
            "train/dog/1.png",
            "test/cat/1.png",
            "test/dog/1.png",
        ),
        ("train", {}, ["'Cat' and 'cat' are in different splits"]),
    ),
    "separators in different splits": (
        ("train/a b/1.png", "train/c/1.png", "test/a_b/1.png", "test/c/1.png"),
        ("test", {}, ["'a b' and 'a_b' are in different splits"]),
    ),
    "full-width letters in different splits": (
        (
            "train/ab/1.png",
            "train/c/1.png",
            "test/\uff41b/1.png",
            "test/c/1.png",
        ),
        ("test", {}, ["in different splits"]),
    ),
    "characters that nobody sees": (
        ("a/1.png", "a\u200b/2.png"),
        ("train", {"a": [0], "a\u200b": [1]}, ["'a' and 'a\\u200b'"]),
    ),
    "forms of Unicode": (
        ("caf\u00e9/1.png", "cafe\u0301/2.png", "tea/3.png"),
        ("train", {"cafe\u0301": [0, 1], "tea": [2]}, ["are one class"]),
    ),
    "forms of Unicode in different splits": (
        (
            *("train/caf\u00e9/1.png", "train/a/1.png"),
            *("test/cafe\u0301/1.png", "test/a/1.png"),
        ),
        ("test", {"cafe\u0301": [2], "a": [3]}, ["are one class"]),
    ),
    "spaces at the end": (
        ("cat /1.png", "cat/2.png", "dog/3.png"),
        ("train", {"cat": [0, 1], "dog": [2]}, ["'cat' and 'cat '"]),
    ),
    "what systems make": (
        (
            *("a/1.png", "b/2.png", "a/@eaDir/1.png/thumb.png"),
            *("#recycle/x.png", "$RECYCLE.BIN/x.png", "lost+found/x.png"),
            *("System Volume Information/x.png", "@__thumb/x.png"),
            *(".ipynb_checkpoints/x.png", ".thumbnails/x.png", "a/._1.png"),
            *("__MACOSX/a/x.png", "Thumbs.db", "._1.png", "RECYCLER/x.png"),
        ),
        ("train", {"a": [0], "b": [1]}, []),
    ),
    "a class that is called recycler": (
        ("recycler/1.png", "reader/2.png"),
        ("train", {"recycler": [0], "reader": [1]}, []),
    ),
    "folders without images": (
        ("a/1.png", "b/2.png", "c/", "d/x.heic", "d/y.heic"),
        ("train", {"a": [0], "b": [1]}, ["no classes: c (empty), d (2 .heic)"]),
    ),
    "classes that are never trained": (
        ("train/a/1.png", "train/b/1.png", "test/a/1.png", "test/c/1.png"),
        (
            "test",
            {"a": [2], "c": [3]},
            ["1 of the 2 classes of test", "such as c"],
        ),
    ),
    "classes that are never tested": (
        ("train/a/1.png", "train/b/1.png", "test/a/1.png"),
        ("test", {"a": [2]}, []),
    ),
    "pictures that are not read": (
        ("a/1.png", "b/2.png", "b/3.heic"),
        (
            "train",
            {"a": [0], "b": [1]},
            ["not read: 1 .heic; HEIC needs pillow_heif"],
        ),
    ),
    "names without extension": (
        ("a/1.png", "b/2.png", "a/3", "a/4", "b/5"),
        ("train", {"a": [0], "b": [1]}, ["not read: 3 without extension"]),
    ),
    "a split in a split": (
        ("train/a/1.png", "train/train/1.png", "test/a/1.png"),
        ("train", {"a": [0], "train": [1]}, ["train in {root}/train is read"]),
    ),
    "a split in a class": (
        ("a/1.png", "b/train/1.png"),
        (
            "train",
            {"a": [0], "b": [1]},
            ["1 folder(s) inside of others are no splits, such as b/train"],
        ),
    ),
    "no images": (("a/x.txt", "b/y.txt"), ("train", {}, ["(2 .txt)"])),
}


@pytest.mark.parametrize("about", _TREES)
def test_trees_are_read_in_one_way_or_tell_of_both(about, tmp_path, caplog):
    names, (split, expected, words) = _TREES[about]
    name = tree(tmp_path, *names)
    words = [word.format(root=tmp_path) for word in words]
    if not expected:
        refused(*words, name=name, split=split)
        return
    assert understood(name, split) == expected
    warnings = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING"
    ]
    for word in words:
        assert any(word in line for line in warnings), warnings
    assert words or not warnings, warnings


def test_folders_of_other_classes_are_no_splits_of_one_another(tmp_path):
    class_folders(tmp_path / "one", ("a", "b"))
    class_folders(tmp_path / "two", ("b", "c"), start=50)
    one, two = (
        datasets.source(f"folder:{tmp_path}", split).info
        for split in ("one", "two")
    )
    with pytest.raises(errors.UserError, match="such as a and b of the same"):
        datasets.check_scorable(one, two)


def test_a_class_of_unreadable_images_is_named(tmp_path, caplog):
    class_folders(tmp_path)
    write(tmp_path / "elk" / "1.png", b"no image")
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.label_names == ("cat", "dog", "elk")
    assert "of 1 of the classes, such as elk" in caplog.text


def test_what_is_no_folder_is_told(tmp_path):
    for name, words in {
        "a.png": f"use its folder, folder:{tmp_path}",
        "list.csv": f"use csv:{tmp_path}/list.csv",
        "x.tfrecord-00000": "use tfrecord:",
        "images.zip": "unpacked",
    }.items():
        write(tmp_path / name, b"")
        refused("is a file", words, name=f"folder:{tmp_path}/{name}")
    refused("absent", name=f"folder:{tmp_path}/none")


def test_the_report_says_how_a_folder_was_understood(tmp_path):
    name = tree(
        tmp_path,
        *("Train/a/1.png", "Train/a/deep/2.png", "Train/b/3.JPG"),
        *(
            "Train/notes.txt",
            "Train/@eaDir/x.png",
            "Test/c/1.png",
            "Test/a/1.png",
        ),
    )
    found = dict(datasets.source(name).info.found)
    assert found["files"] == "3 PNG"
    assert found["left_out"] == "1 .txt, 1 @eaDir"
    assert found["splits"] == "test (Test), train (Train)"
    assert found["labels"] == f"names of the folders in {tmp_path}/Train"
    assert found["deeper_folders"] == "a/deep"
    assert found["classes_elsewhere"] == "c"
    direct = datasets.source(tree(tmp_path / "direct", "1.png")).info.found
    assert ("labels", "none: images directly in the folder") in direct


@pytest.mark.slow
def test_two_splits_are_joined_with_the_decoder_of_each(tmp_path):
    kinds = {"train": ("PNG", "JPEG"), "val": ("GIF", "TIFF")}
    for start, (split, pair) in enumerate(kinds.items()):
        for i in range(6):
            contents = encoded(picture(10 * start + i), pair[i % 2])
            name = f"{i}.{pair[i % 2].lower()}"
            write(tmp_path / split / "ab"[i % 2] / name, contents)
    train, val = (
        datasets.source(f"folder:{tmp_path}", split) for split in kinds
    )
    both = train.joined(val)
    assert both.info.num_examples == 12
    assert both.info.by_pillow
    expected = [*read(train), *read(val)]
    for found, example in zip(read(both), expected, strict=True):
        assert found.keys() == example.keys()
        np.testing.assert_array_equal(found["image"], example["image"])
        assert found["label"] == example["label"]
    some = read(both.select(np.array([2, 9])))
    np.testing.assert_array_equal(some[1]["image"], expected[9]["image"])
