"""The training step: what it counts, draws, takes and refuses."""

import functools
import time

import numpy as np
import pytest
import replicas as on_replicas
import small
import tensorflow as tf

from tf_contrastive import heads, losses, optimizers, train
from tf_contrastive.base.errors import UserError
from tf_contrastive.distribution.batch_normalization import BatchNormalization
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.views.mixup_cutmix import Mixing

_BATCH, _VIEWS, _SIDE, _CLASSES = 16, 2, 16, 4


def _data(seed=0):
    """Images of classes that differ in colour; classes unevenly spread."""
    rng = np.random.default_rng(seed)
    labels = np.array([0, 0, 0, 0, 1, 0, 2, 3, 3, 3, 1, 0, 2, 2, 2, 2])
    tints = rng.uniform(0.2, 0.8, [_CLASSES, 1, 1, 1, 3])
    noise = rng.normal(0, 0.1, [_BATCH, _VIEWS, _SIDE, _SIDE, 3])
    views = np.clip(tints[labels] + noise, 0, 1).astype(np.float32)
    return views, labels.astype(np.int32)


def _model(loss="supcon", probe=True):
    tf.keras.utils.set_random_seed(0)
    return ContrastiveModel(
        small.convolutions(_SIDE, norm=BatchNormalization),
        heads.build("mlp", output=16),
        losses.build(loss),
        heads.LinearProbe(_CLASSES) if probe else None,
    )


def _fit(model, epochs=1, steps=4, data=None, **compile_options):
    model.compile(
        optimizers.LARS(0.5),
        tf.keras.optimizers.SGD(0.1, jit_compile=False),
        **compile_options,
    )
    data = data or tf.data.Dataset.from_tensors(_data()).repeat()
    return model.fit(data, epochs=epochs, steps_per_epoch=steps, verbose=0)


class _Inverting(tf.keras.layers.Layer):
    """Plain Python of a tensor, which AutoGraph must convert."""

    def call(self, x):
        if tf.reduce_mean(x) > 0.5:
            x = 1 - x
        return x


@pytest.mark.slow
def test_layers_with_control_flow_of_their_own_are_converted():
    def loss_of(views):
        tf.keras.utils.set_random_seed(0)
        images = tf.keras.Input((_SIDE, _SIDE, 3))
        x = tf.keras.layers.Flatten()(_Inverting()(images))
        strategy = on_replicas.strategy(2)
        with strategy.scope():
            model = ContrastiveModel(
                tf.keras.Model(images, tf.keras.layers.Dense(8)(x)),
                heads.build("linear", output=8),
                losses.build("ntxent"),
            )
            model.compile(optimizers.LARS(0.5))
        examples = tf.data.Dataset.from_tensor_slices((views,))
        batches = on_replicas.share(examples, _BATCH, strategy)
        trained = model.fit(batches, steps_per_epoch=2, verbose=0)
        scored = model.evaluate(batches, steps=1, verbose=0)
        return [trained.history["loss"][0], scored[0]]

    dark = 0.4 * _data()[0]
    np.testing.assert_allclose(loss_of(dark), loss_of(1 - dark), rtol=1e-4)


@pytest.mark.slow
def test_waiting_for_input_is_counted():
    def slow(views, labels):
        tf.py_function(lambda: time.sleep(0.3), [], [])
        return views, labels

    data = tf.data.Dataset.from_tensors(_data()).repeat()
    model = _model()
    _fit(model, steps=4, data=data, steps_per_execution=2)
    fast = model.input_wait_seconds
    started = time.perf_counter()
    model.fit(data.map(slow), steps_per_epoch=4, verbose=0)
    spent = time.perf_counter() - started
    # The next batch may be on its way while a step runs.
    assert 3 * 0.3 < model.input_wait_seconds - fast < spent
    # It is no variable, of which each TPU core would have a copy.
    graph = model.train_tf_function.get_concrete_function(iter(data)).graph
    assert tf.float64 not in {v.dtype for v in graph.variables}


class _SeedAsLoss:
    """A loss without temperature, whose value is the seed it is given."""

    needs_labels, temperature, normalize = False, None, True

    def __call__(self, projections, labels, seed):
        value = tf.cast(100 * seed[0] + seed[1], tf.float32)
        return value + 0 * tf.reduce_sum(projections)


