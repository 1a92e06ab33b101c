"""Published encoders: which network a file holds, and its weights in it."""

import dataclasses
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.data import channel_statistics, write_statistics
from tf_contrastive.config.dataset import ChannelStatistics
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.encoders.build import build
from tf_contrastive.encoders.published import reading
from tf_contrastive.encoders.published.reading import Content
from tf_contrastive.encoders.published.tables import (
    PYTORCH_STANDARDIZATION,
    Table,
    tables,
)

_READ = (
    "read are ResNets of google-research's SimCLR and SupCon, and of PyTorch"
    " with the names of torchvision or SupContrast, and (as `init_from` of"
    " keras:NAME) files .h5 of Keras"
)
# As SupContrast writes them, "(0.5, 0.5, 0.5)".
_NUMBER = re.compile(r"\d*\.?\d+(?:e-?\d+)?")
_STEMS = {7: "imagenet", 3: "cifar"}
_SIDES = {"imagenet": 224, "cifar": 32}


@dataclasses.dataclass(frozen=True)
class Found:
    """An encoder in a file of others."""

    path: str
    options: dict[str, Any]  # As of `pretrain`.
    image_shape: tuple[int, int, int]
    _content: Content
    _table: Table
    _names: dict[str, str]  # Here -> theirs.

    def load(self) -> tf.keras.Model:
        """Builds the encoder with the weights of the file.

        Raises:
          UserError: if the weights are of another network.
        """
        options = dict(self.options)
        name, standardize = options.pop("encoder"), options.pop("standardize")
        mean, std = channel_statistics(standardize)
        text = ", ".join(f"{k}={v}" for k, v in self.options.items())
        terminal.info(f"{self.path}: {self._table.source}: {text}")
        options |= {"mean": mean, "std": std, "synchronized": False}
        encoder = build(name, image_shape=self.image_shape, **options)
        for variable in encoder.variables:
            theirs = self._names[variable.name]
            values = self._content.read(theirs)
            if values.ndim == 4:
                values = values.transpose(self._table.kernel_axes)
            if values.shape != variable.shape:
                raise errors.UserError(
                    f"{self.path}: {theirs} has the shape {values.shape}, in"
                    f" {name} {tuple(variable.shape)}: it is another network,"
                    " such as Wide ResNet, which is not read"
                )
            if not np.isfinite(values).all():
                raise errors.UserError(
                    f"{self.path}: {theirs} holds NaN or infinity: use a"
                    " checkpoint of before the training failed"
                )
            variable.assign(values)
        return encoder


def find(path: str) -> Found | None:
    """Finds the encoder in a file of others; see `reading.read`.

    Returns:
      None if it is of nobody else.

    Raises:
      UserError: if no network here has its variables, or it cannot be read.
    """
    content = reading.read(path)
    if content is None:
        return None
    known = tables(content.shapes)
    if not known and tf.io.gfile.isdir(path):
        return None  # Perhaps an export.
    if len(known) != 1:
        several = " and ".join(table.source for table in known)
        such = ", ".join(sorted(content.shapes)[:2])
        raise errors.UserError(
            f"{path} is {content.kind} of several encoders ({several}): save"
            " one of them alone"
            if several
            else f"{path} is {content.kind} ({such}, ...), and none of those"
            f" that can be read: {_READ}"
        )
    (table,) = known
    network, names = _match(path, content, table)
    kernel = content.shapes[names["stem_conv/kernel:0"]]
    side, _, channels, filters = (kernel[axis] for axis in table.kernel_axes)
    if side not in _STEMS:
        raise errors.UserError(
            f"{path}: its first convolution is {side}x{side}, not 7x7 or 3x3"
        )
    stem = _STEMS[side]
    options = {
        "encoder": network,
        "width": filters / 64,
        "stem": stem,
        "pool_padding": content.options.get("pool_padding", table.pool_padding),
        "standardize": _standardize(path, content, table, stem),
    }
    if table.project_first and not ResNet.networks[network].bottleneck:
        options["project_first"] = True
    size = int(content.options.get("size", _SIDES[stem]))
    return Found(path, options, (size, size, channels), content, table, names)


def _match(
    path: str, content: Content, table: Table
) -> tuple[str, dict[str, str]]:
    """Returns the network that has exactly the variables of a file."""
    there = {x for x in content.shapes if re.fullmatch(table.encoder, x)}
    for network, blocks in ResNet.networks.items():
        names = table.variables(blocks)
        if there == set(names.values()):
            return network, names
    raise errors.UserError(
        f"{path} has names of {table.source}, but its {len(there)} variables"
        " are not those of a ResNet-10, 18, 34, 50, 101, 152 or 200; networks"
        " with selective kernels (sk1), ResNeXt and others are not read"
    )


def _standardize(path: str, content: Content, table: Table, stem: str) -> str:
    """Returns the option `standardize` of the images that a file was made of.

    SupContrast and SINCERE write their options into it, as an export does.
    """
    if "standardize" in content.options:
        return content.options["standardize"]
    dataset = content.options.get("dataset")
    if dataset == "path":
        texts = (str(content.options.get(x)) for x in ("mean", "std"))
        mean, std = (tuple(map(float, _NUMBER.findall(x))) for x in texts)
        if len(mean) != 3 or len(std) != 3:
            raise errors.UserError(f"{path}: its mean and std are not numbers")
        return write_statistics(ChannelStatistics(mean, std))
    return PYTORCH_STANDARDIZATION.get(str(dataset), table.standardize[stem])
