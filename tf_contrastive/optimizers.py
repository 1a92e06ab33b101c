"""Optimizers as in the papers: LARS, SGD, RMSProp, Adam and AdamW.

`weight_decay` is L2: it enters the gradient, and with it the momentum and the
trust ratio; AdamW's is decoupled. Variables of rank 0 and 1, and those passed
to `exempt`, are neither decayed nor adapted; `decay_all=True` decays them, as
in PyTorch. Other arguments are those of a Keras optimizer, with the defaults of
`config.optimizer`.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf

from tf_contrastive.config import checks, components
from tf_contrastive.config import optimizer as declared
from tf_contrastive.distribution import all_finite, joined

_Schedule: TypeAlias = tf.keras.optimizers.schedules.LearningRateSchedule
LearningRate: TypeAlias = float | _Schedule
_serializable = tf.keras.utils.register_keras_serializable("tf_contrastive")


class _L2Decay(tf.keras.optimizers.Optimizer):
    """Adds L2 decay and exemption to the optimizer of Keras that follows.

    Slots are float32 under every precision policy.

    Attributes:
      skips_non_finite: whether an update with a gradient that is not finite is
        skipped, and no step, as by a `LossScaleOptimizer`, which TPUs do not
        have. `get_config` does not include it.
    """

    declaration: type[declared.OptimizerDeclaration]
    # Options that Keras' optimizer does not have.
    _own_options: tuple[str, ...] = ()

    def __init__(
        self,
        learning_rate: LearningRate,
        *,
        decay_all: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> None:
        for option in ("amsgrad", "use_ema"):
            if options.get(option):
                raise ValueError(f"{option}=True: is not supported")
        defaults = self.declaration.defaults() | {"weight_decay": 0.0}
        del defaults["decay_all"]
        options = defaults | options
        self.declaration(**{option: options[option] for option in defaults})
        checks.check_float32({"learning_rate": learning_rate, **options})
        own = {option: options.pop(option) for option in self._own_options}
        # Keras compiles one function per variable, which fails under
        # MirroredStrategy on several GPUs.
        options["jit_compile"] = False
        name = name or type(self).__name__
        super().__init__(learning_rate, name=name, **options)
        for option, value in own.items():
            setattr(self, option, value)
        self.decay_all = decay_all
        self._exempt: frozenset[Any] = frozenset()
        self.skips_non_finite = False

    def exempt(self, variables: Iterable[tf.Variable]) -> None:
        """Excludes variables of any rank, as if theirs were 1.

        `get_config` does not include them: exempt them in a copy, too.
        """
        self._exempt |= {self._var_key(variable) for variable in variables}

    def is_exempt(self, variable: tf.Variable) -> bool:
        """Whether a variable is not adapted, and not decayed by default."""
        return (
            variable.shape.rank <= 1 or self._var_key(variable) in self._exempt
        )

    def decay(self, variable: tf.Variable) -> tf.Tensor | float:
        """Returns the gradient of the L2 term of a variable."""
        # Keras' `exclude_from_weight_decay` concerns the decay only.
        is_decayed = self._use_weight_decay(variable) and (
            self.decay_all or not self.is_exempt(variable)
        )
        if self.weight_decay and is_decayed:
            return self.weight_decay * variable
        return 0.0

    def _apply_weight_decay(self, variables: list[tf.Variable]) -> None:
        """Disables Keras' decoupled decay."""

    def _distributed_apply_gradients_fn(
        self,
        distribution: tf.distribute.Strategy,
        grads_and_vars: list[tuple[tf.Tensor, tf.Variable]],
        **kwargs: Any,
    ) -> tf.Tensor:
        """Updates all variables by gradients that are summed over replicas."""
        update = super()._distributed_apply_gradients_fn
        if not self.skips_non_finite:
            return update(distribution, grads_and_vars, **kwargs)

        def apply() -> None:
            update(distribution, grads_and_vars, **kwargs)

        # All replicas have the same sums: those of the first decide. The first
        # number of `SGD` is a velocity.
        sums = (
            distribution.experimental_local_results(
                tf.nest.flatten(gradient)[0]
            )[0]
            for gradient, _ in grads_and_vars
        )
        tf.cond(all_finite(sums), apply, lambda: None)
        return tf.identity(self.iterations)

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable` by its gradient and its decay."""
        self._update(self._decayed(gradient, variable), variable)

    def _decayed(self, gradient: tf.Tensor, variable: tf.Variable) -> tf.Tensor:
        """Returns a gradient with that of the L2 term."""
        gradient = tf.convert_to_tensor(gradient)
        decay = self.decay(variable)
        return gradient + decay if tf.is_tensor(decay) else gradient

    def _update(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Updates `variable` by a gradient that includes the decay."""
        super().update_step(gradient, variable)

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments, schedules serialized."""
        own = {option: getattr(self, option) for option in self._own_options}
        own["decay_all"] = self.decay_all
        return {**super().get_config(), **own}


@_serializable
class SGD(_L2Decay, tf.keras.optimizers.SGD):
    """Stochastic gradient descent with momentum.

    g <- g + weight_decay * w, and, by the style of the momentum,

        classic:  v <- momentum * v + lr * g;  w <- w - v
        pytorch:  v <- momentum * v + g;       w <- w - lr * v

    which differ once the learning rate changes. Nesterov's form replaces v in
    the step by its next value with the same gradient: momentum * v + lr * g, or
    momentum * v + g. Sutskever et al. 2013, section 2.

    Raises:
      UserError: for a value that is not allowed, as in the other optimizers.
    """

    declaration = declared.SGD
    _own_options: tuple[str, ...] = ("momentum_style",)

    def __init__(
        self,
        learning_rate: LearningRate,
        momentum: float = declared.SGD.momentum,
        nesterov: bool = declared.SGD.nesterov,
        weight_decay: float = 0.0,
        *,
        momentum_style: str = declared.SGD.momentum_style,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            weight_decay=weight_decay,
            momentum_style=momentum_style,
            **kwargs,
        )

    def _internal_apply_gradients(
        self, grads_and_vars: Sequence[tuple[tf.Tensor, tf.Variable]]
    ) -> tf.Tensor:
        """Computes the steps of all variables, then takes them."""
        # Keras' own step has only one style, and compiled graphs round it
        # differently when LARS scales its gradient.
        variables = [variable for _, variable in grads_and_vars]
        gradients = [
            joined.as_vector(self._decayed(*pair)) for pair in grads_and_vars
        ]
        slots = [joined.as_vector(self._slot(x)) for x in variables]
        trusts = self._trusts(variables, gradients, slots)
        plain = [i for i in range(len(variables)) if i not in trusts]
        moved = joined.elementwise(
            self._moved,
            [gradients[i] for i in plain],
            [slots[i] for i in plain],
        )
        steps = dict(zip(plain, moved, strict=True)) | {
            i: self._moved(gradients[i], slots[i], trust)
            for i, trust in trusts.items()
        }
        return super()._internal_apply_gradients(
            [(steps[i], variable) for i, variable in enumerate(variables)]
        )

    def _slot(self, variable: tf.Variable) -> tf.Variable:
        return self.momentums[self._index_dict[self._var_key(variable)]]

    def _trusts(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        slots: Sequence[tf.Tensor],
    ) -> dict[int, tf.Tensor]:
        """Returns what scales the learning rate, by numbers of variables."""
        del variables, gradients, slots
        return {}

    def _moved(
        self,
        gradient: tf.Tensor,
        slot: tf.Tensor,
        trust: tf.Tensor | None = None,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the next velocity, and the step of the variable."""
        rate = tf.cast(self.learning_rate, gradient.dtype)

        def scaled(x: tf.Tensor) -> tf.Tensor:
            return rate * (x if trust is None else trust * x)

        if self.momentum_style == "classic":
            return self._next(scaled(gradient), slot)
        velocity, step = self._next(gradient, slot)
        return velocity, scaled(step)

    def _next(
        self, gradient: tf.Tensor, slot: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the next velocity, and in Nesterov's form the one after."""
        velocity = self.momentum * slot + gradient
        if not self.nesterov:
            return velocity, velocity
        return velocity, self.momentum * velocity + gradient

    def update_step(
        self, gradient: tuple[tf.Tensor, tf.Tensor], variable: tf.Variable
    ) -> None:
        """Takes the next velocity of `variable`, and its step."""
        velocity, step = gradient
        slot = self._slot(variable)
        slot.assign(tf.reshape(velocity, slot.shape))
        variable.assign_sub(tf.reshape(step, variable.shape))


@_serializable
class LARS(SGD):
    """Layer-wise adaptive rate scaling, for large batches.

    `SGD` in which each variable has its own learning rate, trust * lr:

        trust = trust_coefficient * |w| / |g|, or 1 if either norm is 0.

    |g| is the norm after the decay, as in Google's SimCLR and SupCon. In the
    PyTorch style it is the norm of what lr multiplies: the velocity, or what
    replaces it in Nesterov's form, as in their code with
    `classic_momentum=False`. Exempt variables, and those of rank <= 1, have
    trust 1 and no decay. You et al. 2017 (arXiv 1708.03888), algorithm 1;
    SimCLR, section 2.2.

    Args: as for `SGD`, and
      trust_coefficient: eta; None disables adaptation, but not the decay.
    """

    declaration = declared.LARS
    _own_options = ("momentum_style", "trust_coefficient")

    def _trusts(
        self,
        variables: Sequence[tf.Variable],
        gradients: Sequence[tf.Tensor],
        slots: Sequence[tf.Tensor],
    ) -> dict[int, tf.Tensor]:
        """Returns the trust ratios of the variables that are adapted."""
        adapted = [i for i, x in enumerate(variables) if not self.is_exempt(x)]
        if self.trust_coefficient is None or not adapted:
            return {}
        pairs = []
        for i in adapted:
            direction = gradients[i]
            if self.momentum_style == "pytorch":
                _, direction = self._next(direction, slots[i])
            pairs += [joined.as_vector(variables[i]), direction]
        norms = joined.norms(pairs)
        of_weights, of_directions = norms[::2], norms[1::2]
        ratios = tf.where(
            (of_weights > 0) & (of_directions > 0),
            self.trust_coefficient
            * tf.math.divide_no_nan(of_weights, of_directions),
            1.0,
        )
        return dict(zip(adapted, tf.unstack(ratios), strict=True))


@_serializable
class RMSProp(_L2Decay, tf.keras.optimizers.RMSprop):
    """RMSProp with the constants of SupCon's code.

    g <- g + weight_decay * w;  s <- rho * s + (1 - rho) * g^2;
    v <- momentum * v + lr * g / sqrt(s + epsilon);  w <- w - v.

    s starts at 0 (at 1 in TensorFlow 1, which SupCon used). An epsilon of 1,
    their first stage's, limits how much small gradients are scaled up; the
    linear stage has 0.001. Tieleman and Hinton 2012, lecture 6.5.
    """

    declaration = declared.RMSProp


@_serializable
class Adam(_L2Decay, tf.keras.optimizers.Adam):
    """Adam, with L2 weight decay.

    g <- g + weight_decay * w;  m <- beta_1 * m + (1 - beta_1) * g;
    s <- beta_2 * s + (1 - beta_2) * g^2;  at step t = 1, 2, ...
    w <- w - lr * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m / (sqrt(s) + epsilon)

    Kingma and Ba 2015 (arXiv 1412.6980), in the form of section 2: epsilon is
    added before the bias of s is corrected, as in Keras, whose step it is.
    """

    declaration = declared.Adam


@_serializable
class AdamW(Adam):
    """Adam with decoupled weight decay; arguments as for `Adam`.

    Instead of the L2 term, a step also subtracts lr * weight_decay * w, as in
    PyTorch and Keras. (The paper's decay lacks the highest learning rate.)
    Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2.
    """

    declaration = declared.AdamW

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        """Decays `variable`, and updates it by its gradient."""
        rate = tf.cast(self.learning_rate, variable.dtype)
        variable.assign(variable - rate * self.decay(variable))
        self._update(tf.convert_to_tensor(gradient), variable)


OPTIMIZERS = components.implementations(declared.OPTIMIZERS)


def biases_and_scales(*models: tf.Module) -> list[tf.Variable]:
    """Returns the variables that shift or scale, for `build(exempt=...)`.

    These are the `bias`, `gamma` and `beta` of the layers of built models, of
    any rank: multi-head attention has biases of rank 2.
    """
    layers = [layer for m in models for layer in (m, *m.submodules)]
    variables = [
        getattr(layer, role, None)
        for layer in layers
        if isinstance(layer, tf.keras.layers.Layer)
        for role in ("bias", "gamma", "beta")
    ]
    unique = {id(v): v for v in variables if isinstance(v, tf.Variable)}
    return list(unique.values())


def build(
    name: str = declared.LARS.name,
    *,
    learning_rate: LearningRate,
    exempt: Iterable[tf.Variable] = (),
    **options: Any,
) -> tf.keras.optimizers.Optimizer:
    """Builds an optimizer by its name, under the strategy's scope.

    Args:
      name: a key of `OPTIMIZERS`.
      learning_rate: a number or a schedule.
      exempt: variables of rank 2 and more that are neither decayed nor
        adapted, such as those of `biases_and_scales`.
      **options: arguments of the optimizer. The default of `weight_decay` is
        the declaration's, and 0 in the constructors, as in Keras and PyTorch.

    Raises:
      UserError: for an unknown name, option or value.
    """
    known = components.pick("optimizer", name, declared.OPTIMIZERS, options)
    options = known.defaults() | options
    optimizer = OPTIMIZERS[name](learning_rate, **options)
    optimizer.exempt(exempt)
    return optimizer
