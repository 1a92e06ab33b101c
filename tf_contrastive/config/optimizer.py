"""Optimizers: their options, defaults and base learning rates."""

import dataclasses
import functools
from typing import Any

from tf_contrastive.config.fields import given_options, option

# The options of each optimizer, with their defaults (`optimizers.build`).
_DECAY = {"weight_decay": 1e-6, "decay_all": False}
_MOMENTUM = {"momentum": 0.9, "momentum_style": "classic", "nesterov": False}
# Kingma and Ba 2015, algorithm 1.
_ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # SimCLR, section 2.2; the trust coefficient of its code.
    "lars": {**_MOMENTUM, **_DECAY, "trust_coefficient": 0.001},
    "sgd": {**_MOMENTUM, **_DECAY},
    # The first stage of SupCon's code; the linear stage has another epsilon.
    "rmsprop": {"momentum": 0.9, "rho": 0.9, "epsilon": 1.0, **_DECAY},
    "adam": {**_ADAM, **_DECAY},
    "adamw": {**_ADAM, **_DECAY, "weight_decay": 0.01},
}
OPTIMIZERS = tuple(OPTIMIZER_OPTIONS)
MOMENTUM_STYLES = ("classic", "pytorch")
# Base learning rate of each, per 256 images: SimCLR's; those of SupCon's code
# for its cross entropy and its linear stage; Adam's own.
LEARNING_RATES = {
    "lars": 0.3,
    "sgd": 0.1,
    "rmsprop": 0.05,
    "adam": 0.001,
    "adamw": 0.001,
}

# Batch size at which a base learning rate is quoted (linear scaling).
REFERENCE_BATCH_SIZE = 256
# An option of some of them, with a default of each.
_option = functools.partial(option, None, components=OPTIMIZER_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The optimizer. An option that is None has the optimizer's default."""

    optimizer: str = option("lars", "optimizer", choices=OPTIMIZERS)
    momentum: float | None = _option(
        "decay rate of the velocity", maximum=0.9999
    )
    momentum_style: str | None = _option(
        "classic: the velocity includes the learning rate; pytorch: the"
        " learning rate multiplies the velocity",
        choices=MOMENTUM_STYLES,
    )
    nesterov: bool | None = _option("Nesterov momentum")
    weight_decay: float | None = _option(
        "weight decay of kernels (not of biases, scales and offsets): L2, or"
        " decoupled (adamw)"
    )
    decay_all: bool | None = _option(
        "decay biases, scales and offsets, too, as PyTorch's optimizers do"
    )
    trust_coefficient: float | None = _option(
        "trust coefficient (eta)", above=0.0
    )
    rho: float | None = _option(
        "decay rate of the mean squared gradient", maximum=0.999999
    )
    beta_1: float | None = _option(
        "decay rate of the mean gradient", maximum=0.999999
    )
    beta_2: float | None = _option(
        "decay rate of the mean squared gradient", maximum=0.999999
    )
    optimizer_epsilon: float | None = _option(
        "added to the mean squared gradient (rmsprop) or to its root (adam,"
        " adamw)",
        above=0.0,
    )

    def options(self, prefix: str = "") -> dict[str, Any]:
        """Returns what was set, as options of `optimizers.build`."""
        return given_options(self, "optimizer", OPTIMIZER_OPTIONS, prefix)


def resolve_learning_rate(
    learning_rate: float | None, optimizer: str, scaling: str
) -> float:
    """Returns the base learning rate: `learning_rate`, or the optimizer's.

    With sqrt scaling a quarter of the base gives the same rate at batch size
    4096 (SimCLR, appendix B.1).
    """
    if learning_rate is not None:
        return learning_rate
    return LEARNING_RATES[optimizer] / (4 if scaling == "sqrt" else 1)
