"""What `--smoke` makes of a run: seconds on a CPU.

`shrink` opens the data, or digits in their place, and `smoke` makes the options
of two small steps.
"""

import dataclasses
import math
from typing import Any, NamedTuple

from tf_contrastive import datasets, distribution
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
from tf_contrastive.config.fields import replace
from tf_contrastive.config.pretrain import Pretrain, image_side
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.config.schedule import (
    Piecewise,
    StageSchedule,
    resolve_warmup,
)
from tf_contrastive.config.views import resolve_views
from tf_contrastive.train import open_split

SMOKE_STEPS = 2
_DEFAULTS = ("tpu", "steps_per_execution", "checkpoint_every_steps")
_BATCH_SIZE = 16
# Image side in pixels, by the stem of the run's own image side.
_SIDE = {"imagenet": 32, "cifar": 16}


class Substitute(NamedTuple):
    """What replaces a dataset that is not available."""

    # Of digits, also inside the name of a derived dataset.
    name: str
    # Of the images that it replaces, in pixels.
    side: int
    # One line for the user.
    message: str


def substitute(dataset: str) -> Substitute:
    """Returns what replaces a dataset that is not available."""
    source = image_dataset(dataset)
    known = facts(source)
    digits = Digits.name
    name = digits
    needs_mnist = isinstance(read(dataset), DigitOnImage)
    if source != dataset and not needs_mnist:
        name = dataset.replace(f"of={source}", f"of={digits}")
    message = f"{name} replaces {dataset}, which is not found"
    return Substitute(name, known.side or DEFAULT_IMAGE_SIZE, message)


def shrink(run: Pretrain) -> Pretrain:
    """Returns a run of two small steps (`smoke`), and logs the changes."""
    if run.runtime.virtual_devices:  # Before TensorFlow starts.
        distribution.split_cpu(run.runtime.virtual_devices)
    name = run.data.dataset
    train, test = map(without_slice, (run.data.split, run.data.test_split))
    full = run
    try:
        if train == test:
            datasets.check_disjoint(
                open_split(run, run.data.split),
                open_split(run, run.data.test_split),
            )
        info = open_split(full, train).info
        side = image_side(info.image_shape)
    except errors.AbsentDataError:
        name, side, message = substitute(name)
        terminal.info(f"smoke      {message}")
        full = fields.replace(full, dataset=name)
        train, test = "train", "test"
        info = open_split(full, train).info
    test_examples = 0
    if run.linear.schedule.epochs:
        test_examples = open_split(full, test).info.num_examples
    small = smoke(
        run,
        dataset=name,
        side=side,
        examples=info.num_examples,
        test_examples=test_examples,
    )
    before = fields.values(fields.replace(run, smoke=False))
    changes = [
        f"{name}={fields.written(before[name])} -> {fields.written(value)}"
        for name, value in fields.values(small).items()
        if before.get(name) not in (None, value)
    ]
    terminal.info(f"smoke      {', '.join(changes)}")
    small.validate()
    return small


def smoke(
    run: Pretrain,
    *,
    dataset: str,
    side: int,
    examples: int,
    test_examples: int = 0,
) -> Pretrain:
    """Shrinks a run to two steps.

    Image, encoder, data, batch and duration get smaller; the machine is one
    device, or the virtual ones that were set. The recipe stays, with the
    defaults of the run's own image size.

    Args:
      run: validated.
      dataset: the run's, or its `substitute`.
      side: of the run's images in pixels, if it does not set `image_size`.
      examples: in the training split, without slices.
      test_examples: in the test split, if there is a linear stage.
    """
    side = run.views.image_size or side
    stem = resolve_stem(getattr(run.encoder, "stem", None), side)
    chunks = min(run.batch.grad_cache_chunks, 2)
    # Every chunk of every replica has pairs of images.
    unit = 2 * chunks * max(run.runtime.virtual_devices, 1)
    # The validation cut must hold a batch.
    cut = run.data.validation_fraction and max(
        run.data.validation_fraction, 1 / 3
    )
    own = dataset == run.data.dataset
    train = without_slice(run.data.split) if own else "train"
    test = without_slice(run.data.test_split) if own else "test"
    first = 0
    if test == train:
        test_examples = examples // 4
        first = examples = examples - test_examples
    room = int(examples * (1 - cut)) // SMOKE_STEPS
    room = min(_BATCH_SIZE, run.schedule.batch_size, room)
    batch = max(room // unit, 1) * unit
    taken = min(math.ceil(SMOKE_STEPS * batch / (1 - cut)), examples)
    changes: dict[str, Any] = {} if own else {"test_split": test}
    if run.linear.schedule.epochs:
        size = run.linear.schedule.batch_size
        scored = min(batch, test_examples)
        changes |= {
            "test_split": f"{test}[{first or ''}:{first + scored}]",
            "linear_batch_size": min(size, batch),
            **_shortened(run.linear.schedule, "linear_"),
        }
    memories = {"online_knn_size": run.probe.online_knn_size}
    if run.loss.takes_keys:
        memories["queue_size"] = run.batch.queue_size
    changes |= {
        name: max(min(size, 4 * batch), batch)
        for name, size in memories.items()
        if size
    }
    network: dict[str, Any] = {}
    if not run.encoder.is_own:
        width = min(0.25, getattr(run.encoder, "width", 1.0))
        network = {**run.encoder.shrunk(side), "width": width}
    views = resolve_views(run.views, run.data.dataset, side)
    return replace(
        dataclasses.replace(run, views=views),
        dataset=dataset,
        split=f"{train}[:{taken}]",
        validation_fraction=cut,
        image_size=min(_SIDE[stem], side),
        init_from="",
        **network,
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
    """Returns the options of one epoch of two steps.

    A warm-up becomes one step. Boundaries keep their places between the end of
    the warm-up and the end of the run.
    """
    warmup = resolve_warmup(schedule.warmup_epochs, schedule.epochs)
    start = 1 / SMOKE_STEPS if warmup else 0.0
    short: dict[str, Any] = {"epochs": 1, "warmup_epochs": start}
    if isinstance(schedule.decay, Piecewise):
        boundaries = schedule.decay.boundaries
        places = [(b - warmup) / (schedule.epochs - warmup) for b in boundaries]
        short["boundaries"] = ",".join(
            f"{start + (1 - start) * place:.6f}" for place in places
        )
    return {f"{prefix}{name}": value for name, value in short.items()}
