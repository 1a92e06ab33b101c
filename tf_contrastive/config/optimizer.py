"""Optimizers: their options, defaults and base learning rates."""

import math
from typing import Any, ClassVar

from tf_contrastive.config.components import Component, Family, by_name
from tf_contrastive.config.fields import argument, option

# Batch size at which a base learning rate is quoted (linear scaling).
REFERENCE_BATCH_SIZE = 256


def _momentum() -> Any:
    return option(0.9, "decay rate of the velocity", maximum=0.9999)


def _weight_decay(default: float) -> Any:
    return option(
        default,
        "weight decay of kernels (not of biases, scales and offsets): L2, or"
        " decoupled (adamw)",
    )


class OptimizerDeclaration(Component):
    """Traits of an optimizer.

    Attributes:
      learning_rate: its usual base learning rate, per 256 images.
      peak_rates: the lowest and highest peak that trains; weights hardly move
        below, and diverge above.
      scales_by_weights: whether its steps are in proportion to the weights,
        which must not start at zero then.
      is_adaptive: whether its steps do not depend on the gradients' scale.
    """

    implementation: ClassVar[str] = "tf_contrastive.optimizers"
    learning_rate: ClassVar[float]
    peak_rates: ClassVar[tuple[float, float]]
    scales_by_weights: ClassVar[bool] = False
    is_adaptive: ClassVar[bool] = False

    weight_decay: float = _weight_decay(1e-6)
    decay_all: bool = option(
        False,
        "decay biases, scales and offsets, too, as PyTorch's optimizers do",
    )


class SGD(OptimizerDeclaration):
    """Stochastic gradient descent; the rate of SupCon's code."""

    name = "sgd"
    learning_rate = 0.1
    peak_rates = 0.0, 2.0

    momentum: float = _momentum()
    momentum_style: str = option(
        "classic",
        "classic: the velocity includes the learning rate; pytorch: the"
        " learning rate multiplies the velocity",
        choices=("classic", "pytorch"),
    )
    nesterov: bool = option(False, "Nesterov momentum")


class LARS(SGD):
    """SimCLR, section 2.2; the trust coefficient of its code."""

    name = "lars"
    learning_rate = 0.3
    # It moves a weight by a thousandth of its rate.
    peak_rates = 0.05, math.inf
    scales_by_weights = True

    trust_coefficient: float = argument(0.001, above=0.0)


class RMSProp(OptimizerDeclaration):
    """The first stage of SupCon's code, and the rate of its linear stage."""

    name = "rmsprop"
    learning_rate = 0.05
    peak_rates = 0.0, 1.0

    momentum: float = _momentum()
    rho: float = argument(0.9, maximum=0.999999)
    epsilon: float = argument(1.0, above=0.0)


class Adam(OptimizerDeclaration):
    """Kingma and Ba 2015, algorithm 1."""

    name = "adam"
    learning_rate = 0.001
    peak_rates = 0.0, 0.02
    is_adaptive = True

    beta_1: float = argument(0.9, maximum=0.999999)
    beta_2: float = argument(0.999, maximum=0.999999)
    epsilon: float = argument(1e-8, above=0.0)


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    name = "adamw"

    weight_decay: float = _weight_decay(0.01)


OPTIMIZERS: dict[str, type[OptimizerDeclaration]] = by_name(
    [LARS, SGD, RMSProp, Adam, AdamW]
)


def optimizer_option(
    default: OptimizerDeclaration, flags: tuple[str, ...], **family: Any
) -> Any:
    """The option of the optimizer; see `components.Family`."""
    return Family(
        kind="optimizer",
        members=OPTIMIZERS,
        help="optimizer",
        flags=flags,
        **family,
    ).option(default)


def resolve_learning_rate(
    learning_rate: float | None, optimizer: OptimizerDeclaration, scaling: str
) -> float:
    """Returns the base learning rate: `learning_rate`, or the optimizer's.

    With sqrt scaling a quarter of the base gives the same rate at batch size
    4096 (SimCLR, appendix B.1).
    """
    if learning_rate is not None:
        return learning_rate
    return optimizer.learning_rate / (4 if scaling == "sqrt" else 1)
