"""A copy of encoder and head on the host's CPU, outside of any strategy."""

import tensorflow as tf

from tf_contrastive import model as models
from tf_contrastive.config.pretrain import Pretrain

# The accelerators' memory is left to the training step.
DEVICE = "CPU:0"


class LocalCopy:
    """Encoder and head as one process holds them, to be called by it alone.

    To read the model itself would need all workers: its moving statistics are
    kept by replica. So their values on this process's first replica are copied,
    and the copy is called in inference mode and in float32. Make it outside of
    the strategy's scope and before the model: it draws initial weights.

    Args:
      run: a resolved config.
      num_classes: of the data, None without labels.

    Attributes:
      encoder: images [N, S, S, K] -> h [N, D].
      head: h -> z [N, P].
    """

    def __init__(self, run: Pretrain, num_classes: int | None) -> None:
        with tf.device(DEVICE), models.precision("float32"):
            self.encoder = models.build_encoder(run, synchronized=False)
            self.head = models.build_head(run, num_classes)
            self.head(tf.keras.Input(self.encoder.output_shape[1:]))

    @property
    def trainable_variables(self) -> list[tf.Variable]:
        """In the order of the model's `pretrained_variables`."""
        return self.encoder.trainable_variables + self.head.trainable_variables

    def follow(self, model: models.ContrastiveModel) -> None:
        """Takes the values that the model has now."""
        strategy = model.distribute_strategy
        for mine, theirs in (
            (self.encoder, model.encoder),
            (self.head, model.projection_head),
        ):
            for to, value in zip(mine.variables, theirs.variables, strict=True):
                to.assign(strategy.experimental_local_results(value)[0])
