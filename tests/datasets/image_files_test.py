"""Folders and CSV files of images."""

import os

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    csv,
    encoded,
    labels,
    picture,
    read,
    refused,
    write,
)
from image_helpers import write_records

from tf_contrastive import datasets, errors
from tf_contrastive.config.data import Reading

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
    (tmp_path / "train").symlink_to(root)
    for path in (tmp_path / "train", root):
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


# ---- CSV ---


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
