"""Names of the variables of residual networks, in the authors' programs."""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tf_contrastive.config.encoder import Blocks

# Of CIFAR-10, by the authors' code. google-research's SupCon has it of pixels
# in [-1, 1].
_CIFAR10 = "0.4914,0.4822,0.4465/0.2023,0.1994,0.201"
# Of PyTorch's dataset (`opt.dataset`) in the code of SupContrast and SINCERE.
PYTORCH_STANDARDIZATION = {
    "cifar10": _CIFAR10,
    "cifar100": "0.5071,0.4867,0.4408/0.2675,0.2565,0.2761",
    "cifar2": "0.4977,0.4605,0.416/0.2537,0.2481,0.2535",
    "aircraft": "0.4804,0.5115,0.5348/0.1561,0.1555,0.181",
    "cars": "0.4707,0.4601,0.4549/0.2319,0.2318,0.2373",
    "imagenet": "imagenet",
    "imagenet100": "imagenet",
}
# An encoder beside the one that the authors evaluate: it follows that one in
# MoCo, BYOL and others; in DINO the teacher is evaluated.
_OTHER = re.compile(r"(^|[._])(k|ema|key|momentum|target|student)([._]|$)")
_VARIABLE = "(kernel|bias|gamma|beta|moving_mean|moving_variance)"


class Place(NamedTuple):
    """Where a convolution is.

    Attributes:
      stage: from 1; 0 is the stem.
      block: of the stage, from 0.
      conv: of the block, from 1; 0 is its shortcut.
      number: in the order of the network, a block's shortcut first.
      bottleneck: the kind of block.
    """

    stage: int
    block: int
    conv: int
    number: int
    bottleneck: bool


def places(blocks: Blocks, project_first: bool) -> list[Place]:
    """Returns the places of a network's convolutions.

    `project_first`: see `config.encoder.ResNet`.
    """
    last = 3 if blocks.bottleneck else 2
    found = [(0, 0, 1)]
    for stage, count in enumerate(blocks.repeats, 1):
        for block in range(count):
            projects = blocks.bottleneck or stage > 1 or project_first
            first = 0 if projects and not block else 1
            found += [(stage, block, conv) for conv in range(first, last + 1)]
    return [
        Place(*place, number, blocks.bottleneck)
        for number, place in enumerate(found)
    ]


