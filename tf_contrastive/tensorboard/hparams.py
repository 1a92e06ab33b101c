"""A run's row of the HParams page: its options, and its last results."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import message
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hparams_pb
from tensorboard.plugins.hparams import summary_v2 as hparams

from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

# Subfolder of a run's events: every curve of it is a column.
_FOLDER = "hparams"
# Before the names of results, of which `loss` is also that of an option.
_PREFIX = "last/"
_METRICS = (
    *("loss", "val_loss", "contrastive_accuracy"),
    *("probe_accuracy", "online_knn_top1"),
)


class HParams(tf.keras.callbacks.Callback):
    """Writes a run's options at its start, and its metrics after every epoch.

    TensorBoard compares the rows of all runs, and shows the options that
    differ. It does so only where no run declares the columns.
    """

    def __init__(self, events: str, run: Pretrain) -> None:
        super().__init__()
        self._run = run
        self._writer = _writer(events)

    def on_train_begin(self, logs: Any = None) -> None:
        """Writes the options."""
        # The workdir distinguishes runs with equal options.
        workdir = self._run.runtime.workdir
        self._write(hparams.hparams_pb(compared(self._run), trial_id=workdir))

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        """Writes the epoch's means."""
        shown = {name: logs[name] for name in _METRICS if name in logs}
        step = int(self.model.optimizer.iterations.numpy())
        _write_scores(self._writer, shown, step)

    def close(self) -> None:
        """Marks the run as finished."""
        self._write(hparams_pb.session_end_pb(api_pb2.STATUS_SUCCESS))
        self._writer.close()

    def _write(self, summary: message.Message) -> None:
        with self._writer.as_default(step=0):
            tf.summary.experimental.write_raw_pb(summary.SerializeToString())


def compared(run: Pretrain) -> dict[str, bool | int | float | str]:
    """Returns the options that a run's results depend on, with defaults."""
    return {
        option.name: option.value
        if isinstance(option.value, bool | int | float)
        else str(option.value)
        for option in fields.options(run)
        if option.identity and option.value is not None
    }


def write_scores(events: str, scores: Mapping[str, float], step: int) -> None:
    """Adds results of the encoder to the row of a finished run."""
    writer = _writer(events)
    _write_scores(writer, scores, step)
    writer.close()


def _writer(events: str) -> Any:
    return tf.summary.create_file_writer(os.path.join(events, _FOLDER))


def _write_scores(writer: Any, scores: Mapping[str, float], step: int) -> None:
    with writer.as_default(step=step):
        for name, value in scores.items():
            tf.summary.scalar(_PREFIX + name, np.asarray(value))
    writer.flush()
