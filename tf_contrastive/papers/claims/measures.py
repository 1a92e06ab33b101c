"""What claims read off a run, or off no run at all.

Each measure gives numbers by name; a claim's value names a measure and one of
its numbers.
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tf_contrastive import errors, flags, losses
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import reports
from tf_contrastive.papers.claims import definitions
from tf_contrastive.tensorboard import scalars


@dataclasses.dataclass(frozen=True)
class Unit:
    """One arm in one case, by one seed.

    Attributes:
      workdir: of its run; empty without one.
      evaluation: folder of its evaluation; empty without one.
      settings: see `claims.Recipe.settings`.
      seed: of it.
    """

    workdir: str
    evaluation: str
    settings: Mapping[str, Any]
    seed: int


def _evaluation(unit: Unit) -> dict[str, float]:
    """Numbers of `evaluation.json`: PROTOCOL[:VARIANT]/METRIC.

    The accuracies are the metrics top1 and top5; those of the untrained
    encoder begin with `untrained/`.
    """
    path = os.path.join(unit.evaluation, reports.RESULTS_FILE)
    with tf.io.gfile.GFile(path) as file:
        report = json.load(file)
    found = {}
    for row in report["results"]:
        name = row["protocol"]
        name += f":{row['variant']}" if row["variant"] else ""
        name = f"untrained/{name}" if row["encoder"] == "untrained" else name
        numbers = {"top1": row["top1"], "top5": row["top5"], **row["metrics"]}
        for metric, value in numbers.items():
            if isinstance(value, int | float):
                found[f"{name}/{metric}"] = float(value)
    return found


def _training(unit: Unit) -> dict[str, float]:
    """Means of what the run logged: TAG/first_epoch and TAG/last_epoch.

    Beside them, what the batches make of the losses' bounds, with p the mean
    number of positives of an anchor and n = views x batch - 1 the others:
    `ln_others` ln n, `ln_positives` ln p, `ln_noise` ln(1 + n - p).
    """
    with tf.io.gfile.GFile(os.path.join(unit.workdir, "config.flags")) as file:
        run = flags.read(Pretrain, file.read(), unit.workdir)
    with tf.io.gfile.GFile(os.path.join(unit.workdir, "pretrain.json")) as file:
        steps = json.load(file)["steps"]
    of_epoch = steps / run.schedule.epochs
    found = {}
    curves = scalars.read(os.path.join(unit.workdir, "events"))
    for tag, points in curves.items():
        # A point is the mean of the steps since the one before.
        first = [v for step, v in points.items() if step <= of_epoch]
        last = [v for step, v in points.items() if step > steps - of_epoch]
        for name, values in (("first_epoch", first), ("last_epoch", last)):
            if values:
                found[f"{tag}/{name}"] = sum(values) / len(values)
    others = run.schedule.batch_size * run.views.views - 1
    positives = found.get("loss/positives_per_anchor/last_epoch", math.nan)
    return found | {
        "ln_others": math.log(others),
        "ln_positives": math.log(positives),
        "ln_noise": math.log(1 + others - positives),
    }


def _free_embeddings(unit: Unit) -> dict[str, float]:
    """Minimises a loss over embeddings that belong to no encoder.

    What a loss can come to, whatever the network: `initial` and `final`, and
    the bounds of `_training`. The embeddings start as an untrained network's,
    nearly alike: a common direction, and `spread` times a random one. Options:
    loss, temperature, images, classes (each of as many images), dimension,
    spread, steps, learning_rate.
    """
    options = dict(unit.settings["free_embeddings"])
    loss = losses.build(options["loss"], temperature=options["temperature"])
    labels = tf.range(options["images"]) % options["classes"]
    shape = [options["images"], 2, options["dimension"]]
    noise = tf.random.stateless_normal(shape, seed=(unit.seed, 0))
    free = tf.Variable(1.0 + options["spread"] * noise)
    optimizer = tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.CosineDecay(
            options["learning_rate"], options["steps"]
        ),
        jit_compile=False,
    )
    optimizer.build([free])

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            value = loss(free, labels)
        optimizer.apply_gradients([(tape.gradient(value, free), free)])
        return value

    initial = float(step())
    for _ in range(options["steps"] - 1):
        step()
    others = 2 * options["images"] - 1
    positives = 2 * options["images"] / options["classes"] - 1
    return {
        "initial": initial,
        "final": float(loss(free, labels)),
        "ln_others": math.log(others),
        "ln_positives": math.log(positives),
        "ln_noise": math.log(1 + others - positives),
    }


MEASURES: dict[str, Callable[[Unit], dict[str, float]]] = {
    "evaluation": _evaluation,
    "training": _training,
    "free_embeddings": _free_embeddings,
}


def values(
    wanted: Mapping[str, definitions.Sources], unit: Unit
) -> dict[str, float | None]:
    """Reads a claim's values off a unit.

    Args:
      wanted: name -> where it may be read.
      unit: what has been run.

    Returns:
      Name -> value; None where the unit has no such measure.

    Raises:
      UserError: for an unknown measure or number.
    """
    made: dict[str, dict[str, float]] = {}
    found: dict[str, float | None] = {}
    for name, sources in wanted.items():
        found[name] = None
        for measure, number in sources:
            if measure not in MEASURES:
                raise errors.unknown("measure", measure, MEASURES)
            if not _has(measure, unit):
                continue
            if measure not in made:
                made[measure] = MEASURES[measure](unit)
            if number not in made[measure]:
                raise errors.unknown(
                    f"number of measure {measure}", number, made[measure]
                )
            found[name] = made[measure][number]
            break
    return found


def _has(measure: str, unit: Unit) -> bool:
    """Whether a unit is of the kind that a measure reads."""
    return {
        "evaluation": bool(unit.evaluation),
        "training": bool(unit.workdir),
        "free_embeddings": "free_embeddings" in unit.settings,
    }[measure]
