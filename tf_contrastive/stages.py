"""The linear stage: a classifier on the frozen encoder of a finished run.

Layer 7. `linear` follows `training.pretrain` in a run of two stages. What it
does is what `evaluate --protocols=linear` does.
"""

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    classifiers,
    distribution,
    errors,
    terminal,
    training,
)
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config.evaluate import Evaluate, Evaluation
from tf_contrastive.config.linear import LinearProtocol
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import loading, protocols

RESULT_FILE = "linear.json"
# Folder of a stage that is under way, and what says which stage that is.
STATE = "linear"
_IDENTITY_FILE = "stage.json"
# Seconds between two checkpoints of it, and between two lines of progress.
_SAVE_SECONDS = 60.0


def linear(result: training.Result) -> dict[str, Any]:
    """Trains a linear classifier on a finished run's encoder, and scores it.

    The encoder is that of the newest checkpoint, in float32 and inference mode.
    Replicas of one host share the images that it embeds; of several workers
    each does the whole stage by itself, and the chief keeps what comes out.

    Args:
      result: of `training.pretrain`.

    Returns:
      What is written to `<workdir>/linear.json`, of the form of
      `evaluation.json`, with the "stage" that it is of; what stands there
      already, if that is this one.

    Raises:
      UserError: for data that cannot be scored, or a diverged loss; its
        InterruptedRunError, with status 42, if the run was told to end: the
        same command goes on, and gives the same result.
    """
    run, workdir = result.config, result.config.runtime.workdir
    # A worker may be here before the chief has saved: all wait for all.
    distribution.any_worker(result.strategy, False)
    found = checkpoints.load_run(workdir)
    options = evaluation_of(run)
    stage = _identity(options, found)
    path = os.path.join(workdir, RESULT_FILE)
    if (written := _read(path)) and written["stage"] == stage:
        return written
    strategy = result.strategy
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        strategy = tf.distribute.get_strategy()
    train, _ = training.open_dataset(run)
    terminal.info(
        f"linear     {options.linear.optimizer.optimizer},"
        f" {options.linear.schedule.epochs} epochs of"
        f" {train.info.num_examples:,} images, augmentation"
        f" {options.linear.augmentation}"
    )
    with preemption.PreemptionListener(tf.distribute.get_strategy()) as heard:
        follower = _Follower(workdir, stage, heard, result.is_chief)
        subject = loading.from_run(
            dataclasses.replace(found, config=run),
            train,
            training.open_test(run),
            options,
            strategy=strategy,
            observer=follower,
            cancellable=follower.heed,
            log=terminal.info,
        )
        report = protocols.run(subject, ["linear"])
    report = {
        "dataset": train.info.name,
        "train_split": run.data.split,
        "test_split": run.data.test_split,
        "step": found.step,
        "checksum": report["checksum_after"],
        "results": report["results"],
        "stage": stage,
    }
    if result.is_chief:
        with _writing(path):
            checkpoints.write_text(path, json.dumps(report, indent=2) + "\n")
    return report


def evaluation_of(run: Pretrain) -> Evaluate:
    """The options of `evaluate` that do what the run's linear stage does."""
    return Evaluate(
        Evaluation(
            workdir=run.runtime.workdir,
            protocols="linear",
            untrained=False,
            train_split=run.data.split,
            test_split=run.data.test_split,
            seed=run.runtime.seed,
        ),
        LinearProtocol(**vars(run.linear)),
    )


def _identity(options: Evaluate, found: checkpoints.Run) -> dict[str, Any]:
    """What decides the stage's result, as JSON gives it back."""
    identity = {
        "step": found.step,
        "train_split": options.evaluation.train_split,
        "test_split": options.evaluation.test_split,
        "version": protocols.PROTOCOLS["linear"].version_of(options),
        "hyperparameters": protocols.PROTOCOLS["linear"].hyperparameters(
            options
        ),
    }
    return json.loads(json.dumps(identity))


@contextlib.contextmanager
def _writing(path: str) -> Iterator[None]:
    """Says in one line what keeps `path` from being written."""
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise errors.cannot_write(
            path, error, "make room, and repeat the command to go on"
        ) from error


def _read(path: str) -> dict[str, Any] | None:
    if not tf.io.gfile.exists(path):
        return None
    return checkpoints.read_json(path)


class _Follower(classifiers.TrainingObserver):
    """Shows the stage, keeps what it has come to, and ends it where it must.

    Args:
      workdir: of the run.
      stage: which stage it is; the state of another one is thrown away.
      heard: tells whether the run should end.
      keeps: whether to show and keep it.
    """

    def __init__(
        self,
        workdir: str,
        stage: dict[str, Any],
        heard: preemption.PreemptionListener,
        keeps: bool,
    ) -> None:
        self._folder = os.path.join(workdir, STATE)
        self._events = os.path.join(workdir, training.EVENTS)
        self._stage = stage
        self._heard = heard
        self._keeps = keeps
        self._manager = None
        self._done = self._saved = 0
        self._saved_at = time.monotonic()

    def begin(self, state: tf.train.Checkpoint) -> int:
        """Restores the newest epoch that was saved of this stage."""
        if not self._keeps:
            return 0
        path = os.path.join(self._folder, _IDENTITY_FILE)
        if _read(path) != self._stage:
            with _writing(path):
                tf.io.gfile.makedirs(self._folder)
                for old in tf.io.gfile.glob(os.path.join(self._folder, "*")):
                    if not tf.io.gfile.isdir(old):
                        tf.io.gfile.remove(old)
                checkpoints.write_text(path, json.dumps(self._stage, indent=2))
        newest, _ = checkpoints.newest(self._folder)
        if newest:
            state.restore(newest).assert_consumed()
            self._done = self._saved = checkpoints.step_of(newest)
            terminal.info(f"linear stage: goes on after epoch {self._done:,}")
        self._manager = tf.train.CheckpointManager(
            state, self._folder, max_to_keep=2, checkpoint_name="ckpt"
        )
        self._writer = tf.summary.create_file_writer(self._events)
        return self._done

    def epoch(self, done: int, metrics: dict[str, float]) -> None:
        """Shows an epoch, and saves it if the last one was long ago."""
        self._done = done
        if self._keeps:
            self._show(metrics)
        epochs = self._stage["hyperparameters"]["epochs"]
        last = done == epochs
        if last or time.monotonic() - self._saved_at >= _SAVE_SECONDS:
            self._save()
            terminal.info(
                f"linear stage: epoch {done}/{epochs}"
                f"  loss {metrics['loss']:.4f}"
                f"  accuracy {metrics['accuracy']:.3f}"
            )
        self._end_if_told()

    def _show(self, metrics: dict[str, float]) -> None:
        with self._writer.as_default(step=metrics["step"]):
            for name in ("loss", "accuracy", "learning_rate"):
                tf.summary.scalar(f"linear/{name}", metrics[name])
        self._writer.flush()

    def heed(self, batches: Iterable) -> Iterator:
        """Yields `batches` while nothing ends the run."""
        for batch in batches:
            self._end_if_told()
            yield batch

    def _end_if_told(self) -> None:
        if reason := self._heard.stop_reason():
            self._save()
            raise preemption.InterruptedRunError(
                f"ended by {reason}, saved at epoch {self._saved} of the linear"
                " stage: repeat the command to go on"
            )

    def _save(self) -> None:
        if self._manager and self._done > self._saved:
            with _writing(self._folder):
                self._manager.save(checkpoint_number=self._done)
            self._saved = self._done
        self._saved_at = time.monotonic()
