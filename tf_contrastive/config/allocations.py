"""Memory that options ask for, compared with the machine's before a step."""

import dataclasses
import os
from collections.abc import Iterable

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Machine

_FLOAT = 4
# A channel of a pixel on its way to the device.
_WIRE = {"float32": 4, "bfloat16": 2, "uint8": 1}
# A weight, its gradient and its momentum.
_TRAINED = 3 * _FLOAT
# Weights of the last block of the smallest ResNet, of width 1: two convolutions
# 3x3, from 256 to 512 and from 512 to 512 channels.
_LAST_BLOCK = 9 * 512 * (256 + 512)
# Channels of the first convolution of ResNets of width 1, and features of the
# smallest ones; other encoders have at least FEATURES.
_STEM_CHANNELS, _RESNET_FEATURES, FEATURES = 64, 512, 128


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Bytes that an option's value takes, at least.

    They grow with the power `degree` of the value.
    """

    option: str
    value: float
    bytes: float
    degree: int = 1


def of_machine() -> int | None:
    """Returns the bytes of this machine, or container; None if unknown."""
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            return min(size, int(file.read()))
    except (OSError, ValueError):  # No container, or one without a limit.
        return size


def check(allocations: Iterable[Allocation]) -> None:
    """Raises `UserError` if allocations do not fit, naming the largest."""
    allocations, present = list(allocations), of_machine()
    needed = sum(a.bytes for a in allocations)
    if present is None or needed <= present:
        return
    largest = max(allocations, key=lambda a: a.bytes)
    # If the others alone do not fit, they grow with the same option.
    others = needed - largest.bytes
    fraction = (present - others) / largest.bytes
    if others >= present:
        fraction = present / needed
    fitting = largest.value * fraction ** (1 / largest.degree)
    value, most = (
        f"{x:g}" if isinstance(largest.value, float) else f"{int(x)}"
        for x in (largest.value, fitting)
    )
    raise UserError(
        f"{arg(largest.option, value)} needs at least {needed / 2**30:,.0f} GiB"
        " of memory with the other options, and this machine has"
        f" {present / 2**30:,.1f} GiB: set at most {arg(largest.option, most)}"
    )


def check_images(option: str, images: int, side: int) -> None:
    """Raises `UserError` if a batch of images [S, S, 3] does not fit."""
    check([Allocation(option, images, _FLOAT * images * 3 * side**2)])


def check_model(run: Pretrain, machine: Machine) -> None:
    """Raises `UserError` if what a step keeps does not fit into memory.

    That is the least of weights, queue and bank; `doctor` predicts all.

    Args:
      run: resolved.
      machine: its devices; accelerators have memory of their own.
    """
    copies = machine.replicas // machine.hosts if machine.on_cpu else 1
    projection, width = run.projection, _width(run)
    features = _RESNET_FEATURES * width if width else FEATURES
    hidden = getattr(projection, "hidden", None) or features
    # 0: a head of the user's own.
    output = getattr(projection, "output", 0)
    head = _TRAINED * hidden * (features + output)
    is_wide = hidden / features > output / 128
    bank, epochs = run.probe.online_knn_size, run.linear.schedule.epochs
    allocations = [
        Allocation("projection_hidden", int(hidden), head * is_wide),
        Allocation("projection_output", output, head * (not is_wide)),
        Allocation("online_knn_size", bank, _FLOAT * bank * features * copies),
        Allocation("linear_epochs", epochs, _FLOAT * epochs),
    ]
    if width:
        weights = _TRAINED * _LAST_BLOCK * width**2
        allocations.append(Allocation("width", width, weights, 2))
    if run.loss.takes_keys:
        keys = run.batch.queue_size
        size = _FLOAT * keys * output * copies
        allocations.append(Allocation("queue_size", keys, size))
    check(allocations)


def _width(run: Pretrain) -> float | None:
    """Returns the width of a residual network; None for others."""
    own = run.encoder.is_own
    return None if own else getattr(run.encoder, "width", None)


def check_batch(run: Pretrain, machine: Machine) -> None:
    """Raises `UserError` if a host's part of a batch does not fit into memory.

    Of the activations, which are only on CPUs in a host's memory, those of the
    first convolution are counted.

    Args:
      run: resolved.
      machine: its devices, whose hosts share the batch.
    """
    side, count = run.views.side, run.views.views
    images = run.schedule.batch_size / machine.hosts
    number = _FLOAT if machine.on_cpu else _WIRE[run.views.wire_dtype]
    channels = run.data.channels
    size = number * images * count * channels * side**2
    width = _width(run)
    if machine.on_cpu and width:
        stride = 2 if getattr(run.encoder, "stem", "") == "imagenet" else 1
        encoded = images / run.batch.grad_cache_chunks
        stem = _STEM_CHANNELS * width
        size += _FLOAT * encoded * stem * (side // stride) ** 2
    # Of three options the one that is largest beside usual values.
    batch_size = run.schedule.batch_size
    option, value, degree, _ = max(
        (
            ("batch_size", batch_size, 1, batch_size / 256),
            ("views", count, 1, count / 2),
            ("image_size", side, 2, (side / 224) ** 2),
        ),
        key=lambda row: row[-1],
    )
    check([Allocation(option, value, size, degree)])


def check_cache(cache: str, image_bytes: int) -> None:
    """Raises `UserError` if all training images do not fit into memory."""
    present = of_machine()
    if cache == "memory" and present and image_bytes > present:
        raise UserError(
            f"{arg('cache', 'memory')} keeps {image_bytes / 2**30:,.0f} GiB of"
            f" images, and this machine has {present / 2**30:,.1f} GiB: set"
            f" {arg('cache', 'none')}"
        )
