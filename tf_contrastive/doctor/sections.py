"""What a report says under each heading: name -> value, for people and JSON."""

import dataclasses
import os
import platform
from importlib import metadata
from typing import Any

import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.doctor import advice, rates

_PACKAGES = ("tf_contrastive", "tensorflow", "keras", "tensorflow-datasets")


def write(
    facts: advice.Facts,
    strategy: tf.distribute.Strategy,
    parameters: dict[str, int],
    times: dict[str, rates.StepTime | None],
) -> dict[str, dict[str, Any]]:
    """Writes all sections.

    Args:
      facts: what was found out about the run.
      strategy: under which it would train.
      parameters: see `count_parameters`.
      times: precision -> time of a step, None where it is not known.

    Returns:
      Heading -> name -> value.
    """
    return {
        "environment": _environment(),
        "devices": _devices(facts.run, strategy),
        "data": _data(facts),
        "model": _of_model(facts.run, parameters),
        "schedule": _schedule(facts),
        "batch": _batch(facts),
        "memory of a replica": _memory(facts),
        "speed": _speed(facts, times),
    }


def count_parameters(model: models.ContrastiveModel) -> dict[str, int]:
    """Trainable parameters of each part of a model, by its name."""
    parts = {"encoder": model.encoder, "projection": model.projection_head}
    if model.probe is not None:
        parts["probe"] = model.probe
    return {
        name: sum(v.shape.num_elements() for v in part.trainable_variables)
        for name, part in parts.items()
    }


def _environment() -> dict[str, Any]:
    """Versions and processors."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {**versions, "platform": platform.platform(), "cpus": os.cpu_count()}


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


def _of_model(run, parameters: dict[str, int]) -> dict[str, Any]:
    chosen = run.encoder
    ours = {"width": chosen.width, "stem": chosen.stem}
    return {
        "encoder": chosen.encoder,
        **(ours if chosen.encoder in ENCODERS else {}),
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
    else:
        found["measured on"] = "nothing: a step takes too long here"
    if best := advice.recommended_precision(facts):
        found["recommended"] = f"precision={best}"
    return found
