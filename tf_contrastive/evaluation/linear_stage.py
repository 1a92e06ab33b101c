"""The linear stage: a classifier on the frozen encoder of a finished run.

It computes what `evaluate --protocols=linear` computes, and can be interrupted
and resumed.
"""

import dataclasses
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    classifiers,
    datasets,
    distribution,
    tensorboard,
)
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.checkpoints import preemption
from tf_contrastive.config.evaluate import Evaluation, Scoring
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import Linear
from tf_contrastive.evaluation import protocols
from tf_contrastive.evaluation import report as reports
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.tensorboard import hparams

RESULT_FILE = "linear.json"
# Folder of an unfinished stage, and the file in it that identifies the stage.
STATE = "linear"
_IDENTITY_FILE = "stage.json"
# Seconds between two of its checkpoints, and between two lines of progress.
SAVE_SECONDS = 60.0
_ADVICE = "make room, and repeat the command to resume"


@distribution.failures.reported()
def run(
    config: Pretrain,
    train: datasets.Source,
    test: datasets.Source,
    strategy: tf.distribute.Strategy,
) -> dict[str, Any]:
    """Trains a linear classifier on a run's encoder, and scores it.

    The encoder is that of the newest checkpoint, in float32 and inference mode.
    The replicas of all workers share the images that it embeds. Each worker
    trains the same classifier on all embeddings, and the chief writes the
    result.

    Returns:
      The content of `<workdir>/linear.json`: that of `evaluation.json`, and
      "stage". If the file is of this stage already, nothing is computed.

    Raises:
      UserError: for data that cannot be scored, or a diverged loss; its
        subclass InterruptedRunError, if the run was interrupted or lost a
        worker.
    """
    workdir = config.runtime.workdir
    # All workers wait until the chief has saved.
    distribution.any_worker(strategy, False)
    saved = checkpoints.load_run(workdir)
    opened = checkpoints.OpenedRun(workdir)
    options = Scoring(
        evaluation=Evaluation(
            workdir=workdir,
            protocols=("linear",),
            untrained=False,
            train_split=config.data.split,
            test_split=config.data.test_split,
            seed=config.runtime.seed,
        ),
        linear=Linear(**vars(config.linear)),
    )
    none = np.empty(0)
    # Labels in memory: others, of prepared datasets, take long to read.
    data = [(x, x.columns().get("label", none)) for x in (train, test)]
    # What the result depends on, as read back from JSON.
    stage = files.as_json(
        {
            "step": saved.step,
            "data": [[x.content, reports.digest(y)] for x, y in data],
            "train_split": config.data.split,
            "test_split": config.data.test_split,
            "version": options.version_of("linear"),
            "hyperparameters": options.hyperparameters("linear"),
        }
    )
    path = os.path.join(workdir, RESULT_FILE)
    form = {"results": [reports.ROW_FORM], "checksum": str}
    report = files.read_json(path, {}, form)
    if report.get("stage") == stage:
        return report
    terminal.info(
        f"linear     {options.linear.optimizer.label},"
        f" {options.linear.schedule.epochs} epochs of"
        f" {train.info.num_examples:,} images, augmentation"
        f" {options.linear.augmentation}"
    )
    is_chief = distribution.is_chief(strategy)
    with checkpoints.session(workdir, strategy) as (_, listener):
        progress = Progress(opened, stage, listener, is_chief)
        run_to_score = dataclasses.replace(saved, config=config)
        context = EvaluationContext(
            Subject.of_run(run_to_score, strategy=strategy),
            Data(train.labelled(), test.labelled()),
            options,
            observer=progress,
            cancellable=progress.interruptible,
            log=terminal.info,
        )
        scores = protocols.run(context, ["linear"])
    report = {
        "dataset": train.info.name,
        "train_split": config.data.split,
        "test_split": config.data.test_split,
        "step": saved.step,
        "checksum": scores["checksum"],
        "results": scores["results"],
        "stage": stage,
    }
    if is_chief:
        opened.check()
        files.write_json(path, report, advice=_ADVICE)
        events = os.path.join(workdir, tensorboard.EVENTS)
        (row,) = report["results"]
        hparams.write_scores(events, {"linear_stage": row["top1"]}, saved.step)
    return report


