"""Two processes of one run: the numbers of one, and lost or stopped workers.

--drill_seed and --drill_kills vary the kills at random moments.
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

KILLS = int(os.environ.get("DRILL_KILLS", "5"))
SEED = int(os.environ.get("DRILL_SEED", "0"))

# Five steps of LARS on real views, by the parts of the main job; the encoder is
# small and smooth, so that rounding does not turn what it does.
_FIVE_STEPS = """
import sys
import numpy as np, tensorflow as tf
from tf_contrastive import distribution, heads, losses, optimizers, train
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.distribution.batch_normalization import BatchNormalization
strategy = distribution.strategy("auto")
run = fields.replace(
    Pretrain(), dataset="digits", split="train[:256]", batch_size=32,
    augmentation="simclr", blur=False, image_size=8, workdir="unused")
run = train.prepare(run, strategy)
if "local" in sys.argv:
    distribution.cross_replica_concat = lambda x: x
    distribution.replica_id = lambda: tf.constant(0)
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
values = [v.numpy() for v in model.weights]  # Of all workers, on all of them.
np.savez(sys.argv[1], *values)
"""


def _finish(words, status=0, cluster=None):
    """Runs a command by two workers, or by those given; returns the outputs."""
    return processes.finish_each(words, cluster or small.cluster(), status)


def _error(values, reference):
    largest = max(np.linalg.norm(v) for v in reference)
    return max(
        np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-4 * largest)
        for a, b in zip(values, reference, strict=True)
    )


def test_two_processes_take_the_steps_of_one_and_local_negatives_do_not(
    tmp_path,
):
    def weights(name, *arguments, cluster=None):
        code = [*processes.python(_FIVE_STEPS), f"{tmp_path}/{name}{{}}.npz"]
        _finish([*code, *arguments], cluster=cluster)
        first = [*np.load(tmp_path / f"{name}0.npz").values()]
        if cluster is None:
            other = np.load(tmp_path / f"{name}1.npz").values()
            for a, b in zip(first, other, strict=True):
                np.testing.assert_array_equal(a, b)
        return first

    expected = weights("one", cluster=[{}])
    assert _error(weights("two"), expected) < 5e-5
    code = [*processes.python(_FIVE_STEPS), f"{tmp_path}/local{{}}.npz"]
    _finish([*code, "local"])
    local = [*np.load(tmp_path / "local0.npz").values()]
    assert _error(local, expected) > 1e-2


EPOCHS, TOTAL = 15, 60
_LINEAR = ("--linear_epochs=3", "--linear_batch_size=64")
_LINEAR += ("--linear_augmentation=crop", "--linear_learning_rate=1")


def _pretrain(workdir, *flags, epochs=EPOCHS):
    words = small.words(
        **{"image_size": 8, "epochs": epochs, "warmup_epochs": 1},
        **{"checkpoint_every_steps": 8, "workdir": workdir},
    )
    return processes.small("pretrain", *words, *flags)


def test_workers_that_share_no_folder_are_refused(tmp_path):
    for output in _finish(_pretrain(f"{tmp_path}/{{}}"), status=2):
        assert "not all workers see" in output


def _check_linear_stage(workdir, alone):
    """Two workers' classifier is that of one process, which has no cluster."""
    shutil.copytree(workdir, alone)
    shutil.rmtree(alone / linear_stage.STATE)
    (alone / linear_stage.RESULT_FILE).unlink()
    _finish(_pretrain(alone, *_LINEAR), cluster=[{}])
    found, expected = (
        json.loads((folder / linear_stage.RESULT_FILE).read_text())
        for folder in (workdir, alone)
    )
    (a,), (b,) = found["results"], expected["results"]
    ours, theirs = (
        {"top1": x["top1"], "top5": x["top5"], **x["metrics"]} for x in (a, b)
    )
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value == pytest.approx(theirs[name], rel=1e-3), name
    assert found["checksum"] == expected["checksum"]


def _check_finetuning(workdir, folder):
    """Two workers' network, of which each reads its part, is that of one."""
    results = []
    for name, cluster in (("one", [{}]), ("two", None)):
        words = ("--protocols=finetune", "--scale=cpu", "--nountrained")
        words += ("--finetune_fractions=0.1", "--finetune_epochs=30")
        words += (f"--workdir={workdir}", f"--output_dir={folder / name}")
        _finish(processes.small("evaluate", *words), cluster=cluster)
        report = json.loads((folder / name / "evaluation.json").read_text())
        results += report["results"]
    a, b = results
    # A tie may be decided by rounding.
    assert a["top1"] == pytest.approx(b["top1"], abs=2 / a["examples"])


def test_lost_and_interrupted_workers_end_the_run_which_goes_on_bit_for_bit(
    tmp_path,
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    _finish(_pretrain(whole, *_LINEAR))
    _check_linear_stage(whole, tmp_path / "alone")
    _check_finetuning(whole, tmp_path)

    step = 0
    # A worker gets SIGTERM; then the chief is killed, then the other worker.
    for index, number in ((1, "TERM"), (0, "KILL"), (1, "KILL")):
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
    expected, final = (small.weights(x, TOTAL) for x in (whole, cut))
    small.check_equal(expected, final)
    # The other worker's temporary files are gone.
    names = {path.name for path in (cut / "checkpoints").iterdir()}
    assert not [x for x in names if "worker" in x or "temp" in x]


# What a survivor may be doing -> how to recognize its start in the chief's
# output or by a file, and from when to when the other worker is killed.
_MOMENTS = {
    "building": ("waiting for 1 more", 3.0, 8.0),
    "restoring": ("pretrain.lock", 0.0, 1.5),
    "training": ("workdir    ", 0.0, 10.0),
    "saving": ("checkpoints/ckpt-*_temp", 0.0, 0.0),
    "linear stage": ("linear     ", 0.0, 6.0),
}


def _has_come(moment, workdir, chief, since):
    for path in workdir.glob(moment.strip()):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since:
                return True
    return moment in chief.output


def test_a_lost_worker_is_one_wherever_the_others_are(tmp_path):
    generator = random.Random(SEED)
    finished = tmp_path / "finished"
    _finish(_pretrain(finished, epochs=1))
    for kill in range(KILLS):
        name = list(_MOMENTS)[kill % len(_MOMENTS)]
        moment, *delays = _MOMENTS[name]
        lost, delay = generator.randrange(2), generator.uniform(*delays)
        workdir, words = tmp_path / "run", ()
        if name == "linear stage":
            workdir = finished
            words = _pretrain(
                workdir, *_LINEAR, "--linear_epochs=10000", epochs=1
            )
            shutil.rmtree(workdir / linear_stage.STATE, ignore_errors=True)
        else:
            flags = "--checkpoint_every_steps=1", "--validation_fraction=0.25"
            words = _pretrain(workdir, *flags, epochs=10_000)
        since = time.time()
        with processes.start_each(words, small.cluster()) as workers:
            chief, other = workers[0], workers[1 - lost]
            processes.wait_for(
                lambda: _has_come(moment, workdir, chief, since),  # noqa: B023
                chief,
            )
            time.sleep(delay)
            workers[lost].kill()
            assert other.ended() == 42, (name, lost, delay, other.output)
