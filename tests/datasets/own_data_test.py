"""Data of your own: datasets and arrays, as they are and as they are wrong."""

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config import own

_RNG = np.random.default_rng(0)
_GREY = _RNG.integers(0, 256, [20, 6, 5], np.uint8)
_COLOR = _RNG.integers(0, 256, [20, 6, 5, 3], np.uint8)
_LABELS = np.arange(20) % 4
_slices = tf.data.Dataset.from_tensor_slices


def _generated(generator):
    image = tf.TensorSpec([None, None, 3], tf.uint8)
    spec = image, tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(generator, output_signature=spec)


_ONCE = iter([(np.ones([4, 4, 3], np.uint8), 0)] * 6)


def _broken():
    yield np.ones([4, 4, 3], np.uint8), 0
    raise RuntimeError("no disk")


def _unknown(image):
    """The image, of a number of channels that the graph does not know."""
    return tf.io.decode_image(tf.io.encode_png(image), expand_animations=False)


def _tiled(grey):
    return np.repeat(grey[..., None], 3, -1)


@pytest.mark.parametrize(
    ("dataset", "images", "labels"),
    [
        (_slices((_COLOR, _LABELS)), _COLOR, _LABELS),
        (_slices((_GREY, _LABELS)), _tiled(_GREY), _LABELS),
        (_slices((_COLOR / 255, _LABELS)), _COLOR, _LABELS),
        (_slices({"image": _COLOR, "label": _LABELS}), _COLOR, _LABELS),
        (_slices(_COLOR), _COLOR, None),
        (_slices(_COLOR).map(_unknown), _COLOR, None),
        (_slices(_GREY[..., None]).map(_unknown), _tiled(_GREY), None),
    ],
)
def test_the_forms_of_a_dataset(dataset, images, labels):
    source = datasets.from_dataset(dataset)
    rows = list(source.examples().as_numpy_iterator())
    np.testing.assert_array_equal([row["image"] for row in rows], images)
    assert source.info.num_examples == 20
    assert source.info.image_shape == (6, 5, 3)
    if labels is None:
        assert not source.info.has_labels and "label" not in rows[0]
    else:
        assert source.info.num_classes == 4
        np.testing.assert_array_equal([row["label"] for row in rows], labels)
        np.testing.assert_array_equal(source.labels(), labels)


def test_rows_of_classes_are_several_labels_of_an_image():
    one = np.eye(4, dtype=np.int32)[_LABELS]
    rows = np.maximum(one, [1, 0, 0, 0])
    source = datasets.from_dataset(_slices((_COLOR, rows)))
    assert source.info.multi_label and source.info.num_classes == 4
    read = [e["label"] for e in source.examples().as_numpy_iterator()]
    np.testing.assert_array_equal(read, rows)
    for wrong, text in (
        (one, r"pass integers \[20\], such as labels.argmax"),
        (rows * 2, "several classes per image 0 or 1"),
        (rows[:, 1:2], r"shape \[20, 1\]"),
        (rows[1:], "each of 20 images"),
    ):
        with pytest.raises(errors.UserError, match=text):
            datasets.from_arrays(_COLOR, wrong)


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (_slices((_COLOR, _LABELS)).repeat(), "is endless: remove its repeat"),
        (_slices((_COLOR, _LABELS)).batch(2), "not batched"),
        (_slices((_COLOR, _LABELS, _LABELS)), "has elements of"),
        (_slices((_COLOR, _LABELS)).take(0), "has no elements"),
        (_slices((_COLOR.astype(np.int32), _LABELS)), "has elements of"),
        (_slices((_RNG.normal(size=[4, 6, 5, 4]),)), "has elements of"),
        (_slices((_COLOR * 1.0, _LABELS)), r"element 0 .*not in \[0, 1\]"),
        (_slices((_COLOR, _LABELS - 1)), "labels between -1 and 2"),
        (_slices((_COLOR, _LABELS + 0.5)), "labels are integers"),
        (_slices((_COLOR, np.eye(4)[_LABELS])), "labels are integers"),
        (_slices({"image": _COLOR, "labels": _LABELS}), "has elements of"),
        (_slices((_COLOR, (_LABELS, _LABELS))), "has elements of"),
        (_slices((_COLOR[:, :0], _LABELS)), "without pixels"),
        (_COLOR, "is a ndarray: must be a tf.data.Dataset"),
        (_generated(_broken), r"element 1 .*\(RuntimeError: no disk"),
        (_generated(lambda: _ONCE), "fewer when it is read again"),
    ],
)
def test_other_elements_are_named(dataset, text):
    with pytest.raises(errors.UserError, match=text) as error:
        datasets.from_dataset(dataset)
    assert "\n" not in str(error.value)


def test_another_order_is_warned_of(capsys):
    datasets.from_dataset(_slices((_COLOR, _LABELS)))
    assert "another order" not in capsys.readouterr().err
    datasets.from_dataset(_slices((_COLOR, _LABELS)).shuffle(20))
    assert "another order" in capsys.readouterr().err


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of the user's, with a dataset for each split."""
    (tmp_path / "bench_data.py").write_text(
        "import numpy as np, tensorflow as tf\n"
        "images = np.arange(40 * 16 * 3).reshape(40, 4, 4, 3) % 251\n"
        "images = images.astype(np.uint8)\n"
        "rows = {'train': slice(0, 30), 'test': slice(30, 40)}\n"
        "def both(split):\n"
        "    if split not in rows: return None\n"
        "    part = images[rows[split]], np.arange(40)[rows[split]] % 5\n"
        "    return tf.data.Dataset.from_tensor_slices(part)\n"
        "def arrays(): return images, np.arange(40) % 5\n"
        "fixed = tf.data.Dataset.from_tensor_slices(images)\n"
        "def needs(split, size): return None\n"
        "from tf_contrastive.datasets import from_arrays\n"
        "deep = np.zeros([9, 4, 4, 4], np.uint8)\n"
        "def four(): return from_arrays(deep, channels=4)\n"
        "text = 'cifar10'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(own, "allowed", {"bench_data"})
    return "bench_data"


def test_a_module_has_splits_and_slices(module):
    train = datasets.source(f"{module}:both", "train[10:]")
    test = datasets.source(f"{module}:both", "test")
    assert (train.info.num_examples, test.info.num_examples) == (20, 10)
    labels = [row["label"] for row in train.examples()]
    np.testing.assert_array_equal(labels, np.arange(10, 30) % 5)
    assert datasets.check_disjoint(train, test) is None
    whole = datasets.source(f"{module}:both", "train")
    with pytest.raises(errors.UserError, match=r"train\[10:\] has 20 image"):
        datasets.check_disjoint(whole, train)
    arrays = f"{module}:arrays"
    assert datasets.source(arrays).info.num_examples == 40
    parts = (datasets.source(arrays, s) for s in ("train[:21]", "train[20:]"))
    with pytest.raises(errors.UserError, match="has 1 image"):
        datasets.check_disjoint(*parts)
    assert not datasets.source(f"{module}:fixed", "train[:8]").info.has_labels


@pytest.mark.parametrize(
    ("name", "split", "text"),
    [
        ("both", "validation", "has no split 'validation'"),
        ("arrays", "test", "only train: give its function a parameter"),
        ("needs", "train", "parameter size of needs has no default"),
        ("text", "train", "is a str: it must be"),
        ("boht", "train", "did you mean both"),
        ("four", "train", "4 channels of floats: set channels=4"),
    ],
)
def test_other_data_of_a_module_are_named(module, name, split, text):
    with pytest.raises(errors.UserError, match=text):
        datasets.source(f"{module}:{name}", split)
