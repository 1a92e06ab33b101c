"""Stochastic gradient descent with momentum."""

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.optimizer import MOMENTUM_STYLES, OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.base import Optimizer


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    g <- g + weight_decay * w, and, by the style of the momentum,

        classic:  v <- momentum * v + lr * g;  w <- w - v
        pytorch:  v <- momentum * v + g;       w <- w - lr * v

    (which differ once the learning rate changes; PyTorch's is the second).
    In Nesterov's form v is followed by what it will be next with the same
    gradient: momentum * v + lr * g, or momentum * v + g.

    Args:
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form.
      weight_decay: coefficient of the L2 term, see `exempt`.
      momentum_style: "classic" or "pytorch".
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for an unknown style.

    Sutskever et al. 2013, section 2.
    """

    _SLOTS = ("velocity",)

    def __init__(
        self,
        learning_rate,
        momentum=OPTIMIZER_OPTIONS["sgd"]["momentum"],
        nesterov=OPTIMIZER_OPTIONS["sgd"]["nesterov"],
        weight_decay=0.0,
        *,
        momentum_style=OPTIMIZER_OPTIONS["sgd"]["momentum_style"],
        name=None,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        if momentum_style not in MOMENTUM_STYLES:
            raise errors.unknown(
                "momentum style", momentum_style, MOMENTUM_STYLES
            )
        self.momentum = momentum
        self.nesterov = nesterov
        self.momentum_style = momentum_style

    def _move(self, gradient, variable, rate):
        if self.momentum_style == "pytorch":
            return rate * self._adapted(
                self._follow(gradient, variable), variable
            )
        return self._follow(rate * self._adapted(gradient, variable), variable)

    def _follow(self, push, variable):
        velocity = self._accelerate(push, variable)
        return self.momentum * velocity + push if self.nesterov else velocity

    def _adapted(self, direction, variable):
        del variable
        return direction

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "nesterov": self.nesterov,
            "momentum_style": self.momentum_style,
        }
