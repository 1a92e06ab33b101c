"""Limits that are no options, from both sides, as numbers typed here.

No test reads a limit from the package, so that a limit that moves fails one of
them. Bounds of options are tested by their declarations, in `flags_test`, and
the papers' numbers are in `published_constants_test`.
"""

import contextlib
import dataclasses
import types

import doctor_facts
import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import callbacks, classifiers, datasets
from tf_contrastive.base import errors
from tf_contrastive.config import encoder
from tf_contrastive.datasets import pipeline, sampler
from tf_contrastive.doctor import advice
from tf_contrastive.encoders import checked_input
from tf_contrastive.evaluation import classification_metrics, protocols
from tf_contrastive.evaluation.context import Data
from tf_contrastive.losses import similarity

# ---- The doctor -------------------------------------------------------------

_VIT = {"encoder": "vit_ti8", "stem": "auto"}
_ADAMW = {"encoder": "vit_ti4", "stem": "auto", "optimizer": "adamw"}
_DECOUPLED = {"loss": "decoupled_ntxent", "projection_output": 64}
_SIMILAR = {"loss": "decoupled_ntxent", "alignment": "similarity"}
_UNIFORM = {"loss": "align_uniform", "projection_output": 16}
_PEAK = "peak_learning_rate"


# (check, options, the fact that decides, just inside, just outside).
_ADVICE = [
    ("stem", {"stem": "imagenet"}, "image_size", 65, 64),
    ("stem", {"stem": "cifar"}, "image_size", 127, 128),
    ("memory", {"available_memory": 1000}, "process_memory", 899, 901),
    (
        *("imbalance", {"loss": "supcon"}, "class_sizes"),
        *(np.array([10] + 9 * [most]) for most in (100, 101)),
    ),
    ("positives", {"loss": "supcon"}, "positives", 3.0, 2.99),
    ("negatives", {}, "batch_size", 32, 31),
    ("temperature", {}, "temperature", 0.03, 0.029),
    ("temperature", {}, "temperature", 1.0, 1.01),
    # Of equation 5, and of table 1 with projections of 64 and 16.
    ("loss_weight", _SIMILAR, "loss_weight", 0.75, 0.74),
    ("loss_weight", _DECOUPLED, "loss_weight", 0.0235, 0.0234),
    ("loss_weight", _UNIFORM, "loss_weight", 0.0469, 0.0468),
    ("patches", _VIT, "image_size", 32, 24),
    ("patches", _VIT, "image_size", 256, 264),
    ("learning_rate", _ADAMW, _PEAK, 0.0024, 0.0025),
    ("learning_rate", {"optimizer": "lars"}, _PEAK, 0.05, 0.049),
    ("learning_rate", {"optimizer": "sgd"}, _PEAK, 2.0, 2.02),
    ("learning_rate", {"optimizer": "rmsprop"}, _PEAK, 1.0, 1.01),
    ("learning_rate", {"optimizer": "adam"}, _PEAK, 0.02, 0.0202),
    ("warmup", {"warmup_epochs": 0.0}, "batch_size", 1023, 1024),
]


@pytest.mark.parametrize("check,options,fact,inside,outside", _ADVICE)
def test_the_doctor_warns_beyond_its_limits(
    check, options, fact, inside, outside
):
    known = {f.name for f in dataclasses.fields(advice.Facts)}
    for value, warns in ((inside, False), (outside, True)):
        given = {**options, fact: value}
        of_run = {k: given.pop(k) for k in given.keys() - known}
        warnings = advice.warnings(doctor_facts.facts(of_run, **given))
        assert (check in warnings) == warns, value
        assert "\n" not in warnings.get(check, "")


# ---- Training ---------------------------------------------------------------


def _epochs(chance, *logs, **options):
    watcher = callbacks.CollapseWarning(chance, **options)
    for epoch, (spread, nearer, loss) in enumerate(logs):
        alignment = (1 - nearer) * 2 * spread**2
        watcher.on_epoch_end(
            epoch,
            {"embedding_std": spread, "alignment": alignment, "loss": loss},
        )


@pytest.mark.parametrize(
    "good,bad",
    [
        ((1.0, 0.5, 4.011), (1.0, 0.5, 4.009)),
        ((1.0, 0.5, 3.989), (1.0, 0.5, 3.991)),
        # One point, a narrow cone, and positives in it that are not nearer.
        ((0.051, 0.5, 3.0), (0.049, 0.5, 3.0)),
        ((0.301, 0.09, 3.0), (0.299, 0.09, 3.0)),
        ((0.299, 0.101, 3.0), (0.299, 0.099, 3.0)),
    ],
)
def test_a_run_that_learns_nothing_is_reported(good, bad, capsys):
    _epochs(4.0, *[good] * 4)
    _epochs(4.0, bad, bad, good, bad, bad)
    assert not capsys.readouterr().err
    _epochs(4.0, good, bad, bad, bad, bad)
    assert capsys.readouterr().err.count("for 3 epochs") == 1


