"""Colours changed by the host or by the step: the same views, the same run."""

import itertools
import re

import numpy as np
import pytest
import small
import tensorflow as tf
from PIL import Image

from tf_contrastive import datasets, heads, losses, train
from tf_contrastive import model as models
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.runtime import Machine
from tf_contrastive.views import RunViews

pytestmark = pytest.mark.usefixtures("small_encoder")

SIDE = 12
CLASSES = 3


def _run(**changes):
    values = {
        "augmentation": "simclr",
        "image_size": SIDE,
        "augment_on": "host",
        "batch_size": 8,
        "blur": True,
        "extra_channels": 0,
        "workdir": "unused",
    }
    return fields.replace(small.RUN, **(values | changes))


def _images(n=16, sides=(SIDE,)):
    rng = np.random.default_rng(0)
    return [
        rng.integers(0, 256, [sides[i % len(sides)], 14, 3], np.uint8)
        for i in range(n)
    ]


def _source(n=16):
    return datasets.from_arrays(np.stack(_images(n)), np.arange(n) % CLASSES)


def _mixed_source(folder, n=16):
    """Images of several shapes, in files."""
    for i, image in enumerate(_images(n, sides=(SIDE, SIDE + 5))):
        Image.fromarray(image).save(folder / f"{i:02}.png")
    lines = "".join(f"{i:02}.png,{i % CLASSES}\n" for i in range(n))
    (folder / "all.csv").write_text("path,label\n" + lines)
    return datasets.source(f"csv:{folder}/all.csv")


def _batches(source, run):
    """Two batches of a run with the options as they are."""
    strategy = tf.distribute.get_strategy()
    prepared = train.PreparedRun(run, strategy, Machine(), source)
    return list(itertools.islice(prepared.batches(), 2))


def _resolved(source, run):
    """The options of a run after those that follow from the data."""
    strategy = tf.distribute.get_strategy()
    return train.prepare(run, strategy, splits=train.Splits(source)).options


@pytest.mark.parametrize(
    ("augmentation", "kind"),
    [
        ("simclr", "one shape"),
        pytest.param("autoaugment", "shapes", marks=pytest.mark.slow),
    ],
)
def test_the_device_makes_the_views_of_the_host(augmentation, kind, tmp_path):
    source = _source() if kind == "one shape" else _mixed_source(tmp_path)
    host = _run(augmentation=augmentation)
    device = _run(augmentation=augmentation, augment_on="device")
    augment = RunViews(device.views).on_device()
    pairs = zip(_batches(source, host), _batches(source, device), strict=True)
    for (views, labels), ((framed, seeds), device_labels) in pairs:
        assert seeds.dtype == tf.int32 and seeds.shape == (8, 2, 2)
        assert len({tuple(s) for s in seeds.numpy().reshape(-1, 2)}) == 16
        np.testing.assert_array_equal(labels, device_labels)
        made = augment(framed, seeds).numpy()
        np.testing.assert_allclose(made, views, atol=2e-4)
        assert made.min() >= 0 and made.max() <= 1
        # What was left to the device is more than rounding.
        changed = np.abs(framed - views).mean((2, 3, 4)) > 0.01
        assert changed.mean() > 0.3


@pytest.mark.slow
def test_a_run_with_extra_channels_is_evaluated_with_them(
    tmp_path, monkeypatch, capsys
):
    # Images are noise; only the extra channels tell the classes.
    images = np.stack(_images(96))
    labels = np.arange(48) % CLASSES
    bits = np.eye(CLASSES)[labels] * 4
    sources = {
        split: datasets.from_arrays(part, labels, split=split, extra=bits)
        for split, part in (("train", images[:48]), ("test", images[48:]))
    }
    monkeypatch.setattr(
        datasets, "source", lambda name, split, **_: sources[split]
    )
    run = small.run(
        split="train",
        image_size=SIDE,
        augment_on="device",
        batch_size=8,
        epochs=10,
        workdir=str(tmp_path / "run"),
    )
    train.pretrain(run)
    options = fields.replace(
        Evaluate(),
        workdir=str(tmp_path / "run"),
        protocols="knn",
        untrained=False,
    )
    assert evaluate.run(options) == 0
    assert re.search(r"trained +knn k=5 +1 +1\.0000", capsys.readouterr().out)
    sources["test"] = datasets.from_arrays(images[48:], labels, split="test")
    with pytest.raises(errors.UserError, match="takes 6 channels"):
        evaluate.run(options)


@pytest.mark.slow
def test_types_that_would_round_are_only_used_on_request():
    source = _source()
    for changes in ({"augment_on": "device"}, {"precision": "mixed_bfloat16"}):
        run = _resolved(source, _run(**changes))
        assert run.views.wire_dtype == "float32", changes
    run = _resolved(source, _run())
    (expected, _), _ = _batches(source, run)
    model = models.ContrastiveModel(
        tf.keras.Sequential([tf.keras.layers.Flatten(input_shape=(12, 12, 3))]),
        heads.build("linear", output=8),
        losses.build("ntxent"),
    )
    data, _ = _batches(source, fields.replace(run, wire_dtype="uint8"))
    views = model.batch(data, training=True).views
    assert views.dtype == tf.float32
    assert 2**-10 < np.abs(views - expected).max() <= 1.01 * 2**-9


def test_extra_channels_are_not_rounded_to_levels():
    images, bits = np.stack(_images(16)), np.eye(16, dtype=np.float32)
    source = datasets.from_arrays(images, np.arange(16), extra=bits * 0.3)
    run = _run(augmentation="autoaugment", extra_channels=16)
    assert _resolved(source, run).views.wire_dtype == "float32"
    with pytest.raises(errors.UserError, match="wire_dtype=uint8"):
        _resolved(source, fields.replace(run, wire_dtype="uint8"))
