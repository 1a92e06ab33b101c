"""What can be known of a run without training it.

Layer 8. `inspect` takes pretrain's config and builds what pretrain would:
strategy, data, model; it predicts and measures for a bounded time, and writes
nothing.
"""

import dataclasses
import time
from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, schedules, training
from tf_contrastive import model as models
from tf_contrastive.config import fields
from tf_contrastive.config.loss import SUPERVISED_LOSSES
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import PRECISIONS
from tf_contrastive.doctor import advice, memory, positives, rates, sections

# Seconds: of everything, by plan and at most; of reading labels; of the input;
# of one precision's steps.
_IN_ALL = 22.0
_AT_MOST = 25.0
_LABELS = 2.0
_INPUT = 1.5
_STEPS = 3.0
# A graph of the step takes so many times what building the model took, about.
_GRAPH_BY_MODEL = 3.0


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
      facts: what the warnings are drawn from.
      sections: heading -> name -> value, for people and for JSON.
      warnings: short name -> one line.
      abandoned: whether a measurement is still under way, of which the report
        waited no longer.
    """

    facts: advice.Facts
    sections: dict[str, dict[str, Any]]
    warnings: dict[str, str]
    abandoned: bool


def inspect(run: Pretrain) -> Report:
    """Looks a run over.

    Args:
      run: validated; with a workdir it must be one that pretrain would take.

    Raises:
      UserError: for what pretrain would refuse before its first step.
    """
    started = time.perf_counter()
    bounded = rates.Bounded(started + _AT_MOST)
    strategy, source, _, run = training.prepare(run)
    info, replicas = source.info, strategy.num_replicas_in_sync
    steps_per_epoch = datasets.steps_per_epoch(
        info.num_examples, run.schedule.batch_size
    )
    if run.runtime.workdir:
        checkpoints.check_workdir(run)
    building = time.perf_counter()
    model = _model(run, info, strategy, steps_per_epoch)
    build_seconds = time.perf_counter() - building
    if run.encoder.init_from:
        training.start_from(run.encoder.init_from, model.encoder)
    expected = _expected(run, source, bounded)
    predicted = memory.predict(model, run, replicas)
    parameters = sections.count_parameters(model)
    input_rate = bounded.call(
        lambda: rates.input_rate(source, strategy, run, _INPUT)
    )
    end = started + _IN_ALL
    times = _step_times(
        model, run, info, strategy, steps_per_epoch, build_seconds, end, bounded
    )
    size = run.schedule.batch_size
    facts = advice.Facts(
        run=run,
        info=info,
        replicas=replicas,
        steps_per_epoch=steps_per_epoch,
        peak_learning_rate=schedules.peak(
            run.schedule.learning_rate, size, run.schedule.learning_rate_scaling
        ),
        expected=expected,
        memory=predicted,
        available_memory=available_memory(replicas),
        input_rate=input_rate,
        step_rates={k: size / t.seconds for k, t in times.items() if t},
    )
    told = sections.write(facts, strategy, parameters, times)
    warnings = advice.advise(facts)
    return Report(facts, told, warnings, bounded.abandoned)


def _model(run, info, strategy, steps_per_epoch) -> models.ContrastiveModel:
    """The compiled model of pretrain."""
    with strategy.scope(), models.precision(run.runtime.precision):
        model = models.build(
            run,
            info.num_classes,
            training.augment_on_device(run),
            training.mixing(run, info.num_classes),
        )
        training.compile_model(
            model, fields.replace(run, steps_per_execution=1), steps_per_epoch
        )
    return model


def _expected(
    run: Pretrain, source: datasets.Source, bounded: rates.Bounded
) -> positives.Expected | None:
    """Positives and negatives, as far as labels could be read in time."""
    info = source.info
    counts = alike = None
    if info.multi_label:
        counts, alike = positives.count_label_sets(source)
    elif info.has_labels and run.loss.loss in SUPERVISED_LOSSES:
        counts = bounded.call(lambda: positives.count_labels(source, _LABELS))
    return positives.expect(run, counts, info.num_examples, alike)


def _step_times(
    model, run, info, strategy, steps_per_epoch, build_seconds, end, bounded
) -> dict[str, rates.StepTime | None]:
    """Precision -> its time, the run's own first; None: no time was left."""
    own = run.runtime.precision
    others = [p for p in PRECISIONS if p not in ("auto", own)]
    found: dict[str, rates.StepTime | None] = {}
    needed = _GRAPH_BY_MODEL * build_seconds
    for precision in (own, *others):
        begun = time.perf_counter()
        if min(end - begun, bounded.left) < needed:
            found[precision] = None
            continue
        chosen = fields.replace(run, precision=precision)
        if precision != own:
            model = _model(chosen, info, strategy, steps_per_epoch)

        def measure(model=model, chosen=chosen):
            with models.precision(chosen.runtime.precision):
                return rates.step_time(
                    model, chosen, info.num_classes, strategy, _STEPS, end
                )

        try:
            found[precision] = bounded.call(measure)
        except tf.errors.ResourceExhaustedError:
            found[precision] = None
        # The next one may do with fewer steps, but not without a graph.
        needed = time.perf_counter() - begun - _STEPS / 2
    return found


def available_memory(replicas: int) -> int | None:
    """Bytes for each replica, as far as they are known: of GPUs, or of CPUs."""
    if tf.config.list_logical_devices("TPU"):
        return None
    if tf.config.list_logical_devices("GPU"):
        from tensorflow.python.client import device_lib

        limits = [
            device.memory_limit
            for device in device_lib.list_local_devices()
            if device.device_type == "GPU"
        ]
        return min(limits) if limits else None
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024 // replicas
    except OSError:
        pass
    return None
