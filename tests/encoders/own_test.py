"""Encoders and heads of your own."""

import functools

import numpy as np
import pytest
import replicas
import tensorflow as tf

from tf_contrastive import encoders, heads
from tf_contrastive.base import errors
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.exporting import exported_networks

_layers = tf.keras.layers
_IMAGES = np.random.default_rng(0).uniform(size=[8, 6, 6, 3]).astype(np.float32)


def _sequential(width=4):
    return tf.keras.Sequential(
        [_layers.Conv2D(width, 3), _layers.BatchNormalization()]
    )


def _functional():
    images = tf.keras.Input([6, 6, 3])
    x = _layers.BatchNormalization()(_layers.Conv2D(4, 3)(images))
    return tf.keras.Model(images, _layers.GlobalAveragePooling2D()(x))


class _Subclass(tf.keras.Model):
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.inner = _sequential(width)

    def call(self, images, training=None):
        return tf.reduce_mean(self.inner(images, training=training), [1, 2])

    def get_config(self):
        return {"width": self.width}


class _Opaque(_layers.Layer):
    """Keras cannot copy it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, images):
        return self.inner(images)


class _Layer(_Opaque):
    """Takes neither a name nor a type, as many do."""

    def __init__(self, width=4):
        super().__init__(_layers.Conv2D(width, 3))
        self.width = width

    def get_config(self):
        return {"width": self.width}


def _of_shape(image_shape, width=2):
    last = _layers.Dense(width * image_shape[0])
    return tf.keras.Sequential(
        [tf.keras.Input(image_shape), _layers.Flatten(), last]
    )


@pytest.mark.parametrize(
    ("part", "options", "features"),
    [
        (_sequential, {}, 4),
        (_sequential, {"width": 8}, 8),
        (functools.partial(_sequential, width=3), {}, 3),
        (_sequential(), {}, 4),
        (_functional, {}, 4),
        (_functional(), {}, 4),
        (_Subclass, {"width": 5}, 5),
        (_Subclass(), {}, 4),
        (_of_shape, {"width": 3}, 18),
        (_layers.Conv2D(7, 3), {}, 7),
        (_layers.BatchNormalization, {}, 3),
        # An option without a default, if it is given.
        (lambda width: _sequential(width), {"width": 3}, 3),
    ],
)
def test_the_forms_of_an_encoder(part, options, features):
    encoder = encoders.build(part, image_shape=(6, 6, 3), **options)
    assert encoder.output_shape == (None, features)
    assert encoder(_IMAGES).dtype == tf.float32
    for layer in encoder.submodules:
        if isinstance(layer, _layers.BatchNormalization):
            assert type(layer) is BatchNormalization and layer.synchronized
    other = encoders.build(part, image_shape=(6, 6, 3), **options)
    ids = {id(v) for v in encoder.variables}
    assert not any(id(v) in ids for v in other.variables)


@pytest.mark.parametrize("count", [1, 2])
def test_normalization_of_a_class_of_ones_own_is_warned_of(count, caplog):
    kind = type("_Normalization", (_layers.BatchNormalization,), {})
    with replicas.strategy(count).scope():
        encoders.build(kind, image_shape=(6, 6, 3))
    assert ("_Normalization" in caplog.text) == (count > 1)


def _integers(x):
    return tf.cast(x, tf.int32)


def _scalar(x):
    return tf.numpy_function(np.mean, [x], tf.float32)


def _pair():
    images = tf.keras.Input([6, 6, 3])
    return tf.keras.Model(images, [images, images])


@pytest.mark.parametrize(
    ("part", "options", "text"),
    [
        (3, {}, "encoder int is of the wrong form: must be a function"),
        (lambda: 3, {}, "returns a int: must be a Keras layer"),
        (lambda size: _sequential(), {}, "parameter size of <lambda> has no"),
        (_sequential, {"widht": 3}, "did you mean width"),
        (_sequential(), {"width": 3}, "unknown option of"),
        (_pair, {}, "returns a list: must be one tensor"),
        (lambda: _layers.Reshape([3, 36]), {}, r"shape \(None, 3, 36\): must"),
        (lambda: _layers.Conv2D(4, 9), {}, "does not take inputs of 6 x 6 x 3"),
        # Keras itself would fail in the first step.
        (lambda: _of_shape((5, 5, 3)), {}, r"but of shape \(None, 5, 5, 3\)"),
        (lambda: _layers.Lambda(_integers), {}, "returns int32 of shape"),
        (lambda: _layers.Lambda(_scalar), {}, "must be floats|unknown size"),
    ],
)
def test_another_form_of_encoder_is_named(part, options, text):
    with pytest.raises(errors.UserError, match=text) as error:
        encoders.build(part, image_shape=(6, 6, 3), **options)
    assert "\n" not in str(error.value)


def test_an_encoder_that_expects_bytes_is_warned_of(caplog):
    layers = [_layers.Rescaling(1 / 255), _layers.Conv2D(4, 3)]
    part, shape = tf.keras.Sequential(layers), (6, 6, 3)
    part.build((None, *shape))
    encoders.build(part, image_shape=shape)
    assert "has a layer Rescaling" in caplog.text
    caplog.clear()
    scale = {"mean": (0, 0, 0), "std": (1 / 255,) * 3}
    encoder = encoders.build(part, image_shape=shape, **scale)
    assert not caplog.text
    expected = tf.reduce_mean(part(255 * _IMAGES), [1, 2])
    np.testing.assert_allclose(encoder(_IMAGES), expected, rtol=1e-5, atol=1e-6)


def _head(size=4):
    return tf.keras.Sequential(
        [_layers.Dense(8), _layers.BatchNormalization(), _layers.Dense(size)]
    )


@pytest.mark.parametrize("normalize_input", [False, True])
@pytest.mark.parametrize("part", [_head, _head(), _layers.Dense(4)])
def test_the_forms_of_a_head(part, normalize_input):
    head = heads.build(part, normalize_input=normalize_input)
    features = np.random.default_rng(0).normal(size=[6, 5]).astype(np.float32)
    z = head(features)
    assert z.shape == [6, 4] and z.dtype == tf.float32
    for layer in head.submodules:
        if isinstance(layer, _layers.BatchNormalization):
            assert type(layer) is BatchNormalization
    scaled = head(3 * features)
    same = np.allclose(scaled, z, rtol=1e-4, atol=1e-5)
    assert same == normalize_input
    again = type(head).from_config(head.get_config())
    assert again(features).shape == z.shape


def test_another_form_of_head_is_named():
    for part, options, text in (
        (4, {}, "projection int is of the wrong form"),
        (_head, {"sise": 3}, "did you mean size"),
        (lambda: _layers.Reshape([5, 1]), {}, r"must be \[N, P\]"),
    ):
        with pytest.raises(errors.UserError, match=text):
            heads.build(part, **options)(tf.ones([2, 5]))


# ---- Exports -----------------------------------------------------------------


@pytest.mark.parametrize(
    "part", [_functional, _sequential, _Subclass, _Layer, lambda: _Layer(3)]
)
def test_the_exported_copy_has_the_same_features(part):
    encoder = encoders.build(part, image_shape=(6, 6, 3))
    copy = exported_networks.plain_encoder(encoder)
    np.testing.assert_array_equal(copy(_IMAGES), encoder(_IMAGES))


def test_what_cannot_be_copied_is_named():
    part = functools.partial(_Opaque, _layers.Conv2D(3, 3))
    encoder = encoders.build(part, image_shape=(6, 6, 3))
    with pytest.raises(errors.UserError, match="opaque cannot be copied"):
        exported_networks.plain_encoder(encoder)
