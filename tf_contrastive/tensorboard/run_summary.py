"""A run's text page (flags, command, model) and its row of the HParams page."""

import os
import shlex
import sys

import tensorflow as tf
from google.protobuf import message
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hparams_pb
from tensorboard.plugins.hparams import summary_v2 as hparams

from tf_contrastive import flags
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

# The options that the page compares. TensorBoard takes the columns from one of
# the runs, so they must be the same for all.
COMPARED = (
    "dataset",
    "split",
    "augmentation",
    "views",
    "image_size",
    "encoder",
    "width",
    "projection_output",
    "loss",
    "temperature",
    "optimizer",
    "weight_decay",
    "learning_rate",
    "schedule",
    "epochs",
    "batch_size",
    "precision",
    "seed",
)
# TensorBoard first shows five columns: those marked as differing.
_FIRST_COLUMNS = "loss", "temperature", "batch_size", "learning_rate", "epochs"
# (folder below the events, tag, title); the last point of each is shown.
_METRICS = (
    ("", "loss/contrastive", "loss"),
    ("", "validation/loss/contrastive", "validation loss"),
    ("", "loss/contrastive_accuracy", "contrastive accuracy"),
    ("", "probe/accuracy", "probe accuracy"),
    ("", "probe/online_knn_top1", "online kNN top-1"),
    ("", "linear/accuracy", "linear stage accuracy"),
    ("evaluation", "trained/linear/top1", "evaluated: linear top-1"),
    ("evaluation", "trained/knn/k=5/top1", "evaluated: 5-NN top-1"),
)
# Other options are numbers.
_TYPES = {bool: api_pb2.DATA_TYPE_BOOL, str: api_pb2.DATA_TYPE_STRING}
OptionValue = bool | int | float | str


def write_texts(run: Pretrain, model: models.ContrastiveModel) -> None:
    """Writes the text page: resolved flags, command, model summary."""
    lines: list[str] = []
    for part in model.checkpointed().values():
        if isinstance(part, tf.keras.Model):
            part.summary(line_length=100, print_fn=lines.append)
        elif isinstance(part, tf.keras.layers.Layer):
            lines.append(f"{part.name}: {part.count_params():,} parameters")
    for tag, text in (
        ("flags", f"{flags.write(run)}--workdir={run.runtime.workdir}"),
        ("command", shlex.join(getattr(sys, "orig_argv", sys.argv))),
        ("model", "\n".join(lines)),
    ):
        # Indented lines are Markdown's verbatim block.
        block = "\n".join(f"    {line}" for line in text.splitlines())
        tf.summary.text(f"run/{tag}", block, step=0)


def compared_options(run: Pretrain) -> dict[str, OptionValue]:
    """Returns the run's values of `COMPARED`, defaults filled in."""
    given = {k: v for k, v in fields.values(run).items() if v is not None}
    values = vars(run.loss.chosen()) | vars(run.optimizer.chosen()) | given
    return {
        name: values[name] for name in COMPARED if values.get(name) is not None
    }


def write_hparams(run: Pretrain) -> None:
    """Writes the run's row of the HParams page, and the page's columns."""
    types = {
        name: _TYPES.get(type(default), api_pb2.DATA_TYPE_FLOAT64)
        for name, default in fields.values(Pretrain()).items()
    }
    experiment = hparams_pb.experiment_pb(
        hparam_infos=[
            api_pb2.HParamInfo(
                name=name, type=types[name], differs=name in _FIRST_COLUMNS
            )
            for name in COMPARED
        ],
        metric_infos=[
            api_pb2.MetricInfo(
                name=api_pb2.MetricName(group=group, tag=tag),
                display_name=title,
            )
            for group, tag, title in _METRICS
        ],
    )
    # The workdir distinguishes runs with equal options. Its end comes first,
    # since TensorBoard shows some 10 characters.
    parent, name = os.path.split(run.runtime.workdir.rstrip("/"))
    trial_id = f"{name} in {parent}" if parent else name
    row = hparams.hparams_pb(compared_options(run), trial_id=trial_id)
    _write(experiment)
    _write(row)


def write_end() -> None:
    """Marks the run as finished on the HParams page."""
    _write(hparams_pb.session_end_pb(api_pb2.STATUS_SUCCESS))


def _write(summary: message.Message) -> None:
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)
