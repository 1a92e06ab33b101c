"""A linear probe that is trained together with the encoder."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import heads, optimizers
from tf_contrastive.config.linear import Probe
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.model.contrastive_step import (
    Batch,
    ContrastiveStep,
    Results,
    Schedule,
    Trained,
)


class OnlineProbe(ContrastiveStep):
    """Adds the probe's loss and accuracy, where there are labels.

    The probe reads the encoder's features behind a stop-gradient (Chen et al.
    2020, appendix B.6): it measures the features without changing them.
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        probe: tf.keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, projection_head, loss, **kwargs)
        self.probe = probe
        if probe is not None:
            probe(tf.keras.Input(self.encoder.output_shape[1:]))
            self.means.add("probe_loss", "probe_accuracy")

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        probe = tf.keras.saving.serialize_keras_object(self.probe)
        return {**super().get_config(), "probe": probe}

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        if run.probe.probe and num_classes:
            arguments["probe"] = heads.LinearProbe(
                num_classes,
                normalize_input=run.projection.l2_normalize_features,
            )
        return arguments

    def further_optimizers(
        self, run: Pretrain, schedule: Callable[..., Schedule]
    ) -> dict[str, tuple[Schedule, Any]]:
        """The probe's optimizer, too."""
        further = super().further_optimizers(run, schedule)
        if self.probe is not None:
            rate = schedule(base_learning_rate=run.probe.probe_learning_rate)
            further["probe_optimizer"] = (
                rate,
                optimizers.build(
                    "sgd",
                    learning_rate=rate,
                    momentum=0.9,
                    nesterov=True,
                    weight_decay=0.0,
                ),
            )
        return further

    def checkpointed(self) -> dict[str, Any]:
        """The probe and its optimizer, too."""
        parts = super().checkpointed()
        if self.probe is not None:
            parts["probe"] = self.probe
            parts["probe_optimizer"] = self.probe_optimizer
        return parts

    def advice(self, part: str) -> str:
        """What to do if a part of a checkpoint is not finite."""
        if part in ("probe", "probe_optimizer"):
            return "lower `probe_learning_rate`"
        return super().advice(part)

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
        given = tf.convert_to_tensor(batch.labels)
        if given.shape.rank != 1 or not given.dtype.is_integer:
            raise ValueError(
                f"labels of shape {given.shape} and type {given.dtype.name}:"
                " the probe takes integers [B], one class per image; without a"
                " probe, multi-hot [B, C] are allowed, too"
            )
        classes = logits.shape[-1]
        known = label_checks.is_id(given, classes)
        # Of another label the operation fails without saying so.
        labels = tf.cast(tf.where(known, given, 0), tf.int32)
        labels = tf.repeat(labels, features.shape[1])  # [B * V]
        targets = tf.convert_to_tensor(batch.targets)
        if targets.shape.rank == 3:
            fractions = tf.reshape(targets, [-1, targets.shape[-1]])
            losses = tf.nn.softmax_cross_entropy_with_logits(fractions, logits)
        else:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
        losses = label_checks.known(losses, given, classes)
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {
            "probe_loss": tf.reduce_mean(losses),
            "probe_accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
        }

    def trained(self) -> dict[str, Trained]:
        """The probe, too, by its own optimizer."""
        trained = super().trained()
        if self.probe is not None:
            trained["probe_loss"] = Trained(
                self.probe.trainable_variables, self.probe_optimizer
            )
        return trained
