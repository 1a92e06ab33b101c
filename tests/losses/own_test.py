"""Losses of your own: their forms, their options, and what is refused."""

import functools

import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf

from tf_contrastive import heads, losses
from tf_contrastive.base import errors
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


class _GapOfAll(losses.ContrastiveLoss):
    def call(self, projections):
        return _gap(losses.global_batch(projections).projections)


class _Seeded(losses.ContrastiveLoss):
    needs_labels = True

    def call(self, projections, labels, seed):
        return tf.cast(seed[1], tf.float32) + 0 * tf.reduce_sum(projections)


class _Keras(losses.ContrastiveLoss):
    def call(self, y_true, y_pred):
        return _gap(y_pred)


def _branch(z):
    if tf.reduce_sum(z) > 100:  # By AutoGraph.
        z = 2 * z
    return _gap(z)


class _Empty(losses.ContrastiveLoss):
    pass


class _Callable:
    def __call__(self, z, labels, seed):
        return tf.cast(seed[1], tf.float32) + 0 * tf.reduce_sum(z)


@pytest.mark.parametrize(
    ("loss", "needs_labels", "expected"),
    [
        (losses.FunctionLoss(_gap), False, _MEAN),
        (losses.FunctionLoss(lambda z: tf.reduce_mean(_gap(z))), False, _MEAN),
        (losses.FunctionLoss(lambda z, labels: _gap(z)), True, _MEAN),
        # Any names.
        (
            losses.FunctionLoss(lambda a, b: tf.reduce_max(b)),
            True,
            1.0,
        ),
        (
            losses.FunctionLoss(lambda z, labels=None: tf.reduce_max(labels)),
            False,
            1.0,
        ),
        (
            losses.FunctionLoss(lambda z, weight=1.0: weight * _gap(z)),
            False,
            _MEAN,
        ),
        (
            losses.FunctionLoss(
                lambda z, weight=1.0: weight * _gap(z), weight=2
            ),
            False,
            2 * _MEAN,
        ),
        (
            losses.FunctionLoss(
                functools.partial(lambda z, weight: weight * _gap(z), weight=3)
            ),
            False,
            3 * _MEAN,
        ),
        (losses.FunctionLoss(_Callable()), True, 8.0),
        (
            losses.FunctionLoss(lambda z, seed=None, labels=None: seed[0]),
            False,
            7.0,
        ),
        (_Gap(scale=0.5), False, _MEAN / 2),
        (_GapOfAll(), False, _MEAN),
        (_Seeded(), True, 8.0),
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
        (lambda: own.get(losses.SupCon), "wrong form: must be a function"),
        (lambda: own.get(lambda: 1.0), "must be a function"),
        (lambda: own.get(lambda a, b, c: 1.0), "must be a function"),
        (
            lambda: own.get(tf.keras.losses.MeanSquaredError()),
            "loss MeanSquaredError is of the wrong form",
        ),
        (lambda: losses.FunctionLoss(_gap, scale=1), "unknown option of _gap"),
        (lambda: own.of_part(_Gap, scael=1), "did you mean 'scale'"),
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
        (
            lambda: losses.FunctionLoss(tf.keras.losses.mean_squared_error),
            "mean_squared_error .* takes .y_true, y_pred.: must be",
        ),
        (lambda: _Keras()(_Z), "loss _Keras is of .* y_pred"),
        *(
            (lambda f=f: losses.FunctionLoss(f)(_Z), "<lambda> returned a ten")
            for f in (
                lambda z: z[0],
                lambda z: _gap(z)[:1],
                lambda z: tf.tile(_gap(z), [1, 3]),
            )
        ),
        (lambda: losses.FunctionLoss(lambda z: None)(_Z), "returned NoneType"),
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
    function = losses.FunctionLoss(lambda z, weight=1.0: _gap(z), weight=2)
    again = losses.FunctionLoss.from_config(function.get_config())
    assert again.function is function.function and again.options == {
        "weight": 2
    }


@pytest.mark.slow
@pytest.mark.parametrize("loss", [_gap, _Gap(), losses.FunctionLoss(_gap)])
def test_a_model_trains_by_it(loss):
    encoder = tf.keras.Sequential([tf.keras.Input([2, 2, 3])])
    encoder.add(tf.keras.layers.Flatten())
    encoder.add(tf.keras.layers.Dense(4))
    model = ContrastiveModel(encoder, heads.build("linear", output=2), loss)
    model.compile("sgd")
    views = tf.random.stateless_uniform([8, 2, 2, 2, 3], [1, 2])
    history = model.fit(views, batch_size=4, epochs=3, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]


def test_of_no_loss_at_all():
    with pytest.raises(errors.UserError, match="loss NoneType is of the wrong"):
        own.get(None)


_MINE = tf.Variable(1.0, name="mine")


class _Learned(tf.keras.layers.Layer):
    """NT-Xent with a learned temperature."""

    def build(self, shape):
        self.scale = self.add_weight("scale", [], initializer="ones")

    def call(self, z, labels=None):
        z = tf.math.l2_normalize(tf.cast(z, tf.float32), -1)
        everyone = losses.global_batch(z)
        own = everyone.first + tf.range(tf.shape(z)[0])
        scale = 3 * tf.cast(self.scale, tf.float32)
        logits = z[:, 0] @ tf.transpose(everyone.projections[:, 1]) * scale
        return tf.nn.sparse_softmax_cross_entropy_with_logits(own, logits)


class _Holder(losses.ContrastiveLoss):
    def __init__(self):
        self.scales = {"first": tf.Variable(1.0), "more": "text"}

    def call(self, projections):
        return _gap(projections) * self.scales["first"]


_VIEWS = np.random.default_rng(1).uniform(size=[8, 2, 2, 2, 3]).astype("f")


def _model(loss, **options):
    tf.keras.utils.set_random_seed(0)
    encoder = tf.keras.Sequential([tf.keras.Input([2, 2, 3])])
    encoder.add(tf.keras.layers.Flatten())
    encoder.add(tf.keras.layers.Dense(4))
    head = tf.keras.layers.Dense(3)
    return ContrastiveModel(encoder, head, loss, **options)


def _gradients(replicas, make, **options):
    """The loss and the gradients of a step on a global batch."""
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        model = _model(make(), **options)
        model.compile(on_replicas.Recorder())
    data = tf.data.Dataset.from_tensor_slices((_VIEWS, np.arange(8) % 3))
    batches = on_replicas.share(data, 8, strategy)
    history = model.fit(batches, steps_per_epoch=1, verbose=0).history
    return history["loss"], [v.numpy() for v in model.pretrained_variables]


_alone = functools.cache(functools.partial(_gradients, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "replicas", "chunks"),
    [
        (_Learned, 2, 1),
        (_Learned, 1, 2),
        (_Learned, 4, 2),
        (_Holder, 2, 1),
    ],
)
def test_a_weight_of_a_loss_is_trained_on_any_number_of_replicas(
    make, replicas, chunks
):
    _, alone = expected = _alone(make)
    assert alone[-1].shape == () and abs(alone[-1]) > 1e-3
    found = _gradients(replicas, make, grad_cache_chunks=chunks)
    for mine, theirs in zip(
        tf.nest.flatten(found), tf.nest.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=1e-6)


def test_the_gradient_of_a_weight_is_that_of_the_formula():
    _, gradients = _alone(_Learned)
    model = _model(_Learned())
    scale = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        _, z = model.encode(_VIEWS, training=True)
        z = tf.math.l2_normalize(z, -1)
        logits = tf.einsum("ip,jp->ij", z[:, 0], z[:, 1]) * scale
        loss = -tf.reduce_mean(tf.linalg.diag_part(tf.nn.log_softmax(logits)))
    expected = 3 * tape.gradient(loss, scale)
    np.testing.assert_allclose(gradients[-1], expected, rtol=1e-4)


@pytest.mark.slow
def test_a_weight_of_a_loss_is_in_checkpoints_and_saved_models(tmp_path):
    with tf.keras.utils.custom_object_scope({"_Learned": _Learned}):
        model = _model(_Learned())
        model.compile("adam")
        model.fit(_VIEWS, epochs=2, verbose=0)
        scale = model.loss_parts.weights[0].numpy()
        assert scale != 1
        other = _model(_Learned())
        other.compile("adam")
        for m, action in ((model, "write"), (other, "read")):
            checkpoint = tf.train.Checkpoint(**m.checkpointed())
            getattr(checkpoint, action)(str(tmp_path / "c"))
        assert other.loss_parts.weights[0].numpy() == scale
        model.save(tmp_path / "m.keras")
        again = tf.keras.models.load_model(tmp_path / "m.keras")
        assert again.loss_parts.weights[0].numpy() == scale
    assert "loss" not in _model(_gap).checkpointed()


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize(
    ("loss", "text"),
    [
        (lambda z: _MINE * _gap(z), "the variable mine:0"),
        (lambda z: 1.0, "no gradient of the loss reaches the encoder"),
        (lambda z: tf.cast(_gap(z), tf.int32), "no gradient"),
        (lambda z: tf.numpy_function(np.mean, [z], tf.float32), "unknown"),
    ],
)
def test_what_would_not_train_is_refused(loss, text, chunks):
    model = _model(loss, grad_cache_chunks=chunks)
    model.compile("sgd")
    with pytest.raises(ValueError, match=text) as error:
        model.fit(_VIEWS, verbose=0)
    assert "\n" not in str(error.value)
