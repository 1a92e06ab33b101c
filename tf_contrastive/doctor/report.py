"""The sections of a report, as they are printed and written as JSON."""

import dataclasses

import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive import schedules
from tf_contrastive.datasets import description
from tf_contrastive.doctor import advice
from tf_contrastive.doctor.memory import similarity_block
from tf_contrastive.doctor.speed import StepTime

Section = description.Rows


def sections(
    facts: advice.Facts,
    data: description.Rows,
    strategy: tf.distribute.Strategy,
    model: models.ContrastiveModel,
    step: StepTime | None,
) -> dict[str, Section]:
    """Returns heading -> name -> value, of a run and its parts."""
    run = facts.run
    views, schedule = run.views, run.schedule
    pairs: Section = {}
    if (expected := facts.expected) is not None:
        pairs = {
            "positives_per_anchor": round(expected.positives, 2),
            "negatives_per_anchor": round(expected.negatives, 1),
            "anchors_without_positives": round(expected.without_positives, 4),
        }
    anchors, candidates = similarity_block(run, facts.replicas)
    sizes = {
        **dataclasses.asdict(facts.memory),
        "total": facts.memory.total,
    }
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
            "views": f"{views.views} x {views.policy.label}",
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
            "temperature": facts.temperature,
            "batch_size": schedule.batch_size,
            "replica_batch_size": schedule.batch_size // facts.replicas,
            **pairs,
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


def _mib(sizes: dict[str, int | None]) -> Section:
    return {
        f"{name}_mib": size and round(size / 2**20, 1)
        for name, size in sizes.items()
    }


def _devices() -> str:
    types = [x.device_type for x in tf.config.list_logical_devices()]
    return ", ".join(
        f"{types.count(kind)} {kind}" for kind in dict.fromkeys(types)
    )


def _model(facts: advice.Facts, model: models.ContrastiveModel) -> Section:
    encoder = facts.run.encoder
    section: Section = {"encoder": encoder.label}
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
