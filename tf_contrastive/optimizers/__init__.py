"""Optimizers: LARS, SGD, RMSProp, Adam and AdamW, as the papers mean them.

`weight_decay` is L2: it enters the gradient, and with it the momentum and the
trust ratio; that of AdamW alone is decoupled. Variables of rank 0 and 1, which
are most biases and the gamma and beta of BatchNorm, are neither decayed nor
adapted; those of a higher rank can be exempt by their role in a layer
(`biases_and_scales`). No names are matched.
"""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS, Optimizer
from tf_contrastive.optimizers.adam import Adam, AdamW
from tf_contrastive.optimizers.lars import LARS
from tf_contrastive.optimizers.rmsprop import RMSProp
from tf_contrastive.optimizers.sgd import SGD

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

# Where layers of Keras hold what is neither decayed nor adapted.
_EXEMPT_ROLES = ("bias", "gamma", "beta")
OPTIMIZERS = {
    "lars": LARS,
    "sgd": SGD,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
}


def biases_and_scales(*models: tf.Module) -> list[tf.Variable]:
    """Returns what `build` is to exempt: variables that shift or scale.

    They are those that a layer holds as its `bias`, `gamma` or `beta`, of any
    rank: multi-head attention has biases of rank 2, and a normalization over
    several axes has a gamma of their rank.

    Args:
      *models: Keras models or layers, built.
    """
    found = {}
    for model in models:
        for layer in (model, *model.submodules):
            if not isinstance(layer, tf.keras.layers.Layer):
                continue
            for role in _EXEMPT_ROLES:
                variable = getattr(layer, role, None)
                if isinstance(variable, tf.Variable):
                    found[id(variable)] = variable
    return list(found.values())


def build(
    name: str = Optimizer.optimizer,
    *,
    learning_rate: float | tf.keras.optimizers.schedules.LearningRateSchedule,
    exempt: Iterable[tf.Variable] = (),
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """Builds an optimizer; make it under the strategy's scope.

    Args:
      name: a key of `OPTIMIZERS`.
      learning_rate: a number or a schedule.
      exempt: variables of rank 2 and more that are not to be decayed or
        adapted, such as those of `biases_and_scales`.
      **options: those of the optimizer, such as `momentum=0.9`; what is not
        given has the default of `config.OPTIMIZER_OPTIONS[name]`.

    Raises:
      UserError: for an unknown name or option.
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