def test_a_loss_draws_by_the_run_and_the_step():
    model = ContrastiveModel(
        small.convolutions(_SIDE, norm=BatchNormalization),
        heads.build("linear", output=4),
        _SeedAsLoss(),
        seed=7,
    )
    data = tf.data.Dataset.from_tensors(_data()).repeat()
    _fit(model, steps=2, data=data)
    model.reset_metrics()
    assert model.train_on_batch(*_data(), return_dict=True)["loss"] == 702
    # Epochs are compared on the same draws.
    results = model.evaluate(data, steps=1, return_dict=True, verbose=0)
    assert results["loss"] == 700


@small.encoder()
def test_cross_entropy_needs_classes():
    run = small.run(loss="cross_entropy", stem="cifar", image_size=_SIDE)
    head = train.build_model(run, _CLASSES).projection_head
    assert head.get_weights()[0].shape == (512 // 8, _CLASSES)
    with pytest.raises(UserError, match="cross_entropy needs classes"):
        train.build_model(run, None)


def test_sample_weights_are_refused():
    views, labels = _data()
    weighted = tf.data.Dataset.from_tensors((views, labels, labels))
    with pytest.raises(ValueError, match="sample_weight and class_weight"):
        _fit(_model(), steps=1, data=weighted)


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [1, 2])
def test_variables_that_the_views_do_not_reach_stay(chunks):
    encoder = small.convolutions(_SIDE)
    used = encoder.trainable_variables[0]
    encoder.unused = tf.keras.layers.Dense(4)
    encoder.unused.build([None, 4])
    before = [w.numpy() for w in (used, *encoder.unused.weights)]
    model = ContrastiveModel(
        encoder,
        heads.build("linear", output=2),
        losses.build("ntxent"),
        grad_cache_chunks=chunks,
    )
    _fit(model, steps=1, data=tf.data.Dataset.from_tensors(_data()[0]))
    variables = encoder.trainable_variables
    assert any(v is encoder.unused.kernel for v in variables)
    for weight, value in zip(encoder.unused.weights, before[1:], strict=True):
        np.testing.assert_array_equal(weight, value)
    assert np.any(used.numpy() != before[0])


def test_a_batch_counts_by_its_images():
    """Losses whose mean over batches is known: 32, 32 and 6 images."""

    def loss(projections):
        # 1 for the small batch.
        small = tf.shape(projections)[0] < 32
        return tf.cast(small, tf.float32) + 0 * tf.reduce_sum(projections)

    model = ContrastiveModel(
        small.convolutions(_SIDE, norm=BatchNormalization),
        heads.build("linear", output=4),
        loss,
    )
    model.compile("sgd")
    views = np.random.default_rng(0).uniform(size=[70, 2, _SIDE, _SIDE, 3])
    views = tf.data.Dataset.from_tensor_slices(views.astype(np.float32))
    data = views.batch(32)
    expected = [pytest.approx(6 / 70, rel=1e-5)]
    history = model.fit(data, validation_data=data, verbose=0).history
    assert history["loss"] == history["val_loss"] == expected


@functools.cache
def _compiled(*signature):
    """A model that steps on arrays of one signature, and its first weights."""
    model = _model()
    model.compile("sgd")
    return model, model.get_weights()


@pytest.mark.parametrize(
    ("views", "labels", "text"),
    [
        ("float", None, None),
        ("uint8", None, None),
        ("1 view", None, r"must be \[B, V, H, W, K\]"),
        ("255", None, "and are floats"),
        ("int32", None, "views of type int32: must be floats"),
        ("1 channel", None, "encoder takes images of shape .16, 16, 3."),
        ("float", "one_hot", "the probe takes integers"),
        ("float", "float", "the probe takes integers|must be int"),
        ("float", "from_1", "labels must be integers from 0 to"),
        ("float", "from_-1", "class ids must be|must be integers from 0"),
    ],
)
def test_other_values_are_refused(views, labels, text):
    pixels, ids = _data()
    given = {
        "float": pixels,
        "uint8": np.uint8(pixels * 255),
        "1 view": pixels[:, 0],
        "255": pixels * np.float32(255),
        "int32": np.int32(pixels * 255),
        "1 channel": pixels[..., :1],
    }[views]
    targets = {
        None: ids,
        "one_hot": np.eye(_CLASSES, dtype=np.float32)[ids],
        "float": ids.astype(np.float32),
        "from_1": ids + 1,
        "from_-1": ids - 1,
    }[labels]
    signature = [(array.dtype, array.shape) for array in (given, targets)]
    model, weights = _compiled(*signature)
    model.set_weights(weights)  # Those of a case before may be NaN.
    if text is None:
        assert np.isfinite(model.train_on_batch(given, targets)).all()
        return
    raised = (ValueError, tf.errors.InvalidArgumentError)
    with pytest.raises(raised, match=text):
        model.train_on_batch(given, targets)


