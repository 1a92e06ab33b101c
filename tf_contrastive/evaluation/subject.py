"""The encoder under evaluation, which no protocol changes."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, exporting
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.embedding import Embedder, MakeBatches

# Iterable of (images [b, S, S, K] or views [b, V, S, S, K], labels [b]).
Batches = Iterable[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class SharedBatches:
    """Endless batches of `size` images; each host can make its own part."""

    make: MakeBatches
    size: int
    wrap: Callable[[Iterable], Iterable]

    def __iter__(self) -> Iterator:
        alone = tf.distribute.InputContext(num_replicas_in_sync=1)
        return iter(self.wrap(self.make(alone)))

    def on(self, strategy: tf.distribute.Strategy) -> Iterator:
        """Yields the parts of a strategy's replicas, which divide a batch."""
        dataset = strategy.distribute_datasets_from_function(self.make)
        return iter(self.wrap(dataset))


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """An encoder, the networks beside it, and where it comes from."""

    # Images float32 [n, S, S, K], colours in [0, 1] -> h [n, D], with
    # `training=`; a Keras model or a loaded export, made in the scope of
    # `strategy`. See `new_encoder` for one that may be changed.
    encoder: Any
    _: dataclasses.KW_ONLY
    name: str = "trained"  # The encoder's name in the results.
    # The resolved config of the run that made the encoder, if known.
    run: Pretrain | None = None
    # h [n, D] -> z [n, P]; None without a projection head.
    projection: Callable[..., Any] | None = None
    # h [n, D] -> logits [n, C] of the run's own classifier, if it has one, and
    # the names of its classes, if they are known.
    classifier: Any = None
    label_names: Sequence[str] = ()
    # Trained -> a new encoder of the same kind that may be changed, with the
    # trained weights or (False, of a run) random ones.
    make_encoder: Callable[[bool], Any] | None = None
    # Its replicas, of all hosts, share the images.
    strategy: tf.distribute.Strategy = dataclasses.field(
        default_factory=tf.distribute.get_strategy
    )

    @classmethod
    def of_run(
        cls,
        run: checkpoints.Run,
        *,
        trained: bool = True,
        strategy: tf.distribute.Strategy | None = None,
    ) -> "Subject":
        """Loads a run's encoder, or an untrained one of the same kind."""
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            encoder = checkpoints.load_encoder(run, trained=trained)
            features = encoder.output_shape[-1]
            projection, classifier = checkpoints.load_heads(
                run, features, trained=trained
            )

        def make_encoder(with_weights: bool) -> tf.keras.Model:
            # Weights from memory: the checkpoint may be deleted meanwhile.
            copy = checkpoints.load_encoder(
                run, trained=False, synchronized=True
            )
            if with_weights:
                copy.set_weights(encoder.get_weights())
            return copy

        return cls(
            encoder,
            name="trained" if trained else "untrained",
            run=run.config,
            projection=projection,
            classifier=classifier,
            label_names=run.metadata.get("label_names") or (),
            make_encoder=make_encoder,
            strategy=strategy,
        )

    @classmethod
    def of_export(
        cls, path: str, *, strategy: tf.distribute.Strategy | None = None
    ) -> "Subject":
        """Loads the encoder of `exporting.load(path)`."""
        strategy = strategy or tf.distribute.get_strategy()
        with strategy.scope():
            encoder: Any = exporting.load(path)
        projection = None
        if hasattr(encoder, "projection"):

            def projection(h: Any, training: bool = False) -> Any:
                return encoder.projection(h)

        return cls(
            encoder,
            projection=projection,
            make_encoder=lambda trained: exporting.load(path),
            strategy=strategy,
        )

    @functools.cached_property
    def image_size(self) -> int:
        """Side S of the images that the encoder takes, in pixels."""
        return exporting.image_shape(self.encoder)[0]

    @functools.cached_property
    def channels(self) -> int:
        """Channels K of the images that the encoder takes."""
        return exporting.image_shape(self.encoder)[2]

    @functools.cached_property
    def width(self) -> int:
        """Number D of the encoder's features."""
        return exporting.num_features(self.encoder)

    def new_encoder(self, trained: bool = True) -> Any:
        """Makes a new encoder of the same kind, which may be changed.

        It has the weights under evaluation, or random ones; it maps images
        [n, S, S, K] to h [n, D], with `training=`, `variables` and
        `trainable_variables`, made in the strategy's scope.
        """
        assert self.make_encoder is not None  # See `has_new_encoder`.
        with self.strategy.scope():
            return self.make_encoder(trained)

    def has_new_encoder(self, trained: bool = True) -> bool:
        """Whether there is a way to make one; exports have no random ones."""
        has_weights = trained or self.run is not None
        return self.make_encoder is not None and has_weights

    def embed(self, batches: Batches) -> tuple[np.ndarray, np.ndarray]:
        """Embeds batches of (images [b, S, S, K], labels [b]).

        Returns (h float32 [n, D], labels int32 [n]).
        """
        h, labels = zip(*self.embed_batches(batches), strict=True)
        return np.concatenate(h), np.concatenate(labels)

    def embed_batches(
        self, batches: Batches
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (h [b, D], labels int32 [b]) of each batch, on demand.

        Hosts make their own parts of `training_images`, if the replicas divide
        a batch.
        """
        if (
            isinstance(batches, SharedBatches)
            and batches.size % self.strategy.num_replicas_in_sync == 0
        ):
            for steps in batches.wrap(self.embedder.steps(batches.make)):
                yield from zip(*steps, strict=True)
            return
        for h, labels in self.embedder(batches):
            yield h, np.asarray(labels, np.int32)

    @functools.cached_property
    def embedder(self) -> Embedder:
        """Embeds images on all replicas."""
        return Embedder(self.encoder, self.strategy)
