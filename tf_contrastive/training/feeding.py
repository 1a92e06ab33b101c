"""The batches of a run: what the host makes of images, what the step does."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, errors, views
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.views import mixing as mixes


def make_policy(run: Pretrain) -> views.Policy:
    """The augmentation policy of a resolved config."""
    return views.build(
        run.views.augmentation,
        image_size=run.views.image_size,
        **run.views.options(),
    )


def framing(run: Pretrain) -> Callable[..., tf.Tensor]:
    """Crop, resize and flip, always on the host (see `views.geometric`)."""
    return views.geometric(make_policy(run), run.views.views)


def coloring(run: Pretrain, static: bool) -> Callable[..., tf.Tensor]:
    """All that follows the framing (see `views.photometric`)."""
    return views.photometric(make_policy(run), run.views.views, static)


def finishing(run: Pretrain) -> datasets.Finish:
    """What the host does with framed views: colour them, or ship the seeds.

    The step takes seeds where it changes colours, or mixes views.
    """
    count = run.views.views
    on_device = run.views.augment_on == "device"
    color = coloring(run, static=False)

    @tf.autograph.experimental.do_not_convert
    def finish(pixels: tf.Tensor, seeds: tf.Tensor) -> Any:
        seeds = views.prng.fold(seeds, count)
        if not on_device:
            pixels = color(pixels, seeds)
        return (pixels, seeds) if on_device or run.views.mixed else pixels

    return finish


def augment_on_device(run: Pretrain) -> Callable[..., tf.Tensor] | None:
    """What the step does with the views that it is given, if anything."""
    if run.views.augment_on != "device":
        return None
    # Compiled, since one kernel then does what would else be dozens.
    return tf.function(coloring(run, static=True), jit_compile=True)


def mixing(run: Pretrain, num_classes: int | None) -> mixes.Mixing | None:
    """What mixes the views of several images in the step, if anything."""
    if not run.views.mixed:
        return None
    return mixes.Mixing(
        num_classes, run.views.mixup_alpha, run.views.cutmix_alpha
    )


def batches(
    source: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: Pretrain,
    start_step: int,
    delivered: datasets.DeliveryCounter | None = None,
) -> Any:
    """The batches of a run from a step on, a share for every replica.

    Args:
      source: what to train on.
      strategy: whose replicas share the batches.
      run: a resolved config.
      start_step: the first step to give.
      delivered: counts what comes from a data service.
    """

    def of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        return datasets.training_batches(
            source,
            framing(run),
            finish=finishing(run),
            batch_size=run.schedule.batch_size,
            replica_batch_size=context.get_per_replica_batch_size(
                run.schedule.batch_size
            ),
            seed=run.runtime.seed,
            start_step=start_step,
            sampler=run.data.sampler,
            shuffle_buffer=run.data.shuffle_buffer,
            cache=run.data.cache,
            extra_channels=run.data.extra_channels,
            num_pipelines=context.num_input_pipelines,
            pipeline_id=context.input_pipeline_id,
            data_service=run.data.data_service,
            delivered=delivered,
        )

    return strategy.distribute_datasets_from_function(of_host)


def validate_on(
    validation: datasets.Source,
    strategy: tf.distribute.Strategy,
    run: Pretrain,
) -> dict[str, Any]:
    """Options that make `fit` measure the loss on the validation cut.

    Every epoch the same batches in the same views, so that epochs compare.
    """
    replicas = strategy.num_replicas_in_sync
    size = min(run.schedule.batch_size, validation.info.num_examples)
    if size < 2 * replicas:
        raise errors.UserError(
            f"validation_fraction={run.data.validation_fraction:g} cuts"
            f" {validation.info.num_examples} examples, fewer than 2 for each"
            f" of {replicas} replicas: give a larger one, or 0"
        )
    run = fields.replace(
        run,
        batch_size=size - size % replicas,
        sampler="shuffle",
        data_service="",
    )
    return {
        "validation_data": batches(validation, strategy, run, start_step=0),
        "validation_steps": datasets.steps_per_epoch(
            validation.info.num_examples, run.schedule.batch_size
        ),
    }
