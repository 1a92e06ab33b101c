"""What all optimizers share: learning rate, slots, weight decay."""

from collections.abc import Iterable

import tensorflow as tf


class Optimizer(tf.keras.optimizers.Optimizer):
    """The learning rate, slots and decay of all; a subclass gives the move.

    A slot is float32 [the variable's shape], one for each variable, and starts
    at zero; variables are float32 under the mixed precision policies, too.
    """

    _SLOTS: tuple[str, ...] = ()
    # Whether the decay stands beside the gradient, not in it.
    _DECOUPLED = False

    def __init__(self, learning_rate, weight_decay, name, **kwargs):
        # Keras compiles one function per variable, which fails under
        # MirroredStrategy on several GPUs.
        kwargs["jit_compile"] = False
        super().__init__(name=name or type(self).__name__, **kwargs)
        self._learning_rate = self._build_learning_rate(learning_rate)
        self.weight_decay = weight_decay
        self._exempt = frozenset()

    def exempt(self, variables: Iterable[tf.Variable]) -> None:
        """Neither decays nor adapts `variables`, whatever their rank.

        It is no part of `get_config`: a copy must be told again.
        """
        self._exempt |= {self._var_key(variable) for variable in variables}

    def _is_exempt(self, variable):
        return (
            variable.shape.rank <= 1 or self._var_key(variable) in self._exempt
        )

    def _is_decayed(self, variable):
        # The former is Keras' `exclude_from_weight_decay`, of decay alone.
        return self._use_weight_decay(variable) and not self._is_exempt(
            variable
        )

    def build(self, var_list):
        """Makes the slots of the variables; called by Keras, or in advance."""
        super().build(var_list)
        if getattr(self, "_built", False):
            return
        self._built = True
        self._slots = {
            name: [
                self.add_variable_from_reference(variable, name)
                for variable in var_list
            ]
            for name in self._SLOTS
        }

    def _slot(self, name, variable):
        return self._slots[name][self._index_dict[self._var_key(variable)]]

    def _apply_weight_decay(self, variables):
        """Keras' decay, which is AdamW's; here `update_step` does it."""

    def update_step(self, gradient, variable):
        """Moves `variable`; called by Keras, once per variable."""
        gradient = tf.convert_to_tensor(gradient)
        rate = tf.cast(self.learning_rate, variable.dtype)
        decay = 0.0
        if self.weight_decay and self._is_decayed(variable):
            decay = self.weight_decay * variable
        if self._DECOUPLED:
            move = self._move(gradient, variable, rate) + rate * decay
        else:
            move = self._move(gradient + decay, variable, rate)
        variable.assign_sub(move)

    def _move(self, gradient, variable, rate):
        """What `variable` loses in this step; updates its slots."""
        raise NotImplementedError

    def _average(self, name, variable, value, share):
        """Updates a slot to the moving average of `value`, and returns it."""
        slot = self._slot(name, variable)
        average = share * slot + (1 - share) * value
        slot.assign(average)
        return average

    def _accelerate(self, push, variable):
        """Adds `push` to the velocity, and returns that."""
        slot = self._slot("velocity", variable)
        velocity = self.momentum * slot + push
        slot.assign(velocity)
        return velocity

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        rate = self._serialize_hyperparameter(self._learning_rate)
        return {**super().get_config(), "learning_rate": rate}
