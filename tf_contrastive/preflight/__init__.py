"""What can be known of a run without training it.

Layer 8. `inspect` takes pretrain's config and builds what pretrain would:
strategy, data, model; it predicts and measures for a bounded time, and writes
nothing.
"""

import dataclasses
import os
import platform
import time
from importlib import metadata
from typing import Any

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    config,
    datasets,
    schedules,
    training,
)
from tf_contrastive import model as models
from tf_contrastive.preflight import advice, memory, positives, rates

_PACKAGES = ("tf_contrastive", "tensorflow", "keras", "tensorflow-datasets")

# Seconds: of everything, by plan and at most; of reading labels; of the input;
# of one precision's steps.
_IN_ALL = 24.0
_AT_MOST = 27.0
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


def inspect(run: config.Pretrain) -> Report:
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
    built = time.perf_counter()
    if run.encoder.init_from:
        training.start_from(run.encoder.init_from, model.encoder)
    counts = alike = None
    if info.several_labels:
        counts, alike = positives.count_label_sets(source)
    elif info.has_labels and run.loss.loss in config.SUPERVISED_LOSSES:
        counts = bounded.call(lambda: positives.count_labels(source, _LABELS))
    expected = positives.expect(run, counts, info.num_examples, alike)
    predicted = memory.predict(model, run, replicas)
    parameters = _parameters(model)
    input_rate = bounded.call(
        lambda: rates.input_rate(source, strategy, run, _INPUT)
    )
    times = _step_times(
        model,
        run,
        info,
        strategy,
        steps_per_epoch,
        built - building,
        started + _IN_ALL,
        bounded,
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
    sections = {
        "environment": environment(),
        "devices": _devices(run, strategy),
        "data": _data(facts),
        "model": _of_model(run, parameters),
        "schedule": _schedule(facts),
        "batch": _batch(facts),
        "memory of a replica": _memory(facts),
        "speed": _speed(facts, times),
    }
    warnings = advice.advise(facts)
    return Report(facts, sections, warnings, bounded.abandoned)


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
            model, config.replace(run, steps_per_execution=1), steps_per_epoch
        )
    return model


def _step_times(
    model, run, info, strategy, steps_per_epoch, build_seconds, end, bounded
) -> dict[str, rates.StepTime | None]:
    """Precision -> its time, the run's own first; None: no time was left."""
    own = run.runtime.precision
    others = [p for p in config.PRECISIONS if p not in ("auto", own)]
    found: dict[str, rates.StepTime | None] = {}
    needed = _GRAPH_BY_MODEL * build_seconds
    for precision in (own, *others):
        begun = time.perf_counter()
        if min(end - begun, bounded.left) < needed:
            found[precision] = None
            continue
        chosen = config.replace(run, precision=precision)
        if precision != own:
            model = _model(chosen, info, strategy, steps_per_epoch)

        def measure(model=model, chosen=chosen):
            with models.precision(chosen.runtime.precision):
                return rates.step_time(
                    model, chosen, info.num_classes, strategy, _STEPS
                )

        try:
            found[precision] = bounded.call(measure)
        except tf.errors.ResourceExhaustedError:
            found[precision] = None
        # The next one may do with fewer steps, but not without a graph.
        needed = time.perf_counter() - begun - _STEPS / 2
    return found


def environment() -> dict[str, Any]:
    """Versions and processors."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {**versions, "platform": platform.platform(), "cpus": os.cpu_count()}


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


def _devices(run, strategy) -> dict[str, Any]:
    kinds: dict[str, int] = {}
    for device in tf.config.list_logical_devices():
        kinds[device.device_type] = kinds.get(device.device_type, 0) + 1
    names = {
        details.get("device_name")
        for device in tf.config.list_physical_devices("GPU")
        if (details := tf.config.experimental.get_device_details(device))
    }
    return {
        "devices": ", ".join(f"{n} {kind}" for kind, n in kinds.items())
        + (f" ({', '.join(map(str, names))})" if names else ""),
        "strategy": type(strategy).__name__,
        "replicas": strategy.num_replicas_in_sync,
        "precision": run.runtime.precision,
        "views are coloured on": run.views.augment_on,
    }


def _data(facts: advice.Facts) -> dict[str, Any]:
    info, views = facts.info, facts.run.views
    return {
        "dataset": f"{info.name} {info.split}",
        "examples": info.num_examples,
        "classes": info.num_classes or "no labels",
        "images that cannot be read": len(info.bad_images),
        "views": f"{views.views} x {views.augmentation}",
        "view size": views.image_size,
    }


def _parameters(model: models.ContrastiveModel) -> dict[str, int]:
    parts = {"encoder": model.encoder, "projection": model.projection_head}
    if model.probe is not None:
        parts["probe"] = model.probe
    return {
        name: sum(v.shape.num_elements() for v in part.trainable_variables)
        for name, part in parts.items()
    }


def _of_model(run, parameters: dict[str, int]) -> dict[str, Any]:
    chosen = run.encoder
    ours = {"width": chosen.width, "stem": chosen.stem}
    return {
        "encoder": chosen.encoder,
        **(ours if chosen.encoder in config.ENCODERS else {}),
        **{f"parameters of the {k}": n for k, n in parameters.items()},
    }


def _schedule(facts: advice.Facts) -> dict[str, Any]:
    run = facts.run
    chosen = run.schedule
    return {
        "optimizer": run.optimizer.optimizer,
        "peak learning rate": facts.peak_learning_rate,
        "scaling": f"{chosen.learning_rate:g} x {chosen.learning_rate_scaling}",
        "schedule": chosen.schedule,
        "steps per epoch": facts.steps_per_epoch,
        "steps": chosen.epochs * facts.steps_per_epoch,
        "warm-up steps": round(chosen.warmup_epochs * facts.steps_per_epoch),
    }


def _batch(facts: advice.Facts) -> dict[str, Any]:
    run, expected = facts.run, facts.expected
    found = {
        "loss": run.loss.loss,
        "temperature": facts.temperature,
        "batch size": run.schedule.batch_size,
        "of each replica": run.schedule.batch_size // facts.replicas,
    }
    if expected is None:
        return found
    return found | {
        "positives per anchor": round(expected.positives, 2),
        "negatives per anchor": round(expected.negatives, 1),
        "anchors without positives": round(expected.without, 4),
    }


def _memory(facts: advice.Facts) -> dict[str, Any]:
    found = dataclasses.asdict(facts.memory)
    block = found.pop("block")
    mib = {f"{name} MiB": _mib(value) for name, value in found.items()}
    return mib | {
        "in all MiB": _mib(facts.memory.total),
        "there are MiB": facts.available_memory
        and _mib(facts.available_memory),
        "similarity block": f"{block[0]} x {block[1]}",
    }


def _mib(size: int) -> float:
    return round(size / 2**20, 1)


def _speed(facts: advice.Facts, times) -> dict[str, Any]:
    found: dict[str, Any] = {
        "input images/s": facts.input_rate and round(facts.input_rate, 1)
    }
    for precision, taken in times.items():
        found[f"step images/s in {precision}"] = taken and round(
            facts.step_rates[precision], 1
        )
    if own := times[facts.run.runtime.precision]:
        found["measured on"] = f"{own.images} of {own.of_images} images"
        found["hours of the run"] = round(facts.hours, 2)
    if best := advice.recommended_precision(facts):
        found["recommended"] = f"--precision={best}"
    return found
