"""The Keras model that is pretrained: encoder, projection head, loss, probe.

Layer 4. `fit` drives it under any `tf.distribute` strategy; the step is the
same function everywhere.
"""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import config, encoders, heads, losses, metrics

# The metrics of a step, in the order of the data flow.
METRICS = ("loss", "contrastive_accuracy", "contrastive_entropy")
PROBE_METRICS = ("probe_loss", "probe_accuracy")


class ContrastiveModel(tf.keras.Model):
    """Trains an encoder by a contrastive loss, and a linear probe beside it.

    The probe reads the encoder's features behind a stop-gradient (Chen et al.
    2020, B.6), so that it tells how good they are without a word in how they
    become.

    Args:
      encoder: images float32 [N, H, W, K] in [0, 1] -> features h [N, D].
      projection_head: h [N, D] -> z [N, P].
      loss: of `losses.build`: (z [B, V, P], labels) -> float32 [].
      probe: h [N, D] -> logits [N, C], or None for no probe.
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        probe: tf.keras.layers.Layer | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.projection_head = projection_head
        self.contrastive_loss = loss
        self.probe = probe
        self._build_heads()
        names = METRICS + (PROBE_METRICS if probe else ())
        # Held where Keras does not look: they are no weights of the model.
        self._meters = types.SimpleNamespace(
            means={name: tf.keras.metrics.Mean(name=name) for name in names},
            input_wait=tf.Variable(0.0, dtype=tf.float64, trainable=False),
        )

    def _build_heads(self) -> None:
        """Makes all variables now: resume restores into them by value."""
        features = tf.keras.Input(self.encoder.output_shape[1:])
        self.projection_head(features)
        if self.probe is not None:
            self.probe(features)
        self.built = True

    def compile(
        self,
        optimizer: Any,
        probe_optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Sets the optimizers; the rest is `tf.keras.Model.compile`'s.

        Args:
          optimizer: of the encoder and the projection head.
          probe_optimizer: of the probe; None: SGD with momentum 0.9.
          **kwargs: such as `steps_per_execution` and `jit_compile`.
        """
        kwargs.setdefault("jit_compile", False)
        super().compile(optimizer=optimizer, **kwargs)
        self.optimizer.build(self.pretrained_variables)
        if self.probe is None:
            return
        self.probe_optimizer = (
            tf.keras.optimizers.get(probe_optimizer)
            if probe_optimizer is not None
            else tf.keras.optimizers.SGD(
                config.Probe.probe_learning_rate,
                momentum=0.9,
                jit_compile=False,
            )
        )
        self.probe_optimizer.build(self.probe.trainable_variables)

    @property
    def pretrained_variables(self) -> list[tf.Variable]:
        """Trainable variables of the encoder, then of the projection head."""
        return (
            self.encoder.trainable_variables
            + self.projection_head.trainable_variables
        )

    @property
    def metrics(self) -> list[tf.keras.metrics.Metric]:
        """The running means, which `fit` resets at every epoch."""
        return list(self._meters.means.values())

    @property
    def input_wait_seconds(self) -> float:
        """How long steps have waited for their input so far."""
        return float(self._meters.input_wait.numpy())

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes images [N, H, W, K] in [0, 1] to features h [N, D]."""
        return self.encoder(images, training=training)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on (views [B, V, H, W, K], labels [B]), or views alone."""
        views, labels, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            losses, results = self._forward(views, labels, training=True)
            # Gradients are summed over replicas, and each loss is a local one
            # whose mean over replicas is the global one.
            replicas = tf.distribute.get_strategy().num_replicas_in_sync
            total = tf.add_n(losses) / replicas
        pretrained = self.pretrained_variables
        with_probe = self.probe is not None and labels is not None
        probe = self.probe.trainable_variables if with_probe else []
        # The stop-gradient before the probe keeps the two losses apart; the one
        # here ends a walk over the graph (see `distribution`).
        gradients = [
            tf.stop_gradient(g)
            for g in tape.gradient(total, pretrained + probe)
        ]
        count = len(pretrained)
        self.optimizer.apply_gradients(
            zip(gradients[:count], pretrained, strict=True)
        )
        if with_probe:
            self.probe_optimizer.apply_gradients(
                zip(gradients[count:], probe, strict=True)
            )
        return self._update_means(results)

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """The losses and metrics of a batch, with nothing updated."""
        views, labels, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        _, results = self._forward(views, labels, training=False)
        return self._update_means(results)

    def _forward(
        self, views: tf.Tensor, labels: tf.Tensor | None, training: bool
    ) -> tuple[list[tf.Tensor], dict[str, tf.Tensor]]:
        """Views to losses (to be summed) and results, all of this replica."""
        if views.shape.rank != 5:
            raise ValueError(
                f"views of shape {views.shape}: must be [B, V, H, W, K]"
                " (images, views per image, height, width, channels)"
            )
        count = views.shape[1]
        images = tf.reshape(views, [-1, *views.shape[2:]])  # [B * V, H, W, K]
        features = self.encoder(images, training=training)  # [B * V, D]
        flat = self.projection_head(features, training=training)
        projections = tf.reshape(flat, [-1, count, flat.shape[-1]])  # [B, V, P]

        loss = self.contrastive_loss(projections, labels)
        task = metrics.contrastive_task(
            projections,
            labels if self.contrastive_loss.needs_labels else None,
            temperature=self.contrastive_loss.temperature,
            normalize=self.contrastive_loss.normalize,
        )
        results = {
            "loss": loss,
            "contrastive_accuracy": task["accuracy"],
            "contrastive_entropy": task["entropy"],
        }
        losses = [loss]
        if self.probe is not None and labels is not None:
            probe_labels = tf.repeat(tf.cast(labels, tf.int32), count)
            probe_results = self._probe(features, probe_labels, training)
            losses.append(probe_results["probe_loss"])
            results.update(probe_results)
        return losses, results

    def _probe(
        self, features: tf.Tensor, labels: tf.Tensor, training: bool
    ) -> dict[str, tf.Tensor]:
        """Softmax cross entropy and accuracy of the probe, [B * V] -> []."""
        logits = self.probe(tf.stop_gradient(features), training=training)
        crossings = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels, logits
        )
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {
            "probe_loss": tf.reduce_mean(crossings),
            "probe_accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
        }

    def _update_means(
        self, results: dict[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        for name, value in results.items():
            self._meters.means[name].update_state(value)
        return {name: self._meters.means[name].result() for name in results}

    def make_train_function(self, force: bool = False) -> Any:
        """Keras' training function, which also counts the wait for input."""
        if self.run_eagerly:
            return super().make_train_function(force)
        if self.train_function is not None and not force:
            return self.train_function
        strategy = self.distribute_strategy
        step = self.train_step
        if self.jit_compile:
            step = tf.function(step, jit_compile=True)

        updated = []

        def one_step(iterator):
            start = tf.timestamp()
            with tf.control_dependencies([start]):
                data = next(iterator)
            arrived = tf.nest.flatten(data, expand_composites=True)
            with tf.control_dependencies(arrived):
                waited = tf.timestamp() - start
            self._meters.input_wait.assign_add(waited)
            updated[:] = strategy.run(step, args=(data,))

        def train_function(iterator):
            # Nothing is carried through the loop: AutoGraph would trace its
            # body twice. `fit` sets the variable lower for the last, partial
            # execution.
            for _ in tf.range(self._steps_per_execution):
                with tf.name_scope(""):
                    one_step(iterator)
            means = self._meters.means
            return {name: means[name].result() for name in updated}

        self.train_function = tf.function(train_function, reduce_retracing=True)
        return self.train_function


@contextlib.contextmanager
def precision(policy: str) -> Iterator[None]:
    """Makes layers built inside follow a Keras precision policy."""
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def build_encoder(
    run: config.Pretrain,
    *,
    synchronized: bool = True,
    zero_init_residual: bool = True,
) -> tf.keras.Model:
    """Makes the encoder of a resolved config, with weights from its seed."""
    # Made first after seeding, so that its weights follow from the seed alone.
    tf.keras.utils.set_random_seed(run.runtime.seed)
    side = run.views.image_size
    return encoders.build(
        run.encoder.encoder,
        width=run.encoder.width,
        stem=run.encoder.stem,
        image_shape=(side, side, 3),
        synchronized=synchronized,
        zero_init_residual=zero_init_residual,
    )


def build(run: config.Pretrain, num_classes: int | None) -> ContrastiveModel:
    """Makes the model of a resolved config, to be compiled.

    Args:
      run: the config, in which `auto` has been resolved.
      num_classes: classes of the probe; None for data without labels.
    """
    encoder = build_encoder(run)
    projection = run.projection
    head = heads.build(
        projection.projection,
        layers=projection.projection_layers,
        hidden=projection.projection_hidden,
        output=projection.projection_output,
        batch_norm=projection.projection_batch_norm,
    )
    options = (
        {"temperature": run.loss.temperature} if run.loss.temperature else {}
    )
    loss = losses.build(run.loss.loss, **options)
    probe = None
    if run.probe.probe and num_classes:
        probe = heads.LinearProbe(num_classes)
    return ContrastiveModel(encoder, head, loss, probe)