_layers = tf.keras.layers


def _keras(*layers):
    return tf.keras.Sequential([tf.keras.Input([_SIDE, _SIDE, 3]), *layers])


def _regularized():
    return _layers.Dense(4, kernel_regularizer="l2")


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("encoder", "resnet10", "encoder str must be a Keras model"),
        (
            "encoder",
            tf.keras.Sequential([_layers.Flatten()]),
            "encoder Sequential must be a Keras model of a known shape",
        ),
        (
            "encoder",
            _keras(_layers.Conv2D(4, 3)),
            r"and is \(None, 16, 16, 3\) -> \(None, 14, 14, 4\)",
        ),
        ("projection_head", "mlp", "projection_head str must be"),
        ("encoder", _keras(_layers.Flatten(), _regularized()), "weight_decay"),
        ("probe", _regularized(), "has regularizers"),
        ("loss", _regularized(), "has regularizers"),
    ],
)
def test_other_parts_are_refused(part, value, text):
    parts = {
        "encoder": _keras(_layers.Flatten()),
        "projection_head": _layers.Dense(2),
        "loss": losses.build("ntxent"),
    }
    with pytest.raises(ValueError, match=text) as error:
        ContrastiveModel(**parts | {part: value})
    assert "\n" not in str(error.value)


def test_an_encoder_that_joins_images_is_refused():
    joined = _layers.Lambda(lambda x: tf.reshape(x, [-1, 16 * 16 * 6]))
    model = ContrastiveModel(
        _keras(joined), _layers.Dense(2), losses.build("ntxent")
    )
    model.compile("sgd")
    with pytest.raises(ValueError, match="returns 8 rows for 16 images"):
        model.train_on_batch(np.ones([8, 2, _SIDE, _SIDE, 3], np.float32))


def test_what_views_come_with_is_named():
    (views, labels), seeds = _data(), np.zeros([_BATCH, 2, 2], np.int32)
    for options, data, text in (
        ({"mix": Mixing(4, 0.2)}, (views, labels), "mix needs seeds and"),
        ({"mix": Mixing(4, 0.2)}, ((views, seeds),), "mix needs seeds and"),
        ({"mix": Mixing(4, 0.2)}, ((views, seeds), labels), "an odd number"),
        ({"augment": lambda v, _: v}, (views, labels), "augment needs seeds"),
    ):
        network = _keras(_layers.Flatten()), _layers.Dense(2)
        model = ContrastiveModel(*network, losses.build("ntxent"), **options)
        with pytest.raises(ValueError, match=text) as error:
            _fit(model, data=tf.data.Dataset.from_tensor_slices(data).batch(5))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["loss", "metrics"])
def test_losses_and_metrics_of_keras_are_refused(name):
    with pytest.raises(ValueError, match=rf"compile\({name}=...\) is not used"):
        _model().compile("sgd", **{name: ["mae"]})


@pytest.mark.parametrize("replicas", [1, 2])
def test_keras_normalization_becomes_synchronized(replicas):
    strategy = on_replicas.strategy(replicas)
    kind = tf.keras.layers.BatchNormalization
    with strategy.scope():
        encoder = small.convolutions(_SIDE, filters=(4,), norm=kind)
        head = tf.keras.Sequential([tf.keras.layers.Dense(4), kind()])
        ContrastiveModel(encoder, head, losses.build("ntxent"))
    for network in (encoder, head):
        (layer,) = (x for x in network.layers if isinstance(x, kind))
        assert getattr(layer, "synchronized", False) == (replicas > 1)
