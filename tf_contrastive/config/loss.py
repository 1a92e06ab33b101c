"""What is minimised: the losses, their options, and what they need."""

import dataclasses
from typing import Any

from tf_contrastive.config.fields import given_options, option
from tf_contrastive.errors import UserError

# The options of each loss, with their defaults (`losses.build` reads them).
_PAIRWISE = {"normalize": True, "reduction": "mean", "block_size": 0}
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
        "block_size": 0,
    },
    "swd_hypersphere": {**_SWD, "normalize": True, "scale": 1000.0},
    "swd_normal": _SWD,
    "swd_hypercube": _SWD,
    "moco": {"temperature": 0.1, **_PAIRWISE},
    "cross_entropy": {"label_smoothing": 0.0, "reduction": "mean"},
}
SUPERVISED_LOSSES = (
    "supcon",
    "supcon_in",
    "sincere",
    "eps_supinfonce",
    "npairs",
    "triplet",
    "cross_entropy",
)
# Losses that are a softmax over all other views of the batch, if none of these
# options says otherwise: ln(V * G - 1) where all candidates look alike.
SOFTMAX_OVER_VIEWS = ("ntxent", "supcon", "supcon_in")
OTHER_SOFTMAX = ("denominator", "negatives", "positives_cap", "reduction")
# Losses whose positives are the image's other views.
VIEW_LOSSES = (
    "ntxent",
    "margin",
    "nt_logistic",
    "decoupled_ntxent",
    "align_uniform",
    "swd_hypersphere",
    "swd_normal",
    "swd_hypercube",
    "moco",
)
LOSSES = tuple(LOSS_OPTIONS)
REDUCTIONS = ("mean", "sum")
CONTRASTS = ("all_views", "one_view")
DENOMINATORS = ("all", "one_positive", "only_negatives")
NEGATIVES = ("all_views", "other_view")
MININGS = ("none", "semi_hard")
EPSILON_PLACES = ("logit", "cosine")
NORMALIZATIONS = ("mean", "paper")


@dataclasses.dataclass(frozen=True)
class Loss:
    """What is minimised. An option that is not given is the loss's default."""

    loss: str = option("ntxent", "contrastive loss", choices=LOSSES)
    temperature: float | None = option(
        None, "what similarities are divided by", above=0.0
    )
    contrast: str | None = option(
        None,
        "anchors: all views, or the first alone against all (supcon,"
        " supcon_in)",
        choices=CONTRASTS,
    )
    denominator: str | None = option(
        None,
        "what a positive is compared with: all others, itself and negatives,"
        " negatives (supcon, supcon_in)",
        choices=DENOMINATORS,
    )
    positives_cap: int | None = option(
        None, "positives kept per anchor (supcon, supcon_in)", minimum=1
    )
    keep_dropped_positives: bool | None = option(
        None, "leave capped positives in the denominator (supcon, supcon_in)"
    )
    scale_by_temperature: bool | None = option(
        None, "multiply the loss by the temperature (supcon, supcon_in)"
    )
    epsilon: float | None = option(
        None, "margin of eps_supinfonce", minimum=0.0
    )
    epsilon_in: str | None = option(
        None,
        "whether epsilon is a margin of logits or of cosines (eps_supinfonce)",
        choices=EPSILON_PLACES,
    )
    margin: float | None = option(
        None,
        "margin, of squared distances (triplet) or cosines (margin)",
        minimum=0.0,
    )
    negatives: str | None = option(
        None,
        "candidates: all views, or the other view's alone (ntxent, margin,"
        " nt_logistic)",
        choices=NEGATIVES,
    )
    mining: str | None = option(
        None, "choice of negatives (margin, nt_logistic)", choices=MININGS
    )
    negative_reduction: str | None = option(
        None,
        "how an anchor's negatives are joined (margin, nt_logistic)",
        choices=REDUCTIONS,
    )
    loss_weight: float | None = option(
        None,
        "weight (lambda) of the distribution term (decoupled_ntxent,"
        " align_uniform, swd_*)",
        minimum=0.0,
    )
    include_self: bool | None = option(
        None, "count an anchor among its candidates (align_uniform)"
    )
    loss_normalization: str | None = option(
        None,
        "what the Wasserstein distance is divided by: as Algorithm 1 prints"
        " it, or so that the batch does not matter (swd_*)",
        choices=NORMALIZATIONS,
    )
    loss_scale: float | None = option(
        None, "factor of the whole loss (swd_*)", above=0.0
    )
    label_smoothing: float | None = option(
        None,
        "share of the target spread over all classes (cross_entropy)",
        minimum=0.0,
        maximum=0.9999,
    )
    loss_normalize: bool | None = option(
        None, "l2-normalise projections inside the loss"
    )
    loss_reduction: str | None = option(
        None, "over the anchors of the global batch", choices=REDUCTIONS
    )
    loss_block_size: int | None = option(
        None,
        "anchors compared at a time; 0: as many as suit the batch",
        minimum=0,
        identity=False,
    )
    key_momentum: float = option(
        0.999,
        "momentum of the key encoder's average (moco)",
        minimum=0.0,
        maximum=0.9999999,
    )
    queue_size: int = option(
        65_536, "keys of earlier batches kept as negatives (moco)", minimum=1
    )
    grad_cache_chunks: int = option(
        1,
        "parts in which a replica's images go through the encoder; the loss"
        " still sees the whole batch (memory falls, time grows by a third)",
        minimum=1,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `losses.build`.

        Raises:
          UserError: for an option that the loss does not take.
        """
        return given_options(self, "loss", LOSS_OPTIONS)


def check_chunks(chunks: int, batch_size: int, replicas: int) -> None:
    """Raises `UserError` if a replica's images do not make so many chunks."""
    per_replica = batch_size // replicas
    if per_replica % chunks:
        fitting = [c for c in range(1, per_replica + 1) if per_replica % c == 0]
        best = min(fitting, key=lambda c: abs(c - chunks))
        raise UserError(
            f"grad_cache_chunks={chunks} does not divide the {per_replica}"
            f" images of a replica: give grad_cache_chunks={best}"
        )


def check_labels(loss: str, dataset: str, has_labels: bool) -> None:
    """Raises `UserError` if a supervised loss is to train without labels."""
    if loss in SUPERVISED_LOSSES and not has_labels:
        others = ", ".join(n for n in LOSSES if n not in SUPERVISED_LOSSES)
        raise UserError(
            f"loss={loss} needs labels, and {dataset} has none: give a"
            f" labelled dataset, or a loss without labels ({others})"
        )
