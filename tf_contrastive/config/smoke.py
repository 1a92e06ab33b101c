"""Runs and evaluations that are only tried out (`--smoke`)."""

import dataclasses
import math
from typing import Any

from tf_contrastive.config.data import whole
from tf_contrastive.config.encoder import resolve_stem
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.fields import (
    fields,
    read_numbers,
    replace,
    split_list,
)
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Runtime
from tf_contrastive.config.schedule import (
    SCHEDULE_OPTIONS,
    Schedule,
    resolve_warmup,
)
from tf_contrastive.config.views import resolve_views

# What `--smoke` makes of a run: steps, images a step, channels of a resnet10.
SMOKE_STEPS = 2
SMOKE_BATCH_SIZE = 16
SMOKE_ENCODER = "resnet10"
SMOKE_WIDTH = 0.25
# Side of its views in pixels, by the stem that the recipe's views have.
SMOKE_SIDE = {"imagenet": 32, "cifar": 16}


def smoke(
    run: Pretrain,
    *,
    dataset: str,
    side: int,
    examples: int,
    test_examples: int = 0,
) -> Pretrain:
    """Shrinks a run to two steps that take seconds on a CPU.

    Smaller get image, encoder, data, batch, and how long it lasts; the machine
    is one device, or the virtual ones that were given. What makes a recipe is
    kept: views, head, loss, probe, optimizer and its base learning rate,
    schedule, precision, stages. What has its default by the size of an image
    has that of the recipe's own size.

    Args:
      run: validated.
      dataset: what to train on: that of the run, or its `stand_in`.
      side: of the run's images in pixels, if it does not say `--image_size`.
      examples: how many there are of the training split, unsliced.
      test_examples: likewise of the test split, if there is a linear stage.

    Returns:
      A run without `--smoke` that does it.
    """
    side = run.views.image_size or side
    stem = resolve_stem(run.encoder.stem, side)
    chunks = min(run.loss.grad_cache_chunks, 2)
    # Pairs on every replica, and in every chunk.
    unit = 2 * chunks * max(run.runtime.virtual_devices, 1)
    # A cut of which a batch can be made.
    cut = run.data.validation_fraction and max(
        run.data.validation_fraction, 1 / 3
    )
    room = int(examples * (1 - cut)) // SMOKE_STEPS
    room = min(SMOKE_BATCH_SIZE, run.schedule.batch_size, room)
    batch = max(room // unit, 1) * unit
    taken = min(math.ceil(SMOKE_STEPS * batch / (1 - cut)), examples)
    train, test = whole(run.data.split), whole(run.data.test_split)
    linear = {}
    if dataset != run.data.dataset:
        train, test = "train", "test"
        linear = {"test_split": test}
    if run.linear.linear_epochs:
        linear = {
            "test_split": f"{test}[:{min(batch, test_examples)}]",
            "linear_batch_size": min(run.linear.linear_batch_size, batch),
            **_shortened(run.linear, "linear_"),
        }
    views = resolve_views(run.views, run.data.dataset, side)
    return replace(
        dataclasses.replace(run, views=views),
        dataset=dataset,
        split=f"{train}[:{taken}]",
        validation_fraction=cut,
        data_service="",
        image_size=min(SMOKE_SIDE[stem], side),
        encoder=SMOKE_ENCODER,
        init_from="",
        width=min(SMOKE_WIDTH, run.encoder.width),
        stem=stem,
        grad_cache_chunks=chunks,
        batch_size=batch,
        **_memories(run, batch),
        **_shortened(run.schedule),
        **linear,
        strategy="mirrored" if run.runtime.virtual_devices else "default",
        tpu=Runtime.tpu,
        cross_device_ops=Runtime.cross_device_ops,
        steps_per_execution=Runtime.steps_per_execution,
        checkpoint_every_steps=Runtime.checkpoint_every_steps,
        keep_checkpoint_every_hours=Runtime.keep_checkpoint_every_hours,
        log_every_steps=1,
        # What is only looked at is no part of a recipe.
        histograms_every_epochs=0,
        projector_examples=0,
        profile_steps="",
        smoke=False,
    )


def _memories(run: Pretrain, batch: int) -> dict[str, int]:
    """Returns the sizes of what remembers earlier batches, if anything does."""
    sizes = {}
    if run.loss.loss == "moco":
        sizes["queue_size"] = run.loss.queue_size
    if run.probe.online_knn_size:
        sizes["online_knn_size"] = run.probe.online_knn_size
    return {k: max(min(size, 4 * batch), batch) for k, size in sizes.items()}


def _shortened(
    group: Schedule | LinearStage, prefix: str = ""
) -> dict[str, Any]:
    """Returns the durations of a schedule of one epoch of two steps.

    A warm-up becomes one step; where the rate decays stays where it was
    between the warm-up and the end.
    """
    values = {
        field.name.removeprefix(prefix): getattr(group, field.name)
        for field in dataclasses.fields(group)
    }
    epochs = values["epochs"]
    warmup = resolve_warmup(values["warmup_epochs"], epochs)
    start = 1 / SMOKE_STEPS if warmup else 0.0
    short = {"epochs": 1, "warmup_epochs": start}
    name = values["schedule"]
    decays = values["boundaries"] or SCHEDULE_OPTIONS[name].get("boundaries")
    if decays:
        if isinstance(decays, str):
            decays = read_numbers(decays)
        places = [(b - warmup) / (epochs - warmup) for b in decays]
        short["boundaries"] = ",".join(
            f"{start + (1 - start) * place:.6f}" for place in places
        )
    return {f"{prefix}{name}": value for name, value in short.items()}


def smoke_evaluation(
    options: Evaluate,
    *,
    dataset: str,
    train: tuple[str, int],
    test: tuple[str, int],
) -> Evaluate:
    """Shrinks what `evaluate` does to seconds on a CPU; see `smoke`.

    Args:
      options: validated.
      dataset: what to evaluate on: that of the options or the run, or its
        `stand_in`.
      train: its split to learn from, unsliced, and how many examples it has.
      test: likewise the one that is scored.
    """
    few, many = SMOKE_BATCH_SIZE, 4 * SMOKE_BATCH_SIZE
    chosen = split_list(options.evaluation.protocols)
    shrunk = _smoke_protocols(options)
    if "all" not in chosen:
        shrunk = {name: shrunk.get(name, {}) for name in chosen}
    values = {k: v for of in shrunk.values() for k, v in of.items()}
    return replace(
        options,
        dataset=dataset,
        train_split=f"{train[0]}[:{min(many, train[1])}]",
        test_split=f"{test[0]}[:{min(2 * few, test[1])}]",
        embedding_batch_size=few,
        **values,
        smoke=False,
    )


def _smoke_protocols(options: Evaluate) -> dict[str, dict[str, Any]]:
    """Returns what `--smoke` makes of the options of each protocol."""
    few = SMOKE_BATCH_SIZE

    def first(name: str, count: int = 1) -> dict[str, str]:
        (value,) = (v for _, f, v in fields(options) if f.name == name)
        return {name: ",".join(split_list(value)[:count])}

    logistic = {"logistic_penalties": 3}
    return {
        "linear": {
            "linear_batch_size": min(options.linear.linear_batch_size, few),
            **_shortened(options.linear, "linear_"),
            **first("linear_learning_rates", 2),
        },
        "logistic": logistic,
        "robustness": {
            "robustness_examples": few,
            **first("robustness_corruptions"),
        },
        "finetune": {
            "finetune_epochs": "1",
            "finetune_batch_size": few,
            **first("finetune_learning_rates", 2),
        },
        "transfer": {
            "transfer_examples": 4 * few,
            "transfer_batch_size": few,
            "transfer_steps": SMOKE_STEPS,
            "transfer_scratch_steps": SMOKE_STEPS,
            **first("transfer_learning_rates"),
            **first("transfer_weight_decays", 2),
            **first("transfer_scratch_learning_rates"),
            **first("transfer_scratch_weight_decays"),
            **logistic,
        },
        "kl_bound": {"view_examples": 2 * few, "kl_batch_size": few},
        "contrastive": {
            "view_examples": 2 * few,
            "contrastive_batch_size": few,
        },
        "uniformity": {"view_examples": 2 * few},
        "transforms": {"transforms_train": 2 * few, "transforms_test": few},
        "tsne": {"tsne_examples": 2 * few},
        "kmeans": {"kmeans_images": 1},
    }
