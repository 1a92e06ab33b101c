"""Invalid inputs: one line that names the cause, and nothing is written.

Invalid flags are in `flags_test`.
"""

import os
import shlex
import shutil
import sys

import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import __main__, exporting

pytestmark = pytest.mark.usefixtures("small_encoder")

# How the run in {run} was trained, and what pretrain resolves.
_RESOLVED = {
    "flip": False,
    "color_jitter_strength": 0.5,
    "blur": False,
    "augment_on": "host",
    "learning_rate": 0.3,
    "warmup_epochs": 10.0,
}
_SAME = (
    "--dataset=digits --encoder=resnet10 --width=0.125 --stem=cifar"
    " --image_size=8 --data_options=extra_channels=0 --projection_output=16"
    " --batch_size=100 --precision=float32"
)

# Command line -> a text that the error must contain. {name} is the path of what
# `made` makes, {new} of nothing. Words before the command are environment
# variables; WITHOUT=PACKAGE hides an installed package.
_INPUTS = {
    # Datasets.
    "pretrain --workdir={new} --dataset=cifar_10": "cifar10",
    "pretrain --workdir={new} --dataset=mnist --data_dir={empty}": "{empty}",
    "pretrain --workdir={new} --split=train[:5000]": "train[:5000]",
    # What does not suit the data or the machine.
    "pretrain --workdir={new} --split=train[:100]": "--batch_size=100",
    "pretrain --workdir={new} --stem=imagenet": "--stem=cifar",
    "doctor --data_options=extra_channels=2": "--data_options=extra_channels=0",
    "pretrain --workdir={new} --profile_steps=100,900": "--profile_steps",
    "pretrain --workdir={new} --strategy=tpu --tpu=nowhere": "nowhere",
    "TF_CONFIG=worker:1 pretrain --workdir={new} --strategy=multiworker": (
        "TF_CONFIG"
    ),
    # Flagfiles.
    "pretrain --workdir={new} --flagfile={circular}": "--flagfile={circular}",
    "pretrain --workdir={new} --flagfile={binary}": "--flagfile={binary}",
    # Runs.
    "pretrain --workdir={file}/run": "{file}",
    f"pretrain --workdir={{run}} {_SAME} --seed=3": "--seed=3",
    "pretrain --workdir={run_of_flags}": "{run_of_flags}/config.flags",
    f"pretrain --workdir={{run_damaged}} {_SAME}": "{run_damaged}",
    f"pretrain --workdir={{new}} --init_from={{foreign}} {_SAME}": "{foreign}",
    f"pretrain --workdir={{new}} --init_from={{run}} {_SAME} --width=0.25": (
        "--width=0.25: --init_from={run} has "
    ),
    # Evaluation.
    "evaluate --workdir={empty}": "{empty}",
    "evaluate --workdir={run_damaged}": "{run_damaged}",
    "evaluate --saved_model={five_channels} --dataset=digits": "5 channels",
    "evaluate --workdir={run} --protocols=head": "head",
    "evaluate --workdir={run} --protocols=transfer --data_dir={empty}": (
        "not prepared in {empty} (--data_dir): food101"
    ),
    # Exports and embeddings.
    "export --workdir={run} --checkpoint=7": "--checkpoint=7",
    "export --workdir={run} --output_dir={file}": "{file}",
    "export --workdir={run} --format=pytorch": "--format=pytorch",
    "WITHOUT=tf2onnx export --workdir={run} --format=savedmodel,onnx": (
        "tf2onnx"
    ),
    "WITHOUT=pyspark embed --workdir={run} --output={new} --shard_size=9"
    " --runner=spark": "--runner=spark",
    "embed --saved_model={five_channels} --input=digits --output={new}": (
        "5 channels"
    ),
    "datasets --show=digits --output={file}/sheet.png": "{file}/sheet.png",
    **{
        f"{words}=s3://b/r": "s3://b/r/"
        for words in (
            *("pretrain --workdir", "evaluate --workdir", "export --workdir"),
            *("doctor --workdir", "sweep --seed=0,1 --workdir"),
            *("serve --saved_model", "pretrain --workdir={new} --init_from"),
        )
    },
    "quickstart --workdir=gs://b/r": "--workdir=gs://b/r: must be a local",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder of the files, runs and exports that `_INPUTS` names."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "file").write_text("a text\n")
    (folder / "empty").mkdir()
    (folder / "binary").write_bytes(bytes(range(256)))
    (folder / "circular").write_text("--flagfile=circular\n")
    saved_run.make(folder / "run", **_RESOLVED)
    damaged = shutil.copytree(folder / "run", folder / "run_damaged")
    for file in (damaged / "checkpoints").glob("ckpt-*.data-*"):
        os.truncate(file, 100)
    other = shutil.copytree(folder / "run", folder / "run_of_flags")
    with open(other / "config.flags", "a") as file:
        file.write("--loses=supcon\n")
    inputs = tf.keras.Input([8, 8, 5])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(4)(pooled))
    exporting.export(encoder, str(folder / "five_channels"))
    tf.saved_model.save(tf.Module(), str(folder / "foreign"))
    return folder


def _contents(folder):
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("line", _INPUTS)
def test_invalid_input_is_named_in_one_line(
    line, made, tmp_path, monkeypatch, capsys
):
    expected = _INPUTS[line]
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    names = (*os.listdir(made), "new")
    paths = {name: str(tmp_path / name) for name in names}
    words = shlex.split(line.format(**paths))
    for name in os.environ:
        if name in ("TF_CONFIG", "TPU_NAME") or name.startswith("SLURM_"):
            monkeypatch.delenv(name)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        if name == "WITHOUT":
            monkeypatch.setitem(sys.modules, value, None)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
    before = _contents(tmp_path)
    capsys.readouterr()
    assert __main__.main() != 0
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    errors = [text for text in lines if text.startswith("tf_contrastive: ")]
    assert errors == lines[-1:]
    assert "Traceback" not in printed.err and printed.out == ""
    assert expected.format(**paths) in errors[0]
    assert _contents(tmp_path) == before
