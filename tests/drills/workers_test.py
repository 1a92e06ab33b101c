"""Two processes of one run: the numbers of one, and what befalls them."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive import checkpoints
from tf_contrastive.evaluation import linear_stage

_ROOT = Path(__file__).resolve().parents[2]
# Kills at random moments, and the seed that draws these.
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


def _cluster():
    """The variables of each of two workers."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    hosts = [f"127.0.0.1:{server.getsockname()[1]}" for server in held]
    for server in held:
        server.close()
    for index in (0, 1):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": hosts}, "task": task}
        yield {"TF_CONFIG": json.dumps(config)}


def _five_steps(tmp_path, name, variables, *arguments):
    path = tmp_path / f"{name}.npz"
    process = subprocess.Popen(
        [sys.executable, "-c", _FIVE_STEPS, str(path), *arguments],
        cwd=_ROOT,
        env={**os.environ, **variables},
    )
    return process, path


def _weights(process, path):
    assert process.wait(timeout=300) == 0
    return list(np.load(path).values())


def _error(values, reference):
    largest = max(np.linalg.norm(v) for v in reference)
    return max(
        np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-4 * largest)
        for a, b in zip(values, reference, strict=True)
    )


def test_two_processes_take_the_steps_of_one_and_local_negatives_do_not(
    tmp_path,
):
    expected = _weights(*_five_steps(tmp_path, "one", {}))
    started = [
        _five_steps(tmp_path, f"worker{i}", variables)
        for i, variables in enumerate(_cluster())
    ]
    first, second = (_weights(*worker) for worker in started)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    error = _error(first, expected)
    print(f"two processes against one, 5 steps: {error:.1e}")
    assert error < 5e-5
    started = [
        _five_steps(tmp_path, f"local{i}", variables, "local")
        for i, variables in enumerate(_cluster())
    ]
    control = _weights(*started[0])
    _weights(*started[1])
    assert _error(control, expected) > 1e-2


def _pretrain(workdir, variables, epochs, *flags, stderr=subprocess.PIPE):
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.small",
            "pretrain",
            "--dataset=digits",
            "--split=train[:256]",
            "--image_size=8",
            "--augmentation=crop",
            "--encoder=resnet10",
            "--width=0.125",
            "--projection_output=16",
            "--loss=supcon",
            "--batch_size=64",
            f"--epochs={epochs}",
            "--warmup_epochs=1",
            "--learning_rate=0.5",
            "--checkpoint_every_steps=8",
            f"--workdir={workdir}",
            *flags,
        ],
        cwd=_ROOT,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def _steps(workdir):
    """Of the newest checkpoint that is finished; 0: of none."""
    path, _ = checkpoints.newest(f"{workdir}/checkpoints")
    return checkpoints.step_of(path) if path else 0


def _until(workdir, step, processes):
    while _steps(workdir) < step:
        for process in processes:
            assert process.poll() is None, process.communicate()
        time.sleep(0.05)


def _values(workdir, step):
    reader = tf.train.load_checkpoint(f"{workdir}/checkpoints/ckpt-{step}")
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def test_workers_that_share_no_folder_are_refused(tmp_path):
    workers = [
        _pretrain(tmp_path / str(number), variables, 1)
        for number, variables in enumerate(_cluster())
    ]
    told = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [2, 2], told
    assert all("not all workers see" in text for text in told)


EPOCHS, TOTAL = 15, 60
_LINEAR = (
    "--linear_epochs=3",
    "--linear_batch_size=64",
    "--linear_augmentation=crop",
    "--linear_learning_rate=1",
)


def _check_linear_stage(workdir, alone):
    """Two workers' classifier is that of one process, which has no cluster."""
    shutil.copytree(workdir, alone)
    shutil.rmtree(alone / linear_stage.STATE)
    (alone / linear_stage.RESULT_FILE).unlink()
    worker = _pretrain(alone, {}, EPOCHS, *_LINEAR)
    _, said = worker.communicate(timeout=300)
    assert worker.returncode == 0, said
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


def _finetune(workdir, output, variables):
    """Fine-tunes on a tenth of the labels."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.small",
            "evaluate",
            "--protocols=finetune",
            "--scale=cpu",
            "--nountrained",
            "--finetune_fractions=0.1",
            "--verbosity=quiet",
            f"--workdir={workdir}",
            f"--output_dir={output}",
        ],
        cwd=_ROOT,
        env={**os.environ, **variables},
    )


def _check_finetuning(workdir, folder):
    """Two workers' network, of which each reads its part, is that of one."""
    one = _finetune(workdir, folder / "one", {})
    assert one.wait(timeout=300) == 0
    two = [_finetune(workdir, folder / "two", v) for v in _cluster()]
    assert [worker.wait(timeout=300) for worker in two] == [0, 0]
    (a,), (b,) = (
        json.loads((folder / name / "evaluation.json").read_text())["results"]
        for name in ("one", "two")
    )
    # A tie may be decided by rounding.
    assert a["top1"] == pytest.approx(b["top1"], abs=2 / a["examples"])


