"""Stochastic gradient descent with momentum, and LARS."""

from typing import Any

import tensorflow as tf

from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.base import (
    L2Decay,
    LearningRate,
    check_options,
)

_SGD = OPTIMIZER_OPTIONS["sgd"]
_LARS = OPTIMIZER_OPTIONS["lars"]


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class SGD(L2Decay, tf.keras.optimizers.SGD):
    """Stochastic gradient descent with momentum.

    g <- g + weight_decay * w, and, by the style of the momentum,

        classic:  v <- momentum * v + lr * g;  w <- w - v
        pytorch:  v <- momentum * v + g;       w <- w - lr * v

    which differ once the learning rate changes. Nesterov's form replaces v in
    the step by its next value with the same gradient: momentum * v + lr * g, or
    momentum * v + g.

    Args:
      learning_rate: a number or a schedule.
      momentum: fraction of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form.
      weight_decay: coefficient of the L2 term.
      momentum_style: "classic" or "pytorch".
      name: of the optimizer.
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for a value that is not allowed.

    Sutskever et al. 2013, section 2.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        momentum: float = _SGD["momentum"],
        nesterov: bool = _SGD["nesterov"],
        weight_decay: float = 0.0,
        *,
        momentum_style: str = _SGD["momentum_style"],
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(
            momentum=momentum,
            weight_decay=weight_decay,
            momentum_style=momentum_style,
        )
        super().__init__(
            learning_rate,
            momentum,
            nesterov,
            weight_decay,
            name=name or type(self).__name__,
            **kwargs,
        )
        self.momentum_style = momentum_style

    def _update(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        # Keras' own step has only one style, and compiled graphs round it
        # differently when LARS scales its gradient.
        rate = tf.cast(self.learning_rate, variable.dtype)
        if self.momentum_style == "classic":
            gradient = rate * self._adapt(gradient, variable)
        slot, velocity, step = self._accelerate(gradient, variable)
        slot.assign(velocity)
        if self.momentum_style == "pytorch":
            step = rate * self._adapt(step, variable)
        variable.assign_sub(step)

    def _accelerate(
        self, update: tf.Tensor, variable: tf.Variable
    ) -> tuple[tf.Variable, tf.Tensor, tf.Tensor]:
        """Returns the slot of the velocity, its next value, and the step."""
        slot = self.momentums[self._index_dict[self._var_key(variable)]]
        velocity = self.momentum * slot + update
        if not self.nesterov:
            return slot, velocity, velocity
        return slot, velocity, self.momentum * velocity + update

    def _adapt(self, direction: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Scales what the learning rate multiplies."""
        del variable
        return direction

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments, schedules serialized."""
        config = super().get_config()
        return {**config, "momentum_style": self.momentum_style}


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LARS(SGD):
    """Layer-wise adaptive rate scaling, for large batches.

    `SGD` in which each variable has its own learning rate, trust * lr:

        trust = trust_coefficient * |w| / |g|, or 1 if either norm is 0.

    |g| is the norm after the decay, as in Google's SimCLR and SupCon. In the
    PyTorch style it is the norm of what lr multiplies: the velocity, or what
    replaces it in Nesterov's form, as in their code with
    `classic_momentum=False`. Exempt variables, and those of rank <= 1, have
    trust 1 and no decay.

    Args:
      learning_rate, momentum, nesterov, weight_decay, momentum_style, name,
        **kwargs: see `SGD`.
      trust_coefficient: eta; None disables adaptation, but not the decay.

    You et al. 2017 (arXiv 1708.03888), algorithm 1; SimCLR, section 2.2.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        momentum: float = _LARS["momentum"],
        nesterov: bool = _LARS["nesterov"],
        weight_decay: float = 0.0,
        trust_coefficient: float | None = _LARS["trust_coefficient"],
        *,
        momentum_style: str = _LARS["momentum_style"],
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(trust_coefficient=trust_coefficient)
        super().__init__(
            learning_rate,
            momentum,
            nesterov,
            weight_decay,
            momentum_style=momentum_style,
            name=name,
            **kwargs,
        )
        self.trust_coefficient = trust_coefficient

    def _adapt(self, direction: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        if not self.is_adapted(variable):
            return direction
        return self._trust(direction, variable) * direction

    def _trust(self, direction: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        weight_norm, norm = tf.norm(variable), tf.norm(direction)
        return tf.where(
            (weight_norm > 0) & (norm > 0),
            self.trust_coefficient * tf.math.divide_no_nan(weight_norm, norm),
            1.0,
        )

    def is_adapted(self, variable: tf.Variable) -> bool:
        """Whether a variable has its own learning rate."""
        return self.trust_coefficient is not None and not self.is_exempt(
            variable
        )

    def trust_ratio(
        self, gradient: tf.Tensor, variable: tf.Variable
    ) -> tf.Tensor:
        """Returns the trust of an adapted variable in a step, float32 [].

        Args:
          gradient: of the loss without the decay, in the variable's shape.
          variable: one that the optimizer was built for. The method changes
            neither the variable nor its slots.
        """
        direction = tf.convert_to_tensor(gradient) + self.decay(variable)
        if self.momentum_style == "pytorch":
            direction = self._accelerate(direction, variable)[-1]
        return self._trust(direction, variable)

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments, schedules serialized."""
        config = super().get_config()
        return {**config, "trust_coefficient": self.trust_coefficient}
