"""Losses: their options, defaults and traits."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from tf_contrastive.base import callables
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import own
from tf_contrastive.config.command import Group
from tf_contrastive.config.components import Component, Family, by_name
from tf_contrastive.config.fields import argument, option

REDUCTIONS = ("mean", "sum")
_PRODUCTS = ("auto", "plain", "split")


# ---- Options that several losses have ----------------------------------------


def _temperature(default: float) -> Any:
    # Beyond these float32 leaves nothing of differences, or of a gradient.
    return option(
        default, "divides the similarities", minimum=1e-4, maximum=1e4
    )


def _normalize(default: bool) -> Any:
    return option(default, "l2-normalize projections inside the loss")


def _weight(default: float) -> Any:
    return option(default, "weight (lambda) of the distribution term")


def _scale(default: float | None) -> Any:
    return option(
        default,
        "factor of the whole loss; auto: 1000 (swd_hypersphere, and"
        " decoupled_ntxent of normalized mean squares), or 1",
        above=0.0,
    )


def _margin(default: float) -> Any:
    return option(
        default, "margin of squared distances (triplet) or of cosines (margin)"
    )


def _negatives(default: str) -> Any:
    return option(
        default,
        "candidates: all views, or only those of the other view",
        choices=("all_views", "other_view"),
    )


def _denominator() -> Any:
    return option(
        "all",
        "candidates in the denominator: all others, the positive of the term"
        " and negatives, or negatives (DCL, with ntxent)",
        choices=("all", "one_positive", "only_negatives"),
    )


# ---- The losses --------------------------------------------------------------


class LossDeclaration(Component):
    """Traits of a loss.

    Attributes:
      needs_labels: whether positives are of the same class; otherwise they are
        the image's other views.
      takes_logits: whether the head has an output per class; such a loss takes
        mixed labels, too.
      takes_keys: whether a momentum encoder makes keys of the second view, and
        keeps earlier ones in a queue.
      has_one_positive: whether an anchor has one positive, of another image.
      takes_small_views: whether it tells anchors from candidates, or takes
        each view alone, so that there may be small views.
      head: defaults of a run's projection head, as in the authors' code.
        SimCLR's head ends in BatchNorm without an offset.
    """

    head: ClassVar[Mapping[str, bool]] = {"batch_norm": True, "bias": False}
    needs_labels = False
    takes_logits = False
    takes_keys = False
    has_one_positive = False
    takes_small_views = True

    @property
    def allows_unlabelled(self) -> bool:
        """Whether an image may have the label -1, which means none."""
        return getattr(self, "unlabelled", "refuse") == "own_views"

    @property
    def compares_two_views(self) -> bool:
        """Whether there must be two views, neither fewer nor more."""
        return getattr(self, "negatives", "") == "other_view" or self.takes_keys

    def chance_level(self, candidates: int) -> float | None:
        """Returns the loss in nats if all candidates look alike, if known."""
        del candidates
        return None

    def balanced_weight(self, size: int) -> float | None:
        """Returns its weight as NT-Xent, for projections of `size`, if any.

        A lower one pulls views together harder than it pushes images apart.
        """
        del size
        return None


class _Blockwise(LossDeclaration):
    block_size: int | None = argument(None, minimum=1)
    similarity_products: str = argument("auto", choices=_PRODUCTS)


class Pairwise(_Blockwise):
    """A mean over anchors, each compared with the global batch's embeddings."""

    normalize: bool = _normalize(True)
    reduction: str = argument("mean", choices=REDUCTIONS)


