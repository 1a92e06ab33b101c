"""Learning rates: a linear warm-up, then one of several decays.

Everything that a user sets in epochs becomes steps here.
"""

import dataclasses
import math
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config import checks, components
from tf_contrastive.config import schedule as declared
from tf_contrastive.config.fields import argument
from tf_contrastive.config.optimizer import REFERENCE_BATCH_SIZE
from tf_contrastive.config.schedule import (
    SCALINGS,
    Schedule,
    check_epochs,
    resolve_warmup,
)

_serializable = tf.keras.utils.register_keras_serializable("tf_contrastive")


@dataclasses.dataclass(eq=False)
class _Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up from `floor * peak` to `peak`; subclasses decay it."""

    peak: float
    _: dataclasses.KW_ONLY
    steps_per_epoch: int = argument(dataclasses.MISSING, minimum=1)
    epochs: float = argument(dataclasses.MISSING, above=0.0)
    warmup_epochs: float = 0.0
    floor: float = argument(Schedule.learning_rate_floor, maximum=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()  # Of the declaration.
        checks.check_float32(vars(self))

    def __call__(self, step: int | tf.Tensor) -> tf.Tensor:
        """Returns the learning rate, float32 [], of `step`, int []."""
        step = tf.cast(step, tf.float32)
        fraction = tf.where(
            step < self._warmup_steps,
            step / max(self._warmup_steps, 1),
            self._decay(step),
        )
        return self.peak * (self.floor + (1 - self.floor) * fraction)

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        """Returns the fraction between floor and peak after the warm-up."""
        raise NotImplementedError

    @property
    def _warmup_steps(self) -> int:
        return warmup_steps(self.warmup_epochs, self.steps_per_epoch)

    def _steps(self, epochs: float) -> int:
        return round(epochs * self.steps_per_epoch)

    def _remaining(self, step: tf.Tensor) -> tf.Tensor:
        """What remains of the run after the warm-up, from 1 to 0."""
        steps = max(self._steps(self.epochs) - self._warmup_steps, 1)
        # A run that continues beyond its end keeps the last value.
        return 1 - tf.minimum((step - self._warmup_steps) / steps, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns all constructor arguments."""
        return dataclasses.asdict(self)


@_serializable
class Constant(_Schedule, declared.Constant):
    """Stays at the peak after the warm-up.

    Args:
      peak: the highest learning rate.
      steps_per_epoch, epochs: of the run, including the warm-up.
      warmup_epochs: epochs until the first step at the peak.
      floor: fraction of the peak where the warm-up starts, and decays end.
    """

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        return tf.ones_like(step)


@_serializable
class Cosine(_Schedule, declared.Cosine):
    """Decays to `floor * peak` by half a cosine, without restarts.

    SimCLR, section 2.2; SGDR (arXiv 1608.03983), equation 5 with one cycle.
    Arguments as for `Constant`.
    """

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        return 0.5 * (1 - tf.cos(math.pi * self._remaining(step)))


@_serializable
class Linear(_Schedule, declared.Linear):
    """Decays to `floor * peak` linearly. Arguments as for `Constant`."""

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        return self._remaining(step)


@_serializable
@dataclasses.dataclass(eq=False, kw_only=True)
class Exponential(_Schedule, declared.Exponential):
    """Decays by the same factor at equal intervals after the warm-up.

    Khosla et al. 2020, supplement: the learning rate of RMSProp in the linear
    stage. Further arguments as for `Constant`.
    """

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        decay_steps = self.decay_epochs * self.steps_per_epoch
        decays = tf.floor((step - self._warmup_steps) / decay_steps)
        # Keeps digits that a power of the rounded rate would lose.
        return tf.exp(math.log(self.decay_rate) * decays)


@_serializable
@dataclasses.dataclass(eq=False, kw_only=True)
class Piecewise(_Schedule, declared.Piecewise):
    """Decays by the same factor at each of the given epochs.

    The first step of each has the next lower rate. He et al. 2016 (arXiv
    1512.03385), section 3.4. Further arguments as for `Constant`.
    """

    def _decay(self, step: tf.Tensor) -> tf.Tensor:
        starts = [float(self._steps(epochs)) for epochs in self.decay_epochs]
        # A table, since powers of floats are not exact.
        rates = [self.decay_rate**n for n in range(len(starts) + 1)]
        passed = tf.reduce_sum(tf.cast(step >= starts, tf.int32))
        return tf.gather(tf.constant(rates, tf.float32), passed)


SCHEDULES = components.implementations(declared.SCHEDULES)


def peak(
    base_learning_rate: float,
    batch_size: int,
    scaling: str = Schedule.learning_rate_scaling,
) -> float:
    """Scales a base learning rate to the global batch.

    "linear": base * batch / 256; "sqrt": base * sqrt(batch) (SimCLR, B.1).
    """
    if scaling not in SCALINGS:
        raise errors.unknown("learning rate scaling", scaling, SCALINGS)
    if scaling == "linear":
        return base_learning_rate * batch_size / REFERENCE_BATCH_SIZE
    if scaling == "sqrt":
        return base_learning_rate * math.sqrt(batch_size)
    return base_learning_rate


def warmup_steps(warmup_epochs: float, steps_per_epoch: int) -> int:
    """Returns the steps of a warm-up, 0 for one of less than a step."""
    steps = warmup_epochs * steps_per_epoch
    return round(steps) if steps >= 1 else 0


def build(
    name: str = Schedule.decay.label,
    *,
    base_learning_rate: float,
    batch_size: int,
    steps_per_epoch: int,
    epochs: float,
    warmup_epochs: float | None = 0.0,
    scaling: str = Schedule.learning_rate_scaling,
    floor: float = Schedule.learning_rate_floor,
    **options: Any,
) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate schedule of a run by its name.

    Args:
      name: a key of `SCHEDULES`: the decay after the warm-up.
      base_learning_rate, scaling: see `peak`.
      batch_size: images per step over all replicas.
      steps_per_epoch, epochs: of the run.
      warmup_epochs: epochs of linear warm-up; None: 10, and at most a tenth of
        the run.
      floor: see `Constant`.
      **options: further arguments of `Exponential` or `Piecewise`.

    Raises:
      UserError: for an unknown name, scaling or option, a number that is not
        allowed, or a warm-up or decays outside the run.
    """
    kind = components.pick("schedule", name, declared.SCHEDULES, options)
    warmup_epochs = resolve_warmup(warmup_epochs, epochs)
    schedule = components.implementation(kind)(
        peak(base_learning_rate, batch_size, scaling),
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        floor=floor,
        **options,
    )
    check_epochs(warmup_epochs, epochs, schedule)
    return schedule
