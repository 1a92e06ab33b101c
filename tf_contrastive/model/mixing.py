"""MixUp and CutMix in the step."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.losses import labels as label_checks
from tf_contrastive.losses import similarity
from tf_contrastive.model.contrastive_step import Batch, ContrastiveStep
from tf_contrastive.views import mixup_cutmix


class Mixing(ContrastiveStep):
    """Mixes the views of training, which come with seeds, and their labels.

    Losses then compare with the class fractions of each view, accuracies with
    the labels.
    """

    arguments: tuple[str, ...] = ("mix",)

    def __init__(
        self,
        *args: Any,
        mix: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.mix = mix

    @classmethod
    def arguments_of_run(
        cls, run: Pretrain, num_classes: int | None
    ) -> dict[str, Any]:
        """The constructor's arguments for a resolved run."""
        arguments = super().arguments_of_run(run, num_classes)
        options = run.views
        if not options.mixed:
            return arguments
        if num_classes is None:
            raise errors.UserError(
                "mixing views needs labels: use a labelled dataset"
            )
        mix = mixup_cutmix.Mixing(
            num_classes, options.mixup_alpha, options.cutmix_alpha
        )
        return {**arguments, "mix": mix}

    def batch(self, data: Any, training: bool) -> Batch:
        """Unpacks the data, and mixes the views."""
        batch = super().batch(data, training)
        if self.mix is None or not training:
            return batch
        if batch.labels is None or batch.seeds is None:
            raise ValueError(
                "mix needs seeds and labels: pass ((views, seeds [B, V, 2]),"
                " labels)"
            )
        in_pairs = label_checks.or_nan(
            tf.ones([]),
            not isinstance(self.mix, mixup_cutmix.Mixing)
            or similarity.shape(batch.views)[0] % 2 == 0,
            "an odd number of images cannot be mixed in pairs: use an even"
            " number (and batch with drop_remainder=True)",
        )
        with tf.control_dependencies([in_pairs]):
            views, fractions = self.mix(batch.views, batch.labels, batch.seeds)
        return batch._replace(views=views, targets=fractions)
