"""A run's text page: flags, command, model."""

import shlex
import sys

import tensorflow as tf

from tf_contrastive import flags
from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain


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
