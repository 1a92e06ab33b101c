"""What `auto` and 0 become once a run's data and devices are known."""

import dataclasses
from typing import Any

from tf_contrastive.config import fields
from tf_contrastive.config.data import DEFAULT_IMAGE_SIZE
from tf_contrastive.config.encoder import resolve_encoder
from tf_contrastive.config.optimizer import resolve_learning_rate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import resolve_warmup
from tf_contrastive.config.views import check_pairs, resolve_views
from tf_contrastive.errors import UserError


def image_side(image_shape: tuple[int, ...] | None) -> int:
    """Returns the side of a view in pixels, by the shape of the images."""
    return min((image_shape or (DEFAULT_IMAGE_SIZE,))[:2])


def resolve(
    run: Pretrain,
    *,
    dataset: str,
    image_shape: tuple[int, ...] | None,
    extra_channels: int = 0,
    multi_label: bool = False,
    replicas: int = 1,
    on_tpu: bool = False,
    on_gpu: bool = False,
) -> Pretrain:
    """Returns the run with every option that depends on data and devices.

    Args:
      run: validated.
      dataset: the name under which the data were opened.
      image_shape: (height, width, 3), or None where it varies.
      extra_channels: channels of the dataset's feature `extra`.
      multi_label: whether an image has several labels.
      replicas: that share the batch.
      on_tpu, on_gpu: whether the replicas are TPU cores, or GPUs.
    """
    size = run.views.image_size or image_side(image_shape)
    extra = run.data.extra_channels
    if extra > extra_channels:
        raise UserError(
            f"extra_channels={extra}: {dataset} has {extra_channels} channels"
            f" of feature `extra`: set extra_channels={extra_channels} or less"
        )
    if run.views.mixed:
        check_pairs(run.schedule.batch_size, replicas)
    values: dict[str, Any] = {
        "extra_channels": extra_channels if extra < 0 else extra,
        # The probe takes one class per image.
        "probe": run.probe.probe and not multi_label,
        "learning_rate": resolve_learning_rate(
            run.schedule.learning_rate,
            run.optimizer.optimizer,
            run.schedule.learning_rate_scaling,
        ),
        "warmup_epochs": resolve_warmup(
            run.schedule.warmup_epochs, run.schedule.epochs
        ),
    }
    if run.runtime.precision == "auto":
        values["precision"] = "mixed_bfloat16" if on_tpu else "float32"
    if run.views.augment_on == "auto":
        values["augment_on"] = "device" if on_tpu or on_gpu else "host"
    run = dataclasses.replace(
        run,
        views=resolve_views(run.views, dataset, size),
        encoder=resolve_encoder(run.encoder, size),
    )
    return fields.replace(run, **values)
