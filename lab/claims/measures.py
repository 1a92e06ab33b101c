"""What claims measure: named numbers of a unit."""

import fnmatch
import functools
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from lab.benchmarks import measure
from lab.claims import (
    byol,
    color_histograms,
    definitions,
    vae,
)
from tf_contrastive import checkpoints, datasets, flags, losses, views
from tf_contrastive.base import errors, files
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Scoring, resolve_splits
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import linear_stage, protocols
from tf_contrastive.evaluation import report as reports
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.data import Data
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.tensorboard import scalars

# The mean training loss of a run's last epoch, and that of a network that
# answers the same to every image.
FINAL_LOSS, COLLAPSED = "loss/contrastive/last_epoch", "collapsed"


class Evaluated(NamedTuple):
    """The flags of an `evaluate`, and the folder of its results."""

    flags: Sequence[str]
    folder: str


class Unit(NamedTuple):
    """One arm in one case with one seed."""

    case: str  # May be empty.
    arm: str
    seed: int
    settings: Mapping[str, Any]  # See `definitions.Recipe.settings`.
    data_dir: str = ""
    workdir: str = ""  # Of its run; empty without one.
    pretrain: Sequence[str] = ()  # The flags of its run.
    # By their names, see `definitions.Settings`.
    evaluations: Mapping[str, Evaluated] = {}

    @property
    def baseline(self) -> str | None:
        """The baseline that it trains in place of a run, if any."""
        kinds = definitions.BASELINES
        return next((kind for kind in kinds if kind in self.settings), None)

    @property
    def commands(self) -> list[tuple[str, ...]]:
        """Words after `python -m tf_contrastive`; none if a measure trains."""
        if self.baseline:
            return []
        runs = [(definitions.PRETRAIN, *self.pretrain)] if self.pretrain else []
        scorings = self.evaluations.values()
        return runs + [(definitions.EVALUATE, *x.flags) for x in scorings]


class Measured(NamedTuple):
    """A measure of a unit that has it."""

    # Names of the numbers, `*` for any part; known before the unit's runs.
    written: set[str]
    numbers: Callable[[], dict[str, float]]  # After its runs.


# Takes the name behind the colon, or "". Returns None for a unit without it.
Measure = Callable[[Unit, str], Measured | None]


# ---- Of runs and their evaluations -------------------------------------------


def _evaluation(unit: Unit, name: str) -> Measured | None:
    """Numbers of `evaluation.json`, see `_numbers`."""
    scoring = unit.evaluations.get(name)
    if scoring is None or not unit.commands:
        return None
    return Measured(
        _written_rows(flags.parse(Scoring, [*scoring.flags])),
        lambda: _read(os.path.join(scoring.folder, reports.RESULTS_FILE)),
    )


def _linear_stage(unit: Unit, name: str) -> Measured | None:
    """Numbers of a run's own linear stage, see `_numbers`."""
    if not unit.pretrain or not unit.commands:
        return None
    run = flags.parse(Pretrain, [*unit.pretrain])
    if not run.linear.schedule.epochs:
        return None
    return Measured(
        {"linear/top1", "linear/top5", "linear/loss"},
        lambda: _read(os.path.join(unit.workdir, linear_stage.RESULT_FILE)),
    )


def _read(path: str) -> dict[str, float]:
    """Reads the numbers of a file of results, see `_numbers`."""
    report = files.read_json(path, form={"results": [reports.ROW_FORM]})
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


def _written_rows(options: Scoring) -> set[str]:
    """Returns the names of `_numbers` that an evaluation will have."""
    known, written = PROTOCOLS, set()
    names = fields.split_list(options.evaluation.protocols)
    for protocol in known if "all" in names else names:
        for number in options.numbers(protocol):
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


