"""What claims measure, by name; each measure returns named numbers."""

import fnmatch
import itertools
import math
import os
import statistics
import time
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    errors,
    files,
    flags,
    losses,
    views,
)
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate, resolve_splits
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import linear_stage, protocols, results
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.data import Data
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.lab.claims import (
    color_histograms,
    definitions,
    protocol_numbers,
    vae,
)
from tf_contrastive.tensorboard import scalars

# The mean training loss of a run's last epoch.
FINAL_LOSS = "loss/contrastive/last_epoch"


class Unit(NamedTuple):
    """One arm in one case with one seed."""

    case: str  # May be empty.
    arm: str
    seed: int
    settings: Mapping[str, Any]  # See `definitions.Recipe.settings`.
    # Words after `python -m tf_contrastive`.
    commands: tuple[tuple[str, ...], ...] = ()
    workdir: str = ""  # Of its run; empty without one.
    # Name -> folder of an evaluation, see `definitions.Settings`.
    evaluations: Mapping[str, str] = types.MappingProxyType({})
    data_dir: str = ""


# Measure -> names of its numbers, `*` for any part; None: not of this unit.
_Written = set[str] | None


def _evaluation(unit: Unit, name: str) -> dict[str, float] | None:
    """Numbers of `evaluation.json`, see `_numbers`."""
    if name not in unit.evaluations:
        return None
    return _read(os.path.join(unit.evaluations[name], results.RESULTS_FILE))


def _linear_stage(unit: Unit, name: str) -> dict[str, float] | None:
    """Numbers of a run's own linear stage, see `_numbers`."""
    path = os.path.join(unit.workdir, linear_stage.RESULT_FILE)
    return _read(path) if _written_linear_stage(unit, name) else None


def _written_linear_stage(unit: Unit, name: str) -> _Written:
    runs = [words for words in unit.commands if words[0] == "pretrain"]
    if not any(
        flags.parse(Pretrain, [*words[1:]]).linear.schedule.epochs
        for words in runs
    ):
        return None
    return {"linear/top1", "linear/top5", "linear/loss"}


def _read(path: str) -> dict[str, float]:
    """Reads the numbers of a file of results, see `_numbers`."""
    report = files.read_json(path, form={"results": [results.ROW_FORM]})
    return _numbers(report["results"])


