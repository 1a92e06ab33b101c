"""Combinations that are known to go wrong, and what to do about each."""

import dataclasses
import math
from typing import Any

import numpy as np

from tf_contrastive import datasets
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import dataset, fields
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE, ResNet
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import resolve_warmup
from tf_contrastive.doctor.memory import Memory


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is known of a run, resolved, before it starts."""

    run: Pretrain
    info: datasets.Info
    replicas: int
    steps_per_epoch: int
    # After scaling.
    peak_learning_rate: float
    # Of an anchor in a batch; None without pairs.
    positives: float | None
    memory: Memory
    # Bytes of a run on CPUs; None with an accelerator.
    process_memory: int | None
    # Bytes for a run on CPUs, else for a replica; None if unknown.
    available_memory: int | None
    # Examples of each class, int64 [classes]; None if not counted.
    class_sizes: np.ndarray | None
    # Images per second; None if not measured.
    input_speed: float | None
    step_speed: float | None

    @property
    def hours(self) -> float | None:
        """Duration of the run, by the slower of input and step."""
        if self.step_speed is None:
            return None
        schedule = self.run.schedule
        images = schedule.epochs * self.steps_per_epoch * schedule.batch_size
        slower = min(self.step_speed, self.input_speed or self.step_speed)
        return images / slower / 3600


def warnings(facts: Facts) -> dict[str, str]:
    """Returns check -> one line on what is wrong and what to do."""
    found: dict[str, str] = {}
    for check in (_views, _resources, _pairs, _optimization):
        check(facts, found)
    return found


def _ways(facts: Facts, *ways: str | dict[str, Any]) -> str:
    """Joins ways out; one that is options which a run has or refuses is not."""
    info, texts = facts.info, []
    for way in ways:
        if isinstance(way, str):
            texts.append(way)
            continue
        # A run that is only checked may lack its folder.
        run = fields.replace(facts.run, workdir="run")
        try:
            changed = fields.replace(run, **way)
            changed.validate()
            changed.check_replicas(facts.replicas)
            changed.check_labels(info.name, info.has_labels, info.multi_label)
        except UserError:
            continue
        if changed != run:
            texts.append(", ".join(arg(name, way[name]) for name in way))
    return " or ".join(texts)


# Weak photometric augmentation suits views up to the small side; the stem for
# small images is out of proportion from the large side on.
_SMALL_SIDE = CIFAR_STEM_MAX_SIDE
_LARGE_SIDE = 2 * CIFAR_STEM_MAX_SIDE
# Fewer show a transformer little; attention takes time by their square.
_MIN_PATCHES, _MAX_PATCHES = 16, 1024


def _views(facts: Facts, found: dict[str, str]) -> None:
    """Checks of views and encoder."""
    views, encoder = facts.run.views, facts.run.encoder
    patches = encoder.patches(views.side)
    if patches and not _MIN_PATCHES <= patches <= _MAX_PATCHES:
        found["patches"] = (
            f"{arg('encoder', encoder.label)} makes {patches:,} patches"
            f" of {views.side} pixels: use the same of 4 pixels for small"
            " images, of 16 for large ones"
        )
    stem, side = getattr(encoder, "stem", None), views.side
    if stem == "imagenet" and side <= _SMALL_SIDE:
        found["stem"] = (
            f"{arg('stem', 'imagenet')} leaves {-(-side // 4)} of {side}"
            " pixels a side before the first block, which costs accuracy: use"
            f" {arg('stem', 'cifar')}"
        )
    if stem == "cifar" and side >= _LARGE_SIDE:
        found["stem"] = (
            f"{arg('stem', 'cifar')} at {side} pixels takes 16 times the"
            f" memory and time of {arg('stem', 'imagenet')}: use"
            f" {arg('stem', 'imagenet')}"
        )
    images = dataset.image_dataset(facts.info.name)
    if views.policy.arguments().get("flip") and not dataset.facts(images).flip:
        found["flip"] = (
            f"{arg('flip')} mirrors the signs of {images}, which changes"
            f" their meaning: use {arg('flip', 'False')}"
        )


_MAX_MEMORY_FRACTION = 0.9
# What a run on a CPU should take at most, and the encoder and the views' side
# that it affords.
_MAX_CPU_HOURS = 24.0
_CPU_ENCODER = ResNet(network="resnet10", width=0.5)
_CPU_SIDE = 64


def _resources(facts: Facts, found: dict[str, str]) -> None:
    """Checks of memory and speed."""
    on_cpu, available = facts.process_memory is not None, facts.available_memory
    needed = facts.process_memory or facts.memory.total
    if available and needed > _MAX_MEMORY_FRACTION * available:
        who = "the run" if on_cpu else "a replica"
        chunks = {"grad_cache_chunks": 2 * facts.run.batch.grad_cache_chunks}
        less = _ways(facts, f"a smaller {arg('batch_size')}", chunks)
        found["memory"] = (
            f"{who} needs about {needed / 2**30:.1f} GiB of"
            f" {available / 2**30:.1f} GiB available: use {less}"
        )
    hours = facts.hours
    if on_cpu and (hours is None or hours > _MAX_CPU_HOURS):
        takes = "a step takes too long to be measured"
        if hours:
            takes = f"the run takes {hours:,.0f} hours"
        smaller: dict[str, Any] = {}
        if (facts.run.encoder.features or math.inf) > _CPU_ENCODER.features:
            smaller |= {"encoder": "resnet10", "width": _CPU_ENCODER.width}
        if facts.run.views.side > _CPU_SIDE:
            smaller |= {"image_size": _CPU_SIDE}
        less = _ways(facts, smaller) or f"fewer {arg('epochs')}"
        found["encoder"] = f"{takes} on this CPU: use {less}"
    delivered, consumed = facts.input_speed, facts.step_speed
    if delivered and consumed and delivered < consumed:
        waiting = 1 - delivered / consumed
        faster = _ways(facts, {"augment_on": "device"}, {"cache": "memory"})
        faster = faster or "more CPU cores, or smaller image files"
        found["slow_input"] = (
            f"the input delivers {delivered:,.0f} images/s and the step"
            f" could use {consumed:,.0f}: devices wait {waiting:.0%}"
            f" of the time: use {faster}"
        )


_MAX_IMBALANCE = 10
# Of two views of 32 images.
_MIN_NEGATIVES = 62


def _pairs(facts: Facts, found: dict[str, str]) -> None:
    """Checks of classes, positives and negatives."""
    loss, views = facts.run.loss, facts.run.views.views
    sizes, balanced = facts.class_sizes, {"sampler": "class_balanced"}
    if sizes is not None and loss.needs_labels:
        least, most = sizes[sizes > 0].min(), sizes.max()
        way = _ways(facts, balanced)
        if most > _MAX_IMBALANCE * least and way:
            found["imbalance"] = (
                f"classes have {least:,} to {most:,} images, and a batch hardly"
                f" ever has the small ones: use {way}"
            )
    least = 1 if loss.has_one_positive else 2 * views - 1
    least = min(least, getattr(loss, "positives_cap", None) or least)
    positives = facts.positives
    if loss.needs_labels and positives is not None and positives < least:
        more = _ways(facts, f"a larger {arg('batch_size')}", balanced)
        found["positives"] = (
            f"an anchor has {positives:.2f} positives in a batch, so labels"
            f" hardly matter: use {more}"
        )
    batch_size = facts.run.schedule.batch_size
    negatives = views * (batch_size - 1)
    of_batch = not (loss.needs_labels or loss.takes_keys or loss.takes_logits)
    if of_batch and negatives < _MIN_NEGATIVES:
        larger = f"a larger {arg('batch_size')} (256 or more)"
        more = _ways(facts, larger, {"loss": "moco"})
        found["negatives"] = f"an anchor has {negatives} negatives: use {more}"
    images, queue_size = facts.info.num_examples, facts.run.batch.queue_size
    if loss.takes_keys and queue_size >= images:
        most = max(images // 2, batch_size)
        fitting = f"at most {arg('queue_size', most)}"
        if most == images:
            fitting = f"a smaller {arg('batch_size')}"
        found["queue_size"] = (
            f"{arg('queue_size', queue_size)} holds all {images:,}"
            f" images, so each anchor is among its own negatives: use {fitting}"
        )


# Of the weight of NT-Xent. Embeddings collapsed at 0.25, and at 0.5 with a
# temperature of 0.1.
_MIN_WEIGHT = 0.75
# A little beyond what papers train with.
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.03, 1.0
# Batches from this size on need a warm-up.
_LARGE_BATCH = 1024


def _optimization(facts: Facts, found: dict[str, str]) -> None:
    """Checks of loss, batch, optimizer and schedule."""
    run, batch_size = facts.run, facts.run.schedule.batch_size
    temperature = getattr(run.loss, "temperature", None)
    if temperature is not None and not (
        _MIN_TEMPERATURE <= temperature <= _MAX_TEMPERATURE
    ):
        found["temperature"] = (
            f"{arg('temperature', format(temperature, 'g'))} is outside"
            " of what losses learn with: use 0.05 to 0.5"
        )
    raw = getattr(run.loss, "normalize", True) is False
    if temperature is not None and raw:
        found["loss_normalize"] = (
            f"{arg('loss_normalize', 'False')} compares raw dot"
            " products, which grow without bound until the loss is NaN: use"
            f" {arg('loss_normalize', 'True')}"
        )
    loss, features = run.loss, run.encoder.features or 0
    size = run.projection.sizes(features)[-1]
    balanced = loss.balanced_weight(size) if size else None
    weight = getattr(loss, "weight", math.inf)
    if balanced is not None and weight < _MIN_WEIGHT * balanced:
        found["loss_weight"] = (
            f"{arg('loss_weight', format(weight, 'g'))} pulls views"
            f" together {balanced / max(weight, 1e-12):.1f} times as hard"
            " as it pushes images apart, and embeddings collapse: use"
            f" {arg('loss_weight', format(balanced, '.2g'))} or more"
        )
    optimizer, rate = run.optimizer, facts.peak_learning_rate
    lowest, highest = optimizer.peak_rates
    adaptive_peak = run.encoder.adaptive_peak
    if adaptive_peak and not optimizer.is_adaptive:
        found["optimizer"] = (
            f"{run.encoder.label} trains badly by {optimizer.name}: use"
            f" {arg('optimizer', 'adamw')}, {arg('learning_rate', '0.00015')}"
            f" and {arg('weight_decay', '0.1')}"
        )
    elif adaptive_peak:
        highest = adaptive_peak
    if rate > highest:
        found["learning_rate"] = (
            f"with a peak learning rate of {rate:g} {optimizer.name} diverges,"
            f" as above about {highest:g}: use a lower {arg('learning_rate')}"
        )
    if rate < lowest:
        peak = optimizer.learning_rate
        base = peak * (run.schedule.learning_rate or rate) / rate
        found["learning_rate"] = (
            f"a peak learning rate of {rate:g} hardly moves a weight by"
            f" {optimizer.name}: use {arg('learning_rate', f'{base:.2g}')},"
            f" whose peak is {peak:g}"
        )
    needs_warmup = adaptive_peak or batch_size >= _LARGE_BATCH
    usual = resolve_warmup(None, run.schedule.epochs)
    warmup = _ways(facts, {"warmup_epochs": usual})
    if needs_warmup and not run.schedule.warmup_epochs and warmup:
        label = run.encoder.label
        cause = label if adaptive_peak else arg("batch_size", batch_size)
        found["warmup"] = (
            f"{arg('warmup_epochs', '0')} with {cause} diverges in the"
            f" first steps: use {warmup}"
        )
