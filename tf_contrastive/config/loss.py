"""Losses: their options, defaults and requirements."""

import dataclasses
import functools
import math
from typing import Any

from tf_contrastive.config.fields import given_options, option
from tf_contrastive.errors import UserError

# The options of each loss, with their defaults. A new loss has its options
# here, an entry in `SUPERVISED_LOSSES` if it needs labels, and one in
# `losses.LOSSES`.
_PAIRWISE = {
    "normalize": True,
    "reduction": "mean",
    "block_size": 0,
    "similarity_products": "auto",
}
_SUPCON = {
    "temperature": 0.1,
    "contrast": "all_views",
    "denominator": "all",
    "positives_cap": None,
    "keep_dropped_positives": False,
    "scale_by_temperature": False,
    **_PAIRWISE,
}
_OTHER_VIEW = {
    "negatives": "other_view",
    "mining": "none",
    "negative_reduction": "mean",
    **_PAIRWISE,
}
_SWD = {
    "weight": 5.0,
    "normalization": "mean",
    "normalize": False,
    "scale": 1.0,
    "similarity_products": "auto",
}
LOSS_OPTIONS: dict[str, dict[str, Any]] = {
    "ntxent": {"temperature": 0.1, "negatives": "all_views", **_PAIRWISE},
    "supcon": _SUPCON,
    "supcon_in": _SUPCON,
    "sincere": {"temperature": 0.1, **_PAIRWISE},
    "eps_supinfonce": {
        "temperature": 0.1,
        "epsilon": 0.25,
        "epsilon_in": "logit",
        **_PAIRWISE,
    },
    "npairs": {"temperature": 1.0, **_PAIRWISE},
    "triplet": {"margin": 0.2, **_PAIRWISE},
    "margin": {"margin": 0.4, **_OTHER_VIEW},
    "nt_logistic": {"temperature": 0.1, **_OTHER_VIEW},
    "decoupled_ntxent": {"temperature": 1.0, "weight": 0.1, **_PAIRWISE},
    "align_uniform": {
        "temperature": 0.5,
        "weight": 1.0,
        "include_self": True,
        "normalize": True,
        "scale": 1.0,
        "block_size": 0,
        "similarity_products": "auto",
    },
    "swd_hypersphere": {**_SWD, "normalize": True, "scale": 1000.0},
    "swd_normal": _SWD,
    "swd_hypercube": _SWD,
    "moco": {"temperature": 0.1, **_PAIRWISE},
    "cross_entropy": {"label_smoothing": 0.0, "reduction": "mean"},
}
SUPERVISED_LOSSES = (
    *("supcon", "supcon_in", "sincere", "eps_supinfonce"),
    *("npairs", "triplet", "cross_entropy"),
)
# Losses whose positives are the image's other views.
VIEW_LOSSES = tuple(n for n in LOSS_OPTIONS if n not in SUPERVISED_LOSSES)
LOSSES = tuple(LOSS_OPTIONS)
REDUCTIONS = ("mean", "sum")
# An option of some of them, with a default of each.
_option = functools.partial(option, None, components=LOSS_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Loss:
    """The loss. An option that is None has the loss's default."""

    loss: str = option("ntxent", "contrastive loss", choices=LOSSES)
    # Beyond these float32 leaves nothing of differences, or of a gradient.
    temperature: float | None = _option(
        "divides the similarities", minimum=1e-4, maximum=1e4
    )
    contrast: str | None = _option(
        "anchors: all views, or the first view of each image",
        choices=("all_views", "one_view"),
    )
    denominator: str | None = _option(
        "candidates in the denominator: all others, the positive of the term"
        " and negatives, or negatives",
        choices=("all", "one_positive", "only_negatives"),
    )
    positives_cap: int | None = _option(
        "positives per anchor, at most", minimum=1
    )
    keep_dropped_positives: bool | None = _option(
        "keep positives beyond --positives_cap in the denominator"
    )
    scale_by_temperature: bool | None = _option(
        "multiply the loss by the temperature"
    )
    epsilon: float | None = _option("margin between positives and negatives")
    epsilon_in: str | None = _option(
        "whether --epsilon is a margin of logits or of cosines",
        choices=("logit", "cosine"),
    )
    margin: float | None = _option(
        "margin of squared distances (triplet) or of cosines (margin)"
    )
    negatives: str | None = _option(
        "candidates: all views, or only those of the other view",
        choices=("all_views", "other_view"),
    )
    mining: str | None = _option(
        "which negatives count", choices=("none", "semi_hard")
    )
    negative_reduction: str | None = _option(
        "reduction over an anchor's negatives", choices=REDUCTIONS
    )
    loss_weight: float | None = _option(
        "weight (lambda) of the distribution term"
    )
    include_self: bool | None = _option("count an anchor among its candidates")
    loss_normalization: str | None = _option(
        "divisor of the Wasserstein distance: that of Algorithm 1 (paper), or"
        " one that makes it independent of the batch size (mean)",
        choices=("mean", "paper"),
    )
    loss_scale: float | None = _option("factor of the whole loss", above=0.0)
    label_smoothing: float | None = _option(
        "fraction of the target spread over all classes", maximum=0.9999
    )
    loss_normalize: bool | None = _option(
        "l2-normalize projections inside the loss"
    )
    loss_reduction: str | None = _option(
        "reduction over the anchors of the global batch", choices=REDUCTIONS
    )
    loss_block_size: int | None = _option(
        "anchors compared at a time; 0: chosen by the batch size",
        identity=False,
    )
    similarity_products: str | None = _option(
        "precision of the loss's matrix products on devices that round float32:"
        " plain, or split into three products that are nearly float32; auto:"
        " split on TPUs and on GPUs with TF32",
        choices=("auto", "plain", "split"),
        identity=False,
    )
    key_momentum: float = option(
        0.999,
        "momentum of the key encoder's moving average (moco)",
        maximum=0.9999999,
    )
    queue_size: int = option(
        65_536, "keys of earlier batches kept as negatives (moco)", minimum=1
    )
    grad_cache_chunks: int = option(
        1,
        "chunks in which a replica's images pass through the encoder: less"
        " memory, a third more time; the loss still sees the whole batch",
        minimum=1,
    )

    def options(self) -> dict[str, Any]:
        """Returns what was set, as options of `losses.build`."""
        return given_options(self, "loss", LOSS_OPTIONS)


def resolve_products(loss: Loss, rounded_by_device: bool) -> str | None:
    """Returns `similarity_products` with `auto` resolved; None: no option."""
    if "similarity_products" not in LOSS_OPTIONS[loss.loss]:
        return None
    if loss.similarity_products in (None, "auto"):
        return "split" if rounded_by_device else "plain"
    return loss.similarity_products


def check_chunks(chunks: int, batch_size: int, replicas: int) -> None:
    """Raises `UserError` if the chunks do not divide a replica's images."""
    per_replica = batch_size // replicas
    if per_replica % chunks:
        fitting = [c for c in range(1, per_replica + 1) if per_replica % c == 0]
        best = min(fitting, key=lambda c: abs(c - chunks))
        raise UserError(
            f"grad_cache_chunks={chunks} does not divide the {per_replica}"
            f" images of a replica: set grad_cache_chunks={best}"
        )


def check_labels(loss: str, dataset: str, has_labels: bool) -> None:
    """Raises `UserError` if a supervised loss has no labels."""
    if loss in SUPERVISED_LOSSES and not has_labels:
        raise UserError(
            f"loss={loss} needs labels, and {dataset} has none: use a dataset"
            " of two or more classes, or a loss without labels"
            f" ({', '.join(VIEW_LOSSES)})"
        )


def chance_loss(loss: Loss, views: int, batch_size: int) -> float | None:
    """Returns the loss in nats if all candidates look alike, where known."""
    other = {"denominator", "negatives", "positives_cap", "reduction"}
    softmax = loss.loss in ("ntxent", "supcon", "supcon_in")
    if not softmax or other & set(loss.options()):
        return None
    options = LOSS_OPTIONS[loss.loss] | loss.options()
    scale = options["temperature"] if options.get("scale_by_temperature") else 1
    # A softmax over all other views of the batch.
    return scale * math.log(views * batch_size - 1)
