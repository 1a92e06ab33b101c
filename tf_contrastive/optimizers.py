"""Optimizers: LARS, SGD, RMSProp, Adam and AdamW, as the papers mean them.

`weight_decay` is L2: it enters the gradient, and with it the momentum and the
trust ratio; that of AdamW alone is decoupled. Variables of rank 0 and 1, which
are most biases and the gamma and beta of BatchNorm, are neither decayed nor
adapted; those of a higher rank can be exempt by their role in a layer
(`biases_and_scales`). No names are matched.
"""

import math
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tf_contrastive import config

# Where layers of Keras hold what is neither decayed nor adapted.
_EXEMPT_ROLES = ("bias", "gamma", "beta")


class _Optimizer(tf.keras.optimizers.Optimizer):
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


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class SGD(_Optimizer):
    """Stochastic gradient descent with momentum.

    g <- g + weight_decay * w, and, by the style of the momentum,

        classic:  v <- momentum * v + lr * g;  w <- w - v
        popular:  v <- momentum * v + g;       w <- w - lr * v

    (which differ once the learning rate changes; PyTorch's is the popular one).
    In Nesterov's form v is followed by what it will be next with the same
    gradient: momentum * v + lr * g, or momentum * v + g.

    Args:
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form.
      weight_decay: coefficient of the L2 term, see `exempt`.
      momentum_style: "classic" or "popular".
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for an unknown style.

    Sutskever et al. 2013, section 2.
    """

    _SLOTS = ("velocity",)

    def __init__(
        self,
        learning_rate,
        momentum=config.OPTIMIZER_OPTIONS["sgd"]["momentum"],
        nesterov=config.OPTIMIZER_OPTIONS["sgd"]["nesterov"],
        weight_decay=0.0,
        *,
        momentum_style=config.OPTIMIZER_OPTIONS["sgd"]["momentum_style"],
        name=None,
        **kwargs,
    ):
        super().__init__(learning_rate, weight_decay, name, **kwargs)
        if momentum_style not in config.MOMENTUM_STYLES:
            raise config.unknown(
                "momentum style", momentum_style, config.MOMENTUM_STYLES
            )
        self.momentum = momentum
        self.nesterov = nesterov
        self.momentum_style = momentum_style

    def _move(self, gradient, variable, rate):
        if self.momentum_style == "popular":
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


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LARS(SGD):
    """Layer-wise adaptive rate scaling, for large batches.

    `SGD` in which each variable's own learning rate is trust * lr, where

        trust = trust_coefficient * |w| / |g|, or 1 if either norm is 0.

    |g| is the norm after the decay, as in Google's SimCLR and SupCon; other
    packages have other forms. The popular style takes the norm of what lr
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
      momentum_style: "classic" or "popular".
      **kwargs: `clipnorm` and others of a Keras optimizer.

    Raises:
      UserError: for an unknown style.

    You et al. 2017 (arXiv 1708.03888), algorithm 1; SimCLR, section 2.2.
    """

    def __init__(
        self,
        learning_rate,
        momentum=config.OPTIMIZER_OPTIONS["lars"]["momentum"],
        nesterov=config.OPTIMIZER_OPTIONS["lars"]["nesterov"],
        weight_decay=0.0,
        trust_coefficient=config.OPTIMIZER_OPTIONS["lars"]["trust_coefficient"],
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
        if self.momentum_style == "popular":
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


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class RMSProp(_Optimizer):
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
        rho=config.OPTIMIZER_OPTIONS["rmsprop"]["rho"],
        momentum=config.OPTIMIZER_OPTIONS["rmsprop"]["momentum"],
        epsilon=config.OPTIMIZER_OPTIONS["rmsprop"]["epsilon"],
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


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Adam(_Optimizer):
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
        beta_1=config.OPTIMIZER_OPTIONS["adam"]["beta_1"],
        beta_2=config.OPTIMIZER_OPTIONS["adam"]["beta_2"],
        epsilon=config.OPTIMIZER_OPTIONS["adam"]["epsilon"],
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
    name: str = config.Optimizer.optimizer,
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
        raise config.unknown("optimizer", name, OPTIMIZERS)
    known = config.OPTIMIZER_OPTIONS[name]
    for option in options:
        if option not in known:
            raise config.unknown(f"option of {name}", option, known)
    optimizer = OPTIMIZERS[name](learning_rate, **{**known, **options})
    optimizer.exempt(exempt)
    return optimizer
