"""The training step next to the forward and backward pass of its encoder.

Projection, loss, metrics, probe and optimizer are the overhead.
"""

import shlex
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, distribution, flags, terminal, train
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


def run(options: Benchmark) -> measure.Report:
    """Measures the step of `run_flags` at each precision and replica count."""
    words = shlex.split(options.step.run_flags)
    base = flags.parse(Pretrain, [*words, "--workdir=none"])
    counts = fields.read_counts(options.step.replicas)
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
    for precision in fields.split_list(options.step.precisions):
        for count in counts:
            strategy = strategies[count]
            run = train.resolve(base, source, strategy)
            run = fields.replace(run, precision=precision)
            terminal.info(
                f"{run.encoder.encoder}, {precision}, {count} replica(s)"
            )
            rows.append(_measure(run, source, strategy, options))
    return measure.Report(rows, [measure.table(_COLUMNS, rows)])


def bare(
    encoder: tf.keras.Model, strategy: tf.distribute.Strategy
) -> Callable[[Any], Any]:
    """Returns an encoder's forward and backward pass, as one graph.

    It maps an iterator of the step's batches to the gradients of each replica.
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


def _measure(
    run: Pretrain,
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    options: Benchmark,
) -> measure.Row:
    """Measures the step of a resolved run."""
    info, size = source.info, run.schedule.batch_size
    replicas = strategy.num_replicas_in_sync
    model, _ = train.build(
        fields.replace(run, steps_per_execution=1),
        strategy,
        info,
        datasets.steps_per_epoch(info.num_examples, size),
    )

    def wait_for(function: Callable, batches: Any) -> None:
        function(batches)
        tf.test.experimental.sync_devices()

    with networks.precision(run.runtime.precision):
        step = model.make_train_function()
        passes = bare(model.encoder, strategy)
        batches = iter(
            synthetic.batches(run, info.num_classes, size // replicas, strategy)
        )
        calls = {
            "step": lambda: wait_for(step, batches),
            "bare": lambda: wait_for(passes, batches),
        }
        repeats = options.benchmarking.repeats
        times = measure.in_turns(calls, repeats, warm_up=_WARM_UP)
        milliseconds, bare_milliseconds = (
            1000 * statistics.median(times[name]) for name in calls
        )
        # End to end, with the run's own input.
        batches = iter(train.batches(source, strategy, run, 0))
        for _ in range(_WARM_UP):
            wait_for(step, batches)
        waited = model.input_wait_seconds
        start, done, spent = time.perf_counter(), 0, 0.0
        while spent < options.step.end_to_end_seconds or not done:
            wait_for(step, batches)
            done += 1
            spent = time.perf_counter() - start
        waited = model.input_wait_seconds - waited
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
        "end_to_end_views_per_second": done * views / spent,
        "input_wait": waited / spent,
        "repeats": len(times["step"]),
    }
