"""Optimizers as in the papers: LARS, SGD, RMSProp, Adam and AdamW.

`weight_decay` is L2: it enters the gradient, and with it the momentum and the
trust ratio; AdamW's is decoupled. Variables of rank 0 and 1, which are most
biases and the gamma and beta of BatchNorm, are neither decayed nor adapted.
Variables of higher rank can be exempt by their role in a layer
(`biases_and_scales`), but not by their name.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS, Optimizer
from tf_contrastive.optimizers.adaptive import Adam, AdamW, RMSProp
from tf_contrastive.optimizers.base import LearningRate
from tf_contrastive.optimizers.sgd import LARS, SGD

__all__ = [
    "LARS",
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "RMSProp",
    "biases_and_scales",
    "build",
]

# Attributes of Keras layers that are neither decayed nor adapted.
_EXEMPT_ROLES = ("bias", "gamma", "beta")
OPTIMIZERS = {
    "lars": LARS,
    "sgd": SGD,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
}


def biases_and_scales(*models: tf.Module) -> list[tf.Variable]:
    """Returns the variables that shift or scale, for `build(exempt=...)`.

    These are the `bias`, `gamma` and `beta` of layers, of any rank: multi-head
    attention has biases of rank 2, and a normalization over several axes has a
    gamma of their rank.

    Args:
      *models: Keras models or layers, built.
    """
    variables = {}
    for model in models:
        for layer in (model, *model.submodules):
            if not isinstance(layer, tf.keras.layers.Layer):
                continue
            for role in _EXEMPT_ROLES:
                variable = getattr(layer, role, None)
                if isinstance(variable, tf.Variable):
                    variables[id(variable)] = variable
    return list(variables.values())


def build(
    name: str = Optimizer.optimizer,
    *,
    learning_rate: LearningRate,
    exempt: Iterable[tf.Variable] = (),
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """Builds an optimizer by its name, under the strategy's scope.

    Args:
      name: a key of `OPTIMIZERS`.
      learning_rate: a number or a schedule.
      exempt: variables of rank 2 and more that are neither decayed nor
        adapted, such as those of `biases_and_scales`.
      **options: arguments of the optimizer, such as `momentum=0.9`. The default
        of `weight_decay` is that of `config.optimizer.OPTIMIZER_OPTIONS[name]`;
        it is 0 in the constructors, as in Keras and PyTorch.

    Raises:
      UserError: for an unknown name, option or value.
    """
    if name not in OPTIMIZERS:
        raise errors.unknown("optimizer", name, OPTIMIZERS)
    known = OPTIMIZER_OPTIONS[name]
    for option in options:
        if option not in known:
            raise errors.unknown(f"option of {name}", option, known)
    optimizer = OPTIMIZERS[name](learning_rate, **{**known, **options})
    optimizer.exempt(exempt)
    return optimizer