# Place -> names of the convolution and of its normalization.
_Names = Callable[[Place], tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The names in a family of files.

    Attributes:
      source: where they are from.
      names: of a place.
      encoder: matches the names of all variables of the encoder.
      standardize: by the stem, as option `standardize`.
      parts: of a convolution, and of gamma, beta, mean and variance.
      kernel_axes: of height, width, inputs and outputs in a kernel.
      pool_padding, project_first: see `config.encoder.ResNet`.
      is_other: whether it is of an encoder beside the one to be read.
    """

    source: str
    names: _Names
    encoder: str
    standardize: dict[str, str]
    parts: tuple[str, ...] = (
        "/kernel",
        "/gamma",
        "/beta",
        "/moving_mean",
        "/moving_variance",
    )
    kernel_axes: tuple[int, ...] = (0, 1, 2, 3)
    pool_padding: str = "same"
    project_first: bool = True
    is_other: bool = False

    def variables(self, place: Place) -> dict[str, str]:
        """Returns the names of variables here -> theirs, of a place."""
        here, theirs = _names_here(place), self.names(place)
        parts = ("kernel", "gamma", "beta", "moving_mean", "moving_variance")
        return {
            f"{here[part != 'kernel']}/{part}:0": theirs[part != "kernel"] + end
            for part, end in zip(parts, self.parts, strict=True)
        }


def _names_here(place: Place) -> tuple[str, str]:
    if not place.stage:
        return "stem_conv", "stem_norm"
    name = f"stage{place.stage}_block{place.block + 1}"
    if not place.conv:
        return f"{name}_shortcut", f"{name}_shortcut_norm"
    return f"{name}_conv{place.conv}", f"{name}_norm{place.conv}"


def tables(names: Iterable[str]) -> list[Table]:
    """Returns the tables of which a file has names."""
    names = set(names)
    found = [
        table
        for table in (*_TENSORFLOW, *_pytorch(names))
        if any(re.fullmatch(table.encoder, name) for name in names)
    ]
    leading = [table for table in found if not table.is_other]
    return leading or found


# ---- TensorFlow --------------------------------------------------------------


def _counted(name: str, number: int) -> str:
    return f"{name}_{number}" if number else name


def _simclr(place: Place) -> tuple[str, str]:
    return (
        f"base_model/{_counted('conv2d', place.number)}",
        f"base_model/{_counted('batch_normalization', place.number)}",
    )


def _simclr_tf2(place: Place) -> tuple[str, str]:
    model = "model/resnet_model"
    if not place.stage:
        stem = f"{model}/initial_conv_relu_max_pool"
        return f"{stem}/0/conv2d", f"{stem}/2/bn"
    block = f"{model}/block_groups/{place.stage - 1}/layers/{place.block}"
    # A layer of DropBlock follows those of a bottleneck.
    shortcut, layers, step = (
        ("projection_layers", "conv_relu_dropblock_layers", 3)
        if place.bottleneck
        else ("shortcut_layers", "conv2d_bn_layers", 2)
    )
    if not place.conv:
        return f"{block}/{shortcut}/0/conv2d", f"{block}/{shortcut}/1/bn"
    first = (place.conv - 1) * step
    return (
        f"{block}/{layers}/{first}/conv2d",
        f"{block}/{layers}/{first + 1}/bn",
    )


def _supcon(place: Place) -> tuple[str, str]:
    where, number = "ContrastiveModel/Encoder", 0
    if place.stage:
        kind = "BottleneckBlock" if place.bottleneck else "ResidualBlock"
        block = _counted(kind, place.block)
        where += f"/BlockGroup{place.stage - 1}/{block}"
        # The first block of a group has a shortcut, which is counted first.
        number = place.conv - (place.block > 0)
    return (
        f"{where}/{_counted('Conv2DFixedPadding', number)}/conv2d",
        f"{where}/{_counted('batch_normalization', number)}",
    )


_UNSCALED = {"imagenet": "none", "cifar": "none"}
_TENSORFLOW = (
    Table(
        "SimCLR (google-research/simclr)",
        _simclr,
        f"base_model/[^/]+/{_VARIABLE}",
        _UNSCALED,
    ),
    Table(
        "SimCLR (google-research/simclr/tf2)",
        _simclr_tf2,
        f"model/resnet_model/.+/{_VARIABLE}",
        _UNSCALED,
    ),
    Table(
        "SupCon (google-research/supcon)",
        _supcon,
        f"ContrastiveModel/Encoder/.+/{_VARIABLE}",
        {"imagenet": "0.5,0.5,0.5/0.5,0.5,0.5", "cifar": _CIFAR10},
    ),
)


# ---- PyTorch -----------------------------------------------------------------


def _pytorch(names: set[str]) -> Iterator[Table]:
    """Yields a table for each encoder that names are of.

    A prefix precedes the names of torchvision; or the encoder's layers are
    counted, in `Sequential(*children)`, in which the first stage is after
    conv1 and bn1, and relu and maxpool if they are layers.
    """
    for name in sorted(names):
        if name.endswith("layer1.0.conv1.weight"):
            prefix = name.removesuffix("layer1.0.conv1.weight")
            yield _torchvision(names, prefix, "conv1", "bn1", "layer", 1)
        elif match := re.fullmatch(r"(.*\b)([234])\.0\.conv1\.weight", name):
            prefix, first = match[1], int(match[2])
            before = f"{prefix}{first - 1}.0.conv1.weight"
            if f"{prefix}1.running_mean" in names and before not in names:
                yield _torchvision(names, prefix, "0", "1", "", first)


def _torchvision(
    names: set[str], prefix: str, conv: str, norm: str, stage: str, first: int
) -> Table:
    shortcut = "downsample"
    if any(x.startswith(prefix) and ".shortcut." in x for x in names):
        shortcut = "shortcut"

    def of(place: Place) -> tuple[str, str]:
        if not place.stage:
            return prefix + conv, prefix + norm
        block = f"{prefix}{stage}{place.stage - 1 + first}.{place.block}"
        if not place.conv:
            return f"{block}.{shortcut}.0", f"{block}.{shortcut}.1"
        return f"{block}.conv{place.conv}", f"{block}.bn{place.conv}"

    layers = "|".join(
        [conv, norm, *(rf"{stage}{first + i}\.\d+\..+" for i in range(4))]
    )
    return Table(
        f"PyTorch ({prefix}{conv}.weight, ...)",
        of,
        rf"{re.escape(prefix)}({layers})"
        r"\.(weight|bias|running_mean|running_var)",
        {"imagenet": "imagenet", "cifar": _CIFAR10},
        (".weight", ".weight", ".bias", ".running_mean", ".running_var"),
        kernel_axes=(2, 3, 1, 0),
        pool_padding="symmetric",
        project_first=False,
        is_other=bool(_OTHER.search(prefix)),
    )
