"""Prepared datasets of TensorFlow Datasets."""

import json
import socket

import numpy as np
import odd_images
import pytest
import tensorflow as tf
from dataset_helpers import prepare, read, refused
from image_helpers import PREPARED, needs_prepared, write_prepared

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading


@pytest.mark.slow
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
        # TFDS decodes JPEGs by a faster transform.
        decoders={"image": tfds.decode.SkipDecoding()},
    )
    both = (
        x.take(100).as_numpy_iterator() for x in (source.examples(), theirs)
    )
    for our, their in zip(*both, strict=True):
        assert our["label"] == their["label"]
        pixels = odd_images.by_pillow(their["image"])
        np.testing.assert_array_equal(our["image"], pixels)
        assert pixels.shape == shape


def test_errors_of_unprepared_datasets_say_how_to_prepare_them(
    tmp_path, monkeypatch
):
    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    folder = str(tmp_path / "none")
    words = "not found in", "tfds.load('cifar10', data_dir="
    refused(*words, name="cifar10", data_dir=folder)
    refused("did you mean cifar10?", name="cifra10", data_dir=folder)
    refused("did you mean digits?", name="digit", data_dir=folder)
    assert not (tmp_path / "none").exists()


_BLACK = np.zeros([4, 6, 5, 3], np.uint8)


@pytest.fixture
def mine(tmp_path):
    """Arguments that open a prepared dataset, which has only train."""
    labels = {"train": np.arange(4)}
    prepare(tmp_path, "mine", {"train": _BLACK}, labels, "abcd")
    return {"name": "mine", "data_dir": str(tmp_path)}


def test_an_absent_split_of_a_prepared_dataset_is_an_absent_split(mine):
    for split in ("test", "test[:50%]", "train+test"):
        with pytest.raises(errors.AbsentSplitError, match="splits are train"):
            datasets.source(**mine, split=split)
    # Commands that use train where test is absent do not hide this one.
    with pytest.raises(errors.UserError, match="1x") as caught:
        datasets.source(**mine, split="train[:1x]")
    assert not isinstance(caught.value, errors.AbsentSplitError)


# ---- Labels ------------------------------------------------------------------


_LABEL = {"label": [0, 1, 2, 0]}
_FINE, _COARSE = {"fine_label": [1, 2, 0, 1]}, {"coarse_label": [0, 1, 1, 0]}
# Features besides the image; supervised keys; --label_feature -> the feature
# that is read, None: no labels, or what an error says.
_CHOICES = [
    (_LABEL, None, "", "label"),
    (_LABEL | _COARSE, None, "coarse_label", "coarse_label"),
    (_LABEL, None, "none", None),
    (_FINE | _COARSE, "coarse_label", "", "coarse_label"),
    (_FINE, None, "", ["label_feature=fine_label"]),
    ({"text": [b"a", b"b", b"c", b"d"]}, "text", "", None),
    ({"label": [5, 1, 2, 0]}, None, "", ["label (Scalar)", "=none"]),
    (_LABEL, None, "lable", ["lable", "label_feature=label"]),
]


@pytest.mark.parametrize(("columns", "key", "given", "expected"), _CHOICES)
def test_labels_are_those_of_the_dataset_or_named(
    columns, key, given, expected, tmp_path
):
    def features(kinds):
        found = {"image": kinds.Image(shape=(6, 5, 3))}
        for name, values in columns.items():
            found[name] = kinds.ClassLabel(num_classes=3)
            if values[0] == 5:
                found[name] = kinds.Scalar(np.int64)
            elif name == "text":
                found[name] = kinds.Text()
        return found

    pixels = np.random.default_rng(0).integers(0, 256, [4, 6, 5, 3], "uint8")
    write_prepared(tmp_path, features, {"train": {"image": pixels} | columns})
    (path,) = tmp_path.rglob("dataset_info.json")
    about = json.loads(path.read_text())
    if key:
        items = [{"featureKey": "image"}, {"featureKey": key}]
        about["supervisedKeys"] = {"tuple": {"items": items}}
        path.write_text(json.dumps(about))
    named = {"name": "mine", "data_dir": str(tmp_path)}
    reading = Reading(label_feature=given or None)
    if isinstance(expected, list):
        refused(*expected, **named, reading=reading)
        return
    source = datasets.source(**named, reading=reading)
    if expected:
        assert source.labels().tolist() == columns[expected]
        assert expected in dict(source.info.found)["labels"]
    else:
        assert not source.info.has_labels and "label" not in read(source)[0]
        assert dict(source.info.found)["labels"] == "none"


def test_a_named_list_of_classes_is_rows_of_0_and_1(tmp_path):
    def features(kinds):
        several = kinds.Sequence(kinds.ClassLabel(names=["a", "b", "c"]))
        return {"image": kinds.Image(shape=(6, 5, 3)), "labels": several}

    lists = tf.ragged.constant([[2, 0], [], [1], [0, 1, 2]], dtype=tf.int64)
    columns = {"image": _BLACK, "labels": lists}
    write_prepared(tmp_path, features, {"train": columns})
    named = {"name": "mine", "data_dir": str(tmp_path)}
    source = datasets.source(**named, reading=Reading(label_feature="labels"))
    found = [e["label"].tolist() for e in read(source)]
    assert found == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert source.info.multi_label and source.info.label_names == (*"abc",)
    assert datasets.source(**named).info.num_classes is None


@pytest.mark.parametrize("first", [0, 2])
def test_records_without_a_label_are_an_error(first, tmp_path):
    labels = [i if i < first else -1 for i in range(4)]
    splits = {"train": _BLACK}
    prepare(tmp_path, "mine", splits, {"train": labels}, "abcd")
    named = {"name": "mine", "data_dir": str(tmp_path)}
    if first == 0:
        refused("record 0", "label_feature=none", **named)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            read(datasets.source(**named))
        message = str(datasets.name_unreadable(caught.value))
        assert "record 2 (from 0)" in message and "label" in message
    none = Reading(label_feature="none")
    assert len(read(datasets.source(**named, reading=none))) == 4


def test_files_that_tensorflow_does_not_read_are_named(mine, tmp_path):
    (path,) = tmp_path.rglob("dataset_info.json")
    text = path.read_text().replace('"tfrecord"', '"array_record"')
    path.write_text(text)
    refused("array_record", **mine)


# ---- Places ------------------------------------------------------------------


_FEATURES = """
{"featuresDict": {"features": {"image": {"%s": "planted.Image"}}},
 "pythonClassName": "tensorflow_datasets.%s.features_dict.FeaturesDict"}
"""


@pytest.mark.parametrize(
    "features",
    [
        _FEATURES % ("pythonClassName", "core.features"),
        _FEATURES % ("python\\u0043lassName", "core.features"),
        '{"type": "planted.Image", "content": {}}',
    ],
)
def test_a_prepared_dataset_imports_no_other_module(
    features, tmp_path, monkeypatch
):
    version = tmp_path / "mnist" / "3.0.1"
    version.mkdir(parents=True)
    (version / "features.json").write_text(features)
    (version / "dataset_info.json").write_text("{}")
    (tmp_path / "planted.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.UserError, match="planted"):
        datasets.source("mnist", "train", data_dir=str(tmp_path))
    assert not (tmp_path / "canary").exists()
