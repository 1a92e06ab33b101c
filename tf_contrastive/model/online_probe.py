"""A linear probe that is trained together with the encoder."""

from typing import Any

import tensorflow as tf

from tf_contrastive.config.linear import Probe
from tf_contrastive.model.contrastive import Batch, ContrastiveStep, Results


class OnlineProbe(ContrastiveStep):
    """Adds the probe's loss and accuracy, where there are labels.

    The probe reads the encoder's features behind a stop-gradient (Chen et al.
    2020, appendix B.6): it measures the features without changing them.
    """

    def __init__(
        self,
        *args: Any,
        probe: tf.keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.probe = probe
        if probe is not None:
            probe(tf.keras.Input(self.encoder.output_shape[1:]))
            self.means.add("probe_loss", "probe_accuracy")

    def compile(
        self, optimizer: Any, probe_optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Sets the optimizers; the rest is `tf.keras.Model.compile`'s.

        Args:
          optimizer: of the encoder and the projection head.
          probe_optimizer: of the probe; None: SGD with momentum 0.9.
          **kwargs: such as `steps_per_execution` and `jit_compile`.
        """
        super().compile(optimizer, **kwargs)
        if self.probe is None:
            return
        if probe_optimizer is None:
            probe_optimizer = tf.keras.optimizers.SGD(
                Probe.probe_learning_rate, momentum=0.9, jit_compile=False
            )
        # Like the other one, with loss scaling in half precision.
        self.probe_optimizer = self._get_optimizer(probe_optimizer)
        self.probe_optimizer.build(self.probe.trainable_variables)

    def classify(
        self, features: tf.Tensor, batch: Batch, training: bool
    ) -> Results:
        """The probe's softmax cross entropy and accuracy."""
        if self.probe is None or batch.labels is None:
            return {}
        flat = tf.reshape(features, [-1, features.shape[-1]])  # [B * V, D]
        logits = self.probe(tf.stop_gradient(flat), training=training)
        labels = tf.cast(batch.labels, tf.int32)
        labels = tf.repeat(labels, features.shape[1])  # [B * V]
        targets = tf.convert_to_tensor(batch.targets)
        if targets.shape.rank == 3:
            fractions = tf.reshape(targets, [-1, targets.shape[-1]])
            losses = tf.nn.softmax_cross_entropy_with_logits(fractions, logits)
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {
            "probe_loss": tf.reduce_mean(losses),
            "probe_accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
        }

    def trained_variables(self, batch: Batch) -> list[tf.Variable]:
        """The pretrained variables, then the probe's."""
        variables = super().trained_variables(batch)
        if self.probe is None or batch.labels is None:
            return variables
        return variables + self.probe.trainable_variables

    def update(self, gradients: list[tf.Tensor], results: Results) -> None:
        """Applies gradients, those of the probe by its own optimizer."""
        count = len(self.pretrained_variables)
        super().update(gradients[:count], results)
        if self.probe is not None and gradients[count:]:
            variables = self.probe.trainable_variables
            self.probe_optimizer.apply_gradients(
                zip(gradients[count:], variables, strict=True)
            )
