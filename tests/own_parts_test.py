"""Parts of your own on the command line: trained, resumed, scored, exported."""

import os
import sys

import processes
import pytest
import small

from tf_contrastive import flags
from tf_contrastive.config import own
from tf_contrastive.config.pretrain import Pretrain

_PARTS = """
import numpy as np
import tensorflow as tf
from tf_contrastive import losses

def loss(projections, labels, temperature=0.5, pull=1.0):
    everyone = losses.global_batch(projections, labels)
    z = tf.math.l2_normalize(projections, axis=-1)
    others = tf.math.l2_normalize(everyone.projections, axis=-1)
    cos = tf.einsum("bvp,gwp->bvgw", z, others) / temperature
    same = labels[:, None] == everyone.labels
    same = tf.cast(same[:, None, :, None], cos.dtype)
    count = tf.reduce_sum(same * tf.ones_like(cos), [2, 3])
    near = tf.reduce_sum(cos * same, [2, 3]) / count
    return tf.reduce_logsumexp(cos, [2, 3]) - pull * near

def view(image, seed, delta=0.2):
    return tf.image.stateless_random_brightness(image, delta, seed)

def encoder(width=4):
    return tf.keras.Sequential([
        tf.keras.layers.Conv2D(width, 3), tf.keras.layers.BatchNormalization(),
        tf.keras.layers.ReLU()])

def head(size=6):
    return tf.keras.layers.Dense(size)

def data(split):
    count = 64 if split == "train" else 24
    random = np.random.default_rng(count)
    labels = np.arange(count) % 4
    images = random.integers(0, 60, [count, 8, 8, 3])
    images = np.uint8(images + 60 * labels[:, None, None, None])
    return tf.data.Dataset.from_tensor_slices((images, labels))
"""
_FLAGS = (
    *("--loss=parts_of_mine:loss", "--loss_options=pull=1.5"),
    *("--augmentation=parts_of_mine:view", "--augmentation_options=delta=0.1"),
    *("--encoder=parts_of_mine:encoder", "--encoder_options=width=6"),
    *("--projection=parts_of_mine:head", "--projection_options=size=5"),
    *("--dataset=parts_of_mine:data", "--batch_size=16"),
    *("--learning_rate=0.1", *small.FLAGS),
)
_REPLICAS = ("--strategy=mirrored", "--virtual_devices=2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the module, and a run of it on two replicas."""
    path = tmp_path_factory.mktemp("own")
    (path / "parts_of_mine.py").write_text(_PARTS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(path)
        patch.setattr(own, "allowed", set())
        words = ("--workdir=run", "--epochs=2", *_REPLICAS, *_FLAGS)
        assert small.command("pretrain", *words) == 0
        yield path


@pytest.fixture(autouse=True)
def forgotten(folder, monkeypatch):
    """Each command is as the first one of a process."""
    monkeypatch.setattr(own, "allowed", set())


@pytest.mark.slow
def test_the_run_records_its_parts(folder):
    path = folder / "run" / "config.flags"
    text = path.read_text()
    for line in (
        "--loss=parts_of_mine:loss",
        "--temperature=0.5",
        "--loss_options=pull=1.5",
        "--width=6",
        "--dataset=parts_of_mine:data",
    ):
        assert f"\n{line}\n" in text
    run = flags.read_file(Pretrain, str(path))
    own.allow("parts_of_mine")
    assert run.loss.needs_labels
    assert run.encoder.arguments()["width"] == 6


@pytest.mark.slow
@pytest.mark.keras
def test_the_same_command_resumes(folder, capsys):
    words = (*_REPLICAS, "--epochs=2")
    assert small.command("pretrain", "--workdir=run", *words, *_FLAGS) == 0
    assert "is finished: step 8" in capsys.readouterr().out
    changed = [f.replace("pull=1.5", "pull=2") for f in _FLAGS]
    assert small.command("pretrain", "--workdir=run", *words, *changed) != 0
    assert "another experiment" in capsys.readouterr().err


@pytest.mark.slow
def test_its_encoder_is_scored_and_exported(folder, capsys):
    words = ("--workdir=run", "--own_modules", "parts_of_mine")
    scored = ("evaluate", *words, "--protocols=knn", "--knn_k=1")
    assert small.command(*scored) == 0
    assert "trained" in capsys.readouterr().out
    assert small.command("export", *words) == 0
    assert small.command("embed", *words, "--output=h.npz") == 0
    # An export needs no code.
    code = (
        "import tensorflow as tf; m = tf.saved_model.load('run/export/1');"
        "f = m.signatures['serving_default'];"
        "print(f(images=tf.zeros([1, 8, 8, 3], tf.uint8))['embedding'].shape)"
    )
    without = {"PYTHONPATH": ""}
    done = processes.run(processes.python(code), cwd=folder, variables=without)
    assert done.stdout.strip() == "(1, 6)", done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--workdir=run", "--protocols=knn"),
        ("export", "--workdir=run"),
        ("embed", "--workdir=run", "--output=h.npz"),
        ("pretrain", "--init_from=run", "--workdir=other"),
        ("pretrain", "--flagfile=run/config.flags", "--workdir=other"),
        ("doctor", "--flagfile=run/config.flags"),
    ],
)
def test_code_that_a_run_names_is_not_imported(
    folder, words, capsys, monkeypatch
):
    monkeypatch.delitem(sys.modules, "parts_of_mine", raising=False)
    assert small.command(*words) != 0
    assert "parts_of_mine" not in sys.modules
    assert "set --own_modules=parts_of_mine\n" in capsys.readouterr().err


def test_a_part_that_is_named_allows_no_other(folder, capsys):
    # A word like the module's name is no permission.
    words = ("--flagfile=run/config.flags", "--workdir", "parts_of_mine")
    assert small.command("pretrain", *words, "--loss=parts_of_mine:loss") != 0
    error = capsys.readouterr().err
    assert "--loss" not in error
    assert ": parts_of_mine may be the code of somebody else" in error


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("--loss=parts_of_min:loss", "parts_of_min cannot be imported"),
        ("--loss_options=pul=2", "unknown option 'loss_pul'"),
        ("--loss_options=pull=much", "pull=much: must be a number"),
        ("--dataset=foldr:data", "did you mean folder"),
        ("--stem=cifar", "--stem is not an option"),
        ("--loss=supcon", "in --loss_options 'pull'"),
    ],
)
def test_a_wrong_part_is_one_line(folder, word, text, capsys):
    assert small.command("pretrain", "--workdir=new", *_FLAGS, word) != 0
    error = capsys.readouterr().err
    assert text in error and error.count("\n") == 1
    assert not os.path.exists("new")


def test_a_module_beside_an_installed_command_is_found(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("def loss(z): return z\n")
    monkeypatch.chdir(tmp_path)
    others = [p for p in sys.path if p not in ("", os.getcwd())]
    monkeypatch.setattr(sys, "path", [*others])
    own.allow("beside:loss")
    assert own.load("loss", "beside:loss")(3) == 3
    assert sys.path[:-1] == others
