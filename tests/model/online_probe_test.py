"""The online probe: of labelled images alone, apart or with the encoder."""

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf
from replicas import Recorder

from tf_contrastive import heads, losses, tensorboard, train
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.model.online_knn import OnlineNeighbors
from tf_contrastive.tensorboard import scalars

_BATCH, _VIEWS, _SIDE, _CLASSES = 16, 2, 6, 3
# The first two of four replicas, or chunks, have one label together.
_LABELS = np.array([-1] * 7 + [2, 0, 1, 2, -1, 1, 0, -1, 0], np.int32)
_ALL = np.where(_LABELS < 0, 1, _LABELS)
_WEIGHT = 0.7


def _views():
    rng = np.random.default_rng(0)
    shape = [_BATCH, _VIEWS, _SIDE, _SIDE, 3]
    return rng.uniform(size=shape).astype(np.float32)


def _model(chunks=1, weight=0.0, loss="supcon", **options):
    tf.keras.utils.set_random_seed(0)
    images = tf.keras.Input((_SIDE, _SIDE, 3))
    x = tf.keras.layers.Dense(8, "tanh")(tf.keras.layers.Flatten()(images))
    return ContrastiveModel(
        tf.keras.Model(images, x),
        heads.build("mlp", output=4, batch_norm=False),
        losses.build(loss, unlabelled="own_views")
        if loss == "supcon"
        else losses.build(loss),
        heads.LinearProbe(_CLASSES, "glorot_uniform"),
        weight,
        grad_cache_chunks=chunks,
        **options,
    )


def _step(labels, replicas=1, **options):
    strategy = on_replicas.strategy(replicas)
    with strategy.scope():
        model = _model(**options)
        probe_optimizer = None if model.cross_entropy_weight else Recorder()
        model.compile(Recorder(), probe_optimizer)
    examples = tf.data.Dataset.from_tensor_slices((_views(), labels))
    batches = on_replicas.share(examples, _BATCH, strategy)
    history = model.fit(batches, steps_per_epoch=1, verbose=0).history
    weights = {f"{i}": v.numpy() for i, v in enumerate(model.weights)}
    return {name: values[0] for name, values in history.items()} | weights


def _by_hand(images, weight):
    """Results of the labelled images alone, and gradients of the network."""
    model, has = _model(weight=weight), images >= 0
    views = _views()
    with tf.GradientTape() as tape:
        h = model.encoder(views.reshape([-1, _SIDE, _SIDE, 3]))
        z = tf.reshape(model.projection_head(h), [_BATCH, _VIEWS, -1])
        loss = model.contrastive_loss(z, images)
        h = tf.boolean_mask(h, np.repeat(has, _VIEWS))
        logits = model.probe(h if weight else tf.stop_gradient(h))
        labels = np.repeat(images[has], _VIEWS)
        of_class = tf.one_hot(labels, _CLASSES)
        log = tf.math.log(tf.nn.softmax(logits))
        entropy = -tf.reduce_mean(tf.reduce_sum(of_class * log, axis=1))
        total = loss + (weight or 1.0) * entropy
    gradients = tape.gradient(total, model.trainable_variables)
    for variable, gradient in zip(
        model.trainable_variables, gradients, strict=True
    ):
        variable.assign(gradient)
    found = {f"{i}": v.numpy() for i, v in enumerate(model.weights)}
    hits = tf.argmax(logits, axis=1).numpy() == labels
    return found | {
        "loss": loss.numpy(),
        "probe_loss": entropy.numpy(),
        "probe_accuracy": hits.mean(),
    }


# With a weight, cross entropy is a part of the encoder's loss.
@pytest.mark.parametrize(
    ("labels", "replicas", "chunks", "weight"),
    [
        (_ALL, 1, 1, _WEIGHT),
        (_LABELS, 2, 2, 0.0),
        pytest.param(_LABELS, 4, 1, _WEIGHT, marks=pytest.mark.slow),
    ],
)
def test_the_probe_learns_from_labelled_images(
    labels, replicas, chunks, weight
):
    found = _step(labels, replicas, chunks=chunks, weight=weight)
    for name, value in _by_hand(labels, weight).items():
        np.testing.assert_allclose(
            found[name], value, rtol=2e-5, atol=2e-6, err_msg=name
        )