def _training(unit: Unit, name: str) -> Measured | None:
    """Mean logged scalars, TAG/first_epoch or TAG/last_epoch, and bounds."""
    if not unit.workdir or not unit.commands:
        return None
    epochs = ("first_epoch", "last_epoch")
    tags = itertools.product(scalars.TAGS.values(), epochs)

    def numbers() -> dict[str, float]:
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
        positives = numbers.get(
            "loss/positives_per_anchor/last_epoch", math.nan
        )
        others = run.schedule.batch_size * run.views.views - 1
        numbers |= _bounds(others, positives)
        num_classes = checkpoints.load_run(unit.workdir).metadata["num_classes"]
        collapsed = collapsed_loss(run, num_classes, positives)
        return (
            numbers if collapsed is None else numbers | {COLLAPSED: collapsed}
        )

    names = {f"{tag}/{epoch}" for tag, epoch in tags}
    return Measured(names | {*_bounds(2, 1.0), COLLAPSED}, numbers)


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
    loss = losses.build(run.loss.label, **run.loss.arguments())
    batch, views = run.schedule.batch_size, run.views.views
    if loss.ignores_equal:
        return None
    if loss.takes_keys:
        return math.log(1 + run.batch.queue_size)
    if loss.takes_logits:
        return float(
            loss(tf.zeros([1, views, num_classes]), tf.zeros([1], "int32"))
        )
    classes = batch
    if positives >= views:  # Not NaN.
        classes = max(1, round(views * batch / (positives + 1)))
    return float(loss(tf.ones([batch, views, 2]), tf.range(batch) % classes))


def _baseline(unit: Unit, name: str) -> Measured | None:
    """Trains a baseline by flags of `pretrain`; scores it as `evaluate` does.

    Numbers as of `_evaluation`, and the losses of the gate. They are kept in
    the folder of its run.
    """
    kind = unit.baseline
    if kind is None:
        return None
    run = flags.parse(Pretrain, [*unit.pretrain])
    options = flags.parse(Scoring, [*unit.evaluations[""].flags])
    path = os.path.join(unit.workdir, f"{kind}.json")

    def numbers() -> dict[str, float]:
        if tf.io.gfile.exists(path):
            return files.read_json(path)
        trained = _FITS[kind](run, **unit.settings[kind])
        return _scored(trained, options, path)

    return Measured(_written_rows(options) | {FINAL_LOSS}, numbers)


_FITS: dict[str, Callable[..., vae.Trained]] = {
    definitions.VAE: vae.fit,
    definitions.BYOL: byol.fit,
}


def _scored(
    trained: vae.Trained, options: Scoring, path: str
) -> dict[str, float]:
    """Scores a baseline's encoder, and writes the numbers."""
    run = trained.run
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
    numbers[FINAL_LOSS] = trained.final
    if trained.collapsed is not None:
        numbers[COLLAPSED] = trained.collapsed
    tf.io.gfile.makedirs(os.path.dirname(path))
    advice = f"set {errors.arg('workdir')} to a folder that you may write to"
    files.write_json(path, numbers, advice)
    return numbers


def gate(unit: Unit) -> dict[str, float] | None:
    """Returns a run's "final" loss and the "collapsed" one; None without both.

    A network whose final loss is not below has learned nothing that can be
    compared.
    """
    measured = _training(unit, "") or _baseline(unit, "")
    numbers = measured.numbers() if measured else {}
    final, collapsed = numbers.get(FINAL_LOSS), numbers.get(COLLAPSED)
    if final is None or collapsed is None:
        return None
    return {"final": final, "collapsed": collapsed}


# ---- With options of their own, and without a run ----------------------------


def _free_embeddings(unit: Unit, name: str) -> Measured | None:
    """Minimises a loss over embeddings that no encoder computes.

    Shows which values a loss can reach: `initial`, `final`, and the bounds. The
    embeddings start nearly alike, as an untrained network's: a common direction
    plus `spread` times a random one. Options: loss, temperature, images,
    classes (equally frequent), dimension, spread, steps, learning_rate.
    """
    options = unit.settings.get("free_embeddings")
    if options is None:
        return None

    def numbers() -> dict[str, float]:
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

    return Measured({"initial", "final", *_bounds(2, 1.0)}, numbers)


