"""The two splits that an encoder is scored on, as the images that it takes."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, errors, views
from tf_contrastive.config.data import check_encoder_channels
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import resolve_views
from tf_contrastive.views import Policy

SPLITS = ("train", "test")


class Splits:
    """Train and test, in the preprocessing of one encoder.

    Attributes are the arguments.

    Args:
      train, test: the two splits.
      options: the protocols' hyperparameters.
      side: S of the images that the encoder takes, in pixels.
      channels: K of them.
      run: the resolved config of the run that made it; None where unknown.
      heed: wraps what goes over images, so that it may end a long walk.

    Raises:
      UserError: if the data lack channels that the encoder takes.
    """

    def __init__(
        self,
        train: datasets.Source,
        test: datasets.Source,
        options: Evaluate,
        *,
        side: int,
        channels: int,
        run: Pretrain | None,
        heed: Callable[[Iterable], Iterable],
    ) -> None:
        self.train = train
        self.test = test
        self.options = options
        self.side = side
        self.channels = channels
        self.run = run
        self.heed = heed
        for source in (train, test):
            check_encoder_channels(
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
            raise errors.unknown("split of a subject", split, SPLITS)
        return {"train": self.train, "test": self.test}[split]

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
            views.geometric(policy, count),
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
        data = (self.run or Pretrain()).data
        made = datasets.training_batches(
            source,
            views.geometric(policy, 1),
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
        chosen = (self.run or Pretrain()).views
        if augmentation is not None:
            chosen = dataclasses.replace(chosen, augmentation=augmentation)
        chosen = resolve_views(chosen, self.train.info.name, self.side)
        return views.build(
            chosen.augmentation, image_size=self.side, **chosen.options()
        )

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


def holdout(
    labels: np.ndarray, share: float, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """See `Splits.holdout`; by the seed given."""
    # RandomState's stream is frozen for good; Generator's is not.
    random = np.random.RandomState(seed % 2**32)
    cut = []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        cut.append(rows[:count])
    held = np.sort(np.concatenate(cut))
    if not held.size:
        raise errors.UserError(
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
    color = views.photometric(policy, count)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        return color(pixels, views.prng.fold(seeds, count))

    return finish
