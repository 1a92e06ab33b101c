"""The README of an export: its interface, its files, its recipe and quality."""

import os
from collections.abc import Sequence
from typing import Any

from tf_contrastive import checkpoints, flags
from tf_contrastive.base import files

FILE = "README.md"
_EVALUATION = "evaluation.json"
_RESULTS_FORM = {
    "results": [
        {
            "encoder": str,
            "protocol": str,
            "top1": files.NUMBER_OR_NONE,
            "top1_interval": files.is_interval_or_none,
        }
    ]
}

_IMAGES = "`images`: as for `serving_default`"
_EMBEDDING = "`embedding`: float32 `[N, {embedding_size}]`"
# Signature -> (inputs, outputs).
_SIGNATURES = {
    "serving_default": ("`images`: uint8 `[N, H, W, 3]`, any size", _EMBEDDING),
    "serving_float": (
        "`images`: float32 `[N, H, W, 3]` in [0, 1], any size",
        _EMBEDDING,
    ),
    "serving_bytes": (
        "`bytes`: string `[N]`, JPEG or PNG of at most {max_image_pixels:,}"
        " pixels; not `ok` are other formats, a JPEG in CMYK, and a PNG of far"
        " more bytes than its pixels have",
        _EMBEDDING + ", zeros where not `ok`; `ok`: bool `[N]`",
    ),
    "project": (_IMAGES, "`projection`: float32 `[N, {projection_size}]`"),
    "classify": (
        _IMAGES,
        "`labels`: int64 `[N]`, class ids; `probabilities`: float32 `[N,"
        " {num_classes}]`",
    ),
}
_MANY_CHANNELS = (
    "`images`: float32 `[N, {image_size}, {image_size}, {channels}]`, colours"
    " in [0, 1]"
)
_PREPROCESSING = """

The preprocessing is part of the model: it resizes the shorter side to
{resized_side} pixels (bilinear, antialiased), crops the centre of
{image_size} x {image_size} pixels, and standardizes colours. `serving_float`
fails for values outside [0, 1]. The EXIF orientation of a JPEG or PNG is
{turned}, as in training."""
_CLASSIFIER = """

`classify` is {head}. Its class names are in `assets/label_names.txt`. Its
probabilities are not calibrated."""
_CARD = """\
# Image encoder

Maps images to embeddings of {embedding_size} numbers. Exported by
tf_contrastive {package} with TensorFlow {tensorflow}.

## Signatures

{signatures}

`tf.saved_model.load` returns an object that takes images float32
`[N, {image_size}, {image_size}, {channels}]` in [0, 1], also with
`training=True`; fine-tune its `trainable_variables`.

## Files

{files}

Files other than the SavedModel take images float32 in [0, 1] at the encoder's
own size.

## Data and recipe

{recipe}

## Evaluation

{evaluation}

## Limits and licence

Embeddings compare images as the training data and the augmentation taught the
encoder: evaluate it on other kinds of images. The weights are derived from the
data above, whose licence applies to them. If you distribute this export, add
the licence of the weights here.
"""


def text(details: dict[str, Any], run: checkpoints.Run | None) -> str:
    """Returns the card in Markdown; a model from Python has no run."""
    signatures = _table(
        ("signature", "inputs", "outputs"),
        [(f"`{name}`", *texts) for name, *texts in signature_rows(details)],
    )
    if details["channels"] == 3:
        turned = "applied" if details["exif"] == "apply" else "ignored"
        signatures += _PREPROCESSING.format(**details, turned=turned)
    if details["head"]:
        signatures += _CLASSIFIER.format(**details)
    heading, *rows = format_rows(details)
    saved_model = (".", "TensorFlow, alone; TensorFlow Serving", "", "", "")
    sections = {
        "signatures": signatures,
        "files": _table(heading, [saved_model, *rows]),
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
        size = f"{one['bytes']:,}"
        rows.append((f"`{one['file']}`", one["reader"], size, *compared))
    return rows


def signature_rows(details: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (name, inputs, outputs) of each signature of an export."""
    rows = []
    for name in details["signatures"]:
        inputs, outputs = _SIGNATURES[name]
        if details["channels"] > 3 and name == "serving_default":
            inputs = _MANY_CHANNELS
        rows.append((name, inputs.format(**details), outputs.format(**details)))
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
        report = files.read_json(path, {}, _RESULTS_FORM)
    if run is None or not report:
        return "None: run `python -m tf_contrastive evaluate` before `export`."
    rows = []
    for result in report["results"]:
        if result["encoder"] != "trained" or result["top1"] is None:
            continue
        interval = result["top1_interval"]
        row = (
            f"{result['protocol']} {result.get('variant', '')}".strip(),
            result.get("dataset", report.get("dataset")),
            f"{result['top1']:.4f}",
            "{:.4f} to {:.4f}".format(*interval) if interval else "",
            result.get("examples", ""),
        )
        rows.append([str(cell) for cell in row])
    heading = ("protocol", "dataset", "top-1", "95 %", "images")
    seen = report.get("seen")
    return (
        _table(heading, rows)
        + f"\n\nOf step {report.get('step')} (the export: step {run.step}), on"
        f" the split {report.get('test_split')}."
        + f"\n\nWarning: {seen}."
        * bool(seen)
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
