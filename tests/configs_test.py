"""The flagfiles: what they say, what the papers say, and two steps of each."""

import json
import re
import shlex

import cover
import numpy as np
import pytest
import tensorflow as tf
from processes import ROOT

from tf_contrastive import checkpoints, flags, train
from tf_contrastive.commands import evaluate as evaluating
from tf_contrastive.commands import pretrain as pretraining
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor.smoke import SMOKE_STEPS, shrink, smoke, substitute
from tools import recipes

pytestmark = pytest.mark.usefixtures("small_encoder")

_CONFIGS = ROOT / "configs"
_NAMES = sorted(path.stem for path in _CONFIGS.glob("*.flags"))
_COMMANDS = {"pretrain": Pretrain, "evaluate": Evaluate}


def _command(name):
    """The words of a flagfile's documented command."""
    text = (_CONFIGS / f"{name}.flags").read_text()
    line = re.search(r"^# Command: +(.*)$", text, re.MULTILINE)[1]
    python, dash, module, *words = shlex.split(line)
    assert [python, dash, module] == ["python", "-m", "tf_contrastive"]
    return words


def _parse(name, *more):
    """A flagfile as its command reads it."""
    command = _COMMANDS[_command(name)[0]]
    path = _CONFIGS / f"{name}.flags"
    parsed = flags.parse(command, [f"--flagfile={path}", "--workdir=w", *more])
    parsed.validate()
    return parsed


_PRETRAIN = [name for name in _NAMES if _command(name)[0] == "pretrain"]


