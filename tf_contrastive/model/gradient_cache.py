"""Gradient cache: a large batch's gradient in the memory of a part of it.

A contrastive loss needs all projections of a batch at once, but not their
activations: first come the loss and its gradient by the projections, without
them; then part by part the gradients of the network (Gao et al. 2021, section
3).
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tf_contrastive import distribution
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import similarity
from tf_contrastive.model.contrastive_step import (
    NO_GRADIENT,
    Batch,
    ContrastiveStep,
    Gradients,
    Results,
)


class GradientCache(ContrastiveStep):
    """Passes a replica's images through the network in chunks.

    The loss still sees the whole batch, so the step is the same, except where
    layers look at the batch: BatchNormalization takes the statistics of one
    chunk at a time (of all replicas, if it is synchronized) and updates the
    moving ones by each, and dropout draws once for the loss and again for the
    gradient.
    """

    arguments: tuple[str, ...] = ("grad_cache_chunks",)

    def __init__(
        self, *args: Any, grad_cache_chunks: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        if grad_cache_chunks < 1:
            raise ValueError(
                f"grad_cache_chunks={grad_cache_chunks}: must be at least 1"
            )
        self.grad_cache_chunks = grad_cache_chunks

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        return {**arguments, "grad_cache_chunks": run.batch.grad_cache_chunks}

    def images_at_once(self, images: int, views: int) -> int:
        """The number of views in a chunk."""
        return super().images_at_once(images, views) // self.grad_cache_chunks

    def without_gradient(
        self, network: Callable[..., tf.Tensor], x: tf.Tensor, training: bool
    ) -> tf.Tensor:
        """Applies a network to a batch; while training, in chunks."""
        chunks = self.grad_cache_chunks
        apply = super().without_gradient
        if chunks == 1 or not training:
            return apply(network, x, training)
        return in_chunks(
            lambda part: apply(network, part, training),
            check_divisible(x, chunks),
            chunks,
        )

    def gradients(self, batch: Batch) -> tuple[Gradients, Results, tf.Tensor]:
        """Like `ContrastiveStep.gradients`, with the activations of a chunk."""
        chunks = self.grad_cache_chunks
        if chunks == 1:
            return super().gradients(batch)
        batch = batch._replace(views=check_divisible(batch.views, chunks))
        with preserve_state(self.encoder, self.projection_head):
            features, projections = in_chunks(
                lambda chunk: self.encode(chunk, training=True), batch, chunks
            )
        with tf.GradientTape() as tape:
            tape.watch(projections)
            step = self.optimizer.iterations
            results = self.contrast(projections, batch, step)
            objective = self.objective(results)
        sources = projections, self.loss_variables
        cache, of_loss = tape.gradient(objective, sources)
        if cache is None:
            raise ValueError(NO_GRADIENT)

        def chunk_gradients(
            chunk: Batch, cache: tf.Tensor
        ) -> tuple[Gradients, Results]:
            with tf.GradientTape() as tape:
                features, projections = self.encode(chunk, training=True)
                # The gradient of this sum is the cache, taken back.
                objective = tf.reduce_sum(projections * cache)
                results = self.classify(features, chunk, training=True)
                divide = tf.math.divide_no_nan
                results = {
                    name: divide(
                        x,
                        divide(
                            self.weight(name, batch), self.weight(name, chunk)
                        ),
                    )
                    for name, x in results.items()
                }
                if results:
                    objective += self.objective(results)
            losses = {"loss": objective, **results}
            return self.differentiate(tape, objective, losses), results

        gradients, chunk_results = sum_over_chunks(
            chunk_gradients, (batch, cache), chunks
        )
        # The chunks do not reach the variables of the loss.
        networks = self.encoder, self.projection_head
        first = sum(len(network.trainable_variables) for network in networks)
        for place, gradient in enumerate(of_loss, first):
            if gradient is not None:
                gradients["loss"][place] = gradient
        return gradients, results | chunk_results, features


def check_divisible(x: tf.Tensor, chunks: int) -> tf.Tensor:
    """Returns `x` [B, ...]; raises an error unless `chunks` divides B."""
    return label_checks.or_nan(
        x,
        similarity.shape(x)[0] % chunks == 0,
        f"grad_cache_chunks={chunks} does not divide a replica's batch of"
        f" {x.shape[0] or 'an unknown number of'} images: let it be a multiple"
        " (and batch with drop_remainder=True)",
    )


def in_chunks(function: Callable[[Any], Any], x: Any, chunks: int) -> Any:
    """Applies `function` to chunks of `x`, one after the other.

    It maps a structure of tensors [b, ...], or None, to another one, whose
    tensors are concatenated.
    """
    outputs: list[Any] = []
    for index in range(chunks):
        after = tf.nest.flatten(outputs[-1:])
        outputs.append(function(_chunk(x, index, chunks, after)))
    return tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), *outputs)


def sum_over_chunks(
    function: Callable[..., Any], arguments: tuple[Any, ...], chunks: int
) -> Any:
    """Sums `function` over chunks of its arguments, one after the other.

    Arguments are structures of tensors [B, ...], or None; all are computed
    before the first chunk is. The function returns a structure of tensors.
    """
    after = [x for x in tf.nest.flatten(arguments) if x is not None]
    total = None
    for index in range(chunks):
        values = function(*_chunk(arguments, index, chunks, after))
        if total is not None:
            values = tf.nest.map_structure(tf.add, total, values)
        total = values
        after = tf.nest.flatten(total)
    return total


def _chunk(structure: Any, index: int, chunks: int, after: list) -> Any:
    """Returns chunk `index` of a structure, once `after` is computed."""
    if after:
        index += _zero(after)

    def of(x: tf.Tensor | None) -> tf.Tensor | None:
        if x is None:
            return None
        parts = tf.reshape(x, [chunks, -1, *x.shape[1:]])
        # Collectives walk back over the graph to find variables; there are
        # none beyond (see `distribution`).
        return tf.stop_gradient(tf.gather(parts, index))

    return tf.nest.map_structure(of, structure)


def _zero(after: list[tf.Tensor]) -> tf.Tensor:
    """Returns 0, int32 [], which is known only once `after` is computed."""
    # An executor that runs two chunks at once needs the memory of two; and a
    # compiler that sees a chunk pass through the network twice keeps its
    # activations. XLA has no control dependencies, so this is one of data.
    samples = [tf.cast(tf.reshape(x, [-1])[0], tf.float32) for x in after]
    # Never true, not even for a NaN; compilers cannot know that.
    return tf.cast(tf.tanh(tf.add_n(samples)) > 2.0, tf.int32)


@contextlib.contextmanager
def preserve_state(*layers: tf.keras.layers.Layer) -> Iterator[None]:
    """Restores the state of `layers`, such as moving statistics, at the end.

    For use in a replica. Weights are not state, even if they are frozen.
    """
    # On several replicas, a layer can only write to variables that say how
    # replicas' values are aggregated.
    single = distribution.num_replicas() == 1
    state = [
        v
        for layer in layers
        for v in layer.non_trainable_variables
        if not v.trainable
        and (single or v.aggregation != tf.VariableAggregation.NONE)
    ]
    before = [tf.identity(v) for v in state]
    yield
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