def test_means_are_over_labelled_images():
    """Of batches with two labels, none and one."""
    model = _model(loss="ntxent", unlabelled=True)
    model.compile("sgd", "sgd")
    views = _views()[:6]
    labels = np.array([0, 1, -1, -1, -1, 2])
    found = model.evaluate(
        tf.data.Dataset.from_tensor_slices((views, labels)).batch(2),
        return_dict=True,
        verbose=0,
    )
    has = labels >= 0
    alone = model.evaluate(
        views[has], labels[has], batch_size=3, return_dict=True, verbose=0
    )
    for name in "probe_loss", "probe_accuracy":
        assert found[name] == pytest.approx(alone[name], rel=1e-5), name


def test_a_label_of_minus_1_is_refused_unless_it_is_admitted():
    model = _model(loss="ntxent")
    model.compile("sgd", "sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="from 0 to 2"):
        model.train_on_batch(_views(), _LABELS)
    again = ContrastiveModel.from_config(
        _model(loss="ntxent", unlabelled=True).get_config()
    )
    again.compile("sgd", "sgd", run_eagerly=True)
    again.train_on_batch(_views(), _LABELS)
    labels = np.where(_LABELS < 0, -2, _LABELS)
    with pytest.raises(ValueError, match="or -1 for an image without a label"):
        again.train_on_batch(_views(), labels)


def test_neighbors():
    bank = OnlineNeighbors(4, 2)
    points = np.eye(2, dtype=np.float32)
    bank.enqueue(points[[0, 1]], np.array([-1, 5]))
    top1, found = bank(points[[0, 0, 1]], np.array([5, -1, 7]))
    # The unlabelled one in the bank is no neighbor, and that of the batch no
    # miss.
    assert (float(top1), float(found)) == (0.5, 1.0)
    _, found = bank(points, np.array([-1, -1]))
    assert float(found) == 0.0


def test_a_weight_that_cannot_be_used_is_refused():
    model = _model(weight=_WEIGHT, loss="ntxent")
    with pytest.raises(ValueError, match="probe_optimizer: with a cross_entr"):
        model.compile("sgd", probe_optimizer="sgd")
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"=0\.7 needs labels"):
        model.train_on_batch(_views())
    for weight in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="must be at least 0"):
            _model(weight=weight)
    parts = model.encoder, model.projection_head, model.contrastive_loss
    with pytest.raises(ValueError, match="there is no probe"):
        ContrastiveModel(*parts, cross_entropy_weight=1.0)


def test_a_run_with_a_weight_has_one_optimizer():
    run = small.run(cross_entropy_weight=0.5, workdir="w")
    model, rates = train.prepare(run).build()
    assert list(rates) == ["optimizer/learning_rate"]
    assert model.cross_entropy_weight == 0.5
    # Of zeros the encoder gets no gradient.
    assert np.any(model.probe.trainable_variables[0].numpy())
    assert "probe_optimizer" not in model.checkpointed()


def test_a_run_builds_a_model_that_admits_them():
    run = small.run(loss="sincere", unlabelled="own_views", workdir="w")
    model, _ = train.prepare(run).build()
    assert model.unlabelled and model.contrastive_loss.allows_unlabelled


def test_points_of_tensorboard_weigh_steps_by_their_labelled_images(tmp_path):
    images = tf.keras.Input((4, 4, 3))
    features = tf.keras.layers.Dense(2)(tf.keras.layers.Flatten()(images))
    model = ContrastiveModel(
        tf.keras.Model(images, features),
        heads.build("linear", output=4),
        losses.build("supcon", unlabelled="own_views"),
        probe=heads.LinearProbe(2),  # Of zeros: it says 0.
    )
    still = tf.keras.optimizers.SGD
    model.compile(still(0.0), probe_optimizer=still(0.0))
    labels = np.full([4, 8], -1)
    labels[::2, 0], labels[1::2, :7] = 0, 1
    views = np.random.default_rng(0).uniform(size=[32, 2, 4, 4, 3])
    writer = tensorboard.TensorBoard(
        str(tmp_path), every_steps=1, batch_size=8, schedules={}
    )
    data = views.astype(np.float32), labels.ravel()
    model.fit(*data, 8, shuffle=False, verbose=0, callbacks=[writer])
    writer.close()
    found = scalars.read(str(tmp_path))["probe/accuracy"]
    assert [*found.values()] == pytest.approx([1, 0, 1, 0], abs=1e-6)