def test_a_collapse_counts_after_the_warm_up(capsys):
    _epochs(4.0, *[(0.01, 0.0, 3.0)] * 4, warmup_epochs=2.0)
    assert not capsys.readouterr().err
    _epochs(4.0, *[(0.01, 0.0, 3.0)] * 4, warmup_epochs=1.0)
    _epochs(4.0, *[(0.9, 0.5, 4.0)] * 3, warmup_epochs=9.0)
    assert capsys.readouterr().err.count("for 3 epochs") == 2


def test_stems_have_their_sides():
    assert encoder.resolve_stem("auto", 64) == "cifar"
    assert encoder.resolve_stem("auto", 65) == "imagenet"
    for stem, side in (("imagenet", 32), ("cifar", 8)):
        resnet = encoder.ResNet(network="resnet50", stem=stem)
        resnet.resolved(side)
        with pytest.raises(errors.UserError, match=f"image_size={side} or"):
            resnet.resolved(side - 1)


def test_a_gibibyte_of_images_is_kept():
    """512 x 512 pixels of one channel are a quarter of a MiB."""
    for images, kept in ((4096, True), (4097, False)):
        info = datasets.Info("x", "train", images, 10, (256, 1024, 1))
        source = types.SimpleNamespace(info=info, cached=lambda: "cached")
        assert (pipeline.in_memory(source, "auto") == "cached") == kept
        assert pipeline.in_memory(source, "memory") == "cached"


@pytest.mark.parametrize(
    "files,hosts,shared",
    [(16, 2, "file"), (15, 2, "example"), (100, 1, "example")],
)
def test_hosts_share_files_if_each_has_eight(files, hosts, shared):
    names = types.SimpleNamespace(names=["x"] * files)
    source = types.SimpleNamespace(arrays=None, record_files=lambda: names)
    context = tf.distribute.InputContext(hosts)
    order = sampler.Order(batch_size=72)
    stream = sampler.Stream(source, order, context)
    assert stream.sharding == shared


def test_a_maximum_is_subtracted_below_a_temperature_of_a_fiftieth():
    batch = similarity.Batch(None, None, 2, False, True)
    assert batch.bounded(0.02) and not batch.bounded(0.0199)
    assert not batch._replace(normalized=False).bounded(1.0)
    # Sums of a million exponentials stay normal numbers of float32.
    assert 1e6 * np.exp(1 / 0.02) < 3.4e38 and np.exp(-1 / 0.02) > 1.2e-38


# ---- Evaluation and exports -------------------------------------------------


def test_probabilities_sum_to_one_within_a_hundredth():
    for total, fails in ((0.991, 0), (1.009, 0), (0.989, 1), (1.011, 1)):
        rows, labels = np.array([[total - 0.5, 0.5]]), np.array([0])
        refused = pytest.raises(errors.UserError)
        with refused if fails else contextlib.nullcontext():
            classification_metrics.expected_calibration_error(rows, labels)


def test_a_row_below_float32_has_no_direction():
    rows = np.array([[1.2e-38, 0], [0, 0], [3e38, 3e38]], np.float32)
    found = classifiers.normalize(rows)
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found, [[1, 0], [0, 0], [half, half]], rtol=1e-6)


@pytest.mark.parametrize(
    ("protocol", "least"), [("transforms", 40), ("tsne", 4)]
)
def test_protocols_need_images(protocol, least):
    for images, fits in ((least - 1, False), (least, True)):
        train, test = (
            datasets.from_arrays(np.zeros([n, 8, 8, 3], np.uint8), split=name)
            for name, n in (("train", 99), ("test", images))
        )
        context = types.SimpleNamespace(
            data=Data(train, test), subject=types.SimpleNamespace()
        )
        lacks = protocols.missing(protocol, context)
        assert lacks is None if fits else f"{least} images" in lacks


@pytest.mark.parametrize("edge,sign", [(0.0, -1), (1.0, 1)])
def test_a_pixel_may_be_a_thousandth_out_of_range(edge, sign):
    def pixel(distance):
        return tf.fill([1, 1, 1, 3], edge + sign * distance)

    served = checked_input.check_range(pixel(0.0009))
    np.testing.assert_array_equal(served, pixel(0.0))
    for distance in (0.0011, np.inf, np.nan):
        with pytest.raises(tf.errors.InvalidArgumentError):
            checked_input.check_range(pixel(distance))