def _resume(workdir, step):
    """Repeats the command; the workers go on from a step."""
    assert _steps(workdir) == step
    return [_pretrain(workdir, v, EPOCHS) for v in _cluster()]


def test_lost_and_interrupted_workers_end_the_run_which_goes_on_bit_for_bit(
    tmp_path,
):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    workers = [_pretrain(whole, v, EPOCHS, *_LINEAR) for v in _cluster()]
    for worker in workers:
        _, said = worker.communicate(timeout=300)
        assert worker.returncode == 0, said
    _check_linear_stage(whole, tmp_path / "alone")
    _check_finetuning(whole, tmp_path)

    # Either of them may be told to end.
    workers = [_pretrain(cut, v, EPOCHS) for v in _cluster()]
    _until(cut, 8, workers)
    workers[1].send_signal(signal.SIGTERM)
    told = [worker.communicate(timeout=120)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [42, 42], told
    step = _steps(cut)
    assert (
        f"ended by the interruption of another worker, saved at step {step}"
        in (told[0])
    )
    assert f"ended by SIGTERM, saved at step {step}" in told[1]

    # Either of them, the chief first, may be lost.
    for lost in (0, 1):
        workers = _resume(cut, step)
        _until(cut, step + 8, workers)
        workers[lost].send_signal(signal.SIGKILL)
        _, said = workers[1 - lost].communicate(timeout=120)
        assert workers[1 - lost].returncode == 42
        assert "a worker is lost" in said and "repeat the command" in said
        workers[lost].communicate()
        step = _steps(cut)
        assert step < TOTAL

    workers = _resume(cut, step)
    told = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], told
    assert f"resumed at step {step}" in told[0]
    expected, final = _values(whole, TOTAL), _values(cut, TOTAL)
    assert final.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(value, final[name], err_msg=name)


# What a survivor may be doing -> how to recognize its start in the chief's
# log or by a file, and from when to when the other worker is killed.
_MOMENTS = {
    "building": ("waiting for 1 more", 3.0, 8.0),
    "restoring": ("pretrain.lock", 0.0, 1.5),
    "training": ("workdir    ", 0.0, 10.0),
    "saving": ("checkpoints/ckpt-*_temp", 0.0, 0.0),
    "linear stage": ("linear     ", 0.0, 6.0),
}


def _has_come(moment, workdir, log, since):
    for path in workdir.glob(moment.strip()):
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime > since:
                return True
    return moment in log.read_text()


def _pair(workdir, logs, *flags):
    """Starts two workers whose messages go to files."""
    workers = []
    for log, variables in zip(logs, _cluster(), strict=True):
        with log.open("w") as stream:
            workers.append(_pretrain(workdir, variables, *flags, stderr=stream))
    return workers


def test_a_lost_worker_is_one_wherever_the_others_are(tmp_path):
    generator = random.Random(SEED)
    logs = tmp_path / "0.log", tmp_path / "1.log"
    finished = tmp_path / "finished"
    for worker in _pair(finished, logs, 1):
        assert worker.wait(timeout=300) == 0, logs[0].read_text()
    wrong = []
    for kill in range(KILLS):
        name = list(_MOMENTS)[kill % len(_MOMENTS)]
        moment, *delays = _MOMENTS[name]
        lost, delay = generator.randrange(2), generator.uniform(*delays)
        workdir = tmp_path / "run"
        flags = 10_000, "--checkpoint_every_steps=1"
        flags = *flags, "--validation_fraction=0.25"
        if name == "linear stage":
            workdir, flags = finished, (1, *_LINEAR, "--linear_epochs=10000")
            shutil.rmtree(workdir / linear_stage.STATE, ignore_errors=True)
        since = time.time()
        workers = _pair(workdir, logs, *flags)
        while not _has_come(moment, workdir, logs[0], since):
            assert workers[0].poll() is None, logs[0].read_text()
            time.sleep(0.001)
        time.sleep(delay)
        workers[lost].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        status = workers[1 - lost].wait(timeout=300)
        workers[lost].wait()
        lines = logs[1 - lost].read_text().splitlines()
        said = [line for line in lines if "rror" in line or ": " in line][:1]
        print(
            f"{name}, {delay:.2f} s: worker {lost} killed; the other ended"
            f" with {status} after {time.monotonic() - killed:.0f} s: {said}"
        )
        if status != 42:
            wrong.append((name, lost, delay, logs[1 - lost].read_text()))
    assert not wrong
