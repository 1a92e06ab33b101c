"""The whole training step against its encoder's forward and backward pass.

What is beyond the encoder (projection, loss, metrics, probe, guard, optimizer)
is overhead: both are timed in turns, on one batch that is there already, with
the same encoder object. End to end, the run's own input is in it, too.
"""

import shlex
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import datasets, distribution, doctor, flags, training
from tf_contrastive import model as models
from tf_contrastive.benchmarks import measure
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import check_divisible

# Steps before anything is timed: graphs are made, pipelines filled.
_WARM_UP = 3

_COLUMNS = {
    "encoder": "{encoder}",
    "precision": "{precision}",
    "replicas": "{replicas}",
    "step ms": "{milliseconds:.1f}",
    "bare ms": "{bare_milliseconds:.1f}",
    "overhead": "{overhead:.1%}",
    "views/s": "{views_per_second:.1f}",
    "bare views/s": "{bare_views_per_second:.1f}",
    "end to end views/s": "{end_to_end_views_per_second:.1f}",
    "input wait": "{input_wait:.1%}",
}


class Case(NamedTuple):
    """A step that is measured."""

    run: Pretrain  # Resolved, with its precision.
    source: datasets.Source
    strategy: tf.distribute.Strategy


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Measures the step of `--run_flags` at every precision and replicas.

    Args:
      options: validated.
      say: is told what is being done.

    Raises:
      UserError: for flags that pretrain would refuse.
    """
    chosen = options.step
    wanted = flags.parse(
        Pretrain, [*shlex.split(chosen.run_flags), "--workdir=none"]
    )
    wanted.validate()
    counts = [int(n) for n in fields.split_list(chosen.replicas)]
    for count in counts:
        check_divisible(wanted.schedule.batch_size, count)
    # The largest first: the CPU is split once.
    strategies = {n: _strategy(n) for n in sorted(counts, reverse=True)}
    source, _ = training.open_dataset(wanted)
    source = datasets.in_memory(source, wanted.data.cache)
    results = []
    for precision in fields.split_list(chosen.precisions):
        for count in counts:
            case = _case(wanted, source, strategies[count], precision)
            say(f"{case.run.encoder.encoder}, {precision}, {count} replica(s)")
            results.append(
                _measure(
                    case,
                    options.benchmarking.repeats,
                    chosen.end_to_end_seconds,
                )
            )
    return measure.Report(
        results, [measure.table(_COLUMNS, results)], passed=True
    )


def _strategy(replicas: int) -> tf.distribute.Strategy:
    if replicas == 1:
        return distribution.strategy("default")
    return distribution.strategy("mirrored", virtual_devices=replicas)


def _case(wanted, source, strategy, precision) -> Case:
    run = training.resolve(wanted, source.info, strategy)
    run = training.standardize(run, source)
    return Case(fields.replace(run, precision=precision), source, strategy)


def _model(case: Case) -> models.ContrastiveModel:
    """Pretrain's own model, compiled as pretrain does."""
    run, info = case.run, case.source.info
    steps = datasets.steps_per_epoch(info.num_examples, run.schedule.batch_size)
    with case.strategy.scope(), models.precision(run.runtime.precision):
        model = models.build(
            run,
            info.num_classes,
            training.augment_on_device(run),
            training.mixing(run, info.num_classes),
        )
        one = fields.replace(run, steps_per_execution=1)
        training.compile_model(model, one, steps)
    return model


def bare(
    encoder: tf.keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Any], Any]:
    """Forward and backward pass of an encoder, as one graph.

    Returns:
      Iterator of the step's batches -> gradients, of each replica its own.
    """

    def on_replica(data):
        inputs = data[0]
        views = inputs[0] if isinstance(inputs, tuple) else inputs
        images = tf.reshape(views, [-1, *views.shape[2:]])
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(encoder(images, training=True) ** 2)
        return tape.gradient(total, encoder.trainable_variables)

    @tf.function
    def both_passes(iterator):
        return strategy.run(on_replica, args=(next(iterator),))

    return both_passes


def _measure(case: Case, repeats: int, seconds: float) -> dict[str, Any]:
    run, strategy = case.run, case.strategy
    replicas = strategy.num_replicas_in_sync
    size = run.schedule.batch_size
    model = _model(case)
    with models.precision(run.runtime.precision):
        step = model.make_train_function()
        passes = bare(model.encoder, strategy)
        batches = iter(
            doctor.speed.synthetic_batches(
                run, case.source.info.num_classes, size // replicas, strategy
            )
        )
        calls = {
            "step": lambda: _finished(step, batches),
            "bare": lambda: _finished(passes, batches),
        }
        for _ in range(_WARM_UP):
            for call in calls.values():
                call()
        times = measure.in_turns(calls, repeats)
        milliseconds, bare_milliseconds = (
            1000 * statistics.median(times[name]) for name in calls
        )
        rate, wait = _end_to_end(case, model, step, seconds)
    views = size * run.views.views
    return {
        "encoder": run.encoder.encoder,
        "image_size": run.views.image_size,
        "batch_size": size,
        "views": run.views.views,
        "loss": run.loss.loss,
        "precision": run.runtime.precision,
        "replicas": replicas,
        "milliseconds": milliseconds,
        "bare_milliseconds": bare_milliseconds,
        # Of each turn by itself: a machine that slows down slows both.
        "overhead": statistics.median(
            ours / theirs - 1
            for ours, theirs in zip(times["step"], times["bare"], strict=True)
        ),
        "views_per_second": 1000 * views / milliseconds,
        "bare_views_per_second": 1000 * views / bare_milliseconds,
        "end_to_end_views_per_second": rate * run.views.views,
        "input_wait": wait,
        "repeats": len(times["step"]),
    }


def _finished(function: Callable, batches: Any) -> None:
    """Calls it, and waits for the devices."""
    function(batches)
    tf.test.experimental.sync_devices()


def _end_to_end(
    case: Case, model: models.ContrastiveModel, step: Callable, seconds: float
) -> tuple[float, float]:
    """(images per second with the run's own input, share of time it waits)."""
    batches = iter(training.batches(case.source, case.strategy, case.run, 0))
    for _ in range(_WARM_UP):
        _finished(step, batches)
    waited = model.input_wait_seconds
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds or not done:
        _finished(step, batches)
        done += 1
    waited = model.input_wait_seconds - waited
    return done * case.run.schedule.batch_size / spent, waited / spent
