"""Losses of your own: their forms, their options, and what is refused."""

import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf
from replicas import Recorder

from tf_contrastive import losses
from tf_contrastive.losses import own
from tf_contrastive.model import ContrastiveModel

_Z = np.random.default_rng(0).normal(size=[4, 2, 3]).astype(np.float32)
_LABELS = np.array([0, 1, 0, 1])


def _gap(z):
    """The squared distance of the views, for each image: [B, 1]."""
    return tf.reduce_sum((z[:, :1] - z[:, 1:]) ** 2, -1)


_MEAN = ((_Z[:, 0] - _Z[:, 1]) ** 2).sum(-1).mean()


class _Gap(losses.ContrastiveLoss):
    def __init__(self, scale=1.0):
        self.scale = scale

    def call(self, projections, labels=None):
        return self.scale * _gap(projections)


def _branch(z):
    if tf.reduce_sum(z) > 100:  # By AutoGraph.
        z = 2 * z
    return _gap(z)


def _weighted(z, weight=1.0):
    return weight * _gap(z)


class _Empty(losses.ContrastiveLoss):
    pass


class _Callable:
    def __call__(self, z, labels, seed):
        return tf.cast(seed[1], tf.float32) + 0 * tf.reduce_sum(z)


@pytest.mark.parametrize(
    ("loss", "needs_labels", "expected"),
    [
        (losses.FunctionLoss(_gap), False, _MEAN),
        (losses.FunctionLoss(lambda z, labels: _gap(z)), True, _MEAN),
        # Any names.
        (losses.FunctionLoss(lambda a, b: tf.reduce_max(b)), True, 1.0),
        (
            losses.FunctionLoss(lambda z, labels=None: tf.reduce_max(labels)),
            False,
            1.0,
        ),
        (losses.FunctionLoss(_weighted, weight=2), False, 2 * _MEAN),
        (losses.FunctionLoss(_Callable()), True, 8.0),
        (losses.FunctionLoss(lambda z, seed=0, y=None: seed[0]), False, 7.0),
        (_Gap(scale=0.5), False, _MEAN / 2),
        # Of each image.
        (losses.FunctionLoss(lambda z: _gap(z)[:, 0]), False, _MEAN),
        (losses.FunctionLoss(_branch), False, _MEAN),
    ],
)
def test_the_forms_of_a_loss(loss, needs_labels, expected):
    assert loss.needs_labels == needs_labels
    for call in (loss, tf.function(loss, autograph=False)):
        found = call(_Z, _LABELS, seed=tf.constant([7, 8]))
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_each_view_has_its_loss():
    expected = ((_Z[:, 0] - _Z[:, 1]) ** 2).sum(-1)
    found = _Gap().per_anchor(_Z)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)
    with pytest.raises(TypeError, match="no loss for each view"):
        losses.FunctionLoss(tf.reduce_mean).per_anchor(_Z)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: own.get("supcon"), "loss str is of the wrong form: must be a"),
        (lambda: losses.FunctionLoss(_gap, scale=1), "unknown option of _gap"),
        (lambda: own.of_part(_Gap, scael=1), "did you mean scale"),
        (lambda: _Empty()(_Z), r"has no method call\(self, projections"),
        (
            lambda: losses.FunctionLoss(lambda z: z)(_Z),
            r"returned a tensor of shape \(4, 2, 3\): must be a loss for each",
        ),
        (
            lambda: losses.FunctionLoss(lambda z, labels: _gap(z))(_Z),
            "needs labels",
        ),
        (lambda: losses.build("my_module:my_loss"), "own_modules=my_module"),
        *(
            (lambda f=f: losses.FunctionLoss(f)(_Z), "<lambda> returned a ten")
            for f in (
                lambda z: z[0],
                lambda z: _gap(z)[:1],
                lambda z: tf.tile(_gap(z), [1, 3]),
            )
        ),
        (
            lambda: losses.global_batch(_Z, _LABELS[:3]),
            "for 4 images: must be int",
        ),
    ],
)
def test_another_form_is_named(call, text):
    with pytest.raises((ValueError, NotImplementedError), match=text) as error:
        call()
    assert "\n" not in str(error.value)


