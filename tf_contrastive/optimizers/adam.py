"""Adam and AdamW."""

import math

import tensorflow as tf

from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.base import Optimizer


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Adam(Optimizer):
    """Adam, with L2 weight decay.

    g <- g + weight_decay * w;  m <- beta_1 * m + (1 - beta_1) * g;
    s <- beta_2 * s + (1 - beta_2) * g^2;  at step t = 1, 2, ...

        w <- w - lr * m / (1 - beta_1^t) / (sqrt(s / (1 - beta_2^t)) + epsilon)

    Args:
      learning_rate: a number or a schedule.
      beta_1: share of the gradients' mean m that a step keeps.
      beta_2: share of the squared gradients' mean s that a step keeps.
      epsilon: added to the root.
      weight_decay: coefficient of the L2 term, see `exempt`.
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Kingma and Ba 2015 (arXiv 1412.6980), algorithm 1.
    """

    _SLOTS = ("mean", "square")

    def __init__(
        self,
        learning_rate,
        beta_1=OPTIMIZER_OPTIONS["adam"]["beta_1"],
        beta_2=OPTIMIZER_OPTIONS["adam"]["beta_2"],
        epsilon=OPTIMIZER_OPTIONS["adam"]["epsilon"],
        weight_decay=0.0,
        *,
        name=None,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def _move(self, gradient, variable, rate):
        mean = self._average("mean", variable, gradient, self.beta_1)
        square = self._average("square", variable, gradient**2, self.beta_2)
        mean /= self._weights_so_far(self.beta_1)
        square /= self._weights_so_far(self.beta_2)
        return rate * mean / (tf.sqrt(square) + self.epsilon)

    def _weights_so_far(self, share):
        """1 - share^t, float32 [], to all digits where share^t is near 1."""
        t = tf.cast(self.iterations + 1, tf.float32)
        log = math.log(share) if share else -math.inf
        return -tf.math.expm1(log * t)

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class AdamW(Adam):
    """Adam with decoupled weight decay; arguments as of `Adam`.

    The L2 term leaves the gradient, and w loses lr * weight_decay * w beside
    its step, as in PyTorch and Keras. (The paper multiplies the decay by the
    schedule alone, and not by the highest learning rate.)

    Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2.
    """

    _DECOUPLED = True
