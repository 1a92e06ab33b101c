"""Writes docs/recipes.md: where recipes differ from their authors'.

Use: python tools/recipes.py

The authors' values are in configs/authors.json. A value there is [theirs,
source], or [theirs, source, ours, reason] where a recipe has another one;
theirs is null where neither paper nor code states it. A recipe has the values
of its "base", unless it has its own.
"""

import json
import pathlib
import sys
import textwrap
from typing import Any

from tf_contrastive import flags, schedules
from tf_contrastive.base import errors
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import pretrain
from tf_contrastive.config.fields import values
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.config.optimizer import OPTIMIZERS
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import Exponential, Schedule
from tf_contrastive.doctor.smoke import substitute

ROOT = pathlib.Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
DATA = CONFIGS / "authors.json"
DOCUMENT = ROOT / "docs" / "recipes.md"
# Its own policy or none: no value.
_NONE = "-"
# Options of losses, at the values that need no mention.
_PLAIN = {
    "contrast": "all_views",
    "denominator": "all",
    "positives_cap": None,
    "keep_dropped_positives": False,
    "negatives": "all_views",
    "mining": "none",
    "negative_reduction": "mean",
    "include_self": True,
    "normalize": True,
    "reduction": "mean",
    "block_size": None,
    "similarity_products": "plain",
    "label_smoothing": 0.0,
    "scale": 1.0,
    "tau_plus": 0.0,
    "beta": 0.0,
    "unlabelled": "refuse",
    "unlabelled_negatives": True,
}
_INTRODUCTION = """\
# Recipes

Where the flagfiles of `configs/` differ from their authors' settings, and what
they set where the authors state nothing. Every other option is as stated:
`configs/authors.json` has each with its value and source, and a test compares
them. `python tools/recipes.py` writes this page.

Numbers are of the notes below the table.
"""


# ---- What the recipes resolve to ---------------------------------------------


def resolved(name: str) -> Pretrain:
    """Returns the resolved options of a `pretrain` recipe."""
    path = CONFIGS / f"{name}.flags"
    run = flags.parse(Pretrain, [f"--flagfile={path}", "--workdir=w"])
    run.validate()
    name = run.data.dataset
    side = substitute(name).side
    return pretrain.resolve(run, dataset=name, image_shape=(side, side, 3))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


def _views(run: Pretrain) -> dict[str, Any]:
    views = run.views
    policy = views.policy.label
    own = views.policy.arguments()
    jittered = "blur" in own or "color" in policy
    operations = []
    if "stacked_randaugment_order" in own:
        order = {"paper": "before", "code": "after"}
        operations = [
            f"RandAugment {own['randaugment_layers']} x"
            f" {own['randaugment_magnitude']:g}"
            f" {order[own['stacked_randaugment_order']]} the jitter",
        ]
    if own.get("rotate"):
        operations.append("quarter turns")
    if "warp_probability" in own:
        operations.append(f"warp {own['warp_probability']:g}")
    if "ablation_branch" in own:
        operations = [
            f"{own['ablation_branch']} branch",
            "same crop" if views.policy.shares_crop else "own crops",
        ]
    cropped = "min_crop_area" in own
    flipped = own.get("flip", False)
    return {
        "augmentation": policy,
        "views": views.views,
        "image_size": views.image_size,
        "standardize": run.setup.standardize,
        "crop_area": own.get("min_crop_area", _NONE),
        "flip": flipped if cropped else _NONE,
        "jitter": (
            f"{own['color_jitter_strength']:g} {own['color_jitter_style']}"
            if jittered
            else _NONE
        ),
        "blur": own.get("blur", False),
        "operations": ", ".join(operations) or _NONE,
    }


def _network(run: Pretrain) -> dict[str, Any]:
    encoder, head = run.encoder, run.projection
    own, features = encoder.arguments(), encoder.features
    if run.loss.takes_logits:
        sizes = [f"{features}", "classes"]
    else:
        sizes = [str(size) for size in head.sizes(features)]
    classifier = run.loss.takes_logits
    stem = own.get("stem", _NONE)
    if stem == "imagenet":
        stem += f", pool {own['pool_padding']}"
    width = own.get("width", 1)
    width = "" if width == 1 else f" {width:g}x"
    return {
        "encoder": f"{encoder.label}{width}",
        "stem": stem,
        "zero_scale": own.get("zero_init_residual", _NONE),
        "normalize_features": run.setup.l2_normalize_features,
        "head": "-".join(sizes),
        "head_batch_norm": (
            _NONE if classifier else head.arguments()["batch_norm"]
        ),
        "head_bias": classifier or head.arguments()["bias"],
    }


