"""The README of an export: what it takes, its files, its recipe."""

from collections.abc import Sequence
from typing import Any

from tf_contrastive import checkpoints, flags

FILE = "README.md"
_CARD = """# Image encoder

Maps images of {image_size} x {image_size} pixels and {channels} channels to
embeddings of {embedding_size} numbers. Exported by tf_contrastive {package}
with TensorFlow {tensorflow}.

Signatures: {signatures}. `saved_model_cli show --all --dir FOLDER` lists
their inputs and outputs. Preprocessing is part of the model: images of another
size are resized and cropped at their centre, encoded ones turned as their EXIF
data say. `tf.saved_model.load` returns an object that takes float32 images in
[0, 1], also with `training=True`; fine-tune its `trainable_variables`. Other
files take the same images:

{files}

## Data and recipe

{recipe}

## Licence

The weights are derived from the data above, whose licence applies to them. If
you distribute this export, add the licence of the weights here.
"""


def text(details: dict[str, Any], run: checkpoints.Run | None) -> str:
    """Returns the card in Markdown; a model from Python has no run."""
    sections = {
        "signatures": ", ".join(f"`{x}`" for x in details["signatures"]),
        "files": _table(format_rows(details)),
        "recipe": _recipe(run),
    }
    return _CARD.format(**details | sections)


def format_rows(details: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the table of an export's other formats, with its heading.

    The last columns compare embeddings with the SavedModel's on photographs;
    the difference is a fraction of the largest value.
    """
    heading = ("file", "read by", "bytes", "largest difference", "least cosine")
    rows: list[tuple[str, ...]] = [heading]
    for one in details["formats"]:
        compared = ["", ""]
        if "largest_difference" in one:
            compared[0] = f"{one['largest_difference']:.1e}"
            compared[1] = f"{one['least_cosine']:.6f}"
        rows.append(
            (one["file"], one["reader"], f"{one['bytes']:,}", *compared)
        )
    return rows


def _recipe(run: checkpoints.Run | None) -> str:
    if run is None:
        return "Exported from Python: describe the training here."
    data = run.metadata
    return (
        f"{data['dataset']}, split {data['split']}, {data['num_examples']:,}"
        f" images, {data['num_classes'] or 'no'} classes; step {run.step:,}."
        " `python -m tf_contrastive pretrain --flagfile=THIS --workdir=NEW`"
        f" repeats the run:\n\n```\n{flags.write(run.config).strip()}\n```"
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    heading, *others = rows
    lines = [heading, ["---"] * len(heading), *others]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
