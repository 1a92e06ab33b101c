"""RMSProp, as SupCon's linear stage has it."""

import tensorflow as tf

from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.base import Optimizer


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class RMSProp(Optimizer):
    """RMSProp with the constants of SupCon's linear stage.

    g <- g + weight_decay * w;  s <- rho * s + (1 - rho) * g^2;
    v <- momentum * v + lr * g / sqrt(s + epsilon);  w <- w - v.

    s starts at 0 (in TensorFlow 1, as SupCon used it, at 1).

    Args:
      learning_rate: a number or a schedule.
      rho: share of the squared gradients' mean that a step keeps.
      momentum: share of the velocity that a step keeps.
      epsilon: added to s; at 1, it bounds what small gradients are raised to.
      weight_decay: coefficient of the L2 term, see `exempt`.
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Tieleman and Hinton 2012, lecture 6.5.
    """

    _SLOTS = ("square", "velocity")

    def __init__(
        self,
        learning_rate,
        rho=OPTIMIZER_OPTIONS["rmsprop"]["rho"],
        momentum=OPTIMIZER_OPTIONS["rmsprop"]["momentum"],
        epsilon=OPTIMIZER_OPTIONS["rmsprop"]["epsilon"],
        weight_decay=0.0,
        *,
        name=None,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        self.rho = rho
        self.momentum = momentum
        self.epsilon = epsilon

    def _move(self, gradient, variable, rate):
        square = self._average("square", variable, gradient**2, self.rho)
        push = rate * gradient * tf.math.rsqrt(square + self.epsilon)
        return self._accelerate(push, variable)

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {
            **super().get_config(),
            "rho": self.rho,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
        }