def test_a_loss_is_made_again_from_its_config():
    again = _Gap.from_config(_Gap(scale=3.0).get_config())
    assert again.scale == 3.0
    function = losses.FunctionLoss(_weighted, weight=2)
    again = losses.FunctionLoss.from_config(function.get_config())
    assert again.function is _weighted and again.options == {"weight": 2}


_MINE = tf.Variable(1.0, name="mine")


_VIEWS = np.random.default_rng(1).uniform(size=[8, 2, 2, 2, 3]).astype("f")


def _model(loss, **options):
    tf.keras.utils.set_random_seed(0)
    encoder = tf.keras.Sequential([tf.keras.Input([2, 2, 3])])
    encoder.add(tf.keras.layers.Flatten())
    encoder.add(tf.keras.layers.Dense(4))
    head = tf.keras.layers.Dense(3)
    return ContrastiveModel(encoder, head, loss, **options)


class _ThreeViews(tf.keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, use_bias=False)

    def call(self, z):
        a, b, c = tf.unstack(z, axis=1)
        return self.dense(a * b - c)


class _Predictor(tf.keras.layers.Layer):
    """BYOL's, shortened, and a layer that leaves nothing while training."""

    def build(self, shape):
        self.norm = tf.keras.layers.BatchNormalization()
        self.drop = tf.keras.layers.Dropout(1 - 1e-6)

    def call(self, z):
        return _gap(self.norm(z)) + self.drop(tf.ones([1]))


@pytest.mark.parametrize("replicas", [1, 2])
def test_layers_of_a_loss_know_of_training_and_of_other_replicas(replicas):
    with on_replicas.strategy(replicas).scope():
        model = _model(loss := _Predictor())
        model.compile(tf.keras.optimizers.SGD(0.0))
    options = {"batch_size": 8, "verbose": 0}
    z = model.projection_head(model.encoder(_VIEWS.reshape([-1, 2, 2, 3])))
    history = model.fit(_VIEWS, **options).history
    unit = (z - np.mean(z, axis=0)) / np.sqrt(np.var(z, axis=0) + 1e-3)
    gap = _gap(tf.reshape(unit, [8, 2, 3]))
    np.testing.assert_allclose(history["loss"], np.mean(gap), rtol=1e-4)
    mean = loss.norm.moving_mean.numpy()
    np.testing.assert_allclose(mean, 0.01 * np.mean(z, axis=0), rtol=1e-4)
    scored, *_ = model.evaluate(_VIEWS, **options)
    assert scored > 1
    np.testing.assert_array_equal(loss.norm.moving_mean, mean)


def test_layers_may_be_built_by_the_first_batch():
    model = _model(loss := _ThreeViews(), grad_cache_chunks=2)
    model.compile(Recorder())
    views = np.concatenate([_VIEWS, _VIEWS[:, :1] / 2], axis=1)
    z = model.projection_head(model.encoder(views.reshape([-1, 2, 2, 3])))
    a, b, c = tf.unstack(tf.reshape(z, [8, 3, 3]), axis=1)
    model.fit(views, batch_size=8, verbose=0)
    gradient = tf.reduce_mean(a * b - c, axis=0)
    np.testing.assert_allclose(loss.dense.kernel[:, 0], gradient, rtol=1e-4)


def test_images_without_a_label_are_classes_of_their_own():
    loss = losses.SupCon(unlabelled="own_views")
    model = _model(lambda z, y: loss.per_anchor(2 * z, y), unlabelled=True)
    model.compile("sgd")
    labels = np.array([-1, 0, 0, 1, 1, -1, -1, 2])
    others = np.where(labels < 0, np.arange(8) + 10, labels)
    found, expected = (model.evaluate(_VIEWS, y) for y in (labels, others))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


class _SameName(_Gap):
    def call(self, z):
        return self.scale * _MINE * _gap(z)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda z: _MINE * _gap(z), "the variable mine:0"),
        (_SameName(tf.Variable(1.0, name="mine")), "the variable mine:0"),
        (lambda z: 1.0, "no gradient of the loss reaches the encoder"),
        (lambda z: tf.numpy_function(np.mean, [z], tf.float32), "unknown"),
    ],
)
def test_what_would_not_train_is_refused(loss, text, chunks):
    model = _model(loss, grad_cache_chunks=chunks)
    model.compile("sgd")
    with pytest.raises(ValueError, match=text) as error:
        model.fit(_VIEWS, verbose=0)
    assert "\n" not in str(error.value)
