"""Optimizers: LARS, SGD and RMSProp, with weight decay as the papers mean it.

`weight_decay` is L2: it enters the gradient, and with it the momentum and the
trust ratio. (The argument of that name of Keras' own optimizers is decoupled,
as in AdamW.) Variables of rank 0 and 1, which are biases and the gamma and beta
of BatchNorm, are neither decayed nor adapted; ranks need no names to match.
"""

import tensorflow as tf

from tf_contrastive import config


class _L2:
    """Adds L2 weight decay to a Keras optimizer; stands before it as a base."""

    def __init__(self, *args, weight_decay, **kwargs):
        # Keras compiles one function per variable, which fails under
        # MirroredStrategy on several GPUs.
        kwargs["jit_compile"] = False
        super().__init__(*args, weight_decay=None, **kwargs)
        # Keras' own `weight_decay` attribute would make it decay, too.
        self.l2 = weight_decay

    def update_step(self, gradient, variable):
        """Moves `variable`; called by Keras, once per variable."""
        if variable.shape.rank > 1:
            gradient = self._adapted(
                tf.convert_to_tensor(gradient) + self.l2 * variable, variable
            )
        super().update_step(gradient, variable)

    def _adapted(self, gradient, variable):
        del variable
        return gradient

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {**super().get_config(), "weight_decay": self.l2}


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class SGD(_L2, tf.keras.optimizers.SGD):
    """Stochastic gradient descent with momentum.

    g <- g + weight_decay * w;  v <- momentum * v + lr * g;  w <- w - v, or, in
    Nesterov's form, w <- w - (momentum * v + lr * g).

    Args:
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form.
      weight_decay: coefficient of the L2 term, of variables of rank > 1.
      **kwargs: `name`, `clipnorm` and others of a Keras optimizer.
    """

    def __init__(
        self,
        learning_rate=config.Schedule.learning_rate,
        momentum=config.Optimizer.momentum,
        nesterov=False,
        weight_decay=0.0,
        name="SGD",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class LARS(SGD):
    """Layer-wise adaptive rate scaling, for large batches.

    g <- g + weight_decay * w;  trust = trust_coefficient * |w| / |g|, or 1 if
    either norm is 0;  v <- momentum * v + lr * trust * g;  w <- w - v.
    Variables of rank <= 1 have no decay and trust 1. |g| is the norm after the
    decay, as in Google's SimCLR and SupCon; other packages have other forms.

    Args:
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form, as in `SGD`.
      weight_decay: coefficient of the L2 term.
      trust_coefficient: eta.
      **kwargs: `name`, `clipnorm` and others of a Keras optimizer.

    You et al. 2017 (arXiv 1708.03888), algorithm 1; SimCLR, section 2.2.
    """

    def __init__(
        self,
        learning_rate=config.Schedule.learning_rate,
        momentum=config.Optimizer.momentum,
        nesterov=False,
        weight_decay=0.0,
        trust_coefficient=config.Optimizer.trust_coefficient,
        name="LARS",
        **kwargs,
    ):
        super().__init__(
            learning_rate, momentum, nesterov, weight_decay, name, **kwargs
        )
        self.trust_coefficient = trust_coefficient

    def _adapted(self, gradient, variable):
        weight_norm = tf.norm(variable)
        gradient_norm = tf.norm(gradient)
        trust = tf.where(
            (weight_norm > 0) & (gradient_norm > 0),
            self.trust_coefficient
            * tf.math.divide_no_nan(weight_norm, gradient_norm),
            1.0,
        )
        return trust * gradient

    def get_config(self):
        """Returns all constructor arguments, schedules serialized."""
        return {
            **super().get_config(),
            "trust_coefficient": self.trust_coefficient,
        }


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class RMSProp(_L2, tf.keras.optimizers.RMSprop):
    """RMSProp with the constants of SupCon's linear stage.

    g <- g + weight_decay * w;  s <- rho * s + (1 - rho) * g^2;
    v <- momentum * v + lr * g / sqrt(s + epsilon);  w <- w - v.

    Args:
      learning_rate: a number or a schedule.
      rho: share of the squared gradients' mean that a step keeps.
      momentum: share of the velocity that a step keeps.
      epsilon: added to s; at 1, it bounds what small gradients are raised to.
      weight_decay: coefficient of the L2 term, of variables of rank > 1.
      **kwargs: `name`, `clipnorm` and others of a Keras optimizer.
    """

    def __init__(
        self,
        learning_rate=config.Schedule.learning_rate,
        rho=0.9,
        momentum=config.Optimizer.momentum,
        epsilon=1.0,
        weight_decay=0.0,
        name="RMSProp",
        **kwargs,
    ):
        super().__init__(
            learning_rate,
            rho=rho,
            momentum=momentum,
            epsilon=epsilon,
            weight_decay=weight_decay,
            name=name,
            **kwargs,
        )


def _lars(learning_rate, **options):
    return LARS(learning_rate, **options)


def _sgd(learning_rate, trust_coefficient, **options):
    del trust_coefficient
    return SGD(learning_rate, **options)


def _rmsprop(learning_rate, trust_coefficient, nesterov, **options):
    del trust_coefficient
    if nesterov:
        raise config.UserError(
            "rmsprop has no Nesterov form: give nesterov=False, or sgd or lars"
        )
    return RMSProp(learning_rate, **options)


OPTIMIZERS = {"lars": _lars, "sgd": _sgd, "rmsprop": _rmsprop}


def build(
    name: str = config.Optimizer.optimizer,
    *,
    learning_rate: float | tf.keras.optimizers.schedules.LearningRateSchedule,
    momentum: float = config.Optimizer.momentum,
    nesterov: bool = config.Optimizer.nesterov,
    weight_decay: float = config.Optimizer.weight_decay,
    trust_coefficient: float = config.Optimizer.trust_coefficient,
) -> tf.keras.optimizers.Optimizer:
    """Builds an optimizer; make it under the strategy's scope.

    Args:
      name: "lars", "sgd" or "rmsprop".
      learning_rate: a number or a schedule.
      momentum: share of the velocity that a step keeps.
      nesterov: whether to use Nesterov's form of lars and sgd.
      weight_decay: coefficient of the L2 term, of variables of rank > 1.
      trust_coefficient: eta of lars. The others, which have none, leave it
        alone: it has a default, so that giving it says nothing.

    Raises:
      UserError: for an unknown name, or a Nesterov form that does not exist.
    """
    if name not in OPTIMIZERS:
        raise config.unknown("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name](
        learning_rate,
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        trust_coefficient=trust_coefficient,
    )
