"""What is evaluated: one encoder, and the two splits that it is scored on.

A protocol gets a `Subject` and asks it for what it needs: embeddings, which
are made once for all protocols, images, or augmented views.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    classifiers,
    config,
    datasets,
    embedding,
    exporting,
    views,
)
from tf_contrastive.views import Policy

SPLITS = ("train", "test")


class Subject:
    """One encoder under evaluation, with the data it is scored on.

    Attributes are the arguments; `side` is the side S of the images that the
    encoder takes, in pixels, and `channels` their K.

    Args:
      encoder: images float32 [n, S, S, K], colours in [0, 1] -> h [n, D], with
        `training=`; a Keras model, or a loaded export. Made in the scope of
        `strategy`. No protocol changes it: see `fresh`.
      train, test: the two splits.
      options: the protocols' knobs; None: their defaults.
      name: what results call the encoder.
      run: the resolved config of the run that made it; None where unknown.
      projection: h [n, D] -> z [n, P]; None where there is none.
      classifier: h [n, D] -> logits [n, C] of the run's own classifier; None
        where there is none.
      fresh: whether trained -> a new encoder of the same kind that may be
        changed, with the trained weights or with random ones; None where
        nothing makes one. See the method.
      strategy: whose replicas, of one host, share the images; None: that of
        the call.
      folder: where plots and arrays go; None: nowhere.
      follower: is told of every epoch of what learns in epochs.
      heed: wraps what goes over images, so that it may end a long walk.
      say: is told of progress, a line at a time.

    Raises:
      UserError: if the data lack channels that the encoder takes.
    """

    def __init__(
        self,
        encoder: Callable,
        train: datasets.Source,
        test: datasets.Source,
        options: config.Evaluate | None = None,
        *,
        name: str = "trained",
        run: config.Pretrain | None = None,
        projection: Callable | None = None,
        classifier: Callable | None = None,
        fresh: Callable[[bool], Callable] | None = None,
        strategy: tf.distribute.Strategy | None = None,
        folder: str | None = None,
        follower: classifiers.Follower | None = None,
        heed: Callable[[Iterable], Iterable] = iter,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.encoder = encoder
        self.train = train
        self.test = test
        self.options = options or config.Evaluate()
        self.name = name
        self.run = run
        self.projection = projection
        self.classifier = classifier
        self.strategy = strategy or tf.distribute.get_strategy()
        self.folder = folder
        self.follower = follower
        self.heed = heed
        self.say = say
        self._fresh = fresh
        self._warned = False
        self._embedders: dict[int, Callable] = {}
        self._cached: dict[tuple[str, str], tuple[np.ndarray, ...]] = {}
        self.side = exporting.image_size(encoder)
        self.channels = 3 + exporting.extra(encoder)
        for source in (train, test):
            config.check_encoder_channels(
                self.channels - 3, source.info.name, source.info.extra_channels
            )

    @property
    def has_labels(self) -> bool:
        """Whether every example of both splits has a label."""
        return self.train.info.has_labels and self.test.info.has_labels

    @property
    def num_classes(self) -> int | None:
        """Classes that labels lie below; None without labels."""
        return self.test.info.num_classes if self.has_labels else None

    def source(self, split: str) -> datasets.Source:
        """The split "train" or "test"."""
        if split not in SPLITS:
            raise config.unknown("split of a subject", split, SPLITS)
        return {"train": self.train, "test": self.test}[split]

    # ---- Embeddings ----------------------------------------------------------

    def embeddings(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Embeds a split, once, in its own order.

        Args:
          split: "train" or "test".

        Returns:
          (h float32 [n, D], labels int32 [n], -1 where there are none); not to
          be changed.

        Raises:
          UserError: for no images, NaN, or labels out of their range.
        """
        if ("h", split) not in self._cached:
            start = time.monotonic()
            made = self.embed(self.images(split))
            self._check(split, *made)
            self._cached["h", split] = made
            self.say(
                f"{self.name} encoder: embedded {len(made[1]):,} images"
                f" ({split}) in {time.monotonic() - start:.1f} s"
            )
        return self._cached["h", split]

    def arrays(self) -> tuple[np.ndarray, ...]:
        """What classifiers take: (train h, train labels, test h, test labels).

        The first time it warns of classes that training never saw.
        """
        train, test = self.embeddings("train"), self.embeddings("test")
        unseen = sorted({*test[1].tolist()} - {*train[1].tolist()})
        if unseen and not self._warned:
            self._warned = True
            self.say(
                f"warning: {len(unseen)} classes of the test split have no"
                " training example and count as missed"
                f" ({', '.join(map(str, unseen[:10]))})"
            )
        return *train, *test

    def projections(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Likewise the projections z float32 [n, P] of the embeddings.

        Raises:
          ValueError: if there is no projection.
        """
        if ("z", split) not in self._cached:
            h, labels = self.embeddings(split)
            self._cached["z", split] = (self.project(h), labels)
        return self._cached["z", split]

    def project(self, h: np.ndarray) -> np.ndarray:
        """Projects embeddings [n, D] to z float32 [n, P].

        Raises:
          ValueError: if there is no projection.
        """
        if self.projection is None:
            raise ValueError(f"the {self.name} encoder has no projection")
        return self._apply(self.projection, h)

    def logits(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Likewise the logits [n, C] of the run's own classifier.

        Raises:
          ValueError: if there is none.
        """
        if self.classifier is None:
            raise ValueError(f"the {self.name} encoder has no classifier")
        h, labels = self.embeddings(split)
        return self._apply(self.classifier, h), labels

    def _apply(self, head: Callable, h: np.ndarray) -> np.ndarray:
        rows = max(self.options.evaluation.embedding_batch_size, 1)
        parts = [
            np.asarray(head(tf.constant(part), training=False), np.float32)
            for part in np.split(h, range(rows, len(h), rows))
        ]
        return np.concatenate(parts)

    def embed(
        self, batches: embedding.Batches, encoder: Callable | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Embeds any batches of (images [b, S, S, K], labels [b]).

        Args:
          batches: such as `images` gives, or corrupted ones.
          encoder: in the place of the subject's own, such as a fine-tuned one.

        Returns:
          (h float32 [n, D], labels int32 [n]).

        Raises:
          UserError: if there is no image.
        """
        if encoder is not None:
            with self.strategy.scope():
                return embedding.embed(encoder, batches)
        embedded = list(self.embed_batches(batches))
        if not embedded:
            raise config.UserError(
                "nothing to embed: the split holds no readable image"
            )
        h, labels = zip(*embedded, strict=True)
        return np.concatenate(h), np.concatenate(labels)

    def embed_batches(
        self, batches: embedding.Batches
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Likewise batch after batch, each when it is asked for."""
        encode = None
        for images, labels in batches:
            # A graph for each size of a first batch, which fits the others.
            encode = encode or self._embedder(len(images))
            yield encode(images), np.asarray(labels, np.int32)

    def _embedder(self, size: int) -> Callable[[tf.Tensor], np.ndarray]:
        if size not in self._embedders:
            made = embedding.embedder(self.encoder, self.strategy)
            self._embedders[size] = made
        return self._embedders[size]

    def _check(self, split: str, h: np.ndarray, labels: np.ndarray) -> None:
        info = self.source(split).info
        classifiers.check_embeddings(f"embeddings of {info.split}", h)
        if not info.has_labels:
            return
        # A dataset that breaks its own word would be scored against it.
        wrong = labels[(labels < 0) | (labels >= info.num_classes)]
        if wrong.size:
            raise config.UserError(
                f"{info.name} {info.split} holds label {wrong[0]}, and says"
                f" that it has {info.num_classes} classes, from 0 to"
                f" {info.num_classes - 1}: mend its labels"
            )

    # ---- Images --------------------------------------------------------------

    def images(
        self, split: str, source: datasets.Source | None = None
    ) -> Iterable[tuple[tf.Tensor, tf.Tensor]]:
        """Every image once, in order, in the evaluation preprocessing.

        Args:
          split: "train" or "test".
          source: another dataset in its place, such as a corrupted one.

        Returns:
          Iterable of (images float32 [b, S, S, K], labels int32 [b], -1 where
          there are none); may be gone over again.
        """
        made = datasets.evaluation_batches(
            source or self.source(split),
            views.evaluation(self.side),
            batch_size=self.options.evaluation.embedding_batch_size,
            extra_channels=self.channels - 3,
        )
        return _Heeded(made, self.heed)

    def views(
        self, split: str, count: int = 2, augmentation: str | None = None
    ) -> Iterable[tuple[tf.Tensor, tf.Tensor]]:
        """Augmented views of every image once, in order, by the seed.

        Args:
          split: "train" or "test".
          count: views per image, V.
          augmentation: policy; None: that of the run.

        Returns:
          Iterable of (views float32 [b, V, S, S, K], labels int32 [b]); the
          same views when gone over again.
        """
        policy = self._policy(augmentation)
        made = datasets.view_batches(
            self.source(split),
            views.framing(policy, count),
            finish=_coloring(policy, count),
            batch_size=self.options.evaluation.embedding_batch_size,
            seed=self.options.evaluation.seed,
            extra_channels=self.channels - 3,
        )
        return _Heeded(made, self.heed)

    def stream(
        self,
        augmentation: str | None,
        *,
        batch_size: int,
        rows: np.ndarray | None = None,
        seed: int | None = None,
        start_step: int = 0,
    ) -> Iterable[tuple[tf.Tensor, tf.Tensor]]:
        """Augmented training images without end: one view of each an epoch.

        Args:
          augmentation: policy; None: that of the run; "none": the images as
            they are, in an order of each epoch's own.
          batch_size: images of a batch, at most as many as there are.
          rows: int [m], increasing: which training examples; None: all.
          seed: of their order and views; None: that of the options.
          start_step: first batch to give.

        Returns:
          Iterable of (images float32 [b, S, S, K], labels int32 [b]); an epoch
          has whole batches.
        """
        policy = self._policy(augmentation)
        source = self.train if rows is None else self.train.select(rows)
        data = (self.run or config.Pretrain()).data
        made = datasets.training_batches(
            source,
            views.framing(policy, 1),
            finish=_coloring(policy, 1),
            batch_size=min(batch_size, source.info.num_examples),
            seed=self.options.evaluation.seed if seed is None else seed,
            start_step=start_step,
            shuffle_buffer=data.shuffle_buffer,
            cache=data.cache,
            extra_channels=self.channels - 3,
        )
        made = made.map(lambda pixels, labels: (pixels[:, 0], labels))
        return _Heeded(made, self.heed)

    def _policy(self, augmentation: str | None) -> Policy:
        """The policy of a name, with the run's options of views."""
        chosen = (self.run or config.Pretrain()).views
        if augmentation is not None:
            chosen = dataclasses.replace(chosen, augmentation=augmentation)
        chosen = config.resolve_views(chosen, self.train.info.name, self.side)
        return views.build(
            chosen.augmentation, image_size=self.side, **chosen.options()
        )

    # ---- Other encoders, and parts of train ----------------------------------

    def fresh(self, trained: bool = True) -> Callable:
        """A new encoder of the same kind, which may be changed.

        Args:
          trained: with the weights under evaluation; False: random ones.

        Returns:
          images [n, S, S, K] -> h [n, D], with `training=`, `variables` and
          `trainable_variables`, made in the strategy's scope.

        Raises:
          UserError: if nothing makes one (an export has no random weights).
        """
        made = None
        if self._fresh is not None:
            with self.strategy.scope():
                made = self._fresh(trained)
        if made is None:
            what = "trainable" if trained else "random"
            raise config.UserError(
                f"nothing makes a {what} encoder of this kind: give the"
                " --workdir of a run"
            )
        return made

    def has_fresh(self, trained: bool = True) -> bool:
        """Whether `fresh` can make one: a run's any, an export's trained."""
        return self._fresh is not None and (trained or self.run is not None)

    def holdout(
        self, labels: np.ndarray, share: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cuts a part off train for selections: stratified, by the seed.

        Args:
          labels: int [n], of the training rows.
          share: of each class to cut off, in (0, 1).

        Returns:
          (rows to fit on, rows to select on), int64, increasing, disjoint; a
          class of one example stays whole with the first.

        Raises:
          UserError: if nothing would be cut off.
        """
        return holdout(labels, share, self.options.evaluation.seed)


def of_run(
    found: checkpoints.Run,
    train: datasets.Source,
    test: datasets.Source,
    options: config.Evaluate | None = None,
    *,
    trained: bool = True,
    strategy: tf.distribute.Strategy | None = None,
    **others: Any,
) -> Subject:
    """The encoder of a run, or an untrained one of the same kind.

    Args:
      found: of `checkpoints.load_run`.
      train, test, options, strategy, **others: see `Subject`.
      trained: the checkpoint's weights; False: random ones.
    """
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder = checkpoints.load_encoder(found, trained=trained)
        features = encoder.output_shape[-1]
        projection = checkpoints.load_projection(
            found, features, trained=trained
        )
        classifier = checkpoints.load_classifier(
            found, features, trained=trained
        )

    def fresh(again: bool) -> tf.keras.Model:
        # Not from the checkpoint, which may be deleted meanwhile.
        made = checkpoints.load_encoder(found, trained=False, synchronized=True)
        if again:
            made.set_weights(encoder.get_weights())
        return made

    return Subject(
        encoder,
        train,
        test,
        options,
        name="trained" if trained else "untrained",
        run=found.config,
        projection=projection,
        classifier=classifier,
        fresh=fresh,
        strategy=strategy,
        **others,
    )


def of_export(
    path: str,
    train: datasets.Source,
    test: datasets.Source,
    options: config.Evaluate | None = None,
    **others: Any,
) -> Subject:
    """The encoder of an export.

    Args:
      path: of `exporting.load`.
      train, test, options, **others: see `Subject`.
    """
    encoder = exporting.load(path)
    projection = None
    if hasattr(encoder, "projection"):

        def projection(h: tf.Tensor, training: bool = False) -> tf.Tensor:
            return encoder.projection(h)

    return Subject(
        encoder,
        train,
        test,
        options,
        projection=projection,
        fresh=lambda trained: exporting.load(path) if trained else None,
        **others,
    )


def holdout(
    labels: np.ndarray, share: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """See `Subject.holdout`; by the seed given."""
    # RandomState's stream is frozen for good; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    cut = []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        cut.append(rows[:count])
    held = np.sort(np.concatenate(cut))
    if not held.size:
        raise config.UserError(
            f"{len(labels)} training examples leave none to select on: every"
            " class has one at most; give more of them"
        )
    return np.setdiff1d(np.arange(len(labels)), held), held


@dataclasses.dataclass(frozen=True)
class _Heeded:
    """Batches that can be gone over again, each time under `heed`."""

    batches: tf.data.Dataset
    heed: Callable[[Iterable], Iterable]

    def __iter__(self) -> Iterator:
        return iter(self.heed(self.batches))


def _coloring(policy: Policy, count: int) -> datasets.Finish:
    """What the host does with framed views [B, V, S, S, K] and seeds."""
    color = views.coloring(policy, count)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        return color(pixels, views.draws.fold(seeds, count))

    return finish
