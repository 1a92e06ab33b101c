"""The model card of an export: its interface, data, recipe and quality."""

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
{image_size} x {image_size} pixels, and standardizes colours. Do not subtract a
mean or divide by a deviation yourself.
`serving_float` fails for values outside [0, 1]. In encoded images, one channel
is repeated and alpha is dropped; the EXIF orientation of a JPEG or PNG is
{turned}, as in training. An empty batch gives an empty result."""
_CARD = """\
# Image encoder

Maps images to embeddings of {embedding_size} numbers. Exported by
tf_contrastive {package} with TensorFlow {tensorflow}; loading it needs only
TensorFlow.

## Signatures

{signatures}

`tf.saved_model.load` returns an object that takes images float32
`[N, {image_size}, {image_size}, {channels}]` in [0, 1], also with
`training=True`; fine-tune its `trainable_variables`.

## Data and recipe

{recipe}

## Evaluation

{evaluation}
{formats}
## Limits

Embeddings compare images as the training data and the augmentation taught the
encoder. Evaluate it before use on other kinds of images.{limits}

## Licence

The weights are derived from the data above, whose licence applies to them.
tf_contrastive, which made them, is under the Apache License 2.0. If you
distribute this export, add the licence of the weights here.
"""
_FORMATS = """
## Other formats

{table}

They take images float32 in [0, 1] at the encoder's own size. The last columns
compare their embeddings with the SavedModel's on real images; the difference is
a fraction of the largest value.
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
    limits = ""
    if details["head"]:
        signatures += (
            f"\n\n`classify` is {details['head']}. Its class names are in"
            " `assets/label_names.txt`."
        )
        limits += (
            " The probabilities of `classify` are not calibrated, and mean"
            " nothing for an image that shows none of the classes."
        )
    if run is not None and not run.metadata.get("num_classes"):
        limits += " It was trained without labels."
    formats = ""
    if details["formats"]:
        heading, *rows = format_rows(details)
        formats = _FORMATS.format(table=_table(heading, rows))
    sections = {
        "signatures": signatures,
        "recipe": _recipe(run),
        "evaluation": _evaluation(run),
        "formats": formats,
        "limits": limits,
    }
    return _CARD.format(**details | sections)


def format_rows(details: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the table of an export's other formats, with its heading."""
    return [
        ("file", "format", "bytes", "largest difference", "least cosine"),
        *(
            (
                f"`{one['file']}`",
                one["format"],
                f"{one['bytes']:,}",
                f"{one['largest_difference']:.1e}",
                f"{one['least_cosine']:.6f}",
            )
            for one in details["formats"]
        ),
    ]


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
    data, config = run.metadata, run.config
    classes = "no labels"
    if data.get("num_classes"):
        names = [str(name) for name in data.get("label_names") or []]
        shown = ", ".join(names[:10]) + (", ..." if names[10:] else "")
        classes = str(data["num_classes"]) + (f": {shown}" if names else "")
    rows = [
        ("dataset", f"{data.get('dataset')}, split {data.get('split')}"),
        ("images", f"{data.get('num_examples'):,}"),
        ("classes", classes),
        ("loss", config.loss.label),
        ("encoder", f"{config.encoder.label}, at step {run.step:,}"),
    ]
    return (
        _table(("", ""), rows)
        + "\n\nAll options. Repeat it by `python -m tf_contrastive pretrain"
        " --flagfile=THIS --workdir=NEW`:\n\n```\n"
        + flags.write(config).strip()
        + "\n```"
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
        if result.get("encoder") != "trained" or result.get("top1") is None:
            continue
        interval = result.get("top1_interval")
        row = (
            f"{result['protocol']} {result.get('variant', '')}".strip(),
            result.get("version", ""),
            result.get("dataset", report.get("dataset")),
            f"{result['top1']:.4f}",
            "{:.4f} to {:.4f}".format(*interval) if interval else "",
            result.get("examples", ""),
        )
        rows.append([str(cell) for cell in row])
    heading = ("protocol", "version", "dataset", "top-1", "95 %", "images")
    # Earlier versions did not look for it.
    seen = report.get("seen")
    return (
        _table(heading, rows)
        + f"\n\nOf step {report.get('step')} (the export: step {run.step});"
        f" {report.get('dataset')} by its split {report.get('test_split')}; the"
        " encoder was frozen." + f"\n\nWarning: {seen}." * bool(seen)
    )


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
