"""Learning rates: a linear warm-up, then a cosine to the floor, or a constant.

Everything that a user states in epochs becomes steps here, once.
"""

import math

import tensorflow as tf

from tf_contrastive import config


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class WarmUp(tf.keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly from `floor * peak` to `peak`, and stays there.

    Args:
      peak: the highest learning rate.
      warmup_steps: steps until then; step `warmup_steps` is the first at peak.
      total_steps: steps of the run.
      floor: share of the peak at which the schedule starts.

    """

    def __init__(self, peak, warmup_steps, total_steps, floor=0.0):
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.floor = floor

    def __call__(self, step):
        """Returns the learning rate, float32 [], of `step`, int []."""
        step = tf.cast(step, tf.float32)
        risen = step / max(self.warmup_steps, 1)
        decay_steps = max(self.total_steps - self.warmup_steps, 1)
        # A run that is continued beyond its end stays at the last value.
        progress = tf.minimum((step - self.warmup_steps) / decay_steps, 1.0)
        share = tf.where(step < self.warmup_steps, risen, self._share(progress))
        return self.peak * (self.floor + (1 - self.floor) * share)

    def _share(self, progress):
        """The part between floor and peak, at `progress` after the warm-up."""
        return tf.ones_like(progress)

    def get_config(self):
        """Returns all constructor arguments."""
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "floor": self.floor,
        }


@tf.keras.utils.register_keras_serializable("tf_contrastive")
class WarmUpCosine(WarmUp):
    """As `WarmUp`, then falls to `floor * peak` by half a cosine, no restarts.

    SimCLR, section 2.2; SGDR (arXiv 1608.03983), equation 5 with one cycle.
    """

    def _share(self, progress):
        return 0.5 * (1 + tf.cos(math.pi * progress))


SCHEDULES = {"cosine": WarmUpCosine, "constant": WarmUp}


def peak(
    base_learning_rate: float,
    batch_size: int,
    scaling: str = config.Schedule.learning_rate_scaling,
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
    if scaling not in config.SCALINGS:
        raise config.unknown("learning rate scaling", scaling, config.SCALINGS)
    if scaling == "linear":
        return base_learning_rate * batch_size / config.REFERENCE_BATCH_SIZE
    if scaling == "sqrt":
        return base_learning_rate * math.sqrt(batch_size)
    return base_learning_rate


def resolve_warmup(warmup_epochs: float, epochs: float) -> float:
    """Returns the warm-up in epochs; -1: 10, at most a tenth of the run."""
    return min(10.0, epochs / 10) if warmup_epochs == -1 else warmup_epochs


def build(
    name: str = config.Schedule.schedule,
    *,
    base_learning_rate: float,
    batch_size: int,
    steps_per_epoch: int,
    epochs: float,
    warmup_epochs: float = 0.0,
    scaling: str = config.Schedule.learning_rate_scaling,
    floor: float = config.Schedule.learning_rate_floor,
) -> tf.keras.optimizers.schedules.LearningRateSchedule:
    """Builds the learning rate schedule of a run.

    Args:
      name: "cosine" or "constant", after the warm-up.
      base_learning_rate: before scaling, see `peak`.
      batch_size: images per step over all replicas.
      steps_per_epoch: steps of an epoch.
      epochs: epochs of the run.
      warmup_epochs: epochs of linear warm-up, which may be fractions; -1: 10,
        and at most a tenth of the run.
      scaling: how the peak grows with the batch, see `peak`.
      floor: share of the peak at which the schedule starts, and cosine ends.

    Returns:
      A serializable schedule: step int [] to float32 [].

    Raises:
      UserError: for an unknown name or scaling, or a warm-up beyond the end.
    """
    if name not in SCHEDULES:
        raise config.unknown("schedule", name, SCHEDULES)
    warmup_epochs = resolve_warmup(warmup_epochs, epochs)
    if not 0 <= warmup_epochs <= epochs:
        raise config.UserError(
            f"warmup_epochs={warmup_epochs:g}: give -1, or 0 to"
            f" epochs={epochs:g}"
        )
    return SCHEDULES[name](
        peak(base_learning_rate, batch_size, scaling),
        warmup_steps=round(warmup_epochs * steps_per_epoch),
        total_steps=round(epochs * steps_per_epoch),
        floor=floor,
    )