def _loss(run: Pretrain) -> dict[str, Any]:
    loss = run.loss
    values = loss.arguments()
    columns = {"temperature", "scale_by_temperature"}
    others = [
        f"{option}={_text(value)}"
        for option, value in sorted(values.items())
        if option not in columns and _PLAIN.get(option, _NONE) != value
    ]
    if loss.takes_keys:
        others += [
            f"queue_size={run.batch.queue_size}",
            f"key_momentum={run.batch.key_momentum:g}",
        ]
    return {
        "loss": loss.label,
        "temperature": values.get("temperature", _NONE),
        "scale_by_temperature": values.get("scale_by_temperature", _NONE),
        "loss_options": ", ".join(others) or _NONE,
    }


def _optimizer(name: str, options: dict[str, Any]) -> str:
    values = {**OPTIMIZERS[name].defaults(), **options}
    parts = [name]
    if "momentum" in values:
        parts[0] += f" {values['momentum']:g}"
    if values.get("nesterov"):
        parts[0] += " nesterov"
    if values.get("momentum_style") == "pytorch":
        parts[0] += " pytorch"
    if "rho" in values:
        parts.append(f"rho {values['rho']:g}")
    return ", ".join(parts)


def _schedule(schedule: Schedule) -> str:
    decay = schedule.decay
    if not isinstance(decay, Exponential):
        return decay.label
    return f"{decay.label} {decay.decay_rate:g} every {decay.decay_epochs:g}"


def _training(run: Pretrain) -> dict[str, Any]:
    schedule, optimizer = run.schedule, run.optimizer
    options = values = optimizer.arguments()
    return {
        "sampler": run.data.sampler,
        "batch": schedule.batch_size,
        "epochs": schedule.epochs,
        "optimizer": _optimizer(optimizer.label, options),
        "peak_rate": schedules.peak(
            schedule.learning_rate,
            schedule.batch_size,
            schedule.learning_rate_scaling,
        ),
        "schedule": _schedule(schedule),
        "warmup": schedule.warmup_epochs,
        "floor": schedule.learning_rate_floor,
        "weight_decay": values["weight_decay"],
        "decay_all": values["decay_all"],
    }


def _linear(stage: LinearStage) -> dict[str, Any]:
    schedule, name = stage.schedule, stage.optimizer.label
    if not schedule.epochs:
        return {"linear_epochs": 0}
    values = stage.optimizer.arguments()
    return {
        "linear_epochs": schedule.epochs,
        "linear_batch": schedule.batch_size,
        "linear_augmentation": stage.augmentation,
        "linear_normalize_features": stage.l2_normalize_features,
        "linear_label_smoothing": stage.label_smoothing,
        "linear_optimizer": _optimizer(name, stage.optimizer.arguments()),
        "linear_epsilon": values.get("epsilon", _NONE),
        "linear_peak_rate": schedules.peak(
            stage.hyperparameters()["learning_rate"],
            schedule.batch_size,
            "linear",
        ),
        "linear_schedule": _schedule(schedule),
        "linear_warmup": stage.hyperparameters()["warmup_epochs"],
        "linear_weight_decay": values["weight_decay"],
        "linear_decay_all": values["decay_all"],
    }


def ours(name: str) -> dict[str, str]:
    """Returns the values of a recipe, by column."""
    run = resolved(name)
    values = {
        **_views(run),
        **_network(run),
        **_loss(run),
        **_training(run),
        **_linear(run.linear),
    }
    return {column: _text(value) for column, value in values.items()}


# ---- What the authors state --------------------------------------------------


def data() -> dict[str, Any]:
    """Returns the content of configs/authors.json."""
    return json.loads(DATA.read_text("utf-8"))


