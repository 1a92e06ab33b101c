"""Contrastive losses over the global batch of any strategy.

A loss maps projections [B, V, P] and labels [B] to a scalar. `config.loss`
defines the options and their defaults.
"""

from typing import Any

from tf_contrastive import errors
from tf_contrastive.config.loss import LOSS_OPTIONS
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
]

LOSSES = {
    "ntxent": NTXent,
    "supcon": SupCon,
    "supcon_in": SupConIn,
    "sincere": Sincere,
    "eps_supinfonce": EpsSupInfoNCE,
    "npairs": NPairs,
    "triplet": Triplet,
    "margin": Margin,
    "nt_logistic": NTLogistic,
    "decoupled_ntxent": DecoupledNTXent,
    "align_uniform": AlignUniform,
    "swd_hypersphere": SWDHypersphere,
    "swd_normal": SWDNormal,
    "swd_hypercube": SWDHypercube,
    "moco": MoCo,
    "cross_entropy": CrossEntropy,
}


def build(name: str, **options: Any) -> ContrastiveLoss:
    """Builds a loss by its name.

    Args:
      name: a key of `LOSSES`.
      **options: arguments of the loss, such as `temperature=0.1`.

    Raises:
      UserError: a ValueError, for an unknown name, option or value.
    """
    if name not in LOSSES:
        raise errors.unknown("loss", name, LOSSES)
    for option in options:
        if option not in LOSS_OPTIONS[name]:
            known = LOSS_OPTIONS[name]
            raise errors.unknown(f"option of {name}", option, known)
    return LOSSES[name](**options)
