"""LARS: a learning rate for each layer."""

import tensorflow as tf

from tf_contrastive.config.optimizer import OPTIMIZER_OPTIONS
from tf_contrastive.optimizers.sgd import SGD


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LARS(SGD):
    """Layer-wise adaptive rate scaling, for large batches.

    `SGD` in which each variable's own learning rate is trust * lr, where

        trust = trust_coefficient * |w| / |g|, or 1 if either norm is 0.

    |g| is the norm after the decay, as in Google's SimCLR and SupCon; other
    packages have other forms. The PyTorch style takes the norm of what lr
    multiplies, the velocity (or what Nesterov's form has in its place), as
    theirs does with `classic_momentum=False`. Exempt variables, and those of
    rank <= 1, have trust 1 and no decay.

    Args:
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form.
      weight_decay: coefficient of the L2 term.
      trust_coefficient: eta; None: no variable is adapted, as if all were
        exempt, but decayed they are.
      momentum_style: "classic" or "pytorch".
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for an unknown style.

    You et al. 2017 (arXiv 1708.03888), algorithm 1; SimCLR, section 2.2.
    """

    def __init__(
        self,
        learning_rate,
        momentum=OPTIMIZER_OPTIONS["lars"]["momentum"],
        nesterov=OPTIMIZER_OPTIONS["lars"]["nesterov"],
        weight_decay=0.0,
        trust_coefficient=OPTIMIZER_OPTIONS["lars"]["trust_coefficient"],
        *,
        name=None,
        **kwargs,
    ):
        super().__init__(
            learning_rate, momentum, nesterov, weight_decay, name=name, **kwargs
        )
        self.trust_coefficient = trust_coefficient

    def _adapted(self, direction, variable):
        if not self.is_adapted(variable):
            return direction
        return self._trust(direction, variable) * direction

    def _trust(self, direction, variable):
        weight_norm, norm = tf.norm(variable), tf.norm(direction)
        return tf.where(
            (weight_norm > 0) & (norm > 0),
            self.trust_coefficient * tf.math.divide_no_nan(weight_norm, norm),
            1.0,
        )

    def is_adapted(self, variable: tf.Variable) -> bool:
        """Whether a variable has a learning rate of its own."""
        return self.trust_coefficient is not None and not self._is_exempt(
            variable
        )

    def trust_ratio(
        self, gradient: tf.Tensor, variable: tf.Variable
    ) -> tf.Tensor:
        """The trust that a step would give to an adapted variable, float32 [].

        Args:
          gradient: of the loss, the variable's shape; without the decay.
          variable: one of those that the optimizer was built for. Neither it
            nor its slots are changed.
        """
        direction = tf.convert_to_tensor(gradient)
        if self.weight_decay and self._is_decayed(variable):
            direction += self.weight_decay * variable
        if self.momentum_style == "pytorch":
            velocity = self.momentum * self._slot("velocity", variable)
            velocity += direction
            if self.nesterov:
                velocity = self.momentum * velocity + direction
            direction = velocity
        return self._trust(direction, variable)

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {
            **super().get_config(),
            "trust_coefficient": self.trust_coefficient,
        }
