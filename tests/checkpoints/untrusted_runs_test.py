"""A run from somebody else: it is read, nothing in it is executed."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import saved_run
import tensorflow as tf

import tf_contrastive
from tf_contrastive import checkpoints, datasets, errors, exporting, flags

_ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture(params=[".", "1", "00012"])
def planted(request, original, tmp_path):
    """A run with a program where an export may be, and the file it writes."""
    run, canary = tmp_path / "run", tmp_path / "canary"
    shutil.copytree(original, run)
    tf.saved_model.save(_Program(canary), str(run / request.param))
    return run, canary


def test_a_program_in_a_run_is_not_executed(planted, original):
    run, canary = planted
    expected = exporting.load(str(original))(_IMAGES).numpy()
    assert np.abs(expected).max() > 0
    for load in (tf_contrastive.load, exporting.load_run):
        np.testing.assert_array_equal(load(str(run))(_IMAGES), expected)
    encoder = checkpoints.load_encoder(
        checkpoints.load_run(str(original)), trained=False
    )
    exporting.copy_weights(str(run), encoder)
    np.testing.assert_array_equal(encoder(_IMAGES), expected)
    assert exporting.kind_of(str(run)) == "run"
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


@pytest.mark.parametrize(
    "arguments",
    [
        "embed --workdir={run} --output={out}/x.npz",
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
    done = subprocess.run(
        [sys.executable, "-m", "tf_contrastive", *words],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not canary.exists()


def test_a_folder_that_is_nothing_names_what_was_looked_for(tmp_path):
    with pytest.raises(errors.UserError) as error:
        tf_contrastive.load(str(tmp_path))
    for name in ("config.flags", "saved_model.pb", str(tmp_path)):
        assert name in str(error.value)


_FEATURES = """
{"featuresDict": {"features": {"image": {"%s": "planted.Image"}}},
 "pythonClassName": "tensorflow_datasets.%s.features_dict.FeaturesDict"}
"""


@pytest.mark.parametrize(
    "features",
    [
        _FEATURES % ("pythonClassName", "core.features"),
        _FEATURES % ("python_class_name", "core.features"),
        _FEATURES % ("python\\u0043lassName", "core.features"),
        '{"type": "planted.Image", "content": {}}',
    ],
)
def test_a_prepared_dataset_imports_no_other_module(
    features, tmp_path, monkeypatch
):
    version = tmp_path / "mnist" / "3.0.1"
    version.mkdir(parents=True)
    (version / "features.json").write_text(features)
    (version / "dataset_info.json").write_text("{}")
    (tmp_path / "planted.py").write_text(
        f"open({str(tmp_path / 'canary')!r}, 'w')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(errors.UserError, match="planted"):
        datasets.source("mnist", "train", data_dir=str(tmp_path))
    assert not (tmp_path / "canary").exists()


# ---- config.flags ------------------------------------------------------------


def _refused(run):
    for read in (checkpoints.check_run, checkpoints.load_run):
        with pytest.raises(errors.UserError, match=r"config\.flags"):
            read(str(run))


def test_options_that_are_cut_off_are_refused(original, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(original, run)
    path = run / "config.flags"
    lines = path.read_text().splitlines(True)
    assert len(lines) > 80
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        _refused(run)
        if count > 1:
            with pytest.raises(errors.UserError, match="--flagfile"):
                flags.parse(
                    type(checkpoints.check_run(str(original))),
                    [f"--flagfile={path}", f"--workdir={tmp_path}/new"],
                )
    # An option less, in the middle.
    for count in (3, 40, len(lines) - 3):
        if lines[count].startswith("--"):
            path.write_text("".join(lines[:count] + lines[count + 1 :]))
            _refused(run)
    path.write_text("".join(lines))
    assert checkpoints.check_run(str(run)).data.dataset == "digits"


def test_a_flagfile_of_a_user_is_no_run(original, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(original, run)
    (run / "config.flags").write_text("--dataset=digits\n--nostandardize\n")
    _refused(run)
    (run / "config.flags").write_text("--dataset=digits\n--batch_size=100\n")
    _refused(run)


@pytest.mark.parametrize("stack", ["card", "current"])
def test_runs_of_version_0_2_0_are_read_whole_only(stack, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(_ROOT / "tests" / "testdata" / stack / "run", run)
    path = run / "config.flags"
    lines = path.read_text().splitlines(True)
    assert not lines[-1].startswith("#")  # Version 0.2.0 wrote no such line.
    assert checkpoints.check_run(str(run)).schedule.epochs > 0
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        _refused(run)
