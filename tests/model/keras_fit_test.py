"""`fit` as Keras users call it, and under settings of Keras and TensorFlow."""

import itertools
import json

import numpy as np
import processes
import pytest
import replicas
import tensorflow as tf

from tf_contrastive import encoders, losses, optimizers
from tf_contrastive.base import errors
from tf_contrastive.model import ContrastiveModel

_VIEWS = np.random.default_rng(0).standard_normal([48, 2, 8, 8, 3], np.float32)
_LABELS = np.arange(48) % 4
# Without biases, which all images share, embeddings stay apart.
_APART = {
    "use_bias": False,
    "kernel_initializer": tf.keras.initializers.GlorotUniform(1),
}


def _encoder(size=8):
    images = tf.keras.Input((size, size, 3))
    x = tf.keras.layers.Conv2D(4, 3, **_APART)(images)
    return tf.keras.Model(images, tf.keras.layers.GlobalAveragePooling2D()(x))


def _model(loss="supcon", size=8):
    head = tf.keras.layers.Dense(8, **_APART)
    model = ContrastiveModel(_encoder(size), head, losses.build(loss))
    model.compile(optimizer=optimizers.LARS(0.1))
    return model


def _generator(views=_VIEWS):
    while True:
        for i in (0, 16, 32):
            yield views[i : i + 16], _LABELS[i : i + 16]


class _Sequence(tf.keras.utils.Sequence):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        part = slice(16 * i, 16 * (i + 1))
        return _VIEWS[part], _LABELS[part]


def _dataset(shape):
    return tf.data.Dataset.from_generator(
        lambda: iter([next(_generator())]),
        output_signature=(
            tf.TensorSpec(shape, tf.float32),
            tf.TensorSpec([None], tf.int64),
        ),
    )


@pytest.mark.slow
@pytest.mark.keras
def test_generators_and_sequences_train_as_arrays():
    more = np.tile(_VIEWS, [1, 2, 1, 1, 1])[:, :3]
    sized = {"batch_size": 16, "shuffle": False, "verbose": 0}
    expected = _model(size=8).fit(
        _VIEWS, _LABELS, validation_data=(more, _LABELS), **sized
    )
    seeds = np.zeros([16, 2, 2], np.int32)
    seeded = (((views, seeds), labels) for views, labels in _generator())
    steps = {"steps_per_epoch": 3, "validation_steps": 3}
    for data, options in (
        (seeded, steps),
        (_Sequence(), {"shuffle": False, "validation_steps": 3}),
    ):
        model = _model(size=None)
        options = {"validation_data": _generator(more), **options}
        history = model.fit(data, verbose=0, **options).history
        for name, values in expected.history.items():
            np.testing.assert_allclose(history[name], values, rtol=1e-5)
        found = model.evaluate(_generator(more), steps=3, verbose=0)
        assert found[0] == pytest.approx(history["val_loss"][0], rel=1e-5)


def test_steps_of_a_generator_are_counted(capfd):
    model = _model()
    model.fit(itertools.islice(_generator(), 3), verbose=2)
    assert capfd.readouterr().out.startswith("3/3 - ")
    with pytest.raises(ValueError, match="the generator has no batch"):
        model.fit(iter([]))


def test_a_fit_may_have_more_views_than_the_one_before():
    model = _model("ntxent")
    data = (views for views, _ in _generator())
    model.fit(data, steps_per_epoch=1, verbose=0)
    views = np.concatenate([_VIEWS, _VIEWS[:, :1]], axis=1)
    history = model.fit(views, _LABELS, batch_size=16, verbose=0).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.parametrize(
    ("shape", "size"),
    [([None, 2, None, None, 3], None), ([None, 2, None, None, None], 8)],
)
def test_datasets_of_unknown_image_size_are_trained_on(shape, size):
    history = _model(size=size).fit(_dataset(shape), verbose=0).history
    assert np.isfinite(history["loss"]).all()


