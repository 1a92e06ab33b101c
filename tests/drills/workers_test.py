"""Two processes of one run: the numbers of one, and lost or stopped workers.

--drill_seed varies the kills at random moments.
"""

import contextlib
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import processes
import pytest
import small

from tf_contrastive.evaluation import linear_stage

SEED = int(os.environ.get("DRILL_SEED", "0"))

# Five steps of LARS on real views, by the parts of the main job; the encoder is
# small and smooth, so that rounding does not turn what it does.
_FIVE_STEPS = """
import sys
import numpy as np, tensorflow as tf
from tf_contrastive import (
    checkpoints, distribution, heads, losses, optimizers, train)
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.distribution.batch_normalization import BatchNormalization
strategy = distribution.strategy("auto")
run = fields.replace(
    Pretrain(), dataset="digits", split="train[:256]", batch_size=32,
    augmentation="simclr", blur=False, image_size=8, workdir="unused")
run = train.prepare(run, strategy)
def take_steps(name):
    tf.keras.utils.set_random_seed(0)
    with strategy.scope():
        images = x = tf.keras.Input((8, 8, 3))
        for filters in (8, 16):
            x = tf.keras.layers.Conv2D(filters, 3, 2, use_bias=False)(x)
            x = BatchNormalization()(x)
            x = tf.keras.layers.Activation("softplus")(x)
        encoder = tf.keras.Model(images, tf.keras.layers.Flatten()(x))
        model = ContrastiveModel(
            encoder, heads.build("linear", output=16), losses.build("supcon"))
        model.compile(optimizers.LARS(0.5, weight_decay=1e-4))
    model.fit(run.batches(), steps_per_epoch=5, verbose=0)
    # Of all workers, on all of them.
    values = [v.numpy() for v in model.weights]
    np.savez(f"{sys.argv[1]}-{name}", *values)
take_steps("all")
if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
    try:
        with checkpoints.session(sys.argv[1], strategy):
            pass
    except errors.UserError as error:
        print(error)
    distribution.cross_replica_concat = lambda x: x
    distribution.replica_id = lambda: tf.constant(0)
    take_steps("local")
"""


def _finish(words, cluster=None):
    """Runs a command by two workers, or by those given; returns the outputs."""
    return processes.finish_each(words, cluster or small.cluster())


def _error(values, reference):
    largest = max(np.linalg.norm(v) for v in reference)
    return max(
        np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-4 * largest)
        for a, b in zip(values, reference, strict=True)
    )


def test_two_processes_take_the_steps_of_one_and_local_negatives_do_not(
    tmp_path,
):
    """Nor do they accept folders that they do not share."""

    def weights(name):
        return [*np.load(tmp_path / f"{name}.npz").values()]

    code = processes.python(_FIVE_STEPS)
    _finish([*code, f"{tmp_path}/one"], cluster=[{}])
    for output in _finish([*code, f"{tmp_path}/two{{}}"]):
        assert "not all workers see" in output
    expected, found = weights("one-all"), weights("two0-all")
    for a, b in zip(found, weights("two1-all"), strict=True):
        np.testing.assert_array_equal(a, b)
    assert _error(found, expected) < 5e-5
    assert _error(weights("two0-local"), expected) > 1e-2


EPOCHS, TOTAL = 10, 40
_LINEAR = ("--linear_epochs=3", "--linear_batch_size=64")
_LINEAR += ("--linear_augmentation=crop", "--linear_learning_rate=1")


def _words(workdir, *flags, epochs=EPOCHS):
    words = small.words(
        **{"image_size": 8, "epochs": epochs, "warmup_epochs": 1},
        **{"checkpoint_every_steps": 8, "workdir": workdir},
    )
    return ["pretrain", *words, *flags]


