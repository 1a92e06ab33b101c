"""Contrastive losses over the global batch of any strategy.

Layer 3. `build(name, **options)` makes one; a loss maps projections [B, V, P]
and labels [B] to a scalar. Options and defaults stand in `config`.
"""

from typing import Any

from tf_contrastive import errors
from tf_contrastive.config.loss import LOSS_OPTIONS
from tf_contrastive.losses import generalized
from tf_contrastive.losses.base import ContrastiveLoss
from tf_contrastive.losses.cross_entropy import CrossEntropy
from tf_contrastive.losses.margins import Margin, NTLogistic, Triplet
from tf_contrastive.losses.moco import MoCo
from tf_contrastive.losses.ntxent import DecoupledNTXent, NPairs, NTXent
from tf_contrastive.losses.supcon import (
    EpsSupInfoNCE,
    Sincere,
    SupCon,
    SupConIn,
)

__all__ = ["LOSSES", "ContrastiveLoss", "build"]

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
    "align_uniform": generalized.AlignUniform,
    "swd_hypersphere": generalized.SWDHypersphere,
    "swd_normal": generalized.SWDNormal,
    "swd_hypercube": generalized.SWDHypercube,
    "moco": MoCo,
    "cross_entropy": CrossEntropy,
}


def build(name: str, **options: Any) -> ContrastiveLoss:
    """Makes the loss called `name`.

    Args:
      name: a key of `LOSSES`.
      **options: those of the loss, such as `temperature=0.1`; what is not
        given has the default of `config.LOSS_OPTIONS[name]`.

    Raises:
      UserError (a ValueError): for a name or an option that does not exist.
    """
    if name not in LOSSES:
        raise errors.unknown("loss", name, LOSSES)
    known = LOSS_OPTIONS[name]
    for option in options:
        if option not in known:
            raise errors.unknown(f"option of {name}", option, known)
    return LOSSES[name](**{**known, **options})
