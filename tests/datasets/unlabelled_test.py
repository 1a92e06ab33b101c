"""Data of which only a part has labels: read as -1, or refused."""

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    csv,
    encoded,
    picture,
    prepare,
    refused,
    write,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading

_OWN = Reading(unlabelled="own_views")


def _open(name, reading=_OWN, **options):
    return datasets.source(name, reading=reading, **options)


@pytest.mark.parametrize("folder", ["unlabelled", "Unlabeled"])
def test_a_folder(folder, tmp_path):
    class_folders(tmp_path)
    for i in range(2):
        write(tmp_path / folder / f"u{i}.png", encoded(picture(900 + i)))
    name = f"folder:{tmp_path}"
    source = _open(name)
    assert source.info.label_names == ("cat", "dog")
    assert source.labels().tolist().count(-1) == 2
    assert source.info.has_labels and source.info.unlabelled
    assert dict(source.info.found)["without_label"] == "2 images"
    labelled = source.labelled()
    assert sorted(labelled.labels()) == [0, 0, 0, 1, 1, 1]
    assert not labelled.info.unlabelled and labelled.labelled() is labelled
    refused("unlabelled=own_views", name=name)


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["cat", "nan", "dog", "-1"], [0, -1, 1, -1]),
        (["0", "-1", "1", "NULL"], [0, -1, 1, -1]),
        (["", "", "2", "0"], [-1, -1, 2, 0]),
    ],
)
def test_a_list(cells, expected, tmp_path):
    for i in range(len(cells)):
        write(tmp_path / f"{i}.png", encoded(picture(i)))
    lines = "".join(f"{i}.png,{cell}\n" for i, cell in enumerate(cells))
    name = csv(tmp_path / "list.csv", f"path,label\n{lines}")
    source = _open(name)
    assert source.labels().tolist() == expected
    assert source.info.num_classes == max(expected) + 1
    refused("unlabelled=own_views", name=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        ([0, None, 1, 2], {}, [0, -1, 1, 2]),
        ([0, -1, 1, None], {}, [0, -1, 1, -1]),
        ([None, 0, 1, 1], {"label_feature": "label"}, [-1, 0, 1, 1]),
    ],
)
def test_records(labels, options, expected, tmp_path):
    rows = [{"image": encoded(picture(i))} for i in range(4)]
    for row, label in zip(rows, labels, strict=True):
        if label is not None:
            row["label"] = label
    write_records(tmp_path / "a.tfrecord", rows)
    name = f"tfrecord:{tmp_path}/a.tfrecord"
    source = _open(name, Reading(unlabelled="own_views", **options))
    assert source.labels().tolist() == expected
    assert source.info.num_classes == max(expected) + 1
    assert source.info.unlabelled
    known = [label for label in expected if label >= 0]
    assert source.labelled().labels().tolist() == known
    if labels[0] is None:
        refused("label_feature", name=name, reading=_OWN)
    else:  # The first record decides.
        refused("own_views", name=name)


def test_prepared_splits(tmp_path):
    black = np.zeros([4, 6, 5, 3], np.uint8)
    images = {"train": black, "unlabelled": black}
    labels = {"train": np.arange(4), "unlabelled": np.full(4, -1)}
    prepare(tmp_path, "mine", images, labels, "abcd")
    here = {"data_dir": str(tmp_path), "split": "train+unlabelled"}
    source = _open("mine", **here)
    assert sorted(source.labels()) == [-1, -1, -1, -1, 0, 1, 2, 3]
    assert sorted(source.labelled().labels()) == [0, 1, 2, 3]


@pytest.mark.parametrize("labels", [[0, -1, 2], [-1, -1, 1]])
def test_arrays_and_datasets(labels):
    images = np.zeros([3, 4, 4, 3], np.uint8)
    pairs = tf.data.Dataset.from_tensor_slices((images, labels))
    for make, data in (
        (datasets.from_arrays, (images, np.array(labels))),
        (datasets.from_dataset, (pairs,)),
    ):
        source = make(*data, unlabelled=True)
        assert source.labels().tolist() == labels
        assert source.info.unlabelled
        assert source.info.num_classes == max(labels) + 1
        with pytest.raises(ValueError, match="at least 0"):
            make(*data)
    with pytest.raises(ValueError, match="at least -1"):
        datasets.from_arrays(images, np.array([0, 1, -2]), unlabelled=True)
