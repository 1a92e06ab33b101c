"""Names of the variables of residual networks, in the authors' programs."""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tf_contrastive.config.encoder import Blocks

_DATA = json.loads(
    Path(__file__).with_name("tables.json").read_text(encoding="utf-8")
)
# Of PyTorch's dataset (`opt.dataset`) in the code of SupContrast and SINCERE.
PYTORCH_STANDARDIZATION: dict[str, str] = _DATA["pytorch_standardization"]
_PARTS = ("kernel", "gamma", "beta", "moving_mean", "moving_variance")
# An encoder beside the one that the authors evaluate: it follows that one in
# MoCo, BYOL and others; in DINO the teacher is evaluated.
_OTHER = re.compile(r"(^|[._])(k|ema|key|momentum|target|student)([._]|$)")
# (kind of a place; names of its convolution and normalization here; numbers of
# the stage and of the block, from 0, and of the convolution, 0 of a shortcut).
_Place = tuple[str, tuple[str, str], tuple[int, int, int]]


def _places(blocks: Blocks, project_first: bool) -> Iterator[_Place]:
    """Yields the convolutions of a network, a block's shortcut first."""
    yield "stem", ("stem_conv", "stem_norm"), (0, 0, 1)
    kind, last = ("bottleneck", 3) if blocks.bottleneck else ("basic", 2)
    for stage, count in enumerate(blocks.repeats):
        projects = blocks.bottleneck or stage > 0 or project_first
        for block in range(count):
            name = f"stage{stage + 1}_block{block + 1}"
            if projects and not block:
                here = f"{name}_shortcut", f"{name}_shortcut_norm"
                yield f"{kind} shortcut", here, (stage, block, 0)
            for conv in range(1, last + 1):
                here = f"{name}_conv{conv}", f"{name}_norm{conv}"
                yield f"{kind} conv", here, (stage, block, conv)


@dataclasses.dataclass(frozen=True)
class Table:
    """The names in a family of files, and options of their ResNets."""

    source: str  # Where they are from.
    # Kind of a place -> forms of the names of its two layers.
    names: Mapping[str, tuple[str, str]]
    encoder: str  # Matches the names of all variables of the encoder.
    standardize: Mapping[str, str]  # By the stem.
    words: Mapping[str, str] = dataclasses.field(default_factory=dict)
    parts: tuple[str, ...] = tuple(f"/{part}" for part in _PARTS)
    # Of height, width, inputs and outputs in a kernel.
    kernel_axes: tuple[int, ...] = (0, 1, 2, 3)
    pool_padding: str = "same"
    project_first: bool = True
    first_group: int = 0  # Number of the first stage.
    is_other: bool = False  # Whether it is beside the encoder to be read.

    def variables(self, blocks: Blocks) -> dict[str, str]:
        """Returns the names of a network's variables here -> theirs."""
        names = {}
        # A layer of DropBlock follows those of SimCLR's bottleneck.
        layers = 3 if blocks.bottleneck else 2
        places = enumerate(_places(blocks, self.project_first))
        for number, (kind, here, (stage, block, conv)) in places:
            # The first block of SupCon's groups has a shortcut, which counts.
            in_block = conv - (block > 0)
            words: dict[str, Any] = {
                **self.words,
                "group": stage + self.first_group,
                "block": block,
                "conv": conv,
                "layer": layers * (conv - 1),
                "next_layer": layers * (conv - 1) + 1,
                "_number": f"_{number}" if number else "",
                "_block": f"_{block}" if block else "",
                "_conv": f"_{in_block}" if in_block else "",
            }
            theirs = [form.format(**words) for form in self.names[kind]]
            for part, end in zip(_PARTS, self.parts, strict=True):
                which = part != "kernel"
                names[f"{here[which]}/{part}:0"] = theirs[which] + end
        return names


_TENSORFLOW = [Table(**table) for table in _DATA["tensorflow"]]


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


# ---- PyTorch -----------------------------------------------------------------


def timm(depth: int) -> dict[str, str]:
    """Returns the names of a vision transformer's variables here -> timm's."""
    names = {}
    for block in range(depth):
        for here, theirs in _DATA["timm"].items():
            names[f"{here.format(block + 1)}:0"] = theirs.format(block)
    return names


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
    inside = any(x.startswith(prefix) and ".shortcut." in x for x in names)
    stages = (rf"{stage}{first + i}\.\d+\..+" for i in range(4))
    layers = "|".join([conv, norm, *stages])
    return Table(
        source=f"PyTorch ({prefix}{conv}.weight, ...)",
        encoder=rf"{re.escape(prefix)}({layers})"
        r"\.(weight|bias|running_mean|running_var)",
        words={
            "stem": prefix + conv,
            "stem_norm": prefix + norm,
            "stage": prefix + stage,
            "shortcut": "shortcut" if inside else "downsample",
        },
        first_group=first,
        is_other=bool(_OTHER.search(prefix)),
        **_DATA["pytorch"],
    )


# Of torchvision's own files, with nothing before the names.
TORCHVISION = _torchvision(set(), "", "conv1", "bn1", "layer", 1)