def authors(name: str, content: dict[str, Any]) -> dict[str, list[Any]]:
    """Returns the authors' entry of each column of a recipe."""
    recipe = content["recipes"][name]
    base = recipe.get("base")
    values = authors(base, content) if base else {}
    values = {**values, **recipe["values"]}
    if values.get("linear_epochs", [0])[0] == 0:
        # Without a linear stage its other options have no effect.
        kept = ("linear_epochs",)
        return {
            k: v
            for k, v in values.items()
            if k in kept or not k.startswith("linear_")
        }
    return values


def differences(name: str, content: dict[str, Any]) -> list[str]:
    """Returns how a recipe differs from the authors' code beyond options."""
    recipe = content["recipes"].get(name, {})
    if "differences" not in recipe and "base" in recipe:
        return differences(recipe["base"], content)
    keys = recipe.get("differences", [])
    return [text for key in keys for text in content["differences"][key]]


def expected(entry: list[Any]) -> str:
    """Returns the value that a recipe has to have by an entry."""
    return _text(entry[2] if len(entry) == 4 else entry[0])


def differs_field(name: str, content: dict[str, Any]) -> str:
    """Returns the header's field `Differs` of a recipe, as comment lines."""
    text = "; ".join(differences(name, content)) + "."
    return textwrap.fill(
        text,
        80,
        initial_indent="# Differs:  ",
        subsequent_indent="#           ",
        break_on_hyphens=False,
    )


# ---- The page ----------------------------------------------------------------


def _options(name: str, content: dict[str, Any]) -> list[str]:
    """Describes the options that differ or are not stated, one reason each."""
    if name in content["recipes"]:
        entries = {
            column.replace("_", " "): entry
            for column, entry in authors(name, content).items()
        }
    else:
        entries = {
            f"`{flags.with_flags(Evaluate, errors.arg(flag))}`": entry
            for flag, entry in content["evaluations"][name].items()
        }
    settings: dict[str, list[str]] = {}
    for option, entry in entries.items():
        if len(entry) == 4:
            theirs, source, value, reason = entry
            said = "not stated" if theirs is None else _text(theirs)
            why = f"({source}: {said}): {reason}"
            settings.setdefault(why, []).append(f"{option} **{_text(value)}**")
    return [f"{', '.join(given)} {why}" for why, given in settings.items()]


def document(content: dict[str, Any]) -> str:
    """Returns the text of docs/recipes.md."""
    texts = {
        name: (_options(name, content), differences(name, content))
        for name in (*content["recipes"], *content["evaluations"])
    }
    # Those of options first.
    kinds = zip(*texts.values(), strict=True)
    notes = [*dict.fromkeys(x for kind in kinds for part in kind for x in part)]
    rows: dict[str, list[str]] = {}
    for name, parts in texts.items():
        numbers = [sorted(notes.index(x) + 1 for x in part) for part in parts]
        cells = [", ".join(map(str, part)) or _NONE for part in numbers]
        rows.setdefault(" | ".join(cells), []).append(name)
    lines = [
        *_INTRODUCTION.splitlines(),
        "",
        "| recipes | options | other differences |",
        "|---|---|---|",
    ]
    for cells, names in rows.items():
        lines.append(f"| {', '.join(names)} | {cells} |")
    lines += ["", *(f"{i}. {note}." for i, note in enumerate(notes, start=1))]
    lines += ["", "Sources:", ""]
    for key, source in content["sources"].items():
        lines.append(f"- {key}: {source}")
    return "\n".join(lines) + "\n"


def unexplained(name: str, content: dict[str, Any]) -> list[str]:
    """Returns the values of a flagfile that are not those of the data."""
    if name in content["recipes"]:
        found, entries = ours(name), authors(name, content)
    else:
        entries = content["evaluations"][name]
        path = CONFIGS / f"{name}.flags"
        parsed = flags.parse(Evaluate, [f"--flagfile={path}", "--workdir=w"])
        found = {flag: _text(values(parsed)[flag]) for flag in entries}
    return [
        f"{name}: {column} is {found.get(column)}, stated: {entry}"
        for column in sorted({*found, *entries})
        if (entry := entries.get(column)) is None
        or found.get(column) != expected(entry)
    ]


def main() -> int:
    """Writes the page; exits with 1 if a recipe is not as stated."""
    content = data()
    names = [*content["recipes"], *content["evaluations"]]
    if wrong := [line for n in names for line in unexplained(n, content)]:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    DOCUMENT.write_text(document(content), "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
