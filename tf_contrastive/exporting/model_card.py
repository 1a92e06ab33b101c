"""The README of an export: its interface, its files, its recipe and quality."""

import os
from collections.abc import Sequence
from typing import Any

from tf_contrastive import checkpoints, flags
from tf_contrastive.base import files

FILE = "README.md"
_EVALUATION = "evaluation.json"
_ROW = {"encoder": str, "protocol": str, "top1": files.NUMBER_OR_NONE}

_IMAGES = "uint8 `[N, H, W, 3]` of any size"
_EMBEDDING = "`embedding`: float32 `[N, {embedding_size}]`"
# Signature -> (inputs, outputs).
_SIGNATURES = {
    "serving_default": ("`images`: {images}", _EMBEDDING),
    "serving_float": (
        "`images`: float32 `[N, H, W, 3]` in [0, 1], any size",
        _EMBEDDING,
    ),
    "serving_bytes": (
        "`bytes`: string `[N]`, JPEG or PNG of at most {max_image_pixels:,}"
        " pixels",
        _EMBEDDING + ", zeros where not `ok`; `ok`: bool `[N]`",
    ),
    "project": (
        "`images`: {images}",
        "`projection`: float32 `[N, {projection_size}]`",
    ),
    "classify": (
        "`images`: {images}",
        "`labels`: int64 `[N]`, of `assets/label_names.txt`; `probabilities`:"
        " float32 `[N, {num_classes}]`, not calibrated, of {head}",
    ),
}
_PREPROCESSING = """

Preprocessing is part of the model: the shorter side is resized to
{resized_side} pixels (bilinear, antialiased), the centre of {image_size} x
{image_size} pixels cropped, and colours standardized. Encoded images are turned
as their EXIF data say."""
_CARD = """# Image encoder

Maps images to embeddings of {embedding_size} numbers. Exported by
tf_contrastive {package} with TensorFlow {tensorflow}.

{signatures}

`tf.saved_model.load` returns an object that takes images float32
`[N, {image_size}, {image_size}, {channels}]` in [0, 1], also with
`training=True`; fine-tune its `trainable_variables`. Other files take the same
images:

{files}

## Data and recipe

{recipe}

## Evaluation

{evaluation}

## Licence

The weights are derived from the data above, whose licence applies to them. If
you distribute this export, add the licence of the weights here.
"""


def text(details: dict[str, Any], run: checkpoints.Run | None) -> str:
    """Returns the card in Markdown; a model from Python has no run."""
    images = _IMAGES
    if details["channels"] > 3:
        size, channels = details["image_size"], details["channels"]
        images = f"float32 `[N, {size}, {size}, {channels}]`, colours in [0, 1]"
    rows = [
        (f"`{name}`", *(x.format(images=images, **details) for x in texts))
        for name, texts in _SIGNATURES.items()
        if name in details["signatures"]
    ]
    signatures = _table(("signature", "inputs", "outputs"), rows)
    if details["channels"] == 3:
        signatures += _PREPROCESSING.format(**details)
    heading, *others = format_rows(details)
    sections = {
        "signatures": signatures,
        "files": _table(heading, others) if others else "None.",
        "recipe": _recipe(run),
        "evaluation": _evaluation(run),
    }
    return _CARD.format(**details | sections)


def format_rows(details: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the table of an export's other formats, with its heading.

    The last columns compare embeddings with the SavedModel's on real images;
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


def _evaluation(run: checkpoints.Run | None) -> str:
    """Returns the table of `evaluate`."""
    report = {}
    if run is not None:
        path = os.path.join(run.config.runtime.workdir, _EVALUATION)
        report = files.read_json(path, {}, {"results": [_ROW]})
    if run is None or not report:
        return "None: run `python -m tf_contrastive evaluate` before `export`."
    rows = [
        (
            f"{result['protocol']} {result.get('variant', '')}".strip(),
            str(result.get("dataset") or report.get("dataset")),
            f"{result['top1']:.4f}",
        )
        for result in report["results"]
        if result["encoder"] == "trained" and result["top1"] is not None
    ]
    text = (
        f"{_table(('protocol', 'dataset', 'top-1'), rows)}\n\nOf step"
        f" {report.get('step')} (the export: step {run.step}), on the split"
        f" {report.get('test_split')}."
    )
    if report.get("seen"):
        text += f"\n\nWarning: {report['seen']}."
    return text


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
