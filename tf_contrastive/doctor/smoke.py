"""What `--smoke` makes of a run: two small steps, in seconds on a CPU."""

import dataclasses
from typing import Any

from tf_contrastive import distribution
from tf_contrastive.base import errors, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.data import DEFAULT_IMAGE_SIZE, without_slice
from tf_contrastive.config.dataset import (
    DigitOnImage,
    Digits,
    facts,
    image_dataset,
    read,
)
from tf_contrastive.config.encoder import resolve_stem
from tf_contrastive.config.pretrain import Pretrain, image_side
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.config.schedule import Piecewise, StageSchedule
from tf_contrastive.config.views import resolve_views
from tf_contrastive.train import open_split

SMOKE_STEPS = 2
_DEFAULTS = ("tpu", "steps_per_execution", "checkpoint_every_steps")
_BATCH_SIZE = 16
# Image side in pixels, by the stem of the run's own image side.
_SIDE = {"imagenet": 32, "cifar": 16}


def substitute(dataset: str) -> tuple[str, int]:
    """Returns (digits for a dataset that is absent, the side of its images).

    A dataset that is derived from another one is derived from digits then.
    """
    source = image_dataset(dataset)
    side = facts(source).side or DEFAULT_IMAGE_SIZE
    needs_mnist = isinstance(read(dataset), DigitOnImage)
    if source == dataset or needs_mnist:
        return Digits.name, side
    return dataset.replace(f"of={source}", f"of={Digits.name}"), side


def shrink(run: Pretrain) -> Pretrain:
    """Returns a run of two small steps (`smoke`), and logs the changes."""
    if run.runtime.virtual_devices:  # Before TensorFlow starts.
        distribution.split_cpu(run.runtime.virtual_devices)
    name = run.data.dataset
    try:
        info = open_split(run, without_slice(run.data.split)).info
        side = image_side(info.image_shape)
    except errors.AbsentDataError:
        name, side = substitute(name)
        terminal.info(
            f"smoke      {name} replaces {run.data.dataset}, which is not found"
        )
        info = open_split(fields.replace(run, dataset=name), "train").info
    small = smoke(run, dataset=name, side=side, examples=info.num_examples)
    before = fields.values(fields.replace(run, smoke=False))
    changes = [
        f"{name}={fields.written(before[name])} -> {fields.written(value)}"
        for name, value in fields.values(small).items()
        if before.get(name) not in (None, value)
    ]
    terminal.info(f"smoke      {', '.join(changes)}")
    small.validate()
    return small


def smoke(run: Pretrain, *, dataset: str, side: int, examples: int) -> Pretrain:
    """Shrinks a run to two steps.

    Image, encoder, data, batch and duration get smaller; the machine is one
    device, or the virtual ones that were set. The recipe stays, with the
    defaults of the run's own image size.

    Args:
      run: validated.
      dataset: the run's, or its `substitute`.
      side: of the run's own images in pixels, if it sets no `image_size`.
      examples: in the training split, without slices.
    """
    side = run.views.image_size or side
    stem = resolve_stem(getattr(run.encoder, "stem", None), side)
    chunks = min(run.batch.grad_cache_chunks, 2)
    # Every chunk of every replica has pairs of images.
    unit = 2 * chunks * max(run.runtime.virtual_devices, 1)
    # What is left may be for the test.
    room = min(
        _BATCH_SIZE, run.schedule.batch_size, examples // (SMOKE_STEPS + 1)
    )
    batch = max(room // unit, 1) * unit
    taken = SMOKE_STEPS * batch
    train, test = "train", "test"
    if dataset == run.data.dataset:
        train = without_slice(run.data.split)
        test = without_slice(run.data.test_split)
    changes: dict[str, Any] = {
        "test_split": test,
        "image_size": min(_SIDE[stem], side),
    }
    if run.linear.schedule.epochs:
        first = taken if test == train else 0
        changes |= {
            "test_split": f"{test}[{first}:{first + batch}]",
            "linear_batch_size": min(run.linear.schedule.batch_size, batch),
            **_shortened(run.linear.schedule, "linear_"),
        }
    if run.probe.online_knn_size:
        changes["online_knn_size"] = batch
    if run.loss.takes_keys:
        changes["queue_size"] = batch
    if not run.encoder.is_own:
        width = min(0.25, getattr(run.encoder, "width", 1.0))
        changes |= {**run.encoder.shrunk(side), "width": width}
    views = resolve_views(run.views, run.data.dataset, side)
    if views.small_views:
        changes |= {
            "image_size": min(2 * _SIDE[stem], side),
            "small_image_size": min(_SIDE[stem], views.small_side),
        }
    return fields.replace(
        dataclasses.replace(run, views=views),
        dataset=dataset,
        split=f"{train}[:{taken}]",
        validation_fraction=0.0,
        init_from="",
        grad_cache_chunks=chunks,
        batch_size=batch,
        **_shortened(run.schedule),
        **changes,
        strategy="mirrored" if run.runtime.virtual_devices else "default",
        **{name: getattr(Runtime, name) for name in _DEFAULTS},
        log_every_steps=1,
        histograms_every_epochs=0,
        projector_examples=0,
        profile_steps=(),
        smoke=False,
    )


def _shortened(schedule: StageSchedule, prefix: str = "") -> dict[str, Any]:
    """Returns the options of one epoch, of which a warm-up is half."""
    short: dict[str, Any] = {"epochs": 1}
    short["warmup_epochs"] = 0.0 if schedule.warmup_epochs == 0 else 0.5
    if isinstance(schedule.decay, Piecewise):
        short["decay_epochs"] = "0.75"
    return {f"{prefix}{name}": value for name, value in short.items()}
