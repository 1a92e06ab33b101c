"""`export`: writes a run's encoder as a SavedModel, and in other formats."""

import os
import shlex
from typing import ClassVar

from tf_contrastive.base import terminal
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.export import Exporting
from tf_contrastive.config.fields import group

_TEXT = """\
exported: {path}
signatures: {signatures}
{formats}
In Python:
  model = tf.saved_model.load({path!r})
  model.signatures["serving_default"](images=images)["embedding"]
Serve it, in one process, or by TensorFlow Serving:
  python -m tf_contrastive serve --saved_model={quoted}
  launch/serve {quoted}
Read more: {path}/README.md"""


class Export(Command):
    """Write a SavedModel with serving signatures."""

    IS_OF_ONE: ClassVar = True
    exporting: Exporting = group(Exporting())
    terminal: Terminal = group(Terminal())


def run(options: Export) -> int:
    """Exports a checkpoint, and prints where and how to call it."""
    with terminal.without_start_lines():
        from tf_contrastive import checkpoints, exporting

    settings = options.exporting
    exporting.check_installed(settings.format)

    saved = checkpoints.load_run(settings.workdir, settings.checkpoint)
    parts, head = exporting.Parts.from_run(saved), None
    if settings.head == "probe":
        features = parts.encoder.output_shape[-1]
        head = exporting.ProbeHead.from_run(saved, features)
    output_dir = settings.output_dir or os.path.join(settings.workdir, "export")
    path = exporting.export(
        parts,
        output_dir,
        head=head,
        formats=settings.format,
        max_image_pixels=settings.max_image_pixels,
    )
    details = exporting.details(path)
    base = output_dir if "://" in output_dir else os.path.abspath(output_dir)
    table = ""
    if details["formats"]:
        rows = exporting.format_rows(details)
        table = f"\n{terminal.format_table(rows, {0, 1})}\n"
    print(
        _TEXT.format(
            path=path,
            quoted=shlex.quote(base),
            signatures=", ".join(details["signatures"]),
            formats=table,
        )
    )
    return 0