class NTXent(Pairwise):
    """NT-Xent."""

    name = "ntxent"
    implementation = "tf_contrastive.losses.ntxent"

    temperature: float = _temperature(0.1)
    negatives: str = _negatives("all_views")
    denominator: str = _denominator()
    tau_plus: float = option(
        0.0,
        "share of an anchor's negatives that are of its class, of which the"
        " denominator is freed (debiased)",
        maximum=0.99,
    )
    beta: float = option(
        0.0,
        "concentration of negatives on those that are near the anchor (hard"
        " negatives)",
        maximum=1e3,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau_plus and not self.normalize:
            raise UserError(
                f"{arg('tau_plus', self.tau_plus)} bounds sums of normalized"
                f" projections: leave out {arg('normalize', False)}"
            )

    def chance_level(self, candidates: int) -> float | None:
        """The logarithm of the candidates."""
        usual = (
            self.negatives == "all_views"
            and self.denominator == "all"
            and self.reduction == "mean"
        )
        return math.log(candidates) if usual else None


class _OfClasses(Pairwise):
    """Each other image of the class is a positive."""

    implementation = "tf_contrastive.losses.supcon"
    needs_labels = True
    # google-research/supcon, --use_projection_batch_norm=False.
    head: ClassVar = {"batch_norm": False, "bias": False}

    overlap: str = option(
        "any",
        "weight of a positive where images have several labels: any: 1 if they"
        " share one; jaccard: labels in common over labels of either",
        choices=("any", "jaccard"),
    )
    # Of images with the label -1. A run takes it from how it reads its data.
    unlabelled: str = argument("refuse", choices=("refuse", "own_views"))
    unlabelled_negatives: bool = argument(True)


class SupCon(_OfClasses):
    """SupCon, L_out."""

    name = "supcon"

    temperature: float = _temperature(0.1)
    contrast: str = argument("all_views", choices=("all_views", "one_view"))
    denominator: str = _denominator()
    positives_cap: int | None = option(
        None, "positives per anchor, at most; auto: all", minimum=1
    )
    keep_dropped_positives: bool = argument(False)
    scale_by_temperature: bool = option(
        False, "multiply the loss by the temperature"
    )

    def chance_level(self, candidates: int) -> float | None:
        """The logarithm of the candidates."""
        usual = (
            self.denominator == "all"
            and self.positives_cap is None
            and self.reduction == "mean"
        )
        scale = self.temperature if self.scale_by_temperature else 1.0
        return scale * math.log(candidates) if usual else None


class SupConIn(SupCon):
    """SupCon, L_in."""

    name = "supcon_in"


class Sincere(_OfClasses):
    """SINCERE."""

    name = "sincere"
    # tufts-ml/SupContrast, resnet_big.py.
    head: ClassVar = {"batch_norm": False, "bias": True}

    temperature: float = _temperature(0.1)


class EpsSupInfoNCE(Sincere):
    """epsilon-SupInfoNCE."""

    name = "eps_supinfonce"

    epsilon: float = option(0.25, "margin between positives and negatives")
    # Whether it is a margin of logits or of cosines.
    epsilon_in: str = argument("logit", choices=("logit", "cosine"))


class NPairs(Pairwise):
    """N-pairs."""

    name = "npairs"
    implementation = "tf_contrastive.losses.ntxent"
    needs_labels = True
    has_one_positive = True

    temperature: float = _temperature(1.0)


class Triplet(Pairwise):
    """Triplet loss, batch-hard."""

    name = "triplet"
    implementation = "tf_contrastive.losses.margins"
    needs_labels = True

    margin: float = _margin(0.2)


class _AgainstNegatives(Pairwise):
    implementation = "tf_contrastive.losses.margins"

    negatives: str = _negatives("other_view")
    mining: str = option(
        "none", "which negatives count", choices=("none", "semi_hard")
    )
    negative_reduction: str = argument("mean", choices=REDUCTIONS)


class Margin(_AgainstNegatives):
    """Margin triplet."""

    name = "margin"

    margin: float = _margin(0.4)


class NTLogistic(_AgainstNegatives):
    """NT-Logistic."""

    name = "nt_logistic"

    temperature: float = _temperature(0.1)


class DecoupledNTXent(Pairwise):
    """Decoupled NT-Xent."""

    name = "decoupled_ntxent"
    implementation = "tf_contrastive.losses.ntxent"

    temperature: float = _temperature(1.0)
    weight: float = _weight(0.1)
    alignment: str = option(
        "mean_square",
        "attraction of views: mean square of their difference over the"
        " projection's dimensions (Intriguing Properties, table 1), or their"
        " similarity (equation 5)",
        choices=("mean_square", "similarity"),
    )
    scale: float | None = _scale(None)

    def balanced_weight(self, size: int) -> float | None:
        """The temperature; over `size` / 2 with mean squares."""
        divisor = size / 2 if self.alignment == "mean_square" else 1.0
        return self.temperature / divisor

    def factor(self) -> float:
        """`scale`, or what it is by default."""
        averaged = self.alignment == "mean_square" and self.normalize
        return self.scale or (1000.0 if averaged else 1.0)


class AlignUniform(_Blockwise):
    """Alignment and uniformity."""

    name = "align_uniform"
    implementation = "tf_contrastive.losses.generalized"
    takes_small_views = False

    temperature: float = _temperature(0.5)
    weight: float = _weight(1.0)
    include_self: bool = argument(True)
    normalize: bool = _normalize(True)
    scale: float = _scale(1.0)

    def balanced_weight(self, size: int) -> float | None:
        """The temperature, over `size` / 2."""
        return self.temperature / (size / 2)


class SlicedWasserstein(LossDeclaration):
    """Alignment, and the sliced Wasserstein distance to a prior."""

    implementation = "tf_contrastive.losses.generalized"
    takes_small_views = False

    weight: float = _weight(5.0)
    normalization: str = argument("mean", choices=("mean", "paper"))
    normalize: bool = _normalize(False)
    scale: float = _scale(1.0)
    similarity_products: str = argument("auto", choices=_PRODUCTS)


class SWDHypersphere(SlicedWasserstein):
    """A uniform prior on the unit hypersphere."""

    name = "swd_hypersphere"

    normalize: bool = _normalize(True)
    scale: float = _scale(1000.0)


class SWDNormal(SlicedWasserstein):
    """A standard normal prior."""

    name = "swd_normal"


class SWDHypercube(SlicedWasserstein):
    """A uniform prior in the hypercube."""

    name = "swd_hypercube"


class MoCo(Pairwise):
    """Momentum contrast."""

    name = "moco"
    implementation = "tf_contrastive.losses.moco"
    takes_keys = True
    takes_small_views = False

    temperature: float = _temperature(0.1)


class CrossEntropy(LossDeclaration):
    """Cross entropy."""

    name = "cross_entropy"
    implementation = "tf_contrastive.losses.cross_entropy"
    needs_labels = True
    takes_logits = True

    label_smoothing: float = option(
        0.0, "fraction of the target spread over all classes", maximum=0.9999
    )
    reduction: str = argument("mean", choices=REDUCTIONS)


LOSSES: dict[str, type[LossDeclaration]] = by_name(
    [
        NTXent,
        SupCon,
        SupConIn,
        Sincere,
        EpsSupInfoNCE,
        NPairs,
        Triplet,
        Margin,
        NTLogistic,
        DecoupledNTXent,
        AlignUniform,
        SWDHypersphere,
        SWDNormal,
        SWDHypercube,
        MoCo,
        CrossEntropy,
    ]
)


# ---- A loss of your own ------------------------------------------------------


def wrong_form(part: Any, why: str = "") -> UserError:
    """Returns the error for something that is no loss."""
    part = getattr(part, "__self__", part)  # Of a method.
    return UserError(
        f"loss {callables.name_of(part)} is of the wrong form{why}: must be a"
        " function (projections, labels) -> loss, a Keras layer of these, or of"
        " a subclass of losses.ContrastiveLoss with a method call(projections,"
        " labels)"
    )


def function_inputs(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what a function that is a loss takes.

    Its first parameter is the projections, and a second one without a default,
    or named `labels`, the labels; `seed` is a seed. Others are its options.

    Returns:
      "inputs", the names of those, and whether it "needs_labels".
    """
    if isinstance(function, type) or not callable(function):
        raise wrong_form(function)
    parameters = callables.parameters(function).values()
    if any(p.name in ("y_true", "y_pred") for p in parameters):
        # Its first argument would be the projections.
        raise wrong_form(function, ", as it takes (y_true, y_pred)")
    needed = [
        p.name for p in parameters if p.default is p.empty and p.name != "seed"
    ]
    if not 1 <= len(needed) <= 2 or any(
        p.kind is p.KEYWORD_ONLY for p in parameters if p.name in needed
    ):
        raise wrong_form(function)
    known = [p.name for p in parameters if p.name in ("labels", "seed")]
    return {
        "inputs": tuple(dict.fromkeys([*needed, *known])),
        "needs_labels": len(needed) == 2,
    }


@functools.cache
def own_loss(name: str) -> type[LossDeclaration]:
    """Returns the declaration of a loss of your own, `module:name`."""
    part = own.load("loss", name)
    if isinstance(part, type) and issubclass(part, LossDeclaration):
        names = ("needs_labels", "takes_logits", "takes_keys", "head")
        traits, inputs = {name: getattr(part, name) for name in names}, ()
    else:
        traits = function_inputs(part)
        inputs = traits.pop("inputs")
    options = callables.options_of(part, inputs)
    return own.declare(name, LossDeclaration, options, **traits)


# ---- Options of a run --------------------------------------------------------


LOSS = Family(
    kind="loss",
    members=LOSSES,
    help="contrastive loss; module:name: a function or a class of your own",
    declare=lambda name: (LOSSES.get(name) or own_loss(name))(),
    flags=(
        *("temperature", "negatives", "epsilon", "margin", "weight"),
        "label_smoothing",
    ),
    prefixed=("weight", "scale", "normalize"),
).option(NTXent())


class BatchOptions(Group):
    """How a batch meets the loss."""

    key_momentum: float = option(
        0.999,
        "momentum of the key encoder's moving average (moco)",
        maximum=0.9999999,
    )
    queue_size: int = option(
        65_536,
        "keys of earlier batches kept as negatives (moco)",
        minimum=1,
        maximum=1 << 24,
    )
    grad_cache_chunks: int = option(
        1,
        "chunks in which a replica's images pass through the encoder: less"
        " memory, a third more time; the loss still sees the whole batch",
        minimum=1,
    )