class Progress(classifiers.TrainingObserver):
    """Logs the stage, saves its state, and ends it when the run is to end.

    `stage` identifies the stage; the state of another one is removed. Only the
    chief saves; all workers restore.
    """

    def __init__(
        self,
        opened: checkpoints.OpenedRun,
        stage: dict[str, Any],
        listener: preemption.PreemptionListener,
        is_chief: bool,
    ) -> None:
        self._opened = opened
        self._folder = os.path.join(opened.workdir, STATE)
        self._stage = stage
        self._listener = listener
        self._is_chief = is_chief
        self._state: tf.train.Checkpoint | None = None
        self._epoch = self._saved_epoch = 0
        self._saved_at = time.monotonic()

    def begin(self, state: tf.train.Checkpoint) -> int:
        """Restores the newest epoch of this stage; returns its number."""
        if self._is_chief:
            self._prepare(state)
        # The others wait for the chief, and then it waits until they have read.
        self._end_if_interrupted()
        newest, _ = checkpoints.newest(self._folder)
        if newest:
            state.restore(newest).assert_consumed()
            self._epoch = self._saved_epoch = checkpoints.step_of(newest)
            terminal.info(f"linear stage: resumed after epoch {self._epoch:,}")
        self._end_if_interrupted()
        return self._epoch

    def _prepare(self, state: tf.train.Checkpoint) -> None:
        """Removes the state of another stage, and prepares to save."""
        path = os.path.join(self._folder, _IDENTITY_FILE)
        if files.read_json(path, {}) != self._stage:
            with errors.write_errors(path, _ADVICE):
                if tf.io.gfile.exists(self._folder):
                    tf.io.gfile.rmtree(self._folder)
            files.write_json(path, self._stage, advice=_ADVICE)
        self._state = state
        self._retention = checkpoints.Retention(self._folder, keep=2)
        events = os.path.join(self._opened.workdir, tensorboard.EVENTS)
        self._writer = tf.summary.create_file_writer(events)

    def epoch(self, done: int, metrics: dict[str, float]) -> None:
        """Logs an epoch, and saves it if the last save was long ago."""
        self._epoch = done
        if self._is_chief:
            with self._writer.as_default(step=metrics["step"]):
                for name in ("loss", "accuracy", "learning_rate"):
                    tf.summary.scalar(f"linear/{name}", metrics[name])
            self._writer.flush()
        epochs = self._stage["hyperparameters"]["epochs"]
        if done == epochs or time.monotonic() - self._saved_at >= SAVE_SECONDS:
            self._save()
            terminal.info(
                f"linear stage: epoch {done}/{epochs}"
                f"  loss {metrics['loss']:.4f}"
                f"  accuracy {metrics['accuracy']:.3f}"
            )
        self._end_if_interrupted()

    def interruptible(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yields `batches` until the run is to end."""
        for batch in batches:
            self._end_if_interrupted()
            yield batch

    def _end_if_interrupted(self) -> None:
        if reason := self._listener.stop_reason():
            self._save()
            raise errors.InterruptedRunError(
                f"ended by {reason}, saved at epoch {self._saved_epoch} of the"
                " linear stage: repeat the command to resume"
            )

    def _save(self) -> None:
        if self._state and self._epoch > self._saved_epoch:
            self._opened.check()
            path = os.path.join(self._folder, f"ckpt-{self._epoch}")
            with errors.write_errors(self._folder, _ADVICE):
                self._state.save_counter.assign_add(1)
                self._state.write(path)
            self._retention.add(path)
            self._saved_epoch = self._epoch
        self._saved_at = time.monotonic()
