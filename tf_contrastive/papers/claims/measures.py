"""What claims measure, by name; each measure returns named numbers."""

import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import checkpoints, errors, flags, losses
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import results
from tf_contrastive.papers.claims import definitions
from tf_contrastive.tensorboard import scalars


class Unit(NamedTuple):
    """One arm in one case with one seed."""

    case: str  # May be empty.
    arm: str
    seed: int
    settings: Mapping[str, Any]  # See `definitions.Recipe.settings`.
    # Words after `python -m tf_contrastive`.
    commands: tuple[tuple[str, ...], ...] = ()
    workdir: str = ""  # Of its run; empty without one.
    evaluation: str = ""  # Folder of its evaluation; empty without one.


def _evaluation(unit: Unit) -> dict[str, float] | None:
    """Numbers of `evaluation.json`: [untrained/]PROTOCOL[:VARIANT]/METRIC."""
    if not unit.evaluation:
        return None
    path = os.path.join(unit.evaluation, results.RESULTS_FILE)
    numbers = {}
    for row in checkpoints.read_json(path)["results"]:
        name = ":".join(filter(None, (row["protocol"], row["variant"])))
        name = f"untrained/{name}" if row["encoder"] == "untrained" else name
        metrics = {"top1": row["top1"], "top5": row["top5"], **row["metrics"]}
        for metric, value in metrics.items():
            if isinstance(value, int | float):
                numbers[f"{name}/{metric}"] = float(value)
    return numbers


def _bounds(others: int, positives: float) -> dict[str, float]:
    """Values that bound losses, of n other views and p positives per anchor."""
    return {
        "ln_others": math.log(others),
        "ln_positives": math.log(positives),
        "ln_noise": math.log(1 + others - positives),
    }


def _training(unit: Unit) -> dict[str, float] | None:
    """Mean logged scalars, TAG/first_epoch or TAG/last_epoch, and bounds."""
    if not unit.workdir:
        return None
    with tf.io.gfile.GFile(os.path.join(unit.workdir, "config.flags")) as file:
        run = flags.read(Pretrain, file.read(), unit.workdir)
    path = os.path.join(unit.workdir, "pretrain.json")
    steps = checkpoints.read_json(path)["steps"]
    per_epoch = steps / run.schedule.epochs
    numbers = {}
    curves = scalars.read(os.path.join(unit.workdir, "events"))
    for tag, points in curves.items():
        # A point is the mean of the steps since the previous one.
        first = [v for step, v in points.items() if step <= per_epoch]
        last = [v for step, v in points.items() if step > steps - per_epoch]
        for name, values in (("first_epoch", first), ("last_epoch", last)):
            if values:
                numbers[f"{tag}/{name}"] = sum(values) / len(values)
    positives = numbers.get("loss/positives_per_anchor/last_epoch", math.nan)
    others = run.schedule.batch_size * run.views.views - 1
    return numbers | _bounds(others, positives)


def _free_embeddings(unit: Unit) -> dict[str, float] | None:
    """Minimises a loss over embeddings that no encoder computes.

    Shows which values a loss can reach: `initial`, `final`, and the bounds. The
    embeddings start nearly alike, as an untrained network's: a common direction
    plus `spread` times a random one. Options: loss, temperature, images,
    classes (equally frequent), dimension, spread, steps, learning_rate.
    """
    options = unit.settings.get("free_embeddings")
    if options is None:
        return None
    loss = losses.build(options["loss"], temperature=options["temperature"])
    labels = tf.range(options["images"]) % options["classes"]
    shape = [options["images"], 2, options["dimension"]]
    noise = tf.random.stateless_normal(shape, seed=(unit.seed, 0))
    embeddings = tf.Variable(1.0 + options["spread"] * noise)
    optimizer = tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.CosineDecay(
            options["learning_rate"], options["steps"]
        ),
        jit_compile=False,
    )
    optimizer.build([embeddings])

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = loss(embeddings, labels)
        gradient = tape.gradient(value, embeddings)
        optimizer.apply_gradients([(gradient, embeddings)])
        return value

    initial = float(step())
    for _ in range(options["steps"] - 1):
        step()
    final = float(loss(embeddings, labels))
    views = 2 * options["images"]
    bounds = _bounds(views - 1, views / options["classes"] - 1)
    return {"initial": initial, "final": final} | bounds


# Name -> function of a unit; None: the unit has no such measure.
MEASURES: dict[str, Callable[[Unit], dict[str, float] | None]] = {
    "evaluation": _evaluation,
    "training": _training,
    "free_embeddings": _free_embeddings,
}


def values(recipe: definitions.Recipe, unit: Unit) -> dict[str, float | None]:
    """Measures a recipe's values; None where the unit has no such measure."""
    measured: dict[str, dict[str, float] | None] = {}
    results: dict[str, float | None] = dict.fromkeys(recipe.values)
    for name, sources in recipe.values.items():
        for measure, number in sources:
            if measure not in MEASURES:
                raise errors.unknown("measure", measure, MEASURES)
            if measure not in measured:
                measured[measure] = MEASURES[measure](unit)
            numbers = measured[measure]
            if numbers is None:
                continue
            if number not in numbers:
                kind = f"number of measure {measure}"
                raise errors.unknown(kind, number, numbers)
            results[name] = numbers[number]
            break
    return results
