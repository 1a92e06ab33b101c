"""Prepared datasets of TensorFlow Datasets."""

import socket

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import read, refused
from image_helpers import PREPARED, needs_prepared, write_prepared

from tf_contrastive import datasets, errors


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


_FEATURES = """
{"featuresDict": {"features": {"image": {"%s": "planted.Image"}}},
 "pythonClassName": "tensorflow_datasets.%s.features_dict.FeaturesDict"}
"""


@pytest.mark.parametrize(
    "features",
    [
        _FEATURES % ("pythonClassName", "core.features"),
        _FEATURES % ("python_class_name", "core.features"),
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
