"""Examples as images for the encoder under evaluation."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, views
from tf_contrastive.config.evaluate import Evaluation
from tf_contrastive.config.fields import replace
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import resolve_views
from tf_contrastive.embedding import MakeBatches

# Iterable of (images [b, S, S, K] or views [b, V, S, S, K], labels [b]).
Batches = Iterable[tuple[Any, Any]]


@dataclasses.dataclass(frozen=True)
class Images:
    """Makes batches of images [S, S, K] of any source."""

    side: int  # S, in pixels.
    channels: int  # K.
    preprocessing: str  # Of evaluated images.
    options: Evaluation
    run: Pretrain  # Whose policy and options of views are the default.
    # Wraps streams of training images, so that it can interrupt a pass.
    cancellable: Callable[[Iterable], Iterable]

    def plain(self, source: datasets.Source) -> Batches:
        """Returns every image once, in order, in the evaluation preprocessing.

        Batches of (images float32 [b, S, S, K], labels int32 [b], -1 where
        there are none) can be iterated again.
        """
        return datasets.evaluation_batches(
            source,
            views.evaluation(self.side, self.preprocessing),
            batch_size=self.options.embedding_batch_size,
            extra_channels=self.channels - 3,
        )

    def parts(self, source: datasets.Source, rows: int) -> MakeBatches:
        """Returns what makes a host's part: see `datasets.evaluation_part`.

        `rows` is the number of images of a batch.
        """
        preprocess = views.evaluation(self.side, self.preprocessing)

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return datasets.evaluation_part(
                source,
                preprocess,
                batch_size=rows,
                extra_channels=self.channels - 3,
                context=context,
            )

        return make

    def views(self, source: datasets.Source) -> Batches:
        """Returns two views of every image once, in order, by the run's policy.

        Batches of (views float32 [b, 2, S, S, K], labels int32 [b]) are the
        same when iterated again.
        """
        return datasets.view_batches(
            source,
            self._maker(source, None, 2),
            batch_size=self.options.embedding_batch_size,
            seed=self.options.seed,
        )

    def training(
        self,
        source: datasets.Source,
        augmentation: str,
        *,
        batch_size: int,
        rows: np.ndarray | None = None,
        seed: int = Evaluation.seed,
        start_step: int = 0,
    ) -> "SharedBatches":
        """Returns an endless stream of training images, one view per epoch.

        Args:
          source: the images.
          augmentation: policy; "none": the images unchanged, in another order
            each epoch.
          batch_size: images per batch, at most the number of images.
          rows: int [m], increasing: examples to use; None: all.
          seed: seed of order and views.
          start_step: first batch of the stream.

        Returns:
          Batches of (images float32 [b, S, S, K], labels int32 [b]); an epoch
          has whole batches only.
        """
        maker = self._maker(source, augmentation, 1)
        source = source if rows is None else source.select(rows)
        size = min(batch_size, source.info.num_examples)
        order = datasets.Order(
            batch_size=size,
            seed=seed,
            start_step=start_step,
            shuffle_buffer=self.run.data.shuffle_buffer,
            cache=self.run.data.cache,
            shares_files=False,
        )

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            batches = datasets.training_batches(source, maker, order, context)
            return batches.map(lambda pixels, labels: (pixels[:, 0], labels))

        return SharedBatches(make, size, self.cancellable)

    def _maker(
        self, source: datasets.Source, augmentation: str | None, count: int
    ) -> datasets.ViewMaker:
        """Returns what makes `count` views [B, V, S, S, K] by a policy.

        It is that of a name (None: the run's), with the run's other options of
        views.
        """
        options = self.run.views
        if augmentation is not None:
            options = replace(options, augmentation=augmentation)
        options = resolve_views(options, source.info.name, self.side)
        policy = views.build(
            options.policy.label,
            image_size=self.side,
            **options.policy.arguments(),
        )
        made = views.Views(policy, count)
        return datasets.ViewMaker(
            made.geometric, made.finish, extra_channels=self.channels - 3
        )


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
