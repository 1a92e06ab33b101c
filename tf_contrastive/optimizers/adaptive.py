"""RMSProp, Adam and AdamW."""

import math
from typing import Any

import tensorflow as tf

from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.base import (
    L2Decay,
    LearningRate,
    check_options,
)

_RMSPROP = OPTIMIZER_OPTIONS["rmsprop"]
_ADAM = OPTIMIZER_OPTIONS["adam"]


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class RMSProp(L2Decay, tf.keras.optimizers.RMSprop):
    """RMSProp with the constants of SupCon's linear stage.

    g <- g + weight_decay * w;  s <- rho * s + (1 - rho) * g^2;
    v <- momentum * v + lr * g / sqrt(s + epsilon);  w <- w - v.

    s starts at 0 (at 1 in TensorFlow 1, which SupCon used).

    Args:
      learning_rate: a number or a schedule.
      rho: fraction of the squared gradients' mean that a step keeps.
      momentum: fraction of the velocity that a step keeps.
      epsilon: added to s; 1 limits how much small gradients are scaled up.
      weight_decay: coefficient of the L2 term.
      name: of the optimizer.
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for a value that is not allowed.

    Tieleman and Hinton 2012, lecture 6.5.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        rho: float = _RMSPROP["rho"],
        momentum: float = _RMSPROP["momentum"],
        epsilon: float = _RMSPROP["epsilon"],
        weight_decay: float = 0.0,
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(
            rho=rho,
            momentum=momentum,
            epsilon=epsilon,
            weight_decay=weight_decay,
        )
        super().__init__(
            learning_rate,
            rho,
            momentum,
            epsilon,
            weight_decay=weight_decay,
            name=name or type(self).__name__,
            **kwargs,
        )


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Adam(L2Decay, tf.keras.optimizers.Adam):
    """Adam, with L2 weight decay.

    g <- g + weight_decay * w;  m <- beta_1 * m + (1 - beta_1) * g;
    s <- beta_2 * s + (1 - beta_2) * g^2;  at step t = 1, 2, ...

        w <- w - lr * m / (1 - beta_1^t) / (sqrt(s / (1 - beta_2^t)) + epsilon)

    Args:
      learning_rate: a number or a schedule.
      beta_1: fraction of the gradients' mean m that a step keeps.
      beta_2: fraction of the squared gradients' mean s that a step keeps.
      epsilon: added to the root.
      weight_decay: coefficient of the L2 term.
      name: of the optimizer.
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for a value that is not allowed.

    Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1. Keras has only the slots:
    its step is that of section 2, where epsilon is added before the bias of s
    is corrected, and the powers of beta lose digits.
    """

    def __init__(
        self,
        learning_rate: LearningRate,
        beta_1: float = _ADAM["beta_1"],
        beta_2: float = _ADAM["beta_2"],
        epsilon: float = _ADAM["epsilon"],
        weight_decay: float = 0.0,
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        check_options(
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
        )
        super().__init__(
            learning_rate,
            beta_1,
            beta_2,
            epsilon,
            weight_decay=weight_decay,
            name=name or type(self).__name__,
            **kwargs,
        )

    def _update(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        variable.assign_sub(self._step(gradient, variable))

    def _step(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Updates the slots and returns what the variable loses."""
        index = self._index_dict[self._var_key(variable)]
        rate = tf.cast(self.learning_rate, variable.dtype)
        mean = _update_average(self._momentums[index], gradient, self.beta_1)
        square = _update_average(
            self._velocities[index], gradient**2, self.beta_2
        )
        mean /= self._weights_so_far(self.beta_1)
        square /= self._weights_so_far(self.beta_2)
        return rate * mean / (tf.sqrt(square) + self.epsilon)

    def _weights_so_far(self, beta: float) -> tf.Tensor:
        """1 - beta^t, float32 [], accurate where beta^t is near 1."""
        t = tf.cast(self.iterations + 1, tf.float32)
        log = math.log(beta) if beta else -math.inf
        return -tf.math.expm1(log * t)


def _update_average(
    slot: tf.Variable, value: tf.Tensor, beta: float
) -> tf.Tensor:
    average = beta * slot + (1 - beta) * value
    slot.assign(average)
    return average


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class AdamW(Adam):
    """Adam with decoupled weight decay; arguments as for `Adam`.

    The L2 term leaves the gradient. Instead, a step also subtracts
    lr * weight_decay * w, as in PyTorch and Keras. (The paper multiplies the
    decay by the schedule, but not by the highest learning rate.)

    Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2.
    """

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable`; called by Keras, once per variable."""
        step = self._step(tf.convert_to_tensor(gradient), variable)
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign_sub(step + rate * self.decay(variable))
