"""Photometric augmentation in the step, on the accelerator."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep
from tf_contrastive.views import RunViews


class DeviceAugmentation(ContrastiveStep):
    """Augments views that come with seeds: ((views, seeds [B, V, 2]), labels).

    The host leaves these views with their colours unchanged.
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
        return batch._replace(views=self.augment(batch.views, batch.seeds))
