"""How weights move: the optimizers, their options and learning rates."""

import dataclasses
from typing import Any

from tf_contrastive.config.fields import given_options, option

# The options of each optimizer, with their defaults (`optimizers.build`).
_MOMENTUM = {"momentum": 0.9, "momentum_style": "classic", "nesterov": False}
# Kingma and Ba 2015, algorithm 1.
_ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # SimCLR, section 2.2; its code's trust coefficient.
    "lars": {**_MOMENTUM, "weight_decay": 1e-6, "trust_coefficient": 0.001},
    "sgd": {**_MOMENTUM, "weight_decay": 1e-6},
    # SupCon's linear stage, as in the authors' code.
    "rmsprop": {
        "momentum": 0.9,
        "rho": 0.9,
        "epsilon": 1.0,
        "weight_decay": 1e-6,
    },
    "adam": {**_ADAM, "weight_decay": 1e-6},
    "adamw": {**_ADAM, "weight_decay": 0.01},
}
OPTIMIZERS = tuple(OPTIMIZER_OPTIONS)
MOMENTUM_STYLES = ("classic", "pytorch")
# The base learning rate of each, per 256 images: SimCLR's; those of SupCon's
# code for its cross entropy and its linear stage; Adam's own.
LEARNING_RATES = {
    "lars": 0.3,
    "sgd": 0.1,
    "rmsprop": 0.05,
    "adam": 0.001,
    "adamw": 0.001,
}

# Batch size at which a base learning rate is quoted (linear scaling).
REFERENCE_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How weights move. What is not given is the optimizer's default."""

    optimizer: str = option("lars", "optimizer", choices=OPTIMIZERS)
    momentum: float | None = option(
        None,
        "share of the velocity that a step keeps (lars, sgd, rmsprop);"
        " default: 0.9",
        minimum=0.0,
        maximum=0.9999,
    )
    momentum_style: str | None = option(
        None,
        "whether the learning rate is part of the velocity (classic; the"
        " default) or multiplies it, as in PyTorch (pytorch) (lars, sgd)",
        choices=MOMENTUM_STYLES,
    )
    nesterov: bool | None = option(
        None, "Nesterov's form of the momentum (lars, sgd)"
    )
    weight_decay: float | None = option(
        None,
        "weight decay, of weights of rank 2 and more that are no bias, scale or"
        " offset: L2, or decoupled from the gradient (adamw); default: 1e-6, or"
        f" {OPTIMIZER_OPTIONS['adamw']['weight_decay']:g} of adamw",
        minimum=0.0,
    )
    trust_coefficient: float | None = option(
        None,
        "trust coefficient (eta) of lars; default:"
        f" {OPTIMIZER_OPTIONS['lars']['trust_coefficient']:g}",
        above=0.0,
    )
    rho: float | None = option(
        None,
        "share of the squares' mean that a step keeps (rmsprop); default:"
        f" {OPTIMIZER_OPTIONS['rmsprop']['rho']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    beta_1: float | None = option(
        None,
        "share of the gradients' mean that a step keeps (adam, adamw); default:"
        f" {_ADAM['beta_1']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    beta_2: float | None = option(
        None,
        "share of the squares' mean that a step keeps (adam, adamw); default:"
        f" {_ADAM['beta_2']:g}",
        minimum=0.0,
        maximum=0.999999,
    )
    optimizer_epsilon: float | None = option(
        None,
        "added to the squares' mean (rmsprop; default:"
        f" {OPTIMIZER_OPTIONS['rmsprop']['epsilon']:g}) or to its root (adam,"
        f" adamw; default: {_ADAM['epsilon']:g})",
        above=0.0,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `optimizers.build`.

        Raises:
          UserError: for an option that the optimizer does not take.
        """
        return given_options(self, "optimizer", OPTIMIZER_OPTIONS)


def resolve_learning_rate(
    learning_rate: float | None, optimizer: str, scaling: str
) -> float:
    """Returns the base learning rate: the given one, or the optimizer's.

    SimCLR, appendix B.1: scaled by sqrt, a quarter of the base gives the same
    at a batch of 4096.
    """
    if learning_rate is not None:
        return learning_rate
    return LEARNING_RATES[optimizer] / (4 if scaling == "sqrt" else 1)
