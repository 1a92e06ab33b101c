"""Checks of a run before it starts, without training it."""

import collections
import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, schedules, train
from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets import description
from tf_contrastive.doctor import (
    advice,
    memory,
    positives,
    smoke,
    speed,
    test_split,
)
from tf_contrastive.model import networks

# Seconds for reading labels, for the input, and for the step.
_LABELS = 2.0
INPUT_SECONDS = 1.5
STEP_SECONDS = 6.0


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `inspect`, with what the warnings follow from."""

    facts: advice.Facts
    # Heading -> name -> value.
    sections: dict[str, description.Rows]
    # Check -> one line that says what is wrong and what to do.
    warnings: dict[str, str]


def inspect(run: Pretrain) -> Report:
    """Predicts and measures what a run needs.

    Builds what `pretrain` would build (strategy, data, model), measures the
    input and the step for some seconds, and writes nothing. `UserError` for
    what `pretrain` rejects before its first step.
    """
    if run.runtime.smoke:
        run = smoke.shrink(run)
    prepared = train.prepare(run)
    run, source, info = prepared.options, prepared.source, prepared.source.info
    replicas, batch_size = prepared.machine.replicas, run.schedule.batch_size
    if run.runtime.workdir:
        checkpoints.check_workdir(run)

    model, _ = prepared.with_options(steps_per_execution=1).build()
    predicted = memory.predict(model, run, replicas)
    classes = description.count_classes(source, _LABELS)
    warnings = test_split.find(prepared)
    counts = None
    if classes and not info.multi_label:
        counts = classes.sizes[classes.sizes > 0]
        if info.unlabelled:  # Each is a class of its own.
            alone = classes.examples - counts.sum()
            counts = np.append(counts, np.ones(alone, counts.dtype))
    input_speed = speed.measure_input(prepared, INPUT_SECONDS)
    step = None
    # Memory that does not suffice is a warning, not an error.
    with (
        contextlib.suppress(tf.errors.ResourceExhaustedError),
        networks.precision(run.runtime.precision),
    ):
        step = speed.measure_step(model, prepared, STEP_SECONDS)
    process_memory = None
    if prepared.machine.on_cpu:
        # This process has trained on a part of the batch, or on none.
        part = step.images * replicas / batch_size if step else 0.0
        growth = predicted.of_batch * (1.0 - part) if step else predicted.total
        process_memory = memory.peak_resident() + round(replicas * growth)
    assert run.schedule.learning_rate is not None  # `prepare` resolves it.
    facts = advice.Facts(
        run=run,
        info=info,
        replicas=replicas,
        steps_per_epoch=prepared.steps_per_epoch,
        peak_learning_rate=schedules.peak(
            run.schedule.learning_rate,
            batch_size,
            run.schedule.learning_rate_scaling,
        ),
        positives=positives.per_anchor(run, counts, info.num_examples),
        memory=predicted,
        process_memory=process_memory,
        available_memory=memory.available(),
        class_sizes=classes.sizes
        if classes and info.has_labels and classes.examples == info.num_examples
        else None,
        input_speed=input_speed,
        step_speed=batch_size / step.seconds if step else None,
    )
    data = description.describe(source, classes)
    sections = _sections(facts, data, prepared.strategy, model, step)
    return Report(facts, sections, warnings | advice.warnings(facts))


def _sections(
    facts: advice.Facts,
    data: description.Rows,
    strategy: tf.distribute.Strategy,
    model: models.ContrastiveModel,
    step: speed.StepTime | None,
) -> dict[str, description.Rows]:
    """Returns heading -> name -> value."""
    run = facts.run
    views, schedule = run.views, run.schedule
    anchors, candidates = memory.similarity_block(run, facts.replicas)
    sizes = dataclasses.asdict(facts.memory) | {"total": facts.memory.total}
    of_run = {
        "process": facts.process_memory,
        "available": facts.available_memory,
    }
    return {
        "devices": {
            "devices": _devices(),
            "strategy": type(strategy).__name__,
            "replicas": facts.replicas,
            "precision": run.runtime.precision,
            "augment_on": views.augment_on,
            "wire_dtype": views.wire_dtype,
        },
        "data": {
            **data,
            "views": views.summary,
            "image_size": views.image_size,
        },
        "model": _model(facts, model),
        "schedule": {
            "optimizer": run.optimizer.label,
            "peak_learning_rate": facts.peak_learning_rate,
            "learning_rate": schedule.learning_rate,
            "learning_rate_scaling": schedule.learning_rate_scaling,
            "schedule": schedule.decay.label,
            "steps_per_epoch": facts.steps_per_epoch,
            "steps": schedule.epochs * facts.steps_per_epoch,
            "warmup_steps": schedules.warmup_steps(
                schedule.warmup_epochs or 0, facts.steps_per_epoch
            ),
        },
        "batch": {
            "loss": run.loss.label,
            "temperature": getattr(run.loss, "temperature", None),
            "batch_size": schedule.batch_size,
            "replica_batch_size": schedule.batch_size // facts.replicas,
            "positives_per_anchor": _rounded(facts.positives),
        },
        "memory_per_replica": {
            **_mib(sizes),
            "similarity_block": f"{anchors} x {candidates}",
        },
        "memory": _mib(of_run),
        "speed": {
            "input_images_per_second": _rounded(facts.input_speed),
            "step_images_per_second": _rounded(facts.step_speed),
            "hours": _rounded(facts.hours),
            "measured_on": f"{step.images} images per replica"
            if step
            else "nothing: a step takes too long here",
        },
    }


def _rounded(value: float | None) -> float | None:
    return value and float(f"{value:.3g}")


def _mib(sizes: dict[str, int | None]) -> description.Rows:
    return {
        f"{name}_mib": size and round(size / 2**20, 1)
        for name, size in sizes.items()
    }


def _devices() -> str:
    devices = tf.config.list_logical_devices()
    types = collections.Counter(x.device_type for x in devices)
    return ", ".join(f"{count} {kind}" for kind, count in types.items())


def _model(
    facts: advice.Facts, model: models.ContrastiveModel
) -> description.Rows:
    encoder = facts.run.encoder
    section: description.Rows = {"encoder": encoder.label}
    own = encoder.arguments()
    section |= {name: own[name] for name in ("width", "stem") if name in own}
    for name, part in model.checkpointed().items():
        if not isinstance(part, tf.keras.layers.Layer):
            continue
        trainable = part.trainable_variables
        if trainable:
            section[f"{name.removesuffix('_head')}_parameters"] = sum(
                v.shape.num_elements() for v in trainable
            )
    return section
