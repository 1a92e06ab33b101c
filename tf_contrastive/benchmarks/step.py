"""The training step next to the forward and backward pass of its encoder.

Projection, loss, metrics, probe and optimizer are the overhead. Both are timed
in turns, with the same encoder and one batch in memory; end to end, the step is
timed with the run's own input.
"""

import shlex
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import (
    datasets,
    distribution,
    flags,
    terminal,
    train,
)
from tf_contrastive import model as models
from tf_contrastive.benchmarks import measure
from tf_contrastive.checkpoints import networks
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets import synthetic

# Steps that build graphs and fill pipelines, before anything is timed.
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
    """A run whose step is measured."""

    run: Pretrain  # Resolved.
    source: datasets.Source
    strategy: tf.distribute.Strategy


def run(options: Benchmark) -> measure.Report:
    """Measures the step of `run_flags` at each precision and replica count."""
    chosen = options.step
    base = flags.parse(
        Pretrain, [*shlex.split(chosen.run_flags), "--workdir=none"]
    )
    counts = fields.read_counts(chosen.replicas)
    # The largest first, since the CPU can be split only once.
    strategies = {
        n: distribution.strategy("default")
        if n == 1
        else distribution.strategy("mirrored", virtual_devices=n)
        for n in sorted(counts, reverse=True)
    }
    source, _ = train.open_data(base)
    source = datasets.in_memory(source, base.data.cache)
    rows = []
    for precision in fields.split_list(chosen.precisions):
        for count in counts:
            strategy = strategies[count]
            run = train.resolve(base, source, strategy)
            run = fields.replace(run, precision=precision)
            terminal.info(
                f"{run.encoder.encoder}, {precision}, {count} replica(s)"
            )
            rows.append(
                _measure(
                    Case(run, source, strategy),
                    options.benchmarking.repeats,
                    chosen.end_to_end_seconds,
                )
            )
    return measure.Report(rows, [measure.table(_COLUMNS, rows)])


def _model(case: Case) -> models.ContrastiveModel:
    """Returns the model of `pretrain`, compiled as there."""
    run, info = case.run, case.source.info
    steps = datasets.steps_per_epoch(info.num_examples, run.schedule.batch_size)
    one_step = fields.replace(run, steps_per_execution=1)
    model, _ = train.build(one_step, case.strategy, info, steps)
    return model


def bare(
    encoder: tf.keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Any], Any]:
    """Returns the forward and backward pass of an encoder, as one graph.

    Returns:
      Iterator of the step's batches -> gradients of each replica.
    """

    def on_replica(data: Any) -> list[tf.Tensor]:
        inputs = data[0]
        views = inputs[0] if isinstance(inputs, tuple) else inputs
        images = tf.reshape(views, [-1, *views.shape[2:]])
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(encoder(images, training=True) ** 2)
        return tape.gradient(total, encoder.trainable_variables)

    @tf.function
    def both_passes(iterator: Any) -> Any:
        return strategy.run(on_replica, args=(next(iterator),))

    return both_passes


def _measure(case: Case, repeats: int, seconds: float) -> measure.Row:
    run, strategy = case.run, case.strategy
    replicas = strategy.num_replicas_in_sync
    size = run.schedule.batch_size
    model = _model(case)
    with networks.precision(run.runtime.precision):
        step = model.make_train_function()
        passes = bare(model.encoder, strategy)
        batches = iter(
            synthetic.batches(
                run, case.source.info.num_classes, size // replicas, strategy
            )
        )
        calls = {
            "step": lambda: _finished(step, batches),
            "bare": lambda: _finished(passes, batches),
        }
        times = measure.in_turns(calls, repeats, warm_up=_WARM_UP)
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
        # Per turn, since a machine that slows down slows both.
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
    """Calls a function and waits for the devices."""
    function(batches)
    tf.test.experimental.sync_devices()


def _end_to_end(
    case: Case, model: models.ContrastiveModel, step: Callable, seconds: float
) -> tuple[float, float]:
    """Returns (images per second, fraction of time waiting for input)."""
    batches = iter(train.batches(case.source, case.strategy, case.run, 0))
    for _ in range(_WARM_UP):
        _finished(step, batches)
    waited = model.input_wait_seconds
    start, done = time.perf_counter(), 0
    while (spent := time.perf_counter() - start) < seconds or not done:
        _finished(step, batches)
        done += 1
    waited = model.input_wait_seconds - waited
    return done * case.run.schedule.batch_size / spent, waited / spent