def _color_histograms(unit: Unit, name: str) -> Measured | None:
    """Similarity of two views by `color_histograms`.

    Options: dataset, split, augmentation, and others of `views.build`.
    """
    if "color_histograms" not in unit.settings:
        return None
    options = dict(unit.settings["color_histograms"])
    where, policy = (
        [options.pop(key) for key in keys]
        for keys in (("dataset", "split"), ("augmentation",))
    )

    def numbers() -> dict[str, float]:
        source = datasets.source(*where, data_dir=unit.data_dir or None)
        return color_histograms.measure(
            source, views.build(*policy, **options), unit.seed
        )

    return Measured({"same_image", "other_image", "matched"}, numbers)


def _policy_speed(unit: Unit, name: str) -> Measured | None:
    """Milliseconds per view of augmentation policies, on the host.

    Options: policies, image_size, images (of the batch), repeats. The policies
    take turns, so that other work of the machine slows them all; of each the
    median.
    """
    options = unit.settings.get("policy_speed")
    if options is None:
        return None

    def numbers() -> dict[str, float]:
        size, count = options["image_size"], options["images"]
        pixels = tf.random.stateless_uniform(
            [count, size, size, 3], (unit.seed, 0), 0, 256, tf.int32
        )
        images = tf.cast(pixels, tf.uint8)
        seeds = tf.stack([tf.range(count), tf.fill([count], unit.seed)], axis=1)
        calls = {}
        for policy in options["policies"]:
            step = tf.function(views.build(policy, image_size=size).batch)
            calls[policy] = functools.partial(step, images, seeds)
        times = measure.in_turns(
            calls, options["repeats"], seconds=math.inf, warm_up=1
        )
        return {
            policy: 1000 * statistics.median(seconds) / count
            for policy, seconds in times.items()
        }

    return Measured(set(options["policies"]), numbers)


MEASURES: dict[str, Measure] = {
    "evaluation": _evaluation,
    "linear_stage": _linear_stage,
    "training": _training,
    "free_embeddings": _free_embeddings,
    **dict.fromkeys(definitions.BASELINES, _baseline),
    "color_histograms": _color_histograms,
    "policy_speed": _policy_speed,
}


# ---- Values of a recipe ------------------------------------------------------


def _sources(
    recipe: definitions.Recipe, unit: Unit
) -> Iterator[tuple[str, str, str, Measured]]:
    """Yields (value, number, name, measure): each value's first measure.

    Values of which the unit has no measure are left out.
    """
    for value, sources in recipe.values.items():
        for name, number in sources:
            kind, _, of = name.partition(":")
            if kind not in MEASURES:
                raise errors.unknown("measure", kind, MEASURES)
            if measured := MEASURES[kind](unit, of):
                yield value, number, name, measured
                break


def check(recipe: definitions.Recipe, unit: Unit) -> set[str]:
    """Returns the names of the values that a unit will have.

    Raises:
      UserError: if a value reads what none of the unit's protocols write, or a
        relation reads a value that the unit does not have.
    """
    where = ", ".join(filter(None, (unit.case, unit.arm)))
    available = set()
    for value, number, name, (written, _) in _sources(recipe, unit):
        if not any(fnmatch.fnmatchcase(number, x) for x in written):
            raise errors.UserError(
                f"{value} of {where} reads {number}, which {name} does not"
                f" write{errors.did_you_mean(number, written)}"
            )
        available.add(value)
    for relation in recipe.relations:
        for case, term in itertools.product(
            relation.cases, relation.left + relation.right
        ):
            place = term.case or case
            read = place == unit.case and unit.arm in term.arms
            missing = [v for v in term.values if v not in available]
            if read and missing:
                raise errors.UserError(
                    f"{relation.text} reads {missing[0]} of {where}, which has"
                    " no such measure"
                )
    return available


def values(recipe: definitions.Recipe, unit: Unit) -> dict[str, float | None]:
    """Measures a recipe's values; None where the unit has no such measure."""
    numbers: dict[str, dict[str, float]] = {}
    results: dict[str, float | None] = dict.fromkeys(recipe.values)
    for value, number, name, measured in _sources(recipe, unit):
        if name not in numbers:
            numbers[name] = measured.numbers()
        if number not in numbers[name]:
            kind = f"number of measure {name}"
            raise errors.unknown(kind, number, numbers[name])
        results[value] = numbers[name][number]
    return results
