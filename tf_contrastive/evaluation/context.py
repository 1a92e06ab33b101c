"""What a protocol measures: an encoder, two splits, and their embeddings.

A protocol takes an `EvaluationContext`: the encoder (`subject`), the two splits
(`data`), images of any source for the encoder, and embeddings, which are
computed once.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets, distribution, views
from tf_contrastive.base import errors
from tf_contrastive.config.data import extra_of_encoder
from tf_contrastive.config.evaluate import Evaluation, Scoring
from tf_contrastive.config.fields import replace
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import (
    DEFAULT_PREPROCESSING,
    check_channels,
    resolve_views,
)
from tf_contrastive.datasets import split_spec
from tf_contrastive.evaluation.subject import Batches, SharedBatches, Subject

_NO_IMAGE = "nothing to embed: the split holds no readable image"
_Value = TypeVar("_Value")


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
    """A split to learn from and a split to score."""

    train: datasets.Source
    test: datasets.Source
    # By split, as soon as they are read.
    _labels: dict[str, np.ndarray] = dataclasses.field(
        default_factory=dict, init=False
    )

    def source(self, split: str) -> datasets.Source:
        """Returns the split "train" or "test"."""
        return {"train": self.train, "test": self.test}[split]

    def labels(self, split: str) -> np.ndarray:
        """Reads a split's labels, int32 [n], -1 where there are none.

        Without images; cached, not to be modified. Raises `UserError` if there
        are no images, or a label is out of range.
        """
        if split not in self._labels:
            source = self.source(split)
            if not source.info.num_examples:
                raise errors.UserError(_NO_IMAGE)
            self._labels[split] = (
                _checked_labels(source.labels(), source.info)
                if source.info.has_labels
                else np.full([source.info.num_examples], -1, np.int32)
            )
        return self._labels[split]


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


@dataclasses.dataclass(frozen=True, eq=False)
class EvaluationContext:
    """An encoder and its data, as the protocols see them."""

    subject: Subject
    data: Data
    options: Scoring = dataclasses.field(default_factory=Scoring)
    _: dataclasses.KW_ONLY
    # Is called after each epoch of the linear protocol.
    observer: classifiers.TrainingObserver | None = None
    # Wraps iterables of images, so that it can interrupt a pass.
    cancellable: Callable[[Iterable], Iterable] = iter
    # Receives progress, a line at a time.
    log: Callable[[str], None] = lambda line: None
    cache: dict[Hashable, Any] = dataclasses.field(
        default_factory=dict, init=False
    )

    def __post_init__(self) -> None:
        for source in (self.data.train, self.data.test):
            self._extra_of(source)

    def _extra_of(self, source: datasets.Source) -> int:
        """Returns the extra channels of a source that the encoder takes."""
        info = source.info
        return extra_of_encoder(
            self.subject.channels, info.name, info.channels, info.extra_channels
        )

    def on(
        self, data: Data, preprocessing: str = DEFAULT_PREPROCESSING
    ) -> "EvaluationContext":
        """Returns a context of the same encoder on other data.

        Nothing is embedded yet in it. `preprocessing` is that of evaluated
        images, unless the options set another.
        """
        options = self.options
        if options.evaluation.preprocessing == "auto":
            options = replace(options, preprocessing=preprocessing)
        return dataclasses.replace(
            self, data=data, options=options, observer=None
        )

    # ---- Images --------------------------------------------------------------

    def images(self, source: datasets.Source, side: int = 0) -> Batches:
        """Returns every image once, in order, in the evaluation preprocessing.

        Batches of (images float32 [b, S, S, K], labels int32 [b], -1 where
        there are none) can be iterated again. S is `side`; 0: the encoder's.
        """
        return datasets.evaluation_batches(
            source,
            self._preprocess(source, side or self.subject.image_size),
            batch_size=self.options.evaluation.embedding_batch_size,
            extra_channels=self._extra_of(source),
        )

    def views(self, source: datasets.Source) -> Batches:
        """Returns two views of every image once, in order, by the run's policy.

        Batches of (views float32 [b, 2, S, S, K], labels int32 [b]) are the
        same when iterated again.
        """
        return datasets.view_batches(
            source,
            self._view_maker(source, None, 2),
            batch_size=self.options.evaluation.embedding_batch_size,
            seed=self.options.evaluation.seed,
        )

    def training_images(
        self,
        source: datasets.Source,
        augmentation: str,
        *,
        batch_size: int,
        rows: np.ndarray | None = None,
        seed: int = Evaluation.seed,
        start_step: int = 0,
    ) -> SharedBatches:
        """Returns an endless stream of training images, one view per epoch.

        Batches of (images float32 [b, S, S, K], labels int32 [b]); an epoch has
        whole batches only.

        Args:
          source: the images.
          augmentation: policy; "none": unchanged, in another order each epoch.
          batch_size: images per batch, at most the number of images.
          rows: int [m], increasing: examples to use; None: all.
          seed: seed of order and views.
          start_step: first batch of the stream.
        """
        maker = self._view_maker(source, augmentation, 1)
        source = source if rows is None else source.select(rows)
        order = datasets.Order(
            batch_size=min(batch_size, source.info.num_examples),
            seed=seed,
            start_step=start_step,
            shuffle_buffer=self._run.data.shuffle_buffer,
            cache=self._run.data.cache,
            shares_files=False,
        )

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = datasets.training_batches(source, maker, order, context)
            return batches.map(lambda pixels, labels: (pixels[:, 0], labels))

        return SharedBatches(make, order.batch_size, self.cancellable)

    @property
    def _run(self) -> Pretrain:
        """The run, whose policy and options of views are the default."""
        return self.subject.run or Pretrain()

    def _preprocess(self, source: datasets.Source, side: int) -> Any:
        name = self.options.evaluation.preprocessing
        name = DEFAULT_PREPROCESSING if name == "auto" else name
        return views.evaluation(side, name, source.info.float_channels)

    def _view_maker(
        self, source: datasets.Source, augmentation: str | None, count: int
    ) -> datasets.ViewMaker:
        """Returns what makes `count` views [B, V, S, S, K] by a policy.

        It is that of a name (None: the run's), with the run's other options of
        views.
        """
        options = replace(self._run.views, small_views=0)
        side = self.subject.image_size
        if augmentation is not None:
            options = replace(options, augmentation=augmentation)
        policy = resolve_views(options, source.info.name, side).policy
        channels, colors = source.info.float_channels, source.info.colors
        check_channels(policy, channels)
        built = views.build(
            policy.label,
            image_size=side,
            channels=channels,
            colors=colors,
            **policy.arguments(),
        )
        made = views.Views(built, count)
        return datasets.ViewMaker(
            made.geometric,
            made.finish,
            extra_channels=self._extra_of(source),
        )

    # ---- Prepared datasets of TFDS -------------------------------------------

    @property
    def data_dir(self) -> str | None:
        """The folder of prepared datasets; None: TFDS's default."""
        folder = self.options.evaluation.data_dir or self._run.data.data_dir
        return folder or None

    def prepared(
        self, name: str, split: str, label_feature: str | None = None
    ) -> datasets.Source | None:
        """Opens a split of another TFDS dataset; None if it is not prepared."""
        reading = datasets.Reading(label_feature=label_feature)
        try:
            return datasets.source(
                name, split, data_dir=self.data_dir, reading=reading
            )
        # A dataset that TFDS does not know may be prepared under its name.
        except (errors.AbsentDataError, errors.UnknownDatasetError):
            return None

    # ---- Embeddings ----------------------------------------------------------

    def cached(self, key: Hashable, make: Callable[[], _Value]) -> _Value:
        """Returns `make()` of the first call with this key."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def embeddings(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Embeds a split in its own order; cached, not to be modified.

        Returns (h float32 [n, D], labels int32 [n], -1 where there are none).
        Raises `UserError` if there are no images, h is not finite, or a label
        is out of range.
        """

        def embed() -> tuple[np.ndarray, np.ndarray]:
            start = time.monotonic()
            h, labels = self._embed_split(split)
            info = self.data.source(split).info
            classifiers.check_embeddings(f"embeddings of {info.split}", h)
            if info.has_labels:
                labels = _checked_labels(labels, info)
            self.data._labels.setdefault(split, labels)
            self.log(
                f"{self.subject.name} encoder: embedded {len(labels):,} images"
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

    @functools.cached_property
    def labelled_embeddings(
        self,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """(Train h, train labels, test h, test labels).

        Logs a warning if test has classes that train lacks.
        """
        train, test = self.embeddings("train"), self.embeddings("test")
        unseen = sorted({*test[1].tolist()} - {*train[1].tolist()})
        if unseen:
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
        assert self.subject.projection is not None
        return self.apply(self.subject.projection, h)

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
        source = self.data.source(split)
        count = source.info.num_examples
        if not count:
            raise errors.UserError(_NO_IMAGE)
        replicas = self.subject.strategy.num_replicas_in_sync
        rows = min(self.options.evaluation.embedding_batch_size, count)
        rows = -(-rows // replicas)
        hosts = distribution.num_hosts(self.subject.strategy)
        size = datasets.part_size(count, hosts)
        steps = -(-size // (rows * replicas // hosts))

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return datasets.evaluation_part(
                source,
                self._preprocess(source, self.subject.image_size),
                batch_size=rows,
                extra_channels=self._extra_of(source),
                context=context,
            )

        batches = self.subject.embedder.steps(make)
        parts = []
        for part in self.cancellable(batches):
            parts.append([x.reshape([-1, x.shape[-1]]) for x in part])
            steps -= len(part[0])
            if steps <= 0:
                break
        h, numbers = map(np.concatenate, zip(*parts, strict=True))
        labels, positions = numbers.T
        # Parts go on with examples that they have had.
        _, first = np.unique(positions, return_index=True)
        return h[first], labels[first]


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
    parts = [
        random.permutation(np.flatnonzero(labels == label))
        for label in np.unique(labels)
    ]
    chosen = split_spec.held_out(np.concatenate(parts), labels, fraction)
    if not chosen.any():
        raise errors.UserError(
            f"{len(labels)} training examples leave none to select on: every"
            " class has only one; use more examples"
        )
    return np.flatnonzero(~chosen), np.flatnonzero(chosen)
