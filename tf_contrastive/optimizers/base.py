"""L2 weight decay and exemption, which all optimizers share."""

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_contrastive.config import fields
from tf_contrastive.config.optimizer import Optimizer

LearningRate = float | tf.keras.optimizers.schedules.LearningRateSchedule


class L2Decay(tf.keras.optimizers.Optimizer):
    """Adds L2 decay and exemption to the optimizer of Keras that follows.

    The first base class, as in `class SGD(L2Decay, tf.keras.optimizers.SGD)`.
    `weight_decay * w` enters the gradient, and with it the momentum and the
    trust ratio. Variables of rank 0 and 1, and those passed to `exempt`, are
    not decayed. Slots are float32 under every precision policy.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Keras compiles one function per variable, which fails under
        # MirroredStrategy on several GPUs.
        kwargs["jit_compile"] = False
        super().__init__(*args, **kwargs)
        self._exempt: frozenset[Any] = frozenset()

    def exempt(self, variables: Iterable[tf.Variable]) -> None:
        """Excludes variables of any rank from decay and adaptation.

        `get_config` does not include them: exempt them in a copy, too.
        """
        self._exempt |= {self._var_key(variable) for variable in variables}

    def is_exempt(self, variable: tf.Variable) -> bool:
        """Whether a variable is neither decayed nor adapted."""
        return (
            variable.shape.rank <= 1 or self._var_key(variable) in self._exempt
        )

    def decay(self, variable: tf.Variable) -> tf.Tensor | float:
        """Returns the gradient of the L2 term of a variable."""
        # Keras' `exclude_from_weight_decay` concerns the decay only.
        is_decayed = self._use_weight_decay(variable)
        if self.weight_decay and is_decayed and not self.is_exempt(variable):
            return self.weight_decay * variable
        return 0.0

    def _apply_weight_decay(self, variables: list[tf.Variable]) -> None:
        """Disables Keras' decoupled decay."""

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable`; called by Keras, once per variable."""
        gradient = tf.convert_to_tensor(gradient)
        self._update(gradient + self.decay(variable), variable)

    def _update(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable` by a gradient that includes the decay."""
        super().update_step(gradient, variable)


def check_options(**options: Any) -> None:
    """Raises `UserError` for the first value that its option does not allow."""
    fields.check_options(Optimizer, "optimizer_", options)
