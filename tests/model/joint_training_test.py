"""Cross entropy in the loss: encoder and probe are trained jointly."""

import functools

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf
from replicas import Recorder

from tf_contrastive import heads, losses, train
from tf_contrastive.config import fields
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel

_BATCH, _VIEWS, _SIDE, _CLASSES, _WEIGHT = 16, 2, 8, 4, 0.7


def _data():
    rng = np.random.default_rng(0)
    views = rng.uniform(size=[_BATCH, _VIEWS, _SIDE, _SIDE, 3])
    labels = rng.integers(_CLASSES, size=[_BATCH])
    return views.astype(np.float32), labels.astype(np.int32)


def _model(weight=_WEIGHT, chunks=1, norm=True):
    tf.keras.utils.set_random_seed(0)
    images = x = tf.keras.Input((_SIDE, _SIDE, 3))
    x = tf.keras.layers.Conv2D(8, 3, 2, use_bias=not norm)(x)
    x = BatchNormalization()(x) if norm else x
    x = tf.keras.layers.Flatten()(tf.keras.layers.ReLU()(x))
    return ContrastiveModel(
        tf.keras.Model(images, tf.keras.layers.Dense(12, dtype="float32")(x)),
        heads.build("mlp", output=16, batch_norm=False),
        losses.build("supcon"),
        heads.LinearProbe(_CLASSES, "glorot_uniform"),
        weight,
        grad_cache_chunks=chunks,
    )


def _by_hand(model):
    """Losses of the whole batch, and gradients of their weighted sum."""
    views, labels = _data()
    with tf.GradientTape() as tape:
        h = model.encoder(views.reshape([-1, _SIDE, _SIDE, 3]), training=True)
        z = tf.reshape(model.projection_head(h), [_BATCH, _VIEWS, -1])
        loss = model.contrastive_loss(z, labels)
        log = tf.math.log(tf.nn.softmax(model.probe(h)))
        of_class = tf.one_hot(np.repeat(labels, _VIEWS), _CLASSES)
        entropy = -tf.reduce_mean(tf.reduce_sum(of_class * log, axis=1))
        total = loss + _WEIGHT * entropy
    variables = [
        *model.encoder.trainable_variables,
        *model.projection_head.trainable_variables,
        *model.probe.trainable_variables,
    ]
    gradients = [g.numpy() for g in tape.gradient(total, variables)]
    return float(loss), float(entropy), gradients


def _variables(model):
    return [v.numpy() for v in model.pretrained_variables]


def _step(replicas=1, **options):
    """Losses of a step, and its gradients."""
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        model = _model(**options)
        model.compile(Recorder())
    examples = tf.data.Dataset.from_tensor_slices(_data())
    batches = on_replicas.share(examples, _BATCH, strategy)
    history = model.fit(batches, steps_per_epoch=1, verbose=0).history
    return history["loss"][0], history["probe_loss"][0], _variables(model)


@functools.cache
def _expected(norm):
    return _by_hand(_model(norm=norm))


@pytest.mark.parametrize(("replicas", "chunks"), [(1, 1), (2, 2)])
def test_the_gradient_is_that_of_the_weighted_sum(replicas, chunks):
    norm = chunks == 1  # Of statistics of a chunk otherwise.
    found = _step(replicas, chunks=chunks, norm=norm)
    expected = _expected(norm)
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-5)
    largest = max(np.linalg.norm(g) for g in expected[2])
    for mine, theirs in zip(found[2], expected[2], strict=True):
        scale = max(np.linalg.norm(theirs), 1e-4 * largest)
        assert np.linalg.norm(mine - theirs) < 2e-5 * scale


def test_without_a_weight_the_encoder_is_left_alone():
    """The control: cross entropy changes the encoder's gradient a lot."""
    model = _model(0.0)
    model.compile(Recorder(), Recorder())
    views, labels = _data()
    model.fit(views, labels, batch_size=_BATCH, verbose=0)
    alone = _variables(model)
    joint = _expected(True)[2]
    assert np.linalg.norm(alone[0] - joint[0]) > 0.1 * np.linalg.norm(joint[0])
    assert len(joint) == len(alone) + 2


def test_config_and_mistakes():
    again = ContrastiveModel.from_config(_model().get_config())
    assert again.cross_entropy_weight == _WEIGHT
    model = _model()
    model.contrastive_loss = losses.build("ntxent")
    with pytest.raises(ValueError, match="probe_optimizer: with a cross_entr"):
        model.compile("sgd", probe_optimizer="sgd")
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"=0\.7 needs labels"):
        model.train_on_batch(_data()[0])
    for weight in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="must be at least 0"):
            _model(weight)
    parts = model.encoder, model.projection_head, model.contrastive_loss
    with pytest.raises(ValueError, match="there is no probe"):
        ContrastiveModel(*parts, cross_entropy_weight=1.0)


def _run(**options):
    changed = {"cross_entropy_weight": 0.5, "workdir": "w", **options}
    return fields.replace(small.RUN, **{**small.DIGITS, **changed})


def test_a_run_has_one_optimizer():
    model, rates = train.prepare(_run()).build()
    assert list(rates) == ["optimizer/learning_rate"]
    assert model.cross_entropy_weight == 0.5
    # Of zeros the encoder gets no gradient.
    assert np.any(model.probe.trainable_variables[0].numpy())
    assert set(model.checkpointed()) == {
        *("encoder", "projection_head", "probe", "optimizer")
    }
