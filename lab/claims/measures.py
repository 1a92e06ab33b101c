"""What claims measure: named numbers of a unit."""

import functools
import itertools
import math
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lab.benchmarks import measure
from lab.claims import byol, definitions, vae
from tf_contrastive import checkpoints, datasets, flags, losses, views
from tf_contrastive.base import errors, files
from tf_contrastive.config.evaluate import Scoring, resolve_splits
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import linear_stage, protocols
from tf_contrastive.evaluation import report as reports
from tf_contrastive.evaluation.context import Data, EvaluationContext
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


# Returns a unit's numbers after its runs.
Numbers = Callable[[], dict[str, float]]
# Takes the name behind the colon, or "". Returns None for a unit without it.
Measure = Callable[[Unit, str], Numbers | None]


# ---- Of runs and their evaluations -------------------------------------------


def _evaluation(unit: Unit, name: str) -> Numbers | None:
    """Numbers of `evaluation.json`, see `_numbers`."""
    scoring = unit.evaluations.get(name)
    if scoring is None or not unit.commands:
        return None
    return lambda: _read(os.path.join(scoring.folder, reports.RESULTS_FILE))


def _linear_stage(unit: Unit, name: str) -> Numbers | None:
    """Numbers of a run's own linear stage, see `_numbers`."""
    if not unit.pretrain or not unit.commands:
        return None
    run = flags.parse(Pretrain, [*unit.pretrain])
    if not run.linear.schedule.epochs:
        return None
    return lambda: _read(os.path.join(unit.workdir, linear_stage.RESULT_FILE))


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


def _bounds(others: int, positives: float) -> dict[str, float]:
    """Values that bound losses, of n other views and p positives per anchor."""
    return {
        "ln_others": math.log(others),
        "ln_positives": math.log(positives),
        "ln_noise": math.log(1 + others - positives),
    }


def _training(unit: Unit, name: str) -> Numbers | None:
    """Mean logged scalars, TAG/first_epoch or TAG/last_epoch, and bounds."""
    if not unit.workdir or not unit.commands:
        return None

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

    return numbers


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
    if getattr(loss, "mining", "none") == "semi_hard":
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


def _baseline(unit: Unit, name: str) -> Numbers | None:
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
        measured = _scored(trained, options)
        tf.io.gfile.makedirs(unit.workdir)
        workdir = errors.arg("workdir")
        files.write_json(
            path, measured, f"set {workdir} to a folder that you may write to"
        )
        return measured

    return numbers


_FITS: dict[str, Callable[..., vae.Trained]] = {
    definitions.VAE: vae.fit,
    definitions.BYOL: byol.fit,
}


def _scored(trained: vae.Trained, options: Scoring) -> dict[str, float]:
    """Scores a baseline's encoder, and adds its losses."""
    data = trained.run.data
    options = resolve_splits(options, data)
    evaluation = options.evaluation
    train, test = (
        datasets.source(data.dataset, split, data_dir=data.data_dir or None)
        for split in (evaluation.train_split, evaluation.test_split)
    )
    context = EvaluationContext(
        Subject(trained.encoder, run=trained.run), Data(train, test), options
    )
    rows = protocols.run(context, evaluation.protocols)["results"]
    numbers = _numbers(rows) | {FINAL_LOSS: trained.final}
    if trained.collapsed is not None:
        numbers[COLLAPSED] = trained.collapsed
    return numbers


def gate(unit: Unit) -> dict[str, float] | None:
    """Returns a run's "final" loss and the "collapsed" one; None without both.

    A network whose final loss is not below has learned nothing that can be
    compared.
    """
    measured = _training(unit, "") or _baseline(unit, "")
    numbers = measured() if measured else {}
    final, collapsed = numbers.get(FINAL_LOSS), numbers.get(COLLAPSED)
    if final is None or collapsed is None:
        return None
    return {"final": final, "collapsed": collapsed}


# ---- With options of their own, and without a run ----------------------------


def _free_embeddings(unit: Unit, name: str) -> Numbers | None:
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

    return numbers


def _color_histograms(unit: Unit, name: str) -> Numbers | None:
    """Similarity of two views by `intersections` of their histograms.

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
        batches = datasets.view_batches(
            datasets.source(*where, data_dir=unit.data_dir or None),
            datasets.ViewMaker(views.Views(views.build(*policy, **options), 2)),
            batch_size=256,
            seed=unit.seed,
        )
        return intersections(
            np.concatenate([np.asarray(batch) for batch, _ in batches])
        )

    return numbers


def intersections(pixels: np.ndarray) -> dict[str, float]:
    """Compares colour histograms of two views per image: [n, 2, S, S, 3].

    Crops of an image share their colours, by which a network could find the
    other view without looking at shapes (Chen et al. 2020, figure 6).

    Returns:
      {"same_image", "other_image": mean intersections of the histograms of the
      views of an image, and of views of different images, in [0, 1]; "matched":
      how often the first view's most similar second view is of its image, a
      fraction}.
    """
    first, second = (_histograms(pixels[:, view]) for view in (0, 1))
    shared = np.stack([np.minimum(h, second).sum((1, 2)) for h in first]) / 3
    same = np.eye(len(shared), dtype=bool)
    return {
        "same_image": float(shared[same].mean()),
        "other_image": float(shared[~same].mean()),
        "matched": float(np.mean(shared.argmax(1) == np.arange(len(shared)))),
    }


def _histograms(images: np.ndarray, count: int = 16) -> np.ndarray:
    """Returns the histograms of each colour, [n, 3, bins]; each sums to 1."""
    bins = np.minimum((images * count).astype(int), count - 1)
    one_hot = np.eye(count, dtype=np.float32)[bins.reshape(len(images), -1, 3)]
    return one_hot.mean(axis=1)


def _policy_speed(unit: Unit, name: str) -> Numbers | None:
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

    return numbers


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
) -> Iterator[tuple[str, str, str, Numbers]]:
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
      UserError: if a relation reads a value that the unit does not have.
    """
    available = {value for value, *_ in _sources(recipe, unit)}
    for relation in recipe.relations:
        for case, term in itertools.product(
            relation.cases, relation.left + relation.right
        ):
            place = term.case or case
            read = place == unit.case and unit.arm in term.arms
            missing = [v for v in term.values if v not in available]
            if read and missing:
                where = ", ".join(filter(None, (unit.case, unit.arm)))
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
            numbers[name] = measured()
        if number not in numbers[name]:
            kind = f"number of measure {name}"
            raise errors.unknown(kind, number, numbers[name])
        results[value] = numbers[name][number]
    return results
