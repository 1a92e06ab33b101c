"""The model card of an export: what it is, takes, gives, and how good it is."""

import os
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, flags

FILE = "README.md"
_EVALUATION = "evaluation.json"

_INPUTS = {
    "serving_default": (
        "`images`: uint8 `[N, H, W, 3]`, any size",
        "`embedding`: float32 `[N, {embedding_size}]`",
    ),
    "serving_float": (
        "`images`: float32 `[N, H, W, 3]` in [0, 1], any size; other values"
        " fail the request",
        "`embedding`: float32 `[N, {embedding_size}]`",
    ),
    "serving_bytes": (
        "`bytes`: string `[N]`, JPEG, PNG, GIF (first frame) or BMP of at most"
        " {max_image_pixels:,} pixels",
        "`embedding`: float32 `[N, {embedding_size}]`, zeros where not `ok`;"
        " `ok`: bool `[N]`",
    ),
    "project": (
        "`images`: as `serving_default`",
        "`projection`: float32 `[N, {projection_size}]`",
    ),
    "classify": (
        "`images`: as `serving_default`",
        "`labels`: int64 `[N]`, class ids; `probabilities`: float32 `[N,"
        " {num_classes}]`; names in `assets/label_names.txt`",
    ),
}
_CHANNELS = (
    "`images`: float32 `[N, {image_size}, {image_size}, {channels}]`, colours"
    " in [0, 1], as it is",
    "`embedding`: float32 `[N, {embedding_size}]`",
)
_PREPROCESSING = """\
Preprocessing is inside: the shorter side is brought to {resized} pixels
(bilinear, antialiased), the centre of {image_size} x {image_size} is kept, and
colours are standardised. Do not divide by a mean or deviation yourself. Of
images, one channel is tiled, alpha dropped, and EXIF rotation not applied, as
in training. An empty batch gives an empty result."""
_LICENCE = """\
The weights are a product of the data above, whose own licence holds for them;
tf_contrastive, which made them, is under the Apache License 2.0. Whoever hands
this export on adds the licence of the weights here."""


def write(facts: dict[str, Any], run: checkpoints.Run | None) -> str:
    """Writes the card.

    Args:
      facts: see `reading.details`; and "num_classes", "max_image_pixels",
        "resized".
      run: that was exported; None for a model from Python.

    Returns:
      Markdown.
    """
    parts = [
        "# Image encoder\n\n"
        + f"Embeds images in {facts['embedding_size']} numbers. Exported by"
        f" tf_contrastive {facts['package']} with TensorFlow"
        f" {facts['tensorflow']}; needs TensorFlow alone.",
        "## What it takes and gives\n\n" + _signatures(facts),
        "## Data and recipe\n\n" + _recipe(run),
        "## Evaluation\n\n" + _evaluation(run),
    ]
    if facts["formats"]:
        parts.append("## Other formats\n\n" + _formats(facts["formats"]))
    parts += [
        "## Limits\n\n" + _limits(facts, run),
        "## Licence\n\n" + _LICENCE,
    ]
    return "\n\n".join(parts) + "\n"


def _signatures(facts: dict[str, Any]) -> str:
    rows = []
    for name in facts["signatures"]:
        takes, gives = _INPUTS[name]
        if facts["channels"] > 3:
            takes = _CHANNELS[0] if name == "serving_default" else takes
        rows.append((f"`{name}`", takes.format(**facts), gives.format(**facts)))
    text = _table(("signature", "takes", "gives"), rows)
    if facts["channels"] == 3:
        text += "\n\n" + _PREPROCESSING.format(**facts)
    if facts["head"]:
        text += f"\n\n`classify` is {facts['head']}."
    return (
        text
        + "\n\nLoaded by `tf.saved_model.load`, the object takes images float32"
        f" `[N, {facts['image_size']}, {facts['image_size']},"
        f" {facts['channels']}]` in [0, 1], also with `training=True`, and its"
        " `trainable_variables` can be fine-tuned."
        " `assets.extra/encoder.keras` is the same as a Keras model"
        " (`encoder.weights.h5` its weights, where Keras cannot write it down)."
    )


