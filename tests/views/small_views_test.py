"""Small views of a run: their size, their crops, and what refuses them."""

import dataclasses

import numpy as np
import pytest
import small
import tensorflow as tf
from dataset_helpers import pictures

from tf_contrastive import datasets, flags
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.loss import SupCon
from tf_contrastive.config.pretrain import Pretrain, resolve
from tf_contrastive.config.views import resolve_views
from tf_contrastive.views import RunViews

_SEEDS = tf.stack([tf.zeros([64], tf.int32), tf.range(64)], axis=1)


def _views(**changes):
    options = {"small_views": 3, "small_image_size": 16, **changes}
    run = fields.replace(small.RUN, **options)
    resolved = resolve_views(run.views, "cifar10", 32)
    return dataclasses.replace(resolved, wire_dtype="float32")


def _made(options, images):
    made = RunViews(options)
    return made.finish(made.geometric(images, _SEEDS), _SEEDS)


@pytest.mark.parametrize(
    ("changes", "large", "small_area"),
    [
        ({}, (0.14, 1.0), (0.05, 0.14)),
        ({"min_crop_area": 0.4}, (0.4, 1.0), (0.05, 0.4)),
    ],
)
def test_crops_have_areas_of_their_own(changes, large, small_area):
    # Red and green tell the place; what they span is the crop.
    place = np.arange(200, dtype=np.uint8)
    image = np.zeros([200, 200, 3], np.uint8)
    image[..., 0], image[..., 1] = place[:, np.newaxis], place
    images = np.repeat(image[np.newaxis], 64, axis=0)
    options = _views(augmentation="crop", augment_on="host", **changes)
    made = _made(options, images)
    for name, side, count, (least, most) in (
        ("views", 32, 2, large),
        ("small_views", 16, 3, small_area),
    ):
        pixels = made[name].numpy()
        assert pixels.shape == (64, count, side, side, 3)
        span = np.ptp(pixels, axis=(2, 3))[..., :2] * 255 / (1 - 1 / side)
        areas = np.prod(span / 200, axis=-1)
        assert least - 0.03 < areas.min() < least + 0.05
        assert most - 0.15 * most < areas.max() < most + 0.03
        assert len(np.unique(pixels.reshape(64 * count, -1), axis=0)) > 100


@pytest.mark.parametrize(
    "augmentation",
    [
        "simaugment",
        pytest.param("randaugment", marks=pytest.mark.slow),
        pytest.param("simclr+rotate", marks=pytest.mark.slow),
    ],
)
def test_a_policy_makes_them_on_host_and_device(augmentation):
    images = pictures(64, 32, 3, seed=0)
    options = _views(augmentation=augmentation, augment_on="host", blur=True)
    host = _made(options, images)
    assert set(host) == {"views", "small_views"}
    on_device = dataclasses.replace(options, augment_on="device")
    sent = _made(on_device, images)
    seeds = np.split(sent["seeds"], [2], axis=1)
    assert len(np.unique(sent["seeds"].numpy().reshape(-1, 2), axis=0)) == 320
    for name, of_size in zip(("views", "small_views"), seeds, strict=True):
        assert 0 <= host[name].numpy().min() < host[name].numpy().max() <= 1
        made = RunViews(on_device).on_device()(sent[name], of_size)
        # Some operations round to levels, of which some differ.
        assert np.mean(np.abs(made - host[name]) > 2e-3) < 0.01


def test_small_views_leave_the_large_ones_alone(monkeypatch):
    images = pictures(64, 32, 3, seed=0)
    options = _views(augmentation="simclr", augment_on="host")
    both = _made(options, images)
    alone = _made(dataclasses.replace(options, small_views=0), images)
    np.testing.assert_array_equal(both["views"], alone)
    # As photographs, one by one, with numbers that were drawn before.
    monkeypatch.setattr(datasets.pipeline, "BATCHED_BYTES", 0)
    made = RunViews(options)
    maker = datasets.ViewMaker(
        made.geometric, made.finish, made.halvings, 0, made.numbers
    )
    source = datasets.from_arrays(images, np.arange(64))
    batches = datasets.view_batches(source, maker, batch_size=64, seed=0)
    found, _ = next(iter(batches))
    for name, pixels in both.items():
        np.testing.assert_allclose(found[name], pixels, atol=1e-5)
    # A small crop of 0.05 to 0.14 of 1000 x 1000 pixels, at 16 pixels.
    numbers = tf.nest.map_structure(lambda x: x[0], made.numbers(_SEEDS[:1]))
    assert made.halvings(tf.constant([1000, 1000]), numbers) == 3
    assert made.halvings(tf.constant([100, 100]), numbers) == 0


# Flags -> what the error names, if it is not the flags.
_ONE_SIZE = """
--loss=align_uniform
--loss=swd_normal
--loss=moco
--loss=margin -> --negatives=all_views
--augmentation=none
--augmentation=ablation:cutout
--loss=cross_entropy --mixup_alpha=0.2 -> --mixup_alpha=0
--encoder=vit_s16
--encoder=convnet
"""


@pytest.mark.parametrize("line", _ONE_SIZE.strip().splitlines())
def test_what_takes_one_size_is_refused(line):
    words, _, named = line.partition(" -> ")
    arguments = ["--workdir=w", "--small_views=2", *words.split()]
    with pytest.raises(errors.UserError) as caught:
        flags.parse(Pretrain, arguments).validate()
    text = flags.with_flags(Pretrain, caught.value.marked)
    assert (named or words) in text and "\n" not in text


def test_anchors_of_one_view_take_one_size():
    run = fields.replace(small.RUN, small_views=2, workdir="w")
    run = dataclasses.replace(run, loss=SupCon(contrast="one_view"))
    with pytest.raises(errors.UserError, match="contrast=one_view"):
        run.validate()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"small_image_size": 32}, "small_image_size=32"),
        ({"min_crop_area": 0.04}, "min_crop_area=0.04"),
        ({"small_image_size": 4}, "small_image_size=4"),
        ({"extra_channels": 1}, "extra_channels=1"),
    ],
)
def test_small_views_must_fit_the_data_and_the_encoder(changes, named):
    options = {"image_size": 32, "small_views": 2, "extra_channels": 0}
    run = fields.replace(small.RUN, **{**options, **changes})
    with pytest.raises(errors.UserError, match=named):
        resolve(run, dataset="cifar10", image_shape=None, extra_channels=1)
