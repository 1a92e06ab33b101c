"""The training step next to the forward and backward pass of its encoder.

Projection, loss, metrics, probe and optimizer are the overhead.
"""

import statistics
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Step
from tf_contrastive import datasets, distribution, train
from tf_contrastive.base import terminal
from tf_contrastive.config import fields
from tf_contrastive.doctor import synthetic
from tf_contrastive.model import networks
from tf_contrastive.views.host_and_device import from_wire

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
}


def run(common: Common, options: Step) -> measure.Report:
    """Measures the step of `run_flags` at each precision and replica count."""
    base = options.run()
    counts = options.replicas
    # The largest first, since the CPU can be split only once.
    strategies = {
        n: distribution.strategy("default")
        if n == 1
        else distribution.strategy("mirrored", virtual_devices=n)
        for n in sorted(counts, reverse=True)
    }
    splits = train.open_data(base)
    source = datasets.in_memory(splits.train, base.data.cache)
    splits = splits._replace(train=source)
    rows = []
    for precision in options.precisions:
        for count in counts:
            run = train.prepare(
                fields.replace(base, precision=precision),
                strategies[count],
                splits=splits,
            )
            encoder = run.options.encoder.label
            terminal.info(f"{encoder}, {precision}, {count} replica(s)")
            rows.append(_measure(run, common.repeats))
    return measure.Report(rows, measure.table(_COLUMNS, rows))


def bare(
    encoder: tf.keras.Model,
    strategy: tf.distribute.Strategy,
    jit_compile: bool = False,
) -> Callable[[Any], Any]:
    """Returns an encoder's forward and backward pass, as one graph.

    It maps an iterator of the step's batches to the gradients of each replica.
    XLA compiles the passes of each replica if `jit_compile` is set.
    """

    def passes(data: Any) -> list[tf.Tensor]:
        inputs = data[0]
        views = inputs[0] if isinstance(inputs, tuple) else inputs
        images = tf.reshape(from_wire(views), [-1, *views.shape[2:]])
        with tf.GradientTape() as tape:
            total = tf.reduce_mean(encoder(images, training=True) ** 2)
        return tape.gradient(total, encoder.trainable_variables)

    run = tf.function(passes, jit_compile=True) if jit_compile else passes

    @tf.function
    def on_replicas(iterator: Any) -> Any:
        return strategy.run(run, args=(next(iterator),))

    return on_replicas


def _measure(prepared: train.PreparedRun, repeats: int) -> measure.Row:
    """Measures the step of a run."""
    run, strategy = prepared.options, prepared.strategy
    info, size = prepared.source.info, run.schedule.batch_size
    replicas = prepared.machine.replicas
    model, _ = prepared.with_options(steps_per_execution=1).build()

    def wait_for(function: Callable, batches: Any) -> None:
        function(batches)
        tf.test.experimental.sync_devices()

    with networks.precision(run.runtime.precision):
        step = model.make_train_function()
        passes = bare(model.encoder, strategy, model.jit_compile)
        batches = iter(
            synthetic.batches(run, info.num_classes, size // replicas, strategy)
        )
        calls = {
            "step": lambda: wait_for(step, batches),
            "bare": lambda: wait_for(passes, batches),
        }
        times = measure.in_turns(calls, repeats, warm_up=_WARM_UP)
        milliseconds, bare_milliseconds = (
            1000 * statistics.median(times[name]) for name in calls
        )
    views = size * run.views.views
    return {
        "encoder": run.encoder.label,
        "batch_size": size,
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
        "repeats": len(times["step"]),
    }