@pytest.mark.parametrize("name", _NAMES)
def test_the_documented_command_parses(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    command, *words = _command(name)
    assert f"--flagfile=configs/{name}.flags" in words
    flags.parse(_COMMANDS[command], words).validate()


# ---- The papers' own numbers -------------------------------------------------


_AUTHORS = recipes.data()
# Without authors: of this package.
_OWN = {
    "quickstart",
    "cross_entropy_cifar10_cpu",
    "dcl_cifar10_cpu",
    "supcon_cifar10_cpu",
    "supcon_joint_cifar10_cpu",
    "supcon_partly_cpu",
    "supcon_shared_labels_cpu",
    "supcon_vit_cifar10_cpu",
}


@pytest.mark.parametrize("name", sorted(set(_NAMES) - _OWN))
def test_a_flagfile_has_its_authors_values_or_a_reason(name):
    assert recipes.unexplained(name, _AUTHORS) == []


@pytest.mark.parametrize(
    "name", [*_AUTHORS["recipes"], *_AUTHORS["evaluations"]]
)
def test_a_header_lists_the_differences_from_the_code(name):
    header = (_CONFIGS / f"{name}.flags").read_text()
    assert recipes.differs_field(name, _AUTHORS) in header


def test_the_page_of_the_recipes_is_current():
    assert recipes.DOCUMENT.read_text() == recipes.document(_AUTHORS), (
        "run `python tools/recipes.py`"
    )


# ---- What --smoke makes of a run ---------------------------------------------

# All that may differ between a recipe and what --smoke trains of it.
_MAY_SHRINK = """
    dataset split test_split validation_fraction image_size
    encoder width stem depth heads init_from queue_size online_knn_size
    grad_cache_chunks
    epochs batch_size warmup_epochs decay_epochs linear_epochs linear_batch_size
    linear_warmup_epochs linear_decay_epochs strategy tpu steps_per_execution
    checkpoint_every_steps log_every_steps
    histograms_every_epochs projector_examples profile_steps
"""


def _shrunk(run, examples=1437):
    """What `--smoke` makes of a run whose dataset is not here."""
    dataset, side = substitute(run.data.dataset)
    return smoke(run, dataset=dataset, side=side, examples=examples)


_MIXED = {"loss": "cross_entropy", "mixup_alpha": 0.2, "batch_size": 64}


@pytest.mark.parametrize("name", _PRETRAIN)
def test_smoke_keeps_the_recipe(name):
    run = _parse(name)
    tried = _shrunk(run)
    tried.validate()
    before, after = fields.values(run), fields.values(tried)
    changed = {k for k in before if before[k] != after.get(k, before[k])}
    # Defaults of views become those of the recipe's image size.
    policy = run.views.policy
    made = policy.declared().keys() - policy.given
    assert changed - made <= set(_MAY_SHRINK.split())
    assert after["batch_size"] <= 16
    assert bool(after["warmup_epochs"]) == (before["warmup_epochs"] != 0)
    assert bool(after["linear_epochs"]) == bool(before["linear_epochs"])
    # Written and read, it is the same run, and one of its own.
    written = flags.record(tried)
    again = flags.parse(Pretrain, [*flags.flags_in(written), "--workdir=w"])
    assert fields.values(again) == after
    assert "--smoke=false" in written


@pytest.mark.parametrize(
    ("options", "examples"),
    [
        ({"batch_size": 512}, 1437),
        ({"validation_fraction": 0.01}, 1437),
        ({}, 20),
        ({"virtual_devices": 4, "grad_cache_chunks": 8, **_MIXED}, 1437),
    ],
)
def test_smoke_takes_two_steps(options, examples):
    run = fields.replace(Pretrain(), workdir="w", **options)
    tried = _shrunk(run, examples=examples)
    tried.validate()
    taken = int(re.search(r":(\d+)\]", tried.data.split)[1])
    batch = tried.schedule.batch_size
    assert batch <= 16 and taken == SMOKE_STEPS * batch <= examples
    chunks = tried.batch.grad_cache_chunks
    assert batch % (2 * chunks * max(tried.runtime.virtual_devices, 1)) == 0


# ---- Two steps of each -------------------------------------------------------


def _train(name, workdir, *more):
    """Tries a flagfile out, as the command does."""
    run = _parse(name, "--smoke", f"--workdir={workdir}", *more)
    tf.keras.backend.clear_session()
    assert pretraining.run(run) == 0


def _distinct():
    """Flagfiles of which --smoke makes runs with each value of each option.

    Numbers are one value, but for 0, which turns things off.
    """
    values = {}
    for name in _PRETRAIN:
        run = flags.write(_shrunk(_parse(name)))
        run = re.sub(r"(?<=[=/])(?!0$)[0-9.,/e+-]+$", "1", run, flags=re.M)
        values[name] = set(run.splitlines())
    return cover.cover(values)


class _NoSummaries(tf.keras.callbacks.Callback):
    flush = close = lambda self: None
    histogram_seconds = lambda self: 0.0  # noqa: E731


@pytest.fixture
def untraced(monkeypatch):
    """No graph and no TensorBoard: half the time."""
    monkeypatch.setattr(train, "summaries_of", lambda *_: _NoSummaries())
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.mark.slow
@pytest.mark.parametrize("name", _distinct())
def test_flagfiles_train_for_two_steps(name, tmp_path, untraced):
    _train(name, tmp_path)
    found = checkpoints.load_run(str(tmp_path))
    told = json.loads((tmp_path / "pretrain.json").read_text())
    assert told["steps"] == found.step == SMOKE_STEPS
    assert np.isfinite(told["loss"])
    own = _parse(name)
    assert found.config.loss.label == told["loss_function"] == own.loss.label
    assert ("linear_top1" in told) == bool(own.linear.schedule.epochs)


def test_a_smoke_run_logs_its_changes(tmp_path, capsys):
    words = ("--smoke", "--strategy=tpu", "--data_dir=/nowhere")
    run = _parse("simclr_imagenet", *words, f"--workdir={tmp_path}")
    assert shrink(run).runtime.workdir == str(tmp_path)
    printed = capsys.readouterr().err
    assert "digits replaces imagenet2012" in printed
    assert "batch_size=4096 -> 16" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_protocols_flagfile_runs(tmp_path):
    _train("quickstart", tmp_path, "--loss=supcon")
    for name, expected in (
        ("transfer_sincere", {"linear"}),
        ("finetune_imagenet", {"finetune"}),
    ):
        words = """--dataset=digits --train_split=train[:64]
            --test_split=test[:32] --nountrained --linear_epochs=1
            --linear_batch_size=16 --linear_augmentation=none
            --linear_learning_rates=0.1 --nofinetune_scratch
            --finetune_fractions=0.5 --finetune_epochs=1
            --finetune_batch_size=16"""
        options = _parse(name, f"--workdir={tmp_path}", *words.split())
        assert evaluating.run(options) == 0
        report = json.loads((tmp_path / "evaluation.json").read_text())
        assert {r["protocol"] for r in report["results"]} == expected
