"""The training step next to the forward and backward pass of its encoder.

Projection, loss, metrics, probe and optimizer are the overhead. Both are run
here, or compiled for a TPU that is not here.
"""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from lab.benchmarks import measure
from lab.benchmarks.options import Common, Step
from tf_contrastive import datasets, distribution, train
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import speed
from tf_contrastive.model import networks
from tf_contrastive.model.small_views import take_any_size
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
# Of one core; "/ bare": divided by what the bare encoder takes.
_COMPILED_COLUMNS = {
    "topology": "{topology}",
    "encoder": "{encoder}",
    "precision": "{precision}",
    "augment on": "{augment_on}",
    "images": "{images_per_core}",
    "Tflop": "{teraflops:.3f}",
    "flops / bare": "{flops_ratio:.3f}",
    "GB": "{gigabytes:.2f}",
    "bytes / bare": "{bytes_ratio:.3f}",
    "MiB": "{memory_mib:.0f}",
    "memory / bare": "{memory_ratio:.3f}",
}


def run(common: Common, options: Step) -> measure.Report:
    """Measures the step of `run_flags` at each precision and replica count."""
    base = options.run()
    if options.compilation.compile_for:
        rows = _compiled(base, options)
        return measure.Report(rows, measure.table(_COMPILED_COLUMNS, rows))
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

    Args:
      encoder: the encoder.
      strategy: that of the step.
      jit_compile: whether XLA compiles the passes of each replica.

    Returns:
      that function.
    """

    def passes(data: Any) -> list[tf.Tensor]:
        return both_passes(encoder, data)

    run = tf.function(passes, jit_compile=True) if jit_compile else passes

    @tf.function
    def on_replicas(iterator: Any) -> Any:
        return strategy.run(run, args=(next(iterator),))

    return on_replicas


def both_passes(encoder: tf.keras.Model, data: Any) -> list[tf.Tensor]:
    """Returns an encoder's gradients for a batch of a step, without a loss."""
    inputs = data[0]
    sizes = [inputs[0] if isinstance(inputs, tuple) else inputs]
    if isinstance(inputs, dict):
        sizes = [inputs["views"], inputs["small_views"]]
    take_any_size(encoder)
    with tf.GradientTape() as tape:
        total = tf.zeros([])
        for views in sizes:
            images = tf.reshape(from_wire(views), [-1, *views.shape[2:]])
            total += tf.reduce_mean(encoder(images, training=True) ** 2)
    return tape.gradient(total, encoder.trainable_variables)


def _compiled(base: Pretrain, options: Step) -> list[measure.Row]:
    """Compiles the step for a TPU, and the encoder alone for one core of it.

    The encoder alone has the fused batch normalization of Keras over its core's
    batch: no collectives, and no changes of colours.
    """
    # Late: it uses operations that are not in TensorFlow's API.
    from tf_contrastive.doctor.tpu import compilation, lowering

    chosen = options.compilation
    target = compilation.topology(chosen.compile_for)
    compiler, of_one = (
        compilation.Compiler(target, chosen.compile_python, cores)
        for cores in (target.cores, 1)
    )
    rows = []
    for precision in options.precisions:
        prepared, _ = compilation.prepare(
            fields.replace(base, precision=precision), target.cores
        )
        run = prepared.options
        images = run.schedule.batch_size // target.cores
        lowered = lowering.Step(prepared)
        step = compiler.compile(lowered.lower(images), lowered.title)
        with networks.precision(run.runtime.precision):
            encoder = with_keras_normalization(lowered.encoder)
        passes = functools.partial(both_passes, encoder)
        alone = lowered.lower_function(passes, images)
        bare = of_one.compile(alone, f"{lowered.title} alone")
        if "error" in step or "error" in bare:
            raise errors.UserError(
                f"{errors.arg('compile_for', target.name)}: {images} images per"
                " core do not fit at this precision: set a smaller batch_size"
                " in run_flags"
            )
        memory = [compilation.needed(facts)[0] for facts in (step, bare)]
        row = {
            "topology": target.name,
            "encoder": run.encoder.label,
            "images_per_core": images,
            "precision": precision,
            "augment_on": run.views.augment_on,
            "teraflops": step["flops"] / 1e12,
            "gigabytes": step["bytes"] / 1e9,
            "memory_mib": memory[0] / 2**20,
            "memory_ratio": memory[0] / memory[1],
        }
        for name in ("flops", "bytes"):
            row[f"{name}_ratio"] = step[name] / bare[name]
        rows.append(row)
    return rows


def with_keras_normalization(layer: tf.keras.layers.Layer) -> Any:
    """Clones an encoder, with Keras' own batch normalization for ours."""
    if isinstance(layer, tf.keras.Model):
        return tf.keras.models.clone_model(
            layer, clone_function=with_keras_normalization
        )
    keras = tf.keras.layers.BatchNormalization
    if isinstance(layer, keras):
        return keras.from_config(keras.get_config(layer))
    return type(layer).from_config(layer.get_config())


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
            speed.noise(run, info.num_classes, size // replicas, strategy)
        )
        calls = {
            "step": lambda: wait_for(step, batches),
            "bare": lambda: wait_for(passes, batches),
        }
        times = measure.in_turns(calls, repeats, warm_up=_WARM_UP)
        milliseconds, bare_milliseconds = (
            1000 * statistics.median(times[name]) for name in calls
        )
    views = size * (run.views.views + run.views.small_views)
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
