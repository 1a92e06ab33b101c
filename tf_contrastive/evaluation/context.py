"""The encoder under evaluation, with the two splits that it is scored on.

A protocol takes an `EvaluationContext` and asks it for images, augmented views,
embeddings or projections. `loading` makes the context of a run or an export.
"""

import dataclasses
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    classifiers,
    datasets,
    distribution,
    embedding,
    errors,
    exporting,
    views,
)
from tf_contrastive.config import memory
from tf_contrastive.config.data import check_encoder_channels
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import PREPROCESSINGS, resolve_views
from tf_contrastive.embedding.replicated import (
    MakeBatches,
    ReplicatedEmbedder,
)
from tf_contrastive.views import Policy

# Iterable of (images [b, S, S, K] or views [b, V, S, S, K], labels [b]).
Batches = Iterable[tuple[Any, Any]]
_Value = TypeVar("_Value")
_NO_IMAGE = "nothing to embed: the split holds no readable image"


@dataclasses.dataclass(eq=False)
class EvaluationContext:
    """An encoder and its data, as the protocols see them.

    Further attributes are, of the images that the encoder takes, `image_size`
    (their side S, in pixels) and `channels` (their K), and `width`, the number
    D of its features.
    """

    # Images float32 [n, S, S, K], colours in [0, 1] -> h [n, D], with
    # `training=`; a Keras model or a loaded export, made in the scope of
    # `strategy`. No protocol changes it: see `new_encoder`.
    encoder: Any
    train: datasets.Source
    test: datasets.Source
    options: Evaluate = dataclasses.field(default_factory=Evaluate)
    _: dataclasses.KW_ONLY
    name: str = "trained"  # The encoder's name in the results.
    # The resolved config of the run that made the encoder, if known.
    run: Pretrain | None = None
    # h [n, D] -> z [n, P]; None without a projection head.
    projection: Callable[..., Any] | None = None
    # h [n, D] -> logits [n, C] of the run's own classifier, if it has one.
    classifier: Any = None
    # Trained -> a new encoder of the same kind that may be changed, with the
    # trained weights or (False) random ones, or None.
    make_encoder: Callable[[bool], Any] | None = None
    # Its replicas, of all hosts, share the images.
    strategy: tf.distribute.Strategy = dataclasses.field(
        default_factory=tf.distribute.get_strategy
    )
    # Preprocessing of evaluated images where the options have `auto`.
    default_preprocessing: str = PREPROCESSINGS[0]
    # Is called after each epoch of the linear protocol.
    observer: classifiers.TrainingObserver | None = None
    # Wraps iterables of images, so that it can interrupt a pass.
    cancellable: Callable[[Iterable], Iterable] = iter
    # Receives progress, a line at a time.
    log: Callable[[str], None] = lambda line: None

    def __post_init__(self) -> None:
        self.image_size, _, self.channels = exporting.image_shape(self.encoder)
        self.width = exporting.num_features(self.encoder)
        self._cache: dict[Hashable, Any] = {}
        self._has_warned = False
        for source in (self.train, self.test):
            check_encoder_channels(
                self.channels - 3, source.info.name, source.info.extra_channels
            )

    def cached(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Returns `make()` of the first call with this key."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    # ---- Data ----------------------------------------------------------------

    def source(self, split: str) -> datasets.Source:
        """Returns the split "train" or "test"."""
        return {"train": self.train, "test": self.test}[split]

    def labels(self, split: str) -> np.ndarray:
        """Returns a split's labels, int32 [n], -1 where there are none.

        They are read without images, if the split is not embedded yet; cached,
        not to be modified. Raises `UserError` if there are no images, or a
        label is out of range.
        """

        def read() -> np.ndarray:
            source = self.source(split)
            if not source.info.num_examples:
                raise errors.UserError(_NO_IMAGE)
            if not source.info.has_labels:
                return np.full([source.info.num_examples], -1, np.int32)
            return _checked_labels(source.labels(), source.info)

        return self.cached(("labels", split), read)

    def images(
        self, split: str, source: datasets.Source | None = None
    ) -> Batches:
        """Returns every image once, in order, in the evaluation preprocessing.

        `source`, such as a corrupted dataset, replaces the split. Batches of
        (images float32 [b, S, S, K], labels int32 [b], -1 where there are none)
        can be iterated again.
        """
        batches = datasets.evaluation_batches(
            source or self.source(split),
            self._preprocess(),
            batch_size=self.options.evaluation.embedding_batch_size,
            extra_channels=self.channels - 3,
        )
        return _Cancellable(batches, self.cancellable)

    def _preprocess(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Returns the evaluation preprocessing of an image."""
        preprocessing = self.options.evaluation.preprocessing
        if preprocessing == "auto":
            preprocessing = self.default_preprocessing
        return views.evaluation(self.image_size, preprocessing)

    def views(
        self, split: str, count: int = 2, augmentation: str | None = None
    ) -> Batches:
        """Returns `count` augmented views of every image once, in order.

        The policy is `augmentation`, or the run's. Batches of (views float32
        [b, V, S, S, K], labels int32 [b]) are the same when iterated again.
        """
        policy = self._policy(augmentation)
        batches = datasets.view_batches(
            self.source(split),
            views.geometric(policy, count),
            finish=_finish(policy, count),
            batch_size=self.options.evaluation.embedding_batch_size,
            seed=self.options.evaluation.seed,
            extra_channels=self.channels - 3,
        )
        return _Cancellable(batches, self.cancellable)

    def training_batches(
        self,
        augmentation: str | None,
        *,
        batch_size: int,
        rows: np.ndarray | None = None,
        seed: int | None = None,
        start_step: int = 0,
    ) -> "SharedBatches":
        """Returns an endless stream of training images, one view per epoch.

        Args:
          augmentation: policy; None: the run's; "none": the images unchanged,
            in another order each epoch.
          batch_size: images per batch, at most the number of images.
          rows: int [m], increasing: training examples to use; None: all.
          seed: seed of order and views; None: the options' seed.
          start_step: first batch of the stream.

        Returns:
          Batches of (images float32 [b, S, S, K], labels int32 [b]); an epoch
          has whole batches only.
        """
        source = self.train if rows is None else self.train.select(rows)
        policy = self._policy(augmentation)
        data = (self.run or Pretrain()).data
        size = min(batch_size, source.info.num_examples)

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = datasets.training_batches(
                source,
                views.geometric(policy, 1),
                finish=_finish(policy, 1),
                batch_size=size,
                replica_batch_size=context.get_per_replica_batch_size(size),
                seed=self.options.evaluation.seed if seed is None else seed,
                start_step=start_step,
                shuffle_buffer=data.shuffle_buffer,
                cache=data.cache,
                extra_channels=self.channels - 3,
                num_pipelines=context.num_input_pipelines,
                pipeline_id=context.input_pipeline_id,
                sharding="example",
            )
            return batches.map(lambda pixels, labels: (pixels[:, 0], labels))

        return SharedBatches(make, size, self.cancellable)

    def _policy(self, augmentation: str | None) -> Policy:
        """Builds a policy by name, with the run's options of views."""
        options = (self.run or Pretrain()).views
        if augmentation is not None:
            options = dataclasses.replace(options, augmentation=augmentation)
        options = resolve_views(options, self.train.info.name, self.image_size)
        return views.build(
            options.augmentation,
            image_size=self.image_size,
            **options.options(),
        )

    # ---- Embeddings ----------------------------------------------------------

    def embeddings(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Embeds a split in its own order; cached, not to be modified.

        Returns (h float32 [n, D], labels int32 [n], -1 where there are none).
        Raises `UserError` if there are no images, h is not finite, or a label
        is out of range.
        """

        def embed() -> tuple[np.ndarray, np.ndarray]:
            start = time.monotonic()
            h, labels = self._embed_split(split)
            info = self.source(split).info
            classifiers.check_embeddings(f"embeddings of {info.split}", h)
            if info.has_labels:
                labels = _checked_labels(labels, info)
            labels = self.cached(("labels", split), lambda: labels)
            self.log(
                f"{self.name} encoder: embedded {len(labels):,} images"
                f" ({split}) in {time.monotonic() - start:.1f} s"
            )
            return h, labels

        return self.cached(("h", split), embed)

    def projections(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Projects a split's embeddings: (z float32 [n, P], labels); cached."""

        def project() -> tuple[np.ndarray, np.ndarray]:
            h, labels = self.embeddings(split)
            return self.project(h), labels

        return self.cached(("z", split), project)

    def labelled_embeddings(
        self,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns (train h, train labels, test h, test labels).

        The first call logs a warning if test has classes that train lacks.
        """
        train, test = self.embeddings("train"), self.embeddings("test")
        unseen = sorted({*test[1].tolist()} - {*train[1].tolist()})
        if unseen and not self._has_warned:
            self._has_warned = True
            self.log(
                f"warning: {len(unseen)} classes of the test split have no"
                " training example and count as missed"
                f" ({', '.join(map(str, unseen[:10]))})"
            )
        return *train, *test

    def features(self, name: str, h: np.ndarray) -> np.ndarray:
        """Returns the features "h", embeddings [n, D], or "z", projections."""
        return self.project(h) if name == "z" else h

    def project(self, h: np.ndarray) -> np.ndarray:
        """Projects embeddings [n, D] to z float32 [n, P]."""
        if self.projection is None:
            raise ValueError(f"the {self.name} encoder has no projection")
        return self.apply(self.projection, h)

    def apply(self, head: Callable[..., Any], h: np.ndarray) -> np.ndarray:
        """Returns `head` of embeddings [n, D], a batch at a time: float32."""
        rows = self.options.evaluation.embedding_batch_size
        parts = [
            np.asarray(head(tf.constant(part), training=False), np.float32)
            for part in np.split(h, range(rows, len(h), rows))
        ]
        return np.concatenate(parts)

    def _embed_split(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Embeds the images of a split by all replicas: (h, labels)."""
        source, strategy = self.source(split), self.strategy
        count, replicas = source.info.num_examples, self._num_replicas
        if not count:
            raise errors.UserError(_NO_IMAGE)
        rows = self.options.evaluation.embedding_batch_size
        rows = min(rows, count)
        memory.check_images("embedding_batch_size", rows, self.image_size)
        rows = -(-rows // replicas)

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return datasets.evaluation_part(
                source,
                self._preprocess(),
                batch_size=rows,
                extra_channels=self.channels - 3,
                num_pipelines=context.num_input_pipelines,
                pipeline_id=context.input_pipeline_id,
            )

        hosts = distribution.num_hosts(strategy)
        size = datasets.part_size(count, hosts)
        steps = -(-size // (rows * replicas // hosts))
        parts = []
        for part in self.cancellable(self._replicated(make)):
            parts.append([x.reshape([-1, x.shape[-1]]) for x in part])
            steps -= len(part[0])
            if steps <= 0:
                break
        h, numbers = map(np.concatenate, zip(*parts, strict=True))
        labels, positions = numbers.T
        # Parts go on with examples that they have had.
        _, first = np.unique(positions, return_index=True)
        return h[first], labels[first]

    @property
    def _num_replicas(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def _replicated(self) -> ReplicatedEmbedder:
        return self.cached(
            "replicated",
            lambda: ReplicatedEmbedder(self.encoder, self.strategy),
        )

    def embed(
        self, batches: Batches, encoder: Callable[..., Any] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embeds batches of (images [b, S, S, K], labels [b]).

        Returns (h float32 [n, D], labels int32 [n]), by `encoder` if it is set,
        such as a fine-tuned one. Raises `UserError` if there is no image.
        """
        if encoder is not None:
            with self.strategy.scope():
                return embedding.embed(encoder, batches)
        parts = list(self.embed_batches(batches))
        if not parts:
            raise errors.UserError(_NO_IMAGE)
        h, labels = zip(*parts, strict=True)
        return np.concatenate(h), np.concatenate(labels)

    def embed_batches(
        self, batches: Batches
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (h [b, D], labels int32 [b]) of each batch, on demand.

        Hosts make their own parts of `training_batches`, if the replicas divide
        a batch.
        """
        if (
            isinstance(batches, SharedBatches)
            and batches.size % self._num_replicas == 0
        ):
            for steps in self.cancellable(self._replicated(batches.make)):
                yield from zip(*steps, strict=True)
            return
        encode = None
        for images, labels in batches:
            # One graph per size of a first batch; it fits the later batches.
            encode = encode or self.cached(
                ("embedder", len(images)),
                lambda: embedding.embedder(self.encoder, self.strategy),
            )
            yield encode(images), np.asarray(labels, np.int32)

    # ---- Other encoders ------------------------------------------------------

    def new_encoder(self, trained: bool = True) -> Any:
        """Makes a new encoder of the same kind, which may be changed.

        It has the weights under evaluation, or random ones; it maps images
        [n, S, S, K] to h [n, D], with `training=`, `variables` and
        `trainable_variables`, made in the strategy's scope. Raises `UserError`
        if there is no way to make one (an export has no random weights).
        """
        encoder = None
        if self.make_encoder is not None:
            with self.strategy.scope():
                encoder = self.make_encoder(trained)
        if encoder is None:
            kind = "trainable" if trained else "random"
            raise errors.UserError(
                f"this encoder has no {kind} copy: set `workdir` to a run"
            )
        return encoder

    def has_new_encoder(self, trained: bool = True) -> bool:
        """Whether `new_encoder` can make such an encoder."""
        return self.make_encoder is not None and (
            trained or self.run is not None
        )


def _checked_labels(labels: np.ndarray, info: datasets.Info) -> np.ndarray:
    """Returns labels as int32; raises `UserError` if one is out of range."""
    classes = info.num_classes or 0
    wrong = labels[(labels < 0) | (labels >= classes)]
    if wrong.size:
        raise errors.UserError(
            f"{info.name} {info.split} holds label {wrong[0]} but declares"
            f" {classes} classes, 0 to {classes - 1}: fix its labels"
        )
    return labels.astype(np.int32)


def missing_labels(context: EvaluationContext) -> str | None:
    """Returns why the data have no classes to score, or None."""
    for source in (context.train, context.test):
        if not source.info.has_labels:
            return (
                f"{source.info.name} {source.info.split} has no labels to score"
                " against: set train_split=NAME and test_split=NAME to labelled"
                " splits, or dataset=NAME to a labelled dataset"
            )
    return None


def holdout(
    labels: np.ndarray, fraction: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Splits training rows for a selection: stratified, by the seed.

    Of each class of `labels`, int [n], a fraction in (0, 1) is held out.
    Returns (rows to fit on, rows to select on), int64, increasing, disjoint; a
    class with one example is only in the first.
    """
    # RandomState's stream is stable across NumPy versions; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    parts = []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        count = min(max(round(fraction * len(rows)), 1), len(rows) - 1)
        parts.append(rows[:count])
    held_out = np.sort(np.concatenate(parts))
    if not held_out.size:
        raise errors.UserError(
            f"{len(labels)} training examples leave none to select on: every"
            " class has only one; use more examples"
        )
    return np.setdiff1d(np.arange(len(labels)), held_out), held_out


@dataclasses.dataclass(frozen=True)
class _Cancellable:
    """Batches that can be iterated again, each time under `wrap`."""

    batches: tf.data.Dataset
    wrap: Callable[[Iterable], Iterable]

    def __iter__(self) -> Iterator:
        return iter(self.wrap(self.batches))


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


def _finish(policy: Policy, count: int) -> datasets.Finish:
    """Returns the host's part of a policy, on views [B, V, S, S, K]."""
    color = views.photometric(policy, count)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        return color(pixels, views.prng.fold(seeds, count))

    return finish
