"""Contrastive losses over the global batch of any strategy.

A loss maps projections [B, V, P] and labels [B] to a scalar. `config.loss`
defines the options and their defaults.
"""

from typing import Any

from tf_contrastive.config import components, fields
from tf_contrastive.config import loss as declared
from tf_contrastive.config import own as own_parts
from tf_contrastive.losses.base import ContrastiveLoss
from tf_contrastive.losses.cross_entropy import CrossEntropy
from tf_contrastive.losses.generalized import (
    AlignUniform,
    SWDHypercube,
    SWDHypersphere,
    SWDNormal,
)
from tf_contrastive.losses.margins import Margin, NTLogistic, Triplet
from tf_contrastive.losses.moco import MoCo
from tf_contrastive.losses.ntxent import DecoupledNTXent, NPairs, NTXent
from tf_contrastive.losses.own import FunctionLoss, global_batch, of_part
from tf_contrastive.losses.supcon import (
    EpsSupInfoNCE,
    Sincere,
    SupCon,
    SupConIn,
)

__all__ = [
    "LOSSES",
    "AlignUniform",
    "ContrastiveLoss",
    "CrossEntropy",
    "DecoupledNTXent",
    "EpsSupInfoNCE",
    "FunctionLoss",
    "Margin",
    "MoCo",
    "NPairs",
    "NTLogistic",
    "NTXent",
    "SWDHypercube",
    "SWDHypersphere",
    "SWDNormal",
    "Sincere",
    "SupCon",
    "SupConIn",
    "Triplet",
    "build",
    "global_batch",
]

LOSSES: dict[str, type[ContrastiveLoss]] = components.implementations(
    declared.LOSSES
)


def build(name: Any, **options: Any) -> ContrastiveLoss:
    """Builds a loss by its name, or one of your own.

    Args:
      name: a key of `LOSSES`; a function or class of your own, or its
        `module:name`.
      **options: arguments of the loss, such as `temperature=0.1`.

    Raises:
      UserError: a ValueError, for an unknown name, option or value.
    """
    if not isinstance(name, str):
        return of_part(name, **options)
    if name not in LOSSES and fields.module_of(name):
        return of_part(own_parts.load("loss", name), **options)
    return components.pick("loss", name, LOSSES, options)(**options)