class _Seen(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.values = [v.numpy() for v in self.model.variables]


@pytest.mark.parametrize("count", [1, 2])
def test_a_step_whose_input_fails_changes_nothing(count):
    def batch(number):
        number = tf.cast(number, tf.int32)
        with tf.control_dependencies([tf.debugging.assert_less(number, 2)]):
            part = tf.range(16) + 16 * number
        return tf.gather(_VIEWS, part), tf.gather(_LABELS, part)

    with replicas.strategy(count).scope():
        model = _model()
    with pytest.raises(tf.errors.InvalidArgumentError):
        data = tf.data.Dataset.range(9).map(batch)
        model.fit(data, verbose=0, callbacks=[seen := _Seen()])
    assert model.optimizer.iterations.numpy() == 2
    for found, before in zip(model.variables, seen.values, strict=True):
        np.testing.assert_array_equal(found, before)


@pytest.mark.parametrize("shape", [[None] * 5, [None, None, 8, 8, 3], None])
def test_an_unknown_number_of_views_is_named(shape):
    with pytest.raises(ValueError, match="views of shape"):
        _model().fit(_dataset(shape), verbose=0)


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("shape", [[None, None, 8], [None, 2, None]])
def test_losses_name_sizes_that_must_be_known(loss, shape):
    @tf.function(
        input_signature=[
            tf.TensorSpec(shape, tf.float32),
            tf.TensorSpec([None], tf.int32),
        ]
    )
    def graph(projections, labels):
        return losses.build(loss)(projections, labels)

    with pytest.raises(ValueError, match=r"must be known|keys"):
        graph.get_concrete_function()


@pytest.mark.slow
@pytest.mark.keras
def test_replicas_refuse_a_last_batch_of_another_size():
    views, labels = _VIEWS[:34], _LABELS[:34]
    with replicas.strategy(2).scope():
        model = _model()
        with pytest.raises(ValueError, match="drop_remainder"):
            model.fit(views, labels, batch_size=32, verbose=0)
        assert model.optimizer.iterations.numpy() == 0
        data = tf.data.Dataset.from_tensor_slices((views, labels))
        data = data.batch(32, drop_remainder=True)
        assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()
        # Another size of batches, for which the graph is traced again.
        data = data.unbatch().batch(16, drop_remainder=True)
        assert np.isfinite(model.fit(data, verbose=0).history["loss"]).all()


def test_keras_must_have_channels_last():
    keras = tf.keras.backend
    keras.set_image_data_format("channels_first")
    try:
        with pytest.raises(errors.UserError, match="channels_first"):
            encoders.build("resnet10", image_shape=(16, 16, 3))
    finally:
        keras.set_image_data_format("channels_last")


_SETTINGS = [
    "tf.config.experimental.enable_op_determinism(); "
    "tf.keras.utils.set_random_seed(0)",
    "tf.debugging.enable_check_numerics()",
    "tf.config.run_functions_eagerly(True)",
    "tf.config.optimizer.set_jit(True)",
    "tf.keras.backend.set_floatx('float64')",
    "tf.keras.mixed_precision.set_global_policy('mixed_float16')",
]
_FIT = """
import os, sys
import numpy as np
import tensorflow as tf
for setting in sys.argv[1:]:  # Each in a process that has TensorFlow already.
    if not (child := os.fork()):
        exec(setting)
        break
    assert os.waitpid(child, 0)[1] == 0, setting
else:
    sys.exit()
from tests import small
from tf_contrastive import encoders, heads, losses, optimizers
from tf_contrastive.model import ContrastiveModel

views = np.random.default_rng(0).random([32, 2, 8, 8, 3]).astype(np.float32)
small.encoder().__enter__()
model = ContrastiveModel(
    encoders.build("resnet10", width=0.125, image_shape=(8, 8, 3)),
    heads.build("mlp", hidden=8, output=8),
    losses.build("supcon"),
    probe=heads.LinearProbe(4),
)
model.compile(optimizer=optimizers.LARS(0.1))
data = tf.data.Dataset.from_tensor_slices((views, np.arange(32) % 4))
history = model.fit(data.batch(16, drop_remainder=True), verbose=0).history
assert np.isfinite([values[-1] for values in history.values()]).all(), history
"""


@pytest.mark.slow
@pytest.mark.parametrize("settings", [_SETTINGS[:3], _SETTINGS[3:]])
def test_a_model_trains_under_settings_of_tensorflow(settings):
    processes.run(processes.python(_FIT, *settings))


@pytest.mark.slow
def test_a_run_does_not_depend_on_the_account_s_keras(tmp_path):
    settings = {
        "image_data_format": "channels_first",
        "floatx": "float16",
        "epsilon": 0.01,
        "backend": "tensorflow",
    }
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "keras.json").write_text(json.dumps(settings))
    deterministic, results = {"TF_DETERMINISTIC_OPS": "1"}, []
    for name, variables in (
        ("plain", {}),
        ("account", {"KERAS_HOME": str(tmp_path / "keras"), **deterministic}),
    ):
        words = ["--smoke", "--encoder=resnet10", "--workdir", tmp_path / name]
        main = processes.small("pretrain", *words)
        processes.run(main, variables=variables)
        result = json.loads((tmp_path / name / "pretrain.json").read_text())
        results.append({**result, "seconds": 0})
    assert results[0] == results[1]
