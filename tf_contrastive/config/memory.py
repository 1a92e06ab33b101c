"""Memory that options ask for, compared with the machine's before a step."""

import dataclasses
import os
from collections.abc import Iterable

from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.errors import UserError

_FLOAT = 4
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
    rest = present - (needed - largest.bytes)
    fitting = largest.value * (max(rest, 0) / largest.bytes) ** (
        1 / largest.degree
    )
    value, most = (
        f"{x:g}" if isinstance(largest.value, float) else f"{int(x)}"
        for x in (largest.value, fitting)
    )
    raise UserError(
        f"{largest.option}={value} needs at least {needed / 2**30:,.0f} GiB of"
        f" memory with the other options, and this machine has"
        f" {present / 2**30:,.1f} GiB: set at most {largest.option}={most}"
    )


def check_images(option: str, images: int, side: int) -> None:
    """Raises `UserError` if a batch of images [S, S, 3] does not fit."""
    check([Allocation(option, images, _FLOAT * images * 3 * side**2)])


def check_run(
    run: Pretrain, hosts: int, replicas: int, image_bytes: int
) -> None:
    """Raises `UserError` for options that do not fit into a host's memory.

    What is counted is the least that a step holds, not all of it, which
    `doctor` predicts.

    Args:
      run: resolved.
      hosts: number of machines, which share the batch.
      replicas: of all hosts.
      image_bytes: bytes of all training images, if they have one shape.
    """
    schedule, views, projection = run.schedule, run.views, run.projection
    side, width = views.image_size, run.encoder.width
    is_resnet = run.encoder.encoder in ENCODERS
    features = _RESNET_FEATURES * width if is_resnet else FEATURES
    hidden = projection.projection_hidden or features
    copies = replicas // hosts
    images = schedule.batch_size / hosts
    pixels = side**2 * (3 + max(run.data.extra_channels, 0))
    batch = _FLOAT * images * views.views * pixels
    if is_resnet:
        stride = 2 if run.encoder.stem == "imagenet" else 1
        encoded = images / run.loss.grad_cache_chunks
        channels = _STEM_CHANNELS * width
        batch += _FLOAT * encoded * channels * (side // stride) ** 2
    # Of several options the one that is largest beside usual values.
    output = projection.projection_output
    head = _TRAINED * hidden * (features + output)
    option, value, degree, _ = max(
        (
            ("batch_size", schedule.batch_size, 1, schedule.batch_size / 256),
            ("views", views.views, 1, views.views / 2),
            ("image_size", side, 2, (side / 224) ** 2),
        ),
        key=lambda row: row[-1],
    )
    is_wide = hidden / features > output / 128
    allocations = [
        Allocation(option, value, batch, degree),
        Allocation("projection_hidden", int(hidden), head * is_wide),
        Allocation("projection_output", output, head * (not is_wide)),
        Allocation(
            "online_knn_size",
            run.probe.online_knn_size,
            _FLOAT * run.probe.online_knn_size * features * copies,
        ),
        Allocation(
            "linear_epochs",
            run.linear.schedule.epochs,
            _FLOAT * run.linear.schedule.epochs,
        ),
    ]
    if is_resnet:
        weights = _TRAINED * _LAST_BLOCK * width**2
        allocations.append(Allocation("width", width, weights, 2))
    if run.loss.chosen().takes_keys:
        keys = _FLOAT * output * copies
        size = run.loss.queue_size
        allocations.append(Allocation("queue_size", size, keys * size))
    check(allocations)
    present = of_machine()
    if run.data.cache == "memory" and present and image_bytes > present:
        raise UserError(
            f"cache=memory keeps {image_bytes / 2**30:,.0f} GiB of images, and"
            f" this machine has {present / 2**30:,.1f} GiB: set cache=none"
        )