def _numbers(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns [untrained/]PROTOCOL[:VARIANT]/METRIC of rows of results.

    The numbers of a list, such as one per severity, are METRIC/1, METRIC/2, ...
    """
    numbers = {}
    for row in rows:
        name = ":".join(filter(None, (row["protocol"], row["variant"])))
        name = f"untrained/{name}" if row["encoder"] == "untrained" else name
        metrics = {"top1": row["top1"], "top5": row["top5"], **row["metrics"]}
        for metric, value in metrics.items():
            items = {metric: value}
            if isinstance(value, list):
                items = {f"{metric}/{i}": x for i, x in enumerate(value, 1)}
            for key, item in items.items():
                if isinstance(item, int | float):
                    numbers[f"{name}/{key}"] = float(item)
    return numbers


def _written_evaluation(unit: Unit, name: str) -> _Written:
    flags_of = {
        name: words
        for name, words in zip(
            unit.evaluations,
            [words for words in unit.commands if words[0] == "evaluate"],
            strict=True,
        )
    }
    if name not in flags_of:
        return None
    return _written_rows(flags.parse(Evaluate, [*flags_of[name][1:]]))


def _written_rows(options: Evaluate) -> set[str]:
    """Returns the names of `_numbers` that an evaluation will have."""
    known, written = PROTOCOLS, set()
    names = fields.split_list(options.evaluation.protocols)
    for protocol in known if "all" in names else names:
        for number in protocol_numbers.names(protocol, options):
            # VARIANT/METRIC, METRIC or METRIC/1.
            variant, _, metric = number.partition("/")
            if not metric or metric.isdigit():
                variant, metric = "", number
            row = ":".join(filter(None, (protocol, variant)))
            written.add(f"{row}/{metric}")
            if options.evaluation.untrained:
                written.add(f"untrained/{row}/{metric}")
    return written


def _bounds(others: int, positives: float) -> dict[str, float]:
    """Values that bound losses, of n other views and p positives per anchor."""
    return {
        "ln_others": math.log(others),
        "ln_positives": math.log(positives),
        "ln_noise": math.log(1 + others - positives),
    }


def _training(unit: Unit, name: str = "") -> dict[str, float] | None:
    """Mean logged scalars, TAG/first_epoch or TAG/last_epoch, and bounds."""
    if not _written_training(unit, name):
        return None
    run = checkpoints.check_run(unit.workdir)
    report = files.read_json(os.path.join(unit.workdir, "pretrain.json"))
    steps = report["steps"]
    per_epoch = steps / run.schedule.epochs
    # For epochs that are shorter than the interval of the curves' points.
    numbers: dict[str, float] = {
        f"{tag}/last_epoch": report[metric]
        for metric, tag in scalars.TAGS.items()
        if metric in report
    }
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
    numbers |= _bounds(others, positives)
    num_classes = checkpoints.load_run(unit.workdir).metadata["num_classes"]
    collapsed = collapsed_loss(run, num_classes, positives)
    return numbers if collapsed is None else numbers | {"collapsed": collapsed}


def collapsed_loss(
    run: Pretrain, num_classes: int | None, positives: float
) -> float | None:
    """Returns a run's loss if its network answers the same to every image.

    That is ln of the candidates of an anchor for a softmax over them, and ln of
    the classes for cross entropy. None for losses that mine negatives, which
    are 0 there.

    Args:
      run: its resolved config.
      num_classes: of its dataset; None without labels.
      positives: mean number of positives per anchor; NaN if not measured.
    """
    loss = losses.build(run.loss.loss, **run.loss.options())
    batch, views = run.schedule.batch_size, run.views.views
    if getattr(loss, "mining", "") == "semi_hard":
        return None
    if loss.takes_keys:
        return math.log(1 + run.loss.queue_size)
    if loss.takes_logits:
        return float(
            loss(tf.zeros([1, views, num_classes]), tf.zeros([1], "int32"))
        )
    classes = batch
    if positives >= views:  # Not NaN.
        classes = max(1, round(views * batch / (positives + 1)))
    return float(loss(tf.ones([batch, views, 2]), tf.range(batch) % classes))


def gate(unit: Unit) -> dict[str, float] | None:
    """Returns a run's "final" loss and the "collapsed" one; None without both.

    A network whose final loss is not below has learned nothing that can be
    compared.
    """
    numbers = _training(unit) or _vae(unit, "") or {}
    final, collapsed = numbers.get(FINAL_LOSS), numbers.get("collapsed")
    if final is None or collapsed is None:
        return None
    return {"final": final, "collapsed": collapsed}


def _written_training(unit: Unit, name: str) -> _Written:
    if not unit.workdir or definitions.VAE in unit.settings:
        return None
    tags = {
        f"{tag}/{epoch}"
        for tag in scalars.TAGS.values()
        for epoch in ("first_epoch", "last_epoch")
    }
    return tags | {*_bounds(2, 1.0), "collapsed"}


def _free_embeddings(unit: Unit, name: str) -> dict[str, float] | None:
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


def _written_free_embeddings(unit: Unit, name: str) -> _Written:
    if "free_embeddings" not in unit.settings:
        return None
    return {"initial", "final", *_bounds(2, 1.0)}


def _vae(unit: Unit, name: str) -> dict[str, float] | None:
    """Trains a VAE by the flags of `pretrain`; scores it as `evaluate` does.

    Numbers as of `_evaluation`, and the losses of the gate. They are kept in
    the folder of its run.
    """
    if definitions.VAE not in unit.settings:
        return None
    path = os.path.join(unit.workdir, "vae.json")
    if tf.io.gfile.exists(path):
        return files.read_json(path)
    run, options = _vae_options(unit)
    trained = vae.fit(run)
    options = resolve_splits(options, run.data)
    evaluation = options.evaluation
    train, test = (
        datasets.source(
            run.data.dataset, split, data_dir=run.data.data_dir or None
        )
        for split in (evaluation.train_split, evaluation.test_split)
    )
    context = EvaluationContext(
        Subject(trained.encoder, run=trained.run), Data(train, test), options
    )
    names = fields.split_list(evaluation.protocols)
    numbers = _numbers(protocols.run(context, names)["results"])
    numbers |= {FINAL_LOSS: trained.final, "collapsed": trained.collapsed}
    tf.io.gfile.makedirs(unit.workdir)
    advice = f"set {errors.arg('workdir')} to a folder that you may write to"
    files.write_json(path, numbers, advice)
    return numbers


def _vae_options(unit: Unit) -> tuple[Pretrain, Evaluate]:
    """Returns the options of a VAE's training and of its evaluation."""
    where = [f"--workdir={unit.workdir}", f"--data_dir={unit.data_dir}"]
    trained = unit.settings[definitions.PRETRAIN]
    scored = unit.settings[definitions.EVALUATE]
    return (
        flags.parse(Pretrain, [*trained, f"--seed={unit.seed}", *where]),
        flags.parse(Evaluate, [*scored, *where]),
    )


def _written_vae(unit: Unit, name: str) -> _Written:
    if definitions.VAE not in unit.settings:
        return None
    _, options = _vae_options(unit)
    return _written_rows(options) | {FINAL_LOSS, "collapsed"}


def _color_histograms(unit: Unit, name: str) -> dict[str, float] | None:
    """Similarity of two views by `color_histograms`.

    Options: dataset, split, augmentation, and others of `views.build`.
    """
    options = dict(unit.settings.get("color_histograms", {}))
    if not options:
        return None
    source = datasets.source(
        options.pop("dataset"),
        options.pop("split"),
        data_dir=unit.data_dir or None,
    )
    policy = views.build(options.pop("augmentation"), **options)
    return color_histograms.measure(source, policy, unit.seed)


def _written_color_histograms(unit: Unit, name: str) -> _Written:
    if "color_histograms" not in unit.settings:
        return None
    return {"same_image", "other_image", "matched"}


def _policy_speed(unit: Unit, name: str) -> dict[str, float] | None:
    """Milliseconds per view of augmentation policies, on the host.

    Options: policies, image_size, images (of the batch), repeats. The policies
    take turns, so that other work of the machine slows them all; of each the
    median.
    """
    options = unit.settings.get("policy_speed")
    if options is None:
        return None
    size, count = options["image_size"], options["images"]
    pixels = tf.random.stateless_uniform(
        [count, size, size, 3], (unit.seed, 0), 0, 256, tf.int32
    )
    images = tf.cast(pixels, tf.uint8)
    seeds = tf.stack([tf.range(count), tf.fill([count], unit.seed)], axis=1)
    steps = {
        name: tf.function(views.build(name, image_size=size).batch)
        for name in options["policies"]
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 + options["repeats"]):
        for name, step in steps.items():
            start = time.perf_counter()
            step(images, seeds).numpy()
            times[name].append(1000 * (time.perf_counter() - start) / count)
    # The first one includes tracing.
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def _written_policy_speed(unit: Unit, name: str) -> _Written:
    options = unit.settings.get("policy_speed")
    return None if options is None else set(options["policies"])


class Measure(NamedTuple):
    """Measures a unit, after its runs; None: it has no such measure.

    Both functions take the unit and the name behind the colon, or "".
    """

    measure: Callable[[Unit, str], dict[str, float] | None]
    written: Callable[[Unit, str], _Written]  # Before its runs.


MEASURES = {
    "evaluation": Measure(_evaluation, _written_evaluation),
    "linear_stage": Measure(_linear_stage, _written_linear_stage),
    "training": Measure(_training, _written_training),
    "free_embeddings": Measure(_free_embeddings, _written_free_embeddings),
    "vae": Measure(_vae, _written_vae),
    "color_histograms": Measure(_color_histograms, _written_color_histograms),
    "policy_speed": Measure(_policy_speed, _written_policy_speed),
}


def _find(measure: str) -> tuple[Measure, str]:
    """Returns a measure and the name behind its colon."""
    kind, _, name = measure.partition(":")
    if kind not in MEASURES:
        raise errors.unknown("measure", kind, MEASURES)
    return MEASURES[kind], name


def check(recipe: definitions.Recipe, unit: Unit) -> set[str]:
    """Returns the names of the values that a unit will have.

    Raises:
      UserError: if a value reads what none of the unit's protocols write, or a
        relation reads a value that the unit does not have.
    """
    where = ", ".join(filter(None, (unit.case, unit.arm)))
    available = set()
    for value, sources in recipe.values.items():
        for measure, number in sources:
            kind, name = _find(measure)
            written = kind.written(unit, name)
            if written is None:
                continue
            if not any(fnmatch.fnmatchcase(number, x) for x in written):
                raise errors.UserError(
                    f"{value} of {where} reads {number}, which {measure} does"
                    f" not write{errors.did_you_mean(number, written)}"
                )
            available.add(value)
            break
    for relation in recipe.relations:
        for case, term in itertools.product(
            relation.cases, relation.left + relation.right
        ):
            place = term.case or case
            read = place == unit.case and unit.arm in term.arms
            if read and term.value not in available:
                raise errors.UserError(
                    f"{relation.text} reads {term.value} of {where}, which has"
                    " no such measure"
                )
    return available


def values(recipe: definitions.Recipe, unit: Unit) -> dict[str, float | None]:
    """Measures a recipe's values; None where the unit has no such measure."""
    measured: dict[str, dict[str, float] | None] = {}
    results: dict[str, float | None] = dict.fromkeys(recipe.values)
    for value, sources in recipe.values.items():
        for measure, number in sources:
            if measure not in measured:
                kind, name = _find(measure)
                measured[measure] = kind.measure(unit, name)
            numbers = measured[measure]
            if numbers is None:
                continue
            if number not in numbers:
                kind_of_number = f"number of measure {measure}"
                raise errors.unknown(kind_of_number, number, numbers)
            results[value] = numbers[number]
            break
    return results
