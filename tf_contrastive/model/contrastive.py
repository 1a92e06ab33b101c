"""`ContrastiveModel`: the training step and the test step."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.config.linear import Probe
from tf_contrastive.config.loss import Loss
from tf_contrastive.distribution.autograph import as_written
from tf_contrastive.model import gradient_cache, loop, loss_scaling, non_finite
from tf_contrastive.model.meters import (
    METRICS,
    ONLINE_METRIC,
    PROBE_METRICS,
    Meters,
    contrastive_task,
)
from tf_contrastive.model.momentum_encoder import KeyBranch
from tf_contrastive.model.online_knn import OnlineNeighbors

# Where a step's features [B, D] of view 0 stand among its results.
_FEATURES = "features"
# Projections [B, V, P] to the results of a step, the loss among them.
_Contrast = Callable[[tf.Tensor], dict[str, tf.Tensor]]


class ContrastiveModel(tf.keras.Model):
    """Trains an encoder by a contrastive loss, and a linear probe beside it.

    The probe reads the encoder's features behind a stop-gradient (Chen et al.
    2020, B.6), so that it tells how good they are without a word in how they
    become.

    With `momentum` it is MoCo (He et al. 2020): view 0 of an image is the
    query, view 1 the key, made by a slow copy of encoder and head; negatives
    are the keys of earlier batches. The probe then reads view 0.

    With `grad_cache_chunks` above 1 a replica's images pass through the encoder
    in as many parts, which takes about so many times less memory; the loss
    still sees the whole batch, and so the step is the same (Gao et al. 2021).
    But not where layers look at the batch: BatchNormalization takes its
    statistics of a part at a time (of all replicas, where it is synchronized)
    and puts each into the moving ones, and dropout draws once for the loss and
    anew for the gradient.

    With `augment` the views come without their colours changed, and the step
    does that first, on the device: `fit` then takes ((views, seeds [B, V, 2]),
    labels [B]), or ((views, seeds),) without labels. So it does with `mix`,
    after which the loss and the probe's loss compare with the shares of the
    classes in each view, accuracies with the labels.

    Args:
      encoder: images float32 [N, H, W, K] in [0, 1] -> features h [N, D].
      projection_head: h [N, D] -> z [N, P].
      loss: of `losses.build`: (z [B, V, P], labels, seed) -> float32 [].
      probe: h [N, D] -> logits [N, C], or None for no probe.
      momentum: of the key encoder's average, in [0, 1), for the loss "moco".
      queue_size: keys kept as negatives, at least one global batch; None: the
        default of `config.Loss`.
      grad_cache_chunks: parts; the images of a replica must be a multiple.
      augment: (views float32 [B, V, H, W, K], seeds int32 [B, V, 2]) -> views,
        or None for views that are ready.
      mix: (views float32 [B, V, H, W, K], labels int [B], seeds int32
        [B, V, 2]) -> (views, shares of the classes float32 [B, V, C]), such as
        `views.mixing.Mixing`, or None. For losses that take such labels.
      online_knn_size: latest training images among which each batch looks for
        its nearest neighbours, where there are labels; 0: none.
      seed: of the random numbers that a loss may draw.

    Raises:
      ValueError: for numbers out of their range, a momentum with a loss that
        takes no keys, or a loss that does without one.
    """

    def __init__(
        self,
        encoder: tf.keras.Model,
        projection_head: tf.keras.layers.Layer,
        loss: Any,
        probe: tf.keras.layers.Layer | None = None,
        *,
        momentum: float | None = None,
        queue_size: int | None = None,
        grad_cache_chunks: int = 1,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        mix: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None,
        online_knn_size: int = 0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if grad_cache_chunks < 1:
            raise ValueError(
                f"grad_cache_chunks={grad_cache_chunks}: must be at least 1"
            )
        self.encoder = encoder
        self.projection_head = projection_head
        self.contrastive_loss = loss
        self.probe = probe
        self.grad_cache_chunks = grad_cache_chunks
        self.augment = augment
        self.mix = mix
        self._seed = seed
        self._build_heads()
        self.key_branch = self._build_key_branch(momentum, queue_size)
        self.neighbors = None
        if online_knn_size:
            self.neighbors = OnlineNeighbors(
                online_knn_size, encoder.output_shape[-1]
            )
        names = METRICS + (PROBE_METRICS if probe else ())
        names += (ONLINE_METRIC,) if self.neighbors else ()
        self._meters = Meters(names)

    def _build_heads(self) -> None:
        """Makes all variables now: resume restores into them by value."""
        features = tf.keras.Input(self.encoder.output_shape[1:])
        self.projection_head(features)
        if self.probe is not None:
            self.probe(features)
        self.built = True

    def _build_key_branch(
        self, momentum: float | None, queue_size: int | None
    ) -> KeyBranch | None:
        takes_keys = (
            "keys" in inspect.signature(self.contrastive_loss).parameters
        )
        if takes_keys and momentum is None:
            raise ValueError("the loss takes keys: give a momentum")
        if momentum is not None and not takes_keys:
            raise ValueError(
                f"momentum={momentum} makes keys, which the loss does not take:"
                ' give the loss "moco"'
            )
        if momentum is None:
            if queue_size is not None:
                raise ValueError(f"queue_size={queue_size} needs a momentum")
            return None
        if queue_size is None:
            queue_size = Loss.queue_size
        return KeyBranch(
            self.encoder,
            self.projection_head,
            momentum=momentum,
            queue_size=queue_size,
            normalize=self.contrastive_loss.normalize,
        )

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
                Probe.probe_learning_rate,
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

    def non_finite_steps(self) -> non_finite.NonFinite:
        """Steps so far whose loss or gradient was no number."""
        return self._meters.guard.read()

    def call(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Encodes images [N, H, W, K] in [0, 1] to features h [N, D]."""
        return self.encoder(images, training=training)

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One step on (views [B, V, H, W, K], labels [B]), or views alone."""
        return self._learn(*self._inputs(data, training=True))

    @as_written
    def _learn(
        self,
        views: tf.Tensor,
        labels: tf.Tensor | None,
        targets: tf.Tensor | None,
    ) -> dict[str, tf.Tensor]:
        views, keys = self._split_keys(views, training=True)
        contrast = functools.partial(
            self._contrast,
            labels=labels,
            targets=targets,
            keys=keys,
            step=self.optimizer.iterations,
        )
        pretrained = self.pretrained_variables
        with_probe = self.probe is not None and labels is not None
        probe = self.probe.trainable_variables if with_probe else []
        compute = (
            self._gradients
            if self.grad_cache_chunks == 1
            else self._cached_gradients
        )
        gradients, results = compute(
            views, labels, targets, contrast, pretrained + probe
        )
        # The stop-gradient before the probe keeps the two losses apart; the one
        # here ends a walk over the graph (see `distribution`).
        gradients = [tf.stop_gradient(g) for g in gradients]
        of_probe = gradients[len(pretrained) :]
        gradients = loss_scaling.unscaled(
            gradients[: len(pretrained)], self.optimizer
        )
        step = tf.identity(self.optimizer.iterations)
        self._note_finite(step, results["loss"], gradients)
        self.optimizer.apply_gradients(zip(gradients, pretrained, strict=True))
        if with_probe:
            of_probe = loss_scaling.unscaled(of_probe, self.probe_optimizer)
            self.probe_optimizer.apply_gradients(
                zip(of_probe, probe, strict=True)
            )
        if loss_scaling.is_guarded(self.optimizer):
            # A step that is passed over counts: what comes next follows from
            # the number of the step.
            self.optimizer.iterations.assign(step + 1)
            if with_probe:
                self.probe_optimizer.iterations.assign(step + 1)
        if self.key_branch is not None:
            self.key_branch.follow()
            self.key_branch.enqueue(keys[:, 0])
        return self._update_means(*self._look_around(results, labels))

    def _look_around(
        self, results: dict[str, Any], labels: tf.Tensor | None
    ) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Asks the neighbours; (results, what those count that may not)."""
        features = results.pop(_FEATURES, None)
        if features is None or labels is None:
            return results, {}
        share, there = self.neighbors(features, labels)
        self.neighbors.enter(features, labels)
        return {**results, ONLINE_METRIC: share}, {ONLINE_METRIC: there}

    def test_step(self, data: Any) -> dict[str, tf.Tensor]:
        """The losses and metrics of a batch, with nothing updated."""
        return self._score(*self._inputs(data, training=False))

    @as_written
    def _score(
        self,
        views: tf.Tensor,
        labels: tf.Tensor | None,
        targets: tf.Tensor | None,
    ) -> dict[str, tf.Tensor]:
        views, keys = self._split_keys(views, training=False)
        features, projections = self._encode(views, training=False)
        # Always of step 0, so that what is drawn does not tell epochs apart.
        results = self._contrast(projections, labels, targets, keys, step=0)
        results |= self._probe(features, labels, targets, training=False)
        return self._update_means(results, {})

    def _inputs(
        self, data: Any, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
        """Finished views [B, V, H, W, K]; labels [B] and what losses compare.

        That is the labels, or the shares [B, V, C] of the classes in views that
        were mixed, which are those of training alone.
        """
        views, labels, _ = tf.keras.utils.unpack_x_y_sample_weight(data)
        seeds = None
        if self.augment or self.mix:
            views, seeds = views
        if self.augment:
            views = self.augment(views, seeds)
        if self.mix and training:
            views, targets = self.mix(views, labels, seeds)
            return views, labels, targets
        return views, labels, labels

    def _total(self, results: dict[str, tf.Tensor]) -> tf.Tensor:
        """What the tape differentiates: the loss, and the probe's beside it.

        Each is scaled as its optimizer wishes, so that gradients in float16 do
        not vanish.
        """
        total = 0.0
        if "loss" in results:
            total += loss_scaling.scaled(
                results["loss"] / loss_scaling.replicas(), self.optimizer
            )
        if "probe_loss" in results:
            loss = results["probe_loss"] / loss_scaling.replicas()
            total += loss_scaling.scaled(loss, self.probe_optimizer)
        return total

    def _note_finite(self, step, loss, gradients) -> None:
        # In float16 a gradient overflows now and then, and the scale falls.
        in_half = self.dtype_policy.compute_dtype == "float16"
        self._meters.guard.note(step, loss, [] if in_half else gradients)

    def _gradients(
        self, views, labels, targets, contrast: _Contrast, variables
    ):
        """Gradients by `variables`, to be summed over replicas, and results."""
        with tf.GradientTape() as tape:
            features, projections = self._encode(views, training=True)
            results = contrast(projections)
            results |= self._probe(features, labels, targets, training=True)
            total = self._total(results)
        if self.neighbors is not None:
            results[_FEATURES] = tf.stop_gradient(features[:, 0])
        return tape.gradient(total, variables), results

    def _cached_gradients(
        self, views, labels, targets, contrast: _Contrast, variables
    ):
        """Like `_gradients`, with the memory of a chunk (see `grad_cache`)."""
        chunks = self.grad_cache_chunks
        views = gradient_cache.checked(views, chunks)
        with gradient_cache.unchanged(self.encoder, self.projection_head):
            seen = gradient_cache.in_chunks(self._encode_flat, views, chunks)
        projections, features = self._split_flat(seen)
        with tf.GradientTape() as tape:
            tape.watch(projections)
            results = contrast(projections)
            total = self._total(results)
        cache = tape.gradient(total, projections)

        def of_chunk(views, labels, targets, cache):
            with tf.GradientTape() as tape:
                features, projections = self._encode(views, training=True)
                # The gradient of this sum is the cache's, taken back.
                total = tf.reduce_sum(projections * cache)
                results = self._probe(features, labels, targets, training=True)
                results = {name: x / chunks for name, x in results.items()}
                total += self._total(results)
            return tape.gradient(total, variables), results

        gradients, probe_results = gradient_cache.sum_over_chunks(
            of_chunk, (views, labels, targets, cache), chunks
        )
        results |= probe_results
        if self.neighbors is not None:
            results[_FEATURES] = features
        return gradients, results

    def _encode_flat(self, views: tf.Tensor) -> tf.Tensor:
        """Projections, and beside them the features that neighbours take."""
        features, projections = self._encode(views, training=True)
        if self.neighbors is None:
            return projections
        features = tf.cast(features, projections.dtype)
        return tf.concat([projections, features], axis=-1)

    def _split_flat(
        self, seen: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """What `_encode_flat` put together: projections, features [B, D]."""
        if self.neighbors is None:
            return seen, None
        size = self.encoder.output_shape[-1]
        return seen[..., :-size], seen[:, 0, -size:]

    def _split_keys(
        self, views: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Views that are encoded, and the keys [B, 1, P] of the others."""
        if views.shape.rank != 5:
            raise ValueError(
                f"views of shape {views.shape}: must be [B, V, H, W, K]"
                " (images, views per image, height, width, channels)"
            )
        if self.key_branch is None:
            return views, None
        if views.shape[1] != 2:
            raise ValueError(
                f"{views.shape[1]} views per image: with a momentum there must"
                " be 2, the query's and the key's"
            )
        chunks = self.grad_cache_chunks if training else 1
        keys = gradient_cache.in_chunks(
            functools.partial(self.key_branch, training=training),
            gradient_cache.checked(views[:, 1], chunks),
            chunks,
        )
        return views[:, :1], keys[:, tf.newaxis]

    def _encode(
        self, views: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Views to features [B, V, D] and projections [B, V, P]."""
        count = views.shape[1]
        images = tf.reshape(views, [-1, *views.shape[2:]])  # [B * V, H, W, K]
        features = self.encoder(images, training=training)  # [B * V, D]
        flat = self.projection_head(features, training=training)
        return (
            tf.reshape(features, [-1, count, features.shape[-1]]),
            tf.reshape(flat, [-1, count, flat.shape[-1]]),
        )

    def _contrast(
        self,
        projections: tf.Tensor,
        labels: tf.Tensor | None,
        targets: tf.Tensor | None,
        keys: tf.Tensor | None,
        step: tf.Tensor | int,
    ) -> dict[str, tf.Tensor]:
        """The loss of this replica, and metrics of the contrastive task."""
        loss = self.contrastive_loss
        seed = tf.stack([self._seed, tf.cast(step, tf.int32)])
        if keys is None:
            value = loss(projections, targets, seed)
        else:
            value = loss(
                projections,
                targets,
                seed,
                keys=keys,
                queue=self.key_branch.queue,
                queue_mask=self.key_branch.filled(),
            )
            projections = tf.concat([projections, keys], axis=1)
        task = contrastive_task(
            projections,
            labels if loss.needs_labels else None,
            temperature=loss.temperature,
            normalize=loss.normalize,
        )
        return {"loss": value, **task}

    def _probe(
        self,
        features: tf.Tensor,
        labels: tf.Tensor | None,
        targets: tf.Tensor | None,
        training: bool,
    ) -> dict[str, tf.Tensor]:
        """Softmax cross entropy and accuracy of the probe, if it can be read.

        Args:
          features: [B, V, D]; no gradient passes to them.
          labels: [B] or None.
          targets: the labels, or the shares of the classes [B, V, C].
          training: whether to train the probe.
        """
        if self.probe is None or labels is None:
            return {}
        flat = tf.reshape(features, [-1, features.shape[-1]])
        logits = self.probe(tf.stop_gradient(flat), training=training)
        labels = tf.repeat(tf.cast(labels, tf.int32), features.shape[1])
        if targets.shape.rank == 3:
            shares = tf.reshape(targets, [-1, targets.shape[-1]])
            crossings = tf.nn.softmax_cross_entropy_with_logits(shares, logits)
        else:
            crossings = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels, logits
            )
        hits = tf.equal(tf.argmax(logits, -1, output_type=tf.int32), labels)
        return {
            "probe_loss": tf.reduce_mean(crossings),
            "probe_accuracy": tf.reduce_mean(tf.cast(hits, tf.float32)),
        }

    def _update_means(self, results, weights):
        # A step that is passed over does not count.
        guarded = loss_scaling.is_guarded(self.optimizer)
        return self._meters.update(results, weights, finite_only=guarded)

    def make_train_function(self, force: bool = False) -> Any:
        """Keras' training function, which also counts the wait for input."""
        if self.run_eagerly:
            return super().make_train_function(force)
        if self.train_function is not None and not force:
            return self.train_function
        step = self.train_step
        if self.jit_compile:
            step = tf.function(step, jit_compile=True)
        self.train_function = loop.train_function(
            step,
            self.distribute_strategy,
            self._steps_per_execution,
            self._meters,
        )
        return self.train_function
