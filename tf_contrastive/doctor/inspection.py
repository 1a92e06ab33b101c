"""Checks of a run before it starts, without training it."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, schedules, train
from tf_contrastive.base import errors
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets import description
from tf_contrastive.doctor import (
    advice,
    memory,
    positives,
    report,
    smoke,
    speed,
    test_split,
)
from tf_contrastive.model import networks

# Seconds for reading labels, for the input, and for the step.
_LABELS = 2.0
_INPUT = 1.5
_STEPS = 6.0


@dataclasses.dataclass(frozen=True)
class Report:
    """The result of `inspect`, with what the warnings follow from."""

    facts: advice.Facts
    # Heading -> name -> value.
    sections: dict[str, report.Section]
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
    warnings = {}
    for problem in test_split.find(prepared):
        if problem.ends:
            raise errors.UserError(problem.text)
        warnings[problem.option] = problem.text
    counts = None
    if classes and run.loss.needs_labels:
        counts = classes.sizes[classes.sizes > 0]
        if info.unlabelled:  # Each is a class of its own.
            alone = classes.examples - counts.sum()
            counts = np.append(counts, np.ones(alone, counts.dtype))
    input_speed = speed.measure_input(prepared, _INPUT)
    step = None
    # Memory that does not suffice is a warning, not an error.
    with (
        contextlib.suppress(tf.errors.ResourceExhaustedError),
        networks.precision(run.runtime.precision),
    ):
        step = speed.measure_step(model, prepared, _STEPS)
    process_memory = None
    if prepared.machine.on_cpu:
        process_memory = memory.of_process(
            predicted,
            replicas,
            memory.peak_resident(),
            step.images if step else 0,
            batch_size // replicas,
        )
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
        # Of several labels per image, positives are not counted.
        expected=None
        if info.multi_label and run.loss.needs_labels
        else positives.expect(run, counts, info.num_examples),
        memory=predicted,
        process_memory=process_memory,
        available_memory=memory.available(),
        class_sizes=classes.sizes
        if classes and info.has_labels and classes.examples == info.num_examples
        else None,
        input_speed=input_speed,
        step_speed=batch_size / step.seconds if step else None,
    )
    sections = report.sections(
        facts,
        description.describe(source, classes),
        prepared.strategy,
        model,
        step,
    )
    return Report(facts, sections, warnings | advice.warnings(facts))
