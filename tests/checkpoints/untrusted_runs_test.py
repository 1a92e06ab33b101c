"""A run from somebody else: it is read, nothing in it is executed."""

import shutil

import numpy as np
import pytest
import saved_run
import small
import tensorflow as tf

import tf_contrastive
from tf_contrastive import checkpoints, encoders, exporting
from tf_contrastive.base import errors

_IMAGES = np.random.default_rng(0).random([2, 8, 8, 3], np.float32)


class _Program(tf.train.Checkpoint):
    """Looks like an export, and writes a file when it is called."""

    def __init__(self, canary):
        super().__init__()
        self.trainable_variables = [tf.Variable(tf.zeros([3, 4]))]
        self._canary = str(canary)

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 3])])
    def __call__(self, images):
        with tf.control_dependencies([tf.io.write_file(self._canary, "ran")]):
            pooled = tf.reduce_mean(images, [1, 2])
            return tf.matmul(pooled, self.trainable_variables[0])


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    saved_run.make(folder, branches=True)
    return folder


@pytest.fixture(
    params=[
        "1",
        *(pytest.param(x, marks=pytest.mark.slow) for x in (".", "07")),
    ]
)
def planted(request, original, tmp_path):
    """A run with a program where an export may be, and the file it writes."""
    run, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(original, run)
    tf.saved_model.save(_Program(canary), str(run / request.param))
    return run, canary


@pytest.mark.slow
def test_a_program_in_a_run_is_not_executed(planted, original):
    run, canary = planted
    expected = exporting.load(str(original))(_IMAGES).numpy()
    assert np.abs(expected).max() > 0
    loaded = tf_contrastive.load(str(run))
    assert isinstance(loaded, encoders.Encoder)  # It checks its images.
    np.testing.assert_array_equal(loaded(_IMAGES), expected)
    encoder = checkpoints.load_encoder(
        checkpoints.load_run(str(original)), trained=False
    )
    exporting.copy_weights(str(run), encoder)
    np.testing.assert_array_equal(encoder(_IMAGES), expected)
    assert exporting.find(str(run)) is None
    assert not canary.exists()


@pytest.mark.parametrize("missing", ["config.flags", "checkpoints"])
def test_half_a_run_is_no_export(missing, planted):
    run, canary = planted
    path = run / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(errors.UserError, match=r"run"):
        tf_contrastive.load(str(run))
    assert not canary.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        "evaluate --workdir={run} --protocols=prototype --nountrained"
        " --output_dir={out}",
        "export --workdir={run} --output_dir={out}/export",
        "embed --saved_model={run} --input=digits --output={out}/x.npz",
    ],
)
def test_commands_do_not_execute_it(arguments, original, tmp_path):
    run, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(original, run)
    tf.saved_model.save(_Program(canary), str(run))
    words = arguments.format(run=run, out=tmp_path / "out").split()
    assert small.command(*words) == 0
    assert not canary.exists()
