"""What a run is, for TensorBoard: its flags, command and model; HParams."""

import os
import shlex
import sys
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api_pb2
from tensorboard.plugins.hparams import summary as hparams_pb
from tensorboard.plugins.hparams import summary_v2 as hparams

from tf_contrastive import flags
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.loss import LOSS_OPTIONS
from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.config.pretrain import Pretrain

# The options by which runs are compared. TensorBoard takes the columns of all
# runs from one of them, so that they are the same for every run.
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
# TensorBoard shows five columns until it is asked for others: those first of
# which it is told that runs differ in them.
_FIRST = ("loss", "temperature", "batch_size", "learning_rate", "epochs")
# (folder below the events, tag, what the column is called): the last points.
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
_TYPES = {
    bool: api_pb2.DATA_TYPE_BOOL,
    str: api_pb2.DATA_TYPE_STRING,
    int: api_pb2.DATA_TYPE_FLOAT64,
    float: api_pb2.DATA_TYPE_FLOAT64,
}


def write_texts(run: Pretrain, model: models.ContrastiveModel) -> None:
    """Writes the text page: resolved flags, command, summary of the model."""
    lines: list[str] = []
    for part in (model.encoder, model.projection_head, model.probe):
        if isinstance(part, tf.keras.Model):
            part.summary(line_length=100, print_fn=lines.append)
        elif part is not None:
            lines.append(f"{part.name}: {part.count_params():,} parameters")
    command = shlex.join(getattr(sys, "orig_argv", sys.argv))
    workdir = f"--workdir={run.runtime.workdir}"
    for tag, text in (
        ("run/flags", f"{flags.write(run)}{workdir}"),
        ("run/command", command),
        ("run/model", "\n".join(lines)),
    ):
        # Markdown's block of text that is shown as it is.
        block = "\n".join(f"    {line}" for line in text.splitlines())
        tf.summary.text(tag, block, step=0)


def compared(run: Pretrain) -> dict[str, Any]:
    """The options of a run by which runs are compared, defaults filled in."""
    values = {field.name: value for _, field, value in fields.fields(run)}
    for known in (
        LOSS_OPTIONS[run.loss.loss],
        OPTIMIZER_OPTIONS[run.optimizer.optimizer],
    ):
        for name, default in known.items():
            if values.get(name) is None:
                values[name] = default
    return {name: values[name] for name in COMPARED if values[name] is not None}


def write_hparams(run: Pretrain) -> None:
    """Writes the run's row of the HParams page, and the page's columns."""
    experiment = hparams_pb.experiment_pb(
        hparam_infos=[
            api_pb2.HParamInfo(name=name, type=kind, differs=name in _FIRST)
            for name, kind in _kinds().items()
        ],
        metric_infos=[
            api_pb2.MetricInfo(
                name=api_pb2.MetricName(group=group, tag=tag),
                display_name=title,
            )
            for group, tag, title in _METRICS
        ],
    )
    # A row each, of runs with the same options, too.
    parent, name = os.path.split(run.runtime.workdir.rstrip("/"))
    # The end first: TensorBoard shows some 10 characters.
    place = f"{name} in {parent}" if parent else name
    row = hparams.hparams_pb(compared(run), trial_id=place)
    for summary in (experiment, row):
        _write(summary)


def write_end() -> None:
    """Says on the HParams page that the run is finished."""
    _write(hparams_pb.session_end_pb(api_pb2.STATUS_SUCCESS))


def _write(summary: Any) -> None:
    tf.summary.experimental.write_raw_pb(summary.SerializeToString(), step=0)


def _kinds() -> dict[str, int]:
    """Option -> how TensorBoard is to compare its values."""
    found = {}
    for _, field, default in fields.fields(Pretrain()):
        if field.name in COMPARED:
            # Optional ones are numbers.
            kind = float if default is None else type(default)
            found[field.name] = _TYPES[kind]
    return {name: found[name] for name in COMPARED}
