"""Small views in the step: a pass and statistics of their own."""

import numpy as np
import pytest
import small
import tensorflow as tf

from tf_contrastive import encoders, heads, losses, train
from tf_contrastive.base import errors
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain, resolve
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.doctor import inspection, memory, smoke, speed
from tf_contrastive.model import ContrastiveModel

_RNG = np.random.default_rng(0)
_LARGE = _RNG.uniform(0.0, 0.6, [8, 2, 12, 12, 3]).astype(np.float32)
_SMALL = _RNG.uniform(0.5, 1.0, [8, 3, 6, 6, 3]).astype(np.float32)
_BOTH = {"views": _LARGE, "small_views": _SMALL}


def _model(encoder=None, loss="ntxent"):
    tf.keras.utils.set_random_seed(0)
    model = ContrastiveModel(
        encoder or small.convolutions(12, filters=(4,)),
        heads.build("linear", output=4),
        losses.build(loss),
    )
    model.compile(tf.keras.optimizers.SGD(0.0, jit_compile=False))
    return model


@pytest.mark.parametrize(
    "kind", [BatchNormalization, tf.keras.layers.BatchNormalization]
)
def test_batch_statistics_are_those_of_one_size(kind):
    images = tf.keras.Input((12, 12, 3))
    layer = kind(momentum=0.75, epsilon=1e-6)
    x = tf.keras.layers.GlobalAveragePooling2D()(layer(images))
    model = _model(tf.keras.Model(images, x))
    batch = model.batch((_in_tensors(),), training=True)
    features = model.features(batch, training=True).numpy()
    # Normalised alone, views of each size have the mean 0 in each channel.
    assert features.shape == (8, 5, 3)
    for views in (features[:, :2], features[:, 2:]):
        np.testing.assert_allclose(views.mean((0, 1)), 0.0, atol=1e-4)
    moving = np.zeros(3)
    for views in (_LARGE, _SMALL):  # The large ones first.
        moving = 0.75 * moving + 0.25 * views.mean((0, 1, 2, 3))
    np.testing.assert_allclose(layer.moving_mean, moving, rtol=1e-5)


def _in_tensors():
    return {name: tf.constant(x) for name, x in _BOTH.items()}


def test_the_loss_has_all_views_and_the_features_the_large_ones():
    model = _model()
    batch = model.batch((_in_tensors(),), training=False)
    h, z = model.encode(batch, training=False)
    assert h.shape == (8, 2, 4) and z.shape == (8, 5, 4)
    every = [
        model.encoder(tf.reshape(_LARGE, [-1, 12, 12, 3])),
        # The same weights in a network for small images.
        _of_side(6, model.encoder)(tf.reshape(_SMALL, [-1, 6, 6, 3])),
    ]
    every = tf.concat([tf.reshape(x, [8, -1, 4]) for x in every], axis=1)
    expected = model.projection_head(tf.reshape(every, [-1, 4]), training=False)
    expected = tf.reshape(expected, [8, 5, 4])
    np.testing.assert_allclose(z, expected, rtol=1e-4, atol=1e-6)
    loss = losses.build("ntxent")(expected, small_views=3)
    for data in (tf.data.Dataset.from_tensors(_BOTH), iter([(_BOTH,)])):
        found = model.evaluate(data, verbose=0, return_dict=True)["loss"]
        np.testing.assert_allclose(found, loss, rtol=1e-5)


def _of_side(side, encoder):
    network = small.convolutions(side, filters=(4,))
    network.set_weights(encoder.get_weights())
    return network


def test_what_takes_one_size_is_told():
    vit = encoders.build("vit_ti4", image_shape=(12, 12, 3), depth=1)
    data = tf.data.Dataset.from_tensors(_BOTH)
    with pytest.raises(errors.UserError, match="12 x 12 pixels alone"):
        _model(vit).fit(data, verbose=0)
    with pytest.raises(ValueError, match="AlignUniform takes views of one"):
        _model(loss="align_uniform").fit(data, verbose=0)
    with pytest.raises(ValueError, match="must be views and small_views"):
        data = tf.data.Dataset.from_tensors({"views": _LARGE})
        _model().fit(data, verbose=0)


@pytest.mark.slow
@small.encoder()
def test_doctor_counts_small_views():
    memories = []
    small_views = {"small_views": 6, "small_image_size": 16}
    for options in ({}, small_views):
        options = small.DIGITS | {"loss": "ntxent", "image_size": 32} | options
        prepared = train.prepare(fields.replace(Doctor(), **options))
        model, _ = prepared.build()
        run = prepared.options
        memories.append(memory.predict(model, run, 1))
    plain, found = memories
    # Each has a quarter of the pixels: six are as much as 1.5 large ones.
    for name in ("views", "activations"):
        grown = getattr(found, name) / getattr(plain, name)
        assert grown == pytest.approx((2 + 1.5) / 2), name
    assert found.parameters == plain.parameters
    # A batch of the forward passes that are timed.
    inputs, _ = next(iter(speed.noise(run, 10, 4, prepared.strategy)))
    assert inputs["small_views"].shape == (4, 6, 16, 16, 3)
    report = inspection.inspect(fields.replace(Doctor(), **options))
    assert report.sections["data"]["views"] == "2 x crop at 32x32, 6 x 16x16"


@pytest.mark.parametrize(
    ("side", "sides"), [(224, (64, 32)), (32, (32, 14)), (256, (64, 32))]
)
def test_a_trial_has_smaller_small_views(side, sides):
    run = fields.replace(Pretrain(), small_views=2, image_size=side)
    trial = smoke.smoke(run, dataset="digits", side=8, examples=1000)
    trial = resolve(trial, dataset="digits", image_shape=(8, 8, 3))
    assert (trial.views.side, trial.views.small_side) == sides