def _pretrain(workdir, *flags, **options):
    return processes.small(*_words(workdir, *flags, **options))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two workers, with a linear stage."""
    folder = tmp_path_factory.mktemp("workers") / "whole"
    _finish(_pretrain(folder, *_LINEAR))
    return folder


def test_the_linear_stage_of_workers_is_that_of_one_process(whole, tmp_path):
    alone = shutil.copytree(whole, tmp_path / "alone")
    shutil.rmtree(alone / linear_stage.STATE)
    (alone / linear_stage.RESULT_FILE).unlink()
    with small.encoder():
        words = _words(alone, *_LINEAR)
        assert small.command(*words, *small.FLAGS) == 0
    found, expected = (
        json.loads((folder / linear_stage.RESULT_FILE).read_text())
        for folder in (whole, alone)
    )
    (a,), (b,) = found["results"], expected["results"]
    ours, theirs = (
        {"top1": x["top1"], "top5": x["top5"], **x["metrics"]} for x in (a, b)
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], rel=1e-3), name
    assert found["checksum"] == expected["checksum"]


def test_workers_finetune_as_one_process(whole, tmp_path):
    """Of the images each reads its part."""
    words = ("evaluate", "--protocols=finetune", "--scale=cpu")
    words += ("--nountrained", "--finetune_fractions=0.1")
    words += ("--finetune_epochs=30", f"--workdir={whole}", "--output_dir=")
    one, two = (f"{words[-1]}{tmp_path / name}" for name in ("one", "two"))
    with small.encoder():
        assert small.command(*words[:-1], one) == 0
    _finish(processes.small(*words[:-1], two))
    a, b = (
        json.loads((tmp_path / name / "evaluation.json").read_text())["results"]
        for name in ("one", "two")
    )
    # A tie may be decided by rounding.
    assert a[0]["top1"] == pytest.approx(b[0]["top1"], abs=2 / a[0]["examples"])


def test_lost_and_interrupted_workers_end_the_run_which_goes_on_bit_for_bit(
    whole, tmp_path
):
    cut, step = tmp_path / "cut", 0
    # A worker gets SIGTERM; then the chief is killed. That the other one is,
    # the next test has.
    for index, number in ((1, "TERM"), (0, "KILL")):
        words = _pretrain(cut)
        with processes.start_each(words, small.cluster()) as workers:
            processes.wait_for(
                lambda goal=step + 8: small.newest(cut) >= goal, *workers
            )
            workers[index].kill(getattr(signal, f"SIG{number}"))
            other = workers[1 - index]
            assert other.ended() == 42, other.output
            step = small.newest(cut)
            if number == "TERM":
                assert workers[index].ended() == 42
                assert "ended by the interruption of another" in other.output
                assert f"saved at step {step}" in other.output
            else:
                assert "a worker is lost" in other.output
        assert step < TOTAL

    output, _ = _finish(_pretrain(cut))
    assert f"resumed at step {step}" in output
    small.check_equal(small.weights(whole, TOTAL), small.weights(cut, TOTAL))
    # The other worker's temporary files are gone.
    names = {path.name for path in (cut / "checkpoints").iterdir()}
    assert not [x for x in names if "worker" in x or "temp" in x]


# What a survivor may be doing -> how to recognize its start in the chief's
# output or by a file, and from when to when the other worker is killed.
_MOMENTS = {
    "building": ("waiting for 1 more", 3.0, 8.0),
    "restoring": ("pretrain.lock", 0.0, 1.5),
    "saving": ("checkpoints/ckpt-*_temp", 0.0, 0.0),
    "linear stage": ("linear     ", 0.0, 6.0),
}


def _has_come(moment, workdir, chief, since):
    for path in workdir.glob(moment.strip()):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since:
                return True
    return moment in chief.output


@pytest.mark.parametrize("name", _MOMENTS)
def test_a_lost_worker_is_one_wherever_the_others_are(name, whole, tmp_path):
    generator = random.Random(f"{SEED} {name}")
    moment, *delays = _MOMENTS[name]
    lost, delay = generator.randrange(2), generator.uniform(*delays)
    workdir = tmp_path / "run"
    flags = "--checkpoint_every_steps=1", "--validation_fraction=0.25"
    words = _pretrain(workdir, *flags, epochs=10_000)
    if name == "linear stage":
        shutil.copytree(whole, workdir)
        shutil.rmtree(workdir / linear_stage.STATE)
        words = _pretrain(workdir, *_LINEAR, "--linear_epochs=10000")
    since = time.time()
    with processes.start_each(words, small.cluster()) as workers:
        chief, other = workers[0], workers[1 - lost]
        processes.wait_for(
            lambda: _has_come(moment, workdir, chief, since), chief
        )
        time.sleep(delay)
        workers[lost].kill()
        assert other.ended() == 42, (lost, delay, other.output)
