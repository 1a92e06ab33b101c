"""Learning rates: a linear warm-up, then one of several ways down.

Everything that a user states in epochs becomes steps here, once.
"""

import math
from typing import Any

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.optimizer import REFERENCE_BATCH_SIZE
from tf_contrastive.config.schedule import (
    SCALINGS,
    SCHEDULE_OPTIONS,
    Schedule,
    check_boundaries,
    resolve_warmup,
)


class _Schedule(tf.keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up from `floor * peak` to `peak`; subclasses go on.

    Args:
      peak: the highest learning rate.
      steps_per_epoch: steps of an epoch.
      epochs: epochs of the run, the warm-up included.
      warmup_epochs: epochs until the first step at the peak.
      floor: share of the peak from which it rises and towards which it decays.
    """

    def __init__(
        self, peak, *, steps_per_epoch, epochs, warmup_epochs=0.0, floor=0.0
    ):
        self.peak = peak
        self.steps_per_epoch = steps_per_epoch
        self.epochs = epochs
        self.warmup_epochs = warmup_epochs
        self.floor = floor
        self._warmup_steps = self._steps(warmup_epochs)

    def _steps(self, epochs):
        return round(epochs * self.steps_per_epoch)

    def __call__(self, step):
        """Returns the learning rate, float32 [], of `step`, int []."""
        step = tf.cast(step, tf.float32)
        share = tf.where(
            step < self._warmup_steps,
            step / max(self._warmup_steps, 1),
            self._share(step),
        )
        return self.peak * (self.floor + (1 - self.floor) * share)

    def _share(self, step):
        """The part between floor and peak, at a step after the warm-up."""
        raise NotImplementedError

    def _left(self, step):
        """What is left of the run after the warm-up, from 1 to 0."""
        way = max(self._steps(self.epochs) - self._warmup_steps, 1)
        # A run that is continued beyond its end stays at the last value.
        return 1 - tf.minimum((step - self._warmup_steps) / way, 1.0)

    def get_config(self):
        """Returns all constructor arguments."""
        return {
            "peak": self.peak,
            "steps_per_epoch": self.steps_per_epoch,
            "epochs": self.epochs,
            "warmup_epochs": self.warmup_epochs,
            "floor": self.floor,
        }


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Constant(_Schedule):
    """Stays at the peak once it is there. Arguments as of `Exponential`."""

    def _share(self, step):
        return tf.ones_like(step)


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Cosine(_Schedule):
    """Falls to `floor * peak` by half a cosine, without restarts.

    SimCLR, section 2.2; SGDR (arXiv 1608.03983), equation 5 with one cycle.
    Arguments as of `Exponential`.
    """

    def _share(self, step):
        return 0.5 * (1 - tf.cos(math.pi * self._left(step)))


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Linear(_Schedule):
    """Falls to `floor * peak` in a line. Arguments as of `Exponential`."""

    def _share(self, step):
        return self._left(step)


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Exponential(_Schedule):
    """Decays by the same factor every so many epochs after the warm-up.

    Args:
      peak: the highest learning rate.
      decay_rate: the factor, in (0, 1].
      decay_epochs: epochs from decay to decay, which may be fractions.
      staircase: whether it decays at once after so many epochs, or a little at
        every step.
      **run: `steps_per_epoch`, of the run; its `epochs`; `warmup_epochs` of
        linear warm-up, by default none; `floor`, share of the peak from which
        it rises and towards which it decays, by default 0.

    Khosla et al. 2020, supplement: the learning rate of RMSProp in the linear
    stage.
    """

    def __init__(self, peak, *, decay_rate, decay_epochs, staircase, **run):
        super().__init__(peak, **run)
        self.decay_rate = decay_rate
        self.decay_epochs = decay_epochs
        self.staircase = staircase

    def _share(self, step):
        decay_steps = self.decay_epochs * self.steps_per_epoch
        decays = (step - self._warmup_steps) / decay_steps
        if self.staircase:
            decays = tf.floor(decays)
        # Keeps digits that a power of the rounded rate would lose.
        return tf.exp(math.log(self.decay_rate) * decays)

    def get_config(self):
        """Returns all constructor arguments."""
        return {
            **super().get_config(),
            "decay_rate": self.decay_rate,
            "decay_epochs": self.decay_epochs,
            "staircase": self.staircase,
        }


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class Piecewise(_Schedule):
    """Decays by the same factor at each of the given epochs.

    Args:
      peak: the highest learning rate.
      decay_rate: the factor, in (0, 1].
      boundaries: rising epochs of the run, warm-up included, whose first step
        is the first at the next lower rate.
      **run: as of `Exponential`.

    He et al. 2016 (arXiv 1512.03385), section 3.4.
    """

    def __init__(self, peak, *, decay_rate, boundaries, **run):
        super().__init__(peak, **run)
        self.decay_rate = decay_rate
        self.boundaries = tuple(boundaries)

    def _share(self, step):
        starts = [float(self._steps(epochs)) for epochs in self.boundaries]
        # Looked up, since powers of floats are not exact.
        shares = [self.decay_rate**n for n in range(len(starts) + 1)]
        passed = tf.reduce_sum(tf.cast(step >= starts, tf.int32))
        return tf.gather(tf.constant(shares, tf.float32), passed)

    def get_config(self):
        """Returns all constructor arguments."""
        return {
            **super().get_config(),
            "decay_rate": self.decay_rate,
            "boundaries": list(self.boundaries),
        }


SCHEDULES = {
    "cosine": Cosine,
    "linear": Linear,
    "exponential": Exponential,
    "piecewise": Piecewise,
    "constant": Constant,
}


def peak(
    base_learning_rate: float,
    batch_size: int,
    scaling: str = Schedule.learning_rate_scaling,
) -> float:
    """Scales a base learning rate to the global batch.

    Args:
      base_learning_rate: per 256 images (linear), or per root of an image.
      batch_size: images per step over all replicas.
      scaling: "linear": base * batch / 256; "sqrt": base * sqrt(batch); or
        "none".

    Raises:
      UserError: for an unknown scaling.

    SimCLR, section 2.2 and appendix B.1.
    """
    if scaling not in SCALINGS:
        raise errors.unknown("learning rate scaling", scaling, SCALINGS)
    if scaling == "linear":
        return base_learning_rate * batch_size / REFERENCE_BATCH_SIZE
    if scaling == "sqrt":
        return base_learning_rate * math.sqrt(batch_size)
    return base_learning_rate


def build(
    name: str = Schedule.schedule,
    *,
    base_learning_rate: float,
    batch_size: int,
    steps_per_epoch: int,
    epochs: float,
    warmup_epochs: float = 0.0,
    scaling: str = Schedule.learning_rate_scaling,
    floor: float = Schedule.learning_rate_floor,
    **options: Any,
) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate schedule of a run.

    Args:
      name: a key of `SCHEDULES`: what follows the warm-up.
      base_learning_rate: before scaling, see `peak`.
      batch_size: images per step over all replicas.
      steps_per_epoch: steps of an epoch.
      epochs: epochs of the run.
      warmup_epochs: epochs of linear warm-up, which may be fractions; -1: 10,
        and at most a tenth of the run.
      scaling: how the peak grows with the batch, see `peak`.
      floor: share of the peak at which the warm-up starts, and towards which
        the rate decays.
      **options: those of the schedule; what is not given has the default of
        `config.SCHEDULE_OPTIONS[name]`. exponential: `decay_rate`,
        `decay_epochs` from decay to decay after the warm-up, `staircase`;
        piecewise: `decay_rate`, `boundaries`, epochs of the run.

    Returns:
      A serializable schedule: step int [] to float32 [].

    Raises:
      UserError: for an unknown name, scaling or option, a warm-up beyond the
        end, or boundaries that are not between the warm-up and the end.
    """
    if name not in SCHEDULES:
        raise errors.unknown("schedule", name, SCHEDULES)
    known = SCHEDULE_OPTIONS[name]
    for option in options:
        if option not in known:
            raise errors.unknown(f"option of {name}", option, known)
    warmup_epochs = resolve_warmup(warmup_epochs, epochs)
    if not 0 <= warmup_epochs <= epochs:
        raise errors.UserError(
            f"warmup_epochs={warmup_epochs:g}: give -1, or 0 to"
            f" epochs={epochs:g}"
        )
    options = {**known, **options}
    if "boundaries" in options:
        check_boundaries(options["boundaries"], warmup_epochs, epochs)
    return SCHEDULES[name](
        peak(base_learning_rate, batch_size, scaling),
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        warmup_epochs=warmup_epochs,
        floor=floor,
        **options,
    )
