"""Photometric augmentation in the step, on the accelerator."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep
from tf_contrastive.views import RunViews


class DeviceAugmentation(ContrastiveStep):
    """Augments views that come with seeds: ((views, seeds [B, V, 2]), labels).

    The host leaves these views with their colours unchanged. Views of each
    size are augmented by a call of their own.
    """

    arguments: tuple[str, ...] = ("augment",)

    def __init__(
        self,
        *args: Any,
        augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.augment = augment

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        views = RunViews(run.views, run.reading)
        return {**arguments, "augment": views.on_device()}

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data, and augments the views."""
        batch = super().batch(data, training)
        if self.augment is None:
            return batch
        if batch.seeds is None:
            raise ValueError(
                "augment needs seeds of all views: pass ((views, seeds"
                " [B, V, 2]), labels)"
            )
        if batch.small_views is None:
            return batch._replace(views=self.augment(batch.views, batch.seeds))
        large = batch.views.shape[1]
        seeds = batch.seeds[:, :large], batch.seeds[:, large:]
        return batch._replace(
            views=self.augment(batch.views, seeds[0]),
            small_views=self.augment(batch.small_views, seeds[1]),
        )
