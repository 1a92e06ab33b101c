"""What is evaluated: one encoder, and the two splits that it is scored on.

A protocol gets a `Subject` and asks it for what it needs: embeddings, which
are made once for all protocols, images, or augmented views. Those are of its
`splits`; `opening` makes the subject of a run or of an export.
"""

import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_contrastive import classifiers, datasets, embedding, errors, exporting
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation.splits import Splits


class Subject(Splits):
    """One encoder under evaluation, with the data it is scored on.

    Attributes are the arguments; `side` is the side S of the images that the
    encoder takes, in pixels, and `channels` their K.

    Args:
      encoder: images float32 [n, S, S, K], colours in [0, 1] -> h [n, D], with
        `training=`; a Keras model, or a loaded export. Made in the scope of
        `strategy`. No protocol changes it: see `fresh`.
      train, test: the two splits.
      options: the protocols' hyperparameters; None: their defaults.
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
        options: Evaluate | None = None,
        *,
        name: str = "trained",
        run: Pretrain | None = None,
        projection: Callable | None = None,
        classifier: Callable | None = None,
        fresh: Callable[[bool], Callable] | None = None,
        strategy: tf.distribute.Strategy | None = None,
        folder: str | None = None,
        follower: classifiers.Follower | None = None,
        heed: Callable[[Iterable], Iterable] = iter,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(
            train,
            test,
            options or Evaluate(),
            side=exporting.image_size(encoder),
            channels=3 + exporting.extra(encoder),
            run=run,
            heed=heed,
        )
        self.encoder = encoder
        self.name = name
        self.projection = projection
        self.classifier = classifier
        self.strategy = strategy or tf.distribute.get_strategy()
        self.folder = folder
        self.follower = follower
        self.say = say
        self._fresh = fresh
        self._warned = False
        self._embedders: dict[int, Callable] = {}
        self._cached: dict[tuple[str, str], tuple[np.ndarray, ...]] = {}

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
            raise errors.UserError(
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
            raise errors.UserError(
                f"{info.name} {info.split} holds label {wrong[0]}, and says"
                f" that it has {info.num_classes} classes, from 0 to"
                f" {info.num_classes - 1}: mend its labels"
            )

    # ---- Other encoders ------------------------------------------------------

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
            raise errors.UserError(
                f"nothing makes a {what} encoder of this kind: give the"
                " `workdir` of a run"
            )
        return made

    def has_fresh(self, trained: bool = True) -> bool:
        """Whether `fresh` can make one: a run's any, an export's trained."""
        return self._fresh is not None and (trained or self.run is not None)