def _recipe(run: checkpoints.Run | None) -> str:
    if run is None:
        return "Exported from Python: whoever did so fills this in."
    data, pretrain = run.metadata, run.config
    rows = [
        ("dataset", f"{data.get('dataset')}, split {data.get('split')}"),
        ("images", f"{data.get('num_examples'):,}"),
        ("classes", _classes(data)),
        ("loss", _loss(pretrain)),
        ("augmentation", pretrain.views.augmentation),
        (
            "encoder",
            f"{pretrain.encoder.encoder}, width {pretrain.encoder.width:g},"
            f" {pretrain.encoder.stem} stem",
        ),
        ("optimizer", pretrain.optimizer.optimizer),
        (
            "training",
            f"step {run.step:,}, batch size {pretrain.schedule.batch_size:,},"
            f" of {pretrain.schedule.epochs:,} epochs",
        ),
        ("precision", pretrain.runtime.precision),
    ]
    return (
        _table(("", ""), rows)
        + "\n\nEvery option, to repeat it by `python -m tf_contrastive pretrain"
        " --flagfile=THIS --workdir=NEW`:\n\n```\n"
        + flags.write(pretrain).strip()
        + "\n```"
    )


def _classes(data: dict[str, Any]) -> str:
    names = data.get("label_names") or []
    if not data.get("num_classes"):
        return "no labels"
    first = ", ".join(map(str, names[:10])) + (", ..." if names[10:] else "")
    return f"{data['num_classes']}" + (f": {first}" if names else "")


def _loss(pretrain: Any) -> str:
    given = pretrain.loss.options()
    options = ", ".join(f"{name}={value}" for name, value in given.items())
    return pretrain.loss.loss + (f" ({options})" if options else "")


def _evaluation(run: checkpoints.Run | None) -> str:
    """The table of `evaluate`, of the exported step."""
    report = None
    if run is not None:
        path = os.path.join(run.config.runtime.workdir, _EVALUATION)
        if tf.io.gfile.exists(path):
            report = checkpoints.read_json(path)
    if report is None:
        return (
            "None was at hand: `python -m tf_contrastive evaluate` makes one."
        )
    rows = [
        (
            result["protocol"],
            str(result.get("version", "")),
            _share(result.get("top1")),
            _interval(result),
            _share(result.get("top5")),
            f"{result['examples']:,}" if result.get("examples") else "",
        )
        for result in report["results"]
        if result.get("encoder") == "trained" and result.get("top1") is not None
    ]
    text = _table(
        ("protocol", "version", "top-1", "95 %", "top-5", "images"), rows
    )
    told = f"{report.get('dataset')}, split {report.get('test_split')}"
    if report.get("step") != run.step:
        told += (
            f"; of step {report.get('step'):,}, and what is exported is step"
            f" {run.step:,}"
        )
    return f"{text}\n\nOn {told}; the encoder frozen."


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _interval(result: dict[str, Any]) -> str:
    low, high = result.get("top1_interval") or (None, None)
    return "" if low is None else f"{low:.4f} to {high:.4f}"


def _formats(formats: list[dict[str, Any]]) -> str:
    rows = [
        (
            f"`{one['file']}`",
            one["format"],
            f"{one['bytes']:,}",
            f"{one['largest_difference']:.1e}",
            f"{one['least_cosine']:.6f}",
        )
        for one in formats
    ]
    return (
        _table(
            ("file", "format", "bytes", "largest difference", "least cosine"),
            rows,
        )
        + "\n\nThey take images float32 in [0, 1] at the encoder's own size."
        " Compared with the SavedModel on real images: the largest difference"
        " is a share of the largest value of an embedding."
    )


def _limits(facts: dict[str, Any], run: checkpoints.Run | None) -> str:
    text = (
        "Embeddings compare images as the training data and the augmentation"
        " taught it; on other kinds of images evaluate before use."
    )
    if facts["head"]:
        text += (
            " Probabilities of `classify` are not calibrated, and say nothing"
            " of images that show none of the classes."
        )
    if run is not None and not run.metadata.get("num_classes"):
        text += " It was trained without labels."
    return text


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
