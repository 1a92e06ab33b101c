"""Names of the variables of residual networks, in the authors' programs."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tf_contrastive.config.encoder import Blocks

_DATA = json.loads(
    Path(__file__).with_name("tables.json").read_text(encoding="utf-8")
)
# Of PyTorch's dataset (`opt.dataset`) in the code of SupContrast and SINCERE.
PYTORCH_STANDARDIZATION: dict[str, str] = _DATA["pytorch_standardization"]
# An encoder beside the one that the authors evaluate: it follows that one in
# MoCo, BYOL and others; in DINO the teacher is evaluated.
_OTHER = re.compile(r"(^|[._])(k|ema|key|momentum|target|student)([._]|$)")


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


# Kind of a place, see `Table.theirs` -> forms of the names of the convolution
# and of its normalization.
_Names = dict[str, tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Table:
    """The names in a family of files.

    Attributes:
      source: where they are from.
      names: forms of the names, by the kind of a place.
      encoder: matches the names of all variables of the encoder.
      standardize: by the stem, as option `standardize`.
      parts: of a convolution, and of gamma, beta, mean and variance.
      kernel_axes: of height, width, inputs and outputs in a kernel.
      pool_padding, project_first: see `config.encoder.ResNet`.
      first_group: number of the first stage.
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
    first_group: int = 0
    is_other: bool = False

    def theirs(self, place: Place) -> list[str]:
        """Returns the names of a convolution and of its normalization."""
        kind = "stem"
        if place.stage:
            kind = "bottleneck " if place.bottleneck else "basic "
            kind += "conv" if place.conv else "shortcut"
        # The first block of SupCon's groups has a shortcut, which is counted.
        in_block = place.conv - (place.block > 0)
        fields = {
            "group": place.stage - 1 + self.first_group,
            "block": place.block,
            "conv": place.conv,
            # A layer of DropBlock follows those of SimCLR's bottleneck.
            "twice": 2 * (place.conv - 1),
            "twice_1": 2 * (place.conv - 1) + 1,
            "thrice": 3 * (place.conv - 1),
            "thrice_1": 3 * (place.conv - 1) + 1,
            "_number": f"_{place.number}" if place.number else "",
            "_block": f"_{place.block}" if place.block else "",
            "_conv": f"_{in_block}" if in_block else "",
        }
        return [form.format(**fields) for form in self.names[kind]]

    def variables(self, place: Place) -> dict[str, str]:
        """Returns the names of variables here -> theirs, of a place."""
        here, theirs = _names_here(place), self.theirs(place)
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


_TENSORFLOW = [Table(**table) for table in _DATA["tensorflow"]]


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

    escaped = prefix.replace("{", "{{").replace("}", "}}")
    block = f"{escaped}{stage}{{group}}.{{block}}"
    of_conv = f"{block}.conv{{conv}}", f"{block}.bn{{conv}}"
    of_shortcut = f"{block}.{shortcut}.0", f"{block}.{shortcut}.1"
    layers = "|".join(
        [conv, norm, *(rf"{stage}{first + i}\.\d+\..+" for i in range(4))]
    )
    return Table(
        f"PyTorch ({prefix}{conv}.weight, ...)",
        {
            "stem": (escaped + conv, escaped + norm),
            "basic conv": of_conv,
            "basic shortcut": of_shortcut,
            "bottleneck conv": of_conv,
            "bottleneck shortcut": of_shortcut,
        },
        rf"{re.escape(prefix)}({layers})"
        r"\.(weight|bias|running_mean|running_var)",
        {"imagenet": "imagenet", "cifar": PYTORCH_STANDARDIZATION["cifar10"]},
        (".weight", ".weight", ".bias", ".running_mean", ".running_var"),
        kernel_axes=(2, 3, 1, 0),
        pool_padding="symmetric",
        project_first=False,
        first_group=first,
        is_other=bool(_OTHER.search(prefix)),
    )
