"""A linear probe that is trained together with the encoder."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution, heads, optimizers
from tf_contrastive.config.linear import Probe
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.model.contrastive_step import (
    Batch,
    ContrastiveStep,
    Results,
    Schedule,
    Trained,
    refuse_regularizers,
)


class OnlineProbe(ContrastiveStep):
    """Adds the probe's loss and accuracy, where there are labels.

    The probe reads the encoder's features behind a stop-gradient (Chen et al.
    2020, appendix B.6): it measures the features without changing them.

    With a `cross_entropy_weight` it is a classifier that is trained jointly, by
    loss + weight * cross entropy and one optimizer, as google-research/supcon's
    first stage can be (`stage_1_cross_entropy_loss_weight`).
    """

    arguments: tuple[str, ...] = ("probe", "cross_entropy_weight")

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        probe: tf.keras.layers.Layer | None = None,
        cross_entropy_weight: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, projection_head, loss, **kwargs)
        if not 0 <= cross_entropy_weight < math.inf:
            raise ValueError(
                f"cross_entropy_weight={cross_entropy_weight}: must be at least"
                " 0"
            )
        if cross_entropy_weight and probe is None:
            raise ValueError(
                f"cross_entropy_weight={cross_entropy_weight}: there is no"
                " probe to train with the encoder: pass one"
            )
        self.probe = probe
        self.cross_entropy_weight = cross_entropy_weight
        if probe is not None:
            probe(tf.keras.Input(self.encoder.output_shape[1:]))
            refuse_regularizers(probe)
            self.means.add("probe_loss", "probe_accuracy")

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        if run.probe.probe and num_classes:
            weight = run.probe.cross_entropy_weight
            arguments["cross_entropy_weight"] = weight
            arguments["probe"] = heads.LinearProbe(
                num_classes,
                # Zeros have no gradient for the encoder, and LARS keeps them.
                kernel_initializer="glorot_uniform" if weight else "zeros",
                normalize_input=run.setup.l2_normalize_features,
            )
        return arguments

    def further_optimizers(
        self, run: Pretrain, schedule: Callable[..., Schedule]
    ) -> dict[str, tuple[Schedule, Any]]:
        """The probe's optimizer, too."""
        further = super().further_optimizers(run, schedule)
        if self._has_optimizer:
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
        if self._has_optimizer:
            parts["probe_optimizer"] = self.probe_optimizer
        return parts

    def compile(
        self, optimizer: Any, probe_optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Sets the optimizers; the rest is `tf.keras.Model.compile`'s.

        `probe_optimizer` is of a probe that is not trained jointly; None: SGD
        with momentum 0.9.
        """
        super().compile(optimizer, **kwargs)
        if self.cross_entropy_weight and probe_optimizer is not None:
            raise ValueError(
                "probe_optimizer: with a cross_entropy_weight, the probe is"
                " trained by `optimizer`"
            )
        if self.probe is None or not self._has_optimizer:
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
        if self.cross_entropy_weight and batch.labels is None:
            raise ValueError(
                f"cross_entropy_weight={self.cross_entropy_weight} needs"
                " labels: pass (views, labels)"
            )
        if self.probe is None or batch.labels is None:
            return {}
        flat = tf.reshape(features, [-1, features.shape[-1]])  # [B * V, D]
        if not self.cross_entropy_weight:
            flat = tf.stop_gradient(flat)
        logits = self.probe(flat, training=training)
        given = label_checks.check_classes("the probe", batch.labels)
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
        losses = label_checks.known(losses, given, classes, self.unlabelled)
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        values = {
            "probe_loss": losses,
            "probe_accuracy": tf.cast(hits, tf.float32),
        }
        if not self.unlabelled:
            return {name: tf.reduce_mean(x) for name, x in values.items()}
        # Of the labelled images of the global batch, whatever replica has them.
        counted = tf.cast(tf.repeat(given >= 0, features.shape[1]), tf.float32)
        counted /= tf.maximum(self._labelled(batch), 1e-6) * features.shape[1]
        return {name: tf.reduce_sum(counted * x) for name, x in values.items()}

    def weight(self, name: str, batch: Batch) -> tf.Tensor:
        """Of the probe's results that of the images with a label."""
        if self.unlabelled and name in ("probe_loss", "probe_accuracy"):
            return self._labelled(batch)
        return super().weight(name, batch)

    def _labelled(self, batch: Batch) -> tf.Tensor:
        """Labelled images of a replica, in the mean over replicas."""
        labelled = tf.cast(tf.convert_to_tensor(batch.labels) >= 0, tf.float32)
        total = distribution.cross_replica_sum(tf.reduce_sum(labelled))
        return total / distribution.num_replicas()

    def objective(self, results: Results) -> tf.Tensor:
        """The sum of the losses; of joint training one loss."""
        if self.cross_entropy_weight and "probe_loss" in results:
            results = dict(results)
            added = self.cross_entropy_weight * results.pop("probe_loss")
            # Absent in a part of a gradient cache.
            results["loss"] = results.get("loss", 0.0) + added
        return super().objective(results)

    def trained(self) -> dict[str, Trained]:
        """The probe, too, by its own optimizer or jointly."""
        trained = super().trained()
        if self._has_optimizer:
            assert self.probe is not None
            trained["probe_loss"] = Trained(
                self.probe.trainable_variables, self.probe_optimizer
            )
        return trained

    @property
    def pretrained_variables(self) -> list[tf.Variable]:
        """Those of the probe, too, if it is trained jointly."""
        variables = super().pretrained_variables
        if self.cross_entropy_weight:
            assert self.probe is not None
            variables = variables + self.probe.trainable_variables
        return variables

    @property
    def _has_optimizer(self) -> bool:
        """Whether the probe is trained by an optimizer of its own."""
        return self.probe is not None and not self.cross_entropy_weight
