"""The options of `pretrain` and `doctor`, and how they go together."""

import dataclasses
from typing import ClassVar

from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.data import Data, check_data_service
from tf_contrastive.config.encoder import Encoder, Projection, resolve_encoder
from tf_contrastive.config.fields import group
from tf_contrastive.config.linear import LinearStage, Probe
from tf_contrastive.config.loss import (
    LOSS_OPTIONS,
    VIEW_LOSSES,
    Loss,
    check_chunks,
)
from tf_contrastive.config.optimizer import Optimizer
from tf_contrastive.config.runtime import (
    Runtime,
    check_cross_device_ops,
    check_divisible,
)
from tf_contrastive.config.schedule import Schedule
from tf_contrastive.config.views import Views, check_pairs
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class Pretrain(Command):
    """All options of `pretrain`."""

    COMMON: ClassVar = (
        *("dataset", "data_dir", "augmentation", "image_size"),
        *("encoder", "init_from", "loss", "temperature"),
        *("learning_rate", "batch_size", "epochs", "warmup_epochs"),
        *("linear_epochs", "workdir", "strategy", "precision", "smoke"),
        "verbosity",
    )

    data: Data = group(Data())
    views: Views = group(Views())
    encoder: Encoder = group(Encoder())
    projection: Projection = group(Projection())
    loss: Loss = group(Loss())
    probe: Probe = group(Probe())
    optimizer: Optimizer = group(Optimizer())
    schedule: Schedule = group(Schedule())
    linear: LinearStage = group(
        LinearStage(), "linear_", help="linear stage: ", identity=False
    )
    runtime: Runtime = group(Runtime())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        self.optimizer.options()
        self.schedule.check()
        self._check_machine()
        self._check_loss()
        self._check_mixing()
        self.linear.check()
        if self.views.image_size:
            resolve_encoder(self.encoder, self.views.image_size)

    def _check_machine(self) -> None:
        runtime, batch_size = self.runtime, self.schedule.batch_size
        replicas = runtime.virtual_devices
        if replicas:
            if runtime.strategy not in ("auto", "mirrored"):
                raise UserError(
                    f"virtual_devices={replicas} needs strategy=mirrored,"
                    f" not {runtime.strategy}"
                )
            check_divisible(batch_size, replicas)
        check_chunks(self.loss.grad_cache_chunks, batch_size, max(replicas, 1))
        check_cross_device_ops(
            runtime.cross_device_ops, runtime.strategy, replicas
        )
        check_data_service(self.data.data_service, self.data.sampler)

    def _check_loss(self) -> None:
        loss, views = self.loss, self.views.views
        batch_size = self.schedule.batch_size
        options = LOSS_OPTIONS[loss.loss] | loss.options()
        if loss.loss in VIEW_LOSSES and views < 2:
            raise UserError(
                f"views={views} leaves {loss.loss} without positives: set"
                " views=2 or more"
            )
        other_view = options.get("negatives") == "other_view"
        if views != 2 and (other_view or loss.loss == "moco"):
            raise UserError(
                f"views={views}: {loss.loss}"
                + " with negatives=other_view" * other_view
                + " compares two views: set views=2"
            )
        if loss.loss == "moco" and loss.queue_size < batch_size:
            raise UserError(
                f"queue_size={loss.queue_size} holds less than one batch of"
                f" {batch_size}: set at least queue_size={batch_size}"
            )
        if loss.loss == "moco" and self.runtime.nan_policy != "stop":
            raise UserError(
                f"nan_policy={self.runtime.nan_policy}: non-finite keys would"
                " stay in the queue of loss=moco: set nan_policy=stop"
            )
        online = self.probe.online_knn_size
        if 0 < online < batch_size:
            raise UserError(
                f"online_knn_size={online} holds less than one batch of"
                f" {batch_size}: set at least online_knn_size={batch_size},"
                " or 0"
            )

    def _check_mixing(self) -> None:
        views = self.views
        if not views.mixed:
            return
        name = "mixup_alpha" if views.mixup_alpha else "cutmix_alpha"
        given = f"{name}={getattr(views, name):g}"
        if self.loss.loss != "cross_entropy":
            raise UserError(
                f"{given} makes labels of several classes, which"
                f" loss={self.loss.loss} does not take: set loss=cross_entropy"
                f" or {name}=0"
            )
        if self.data.sampler != "shuffle":
            raise UserError(
                f"{given} mixes each image with its neighbour in the batch,"
                f" which sampler={self.data.sampler} chooses by class: set"
                f" sampler=shuffle or {name}=0"
            )
        check_pairs(
            self.schedule.batch_size, max(self.runtime.virtual_devices, 1)
        )


@dataclasses.dataclass(frozen=True)
class Doctor(Pretrain):
    """All options of `doctor`: those of the `pretrain` command it checks."""

    runtime: Runtime = group(
        Runtime(),
        changes={
            "workdir": {
                "required": False,
                "help": "folder of the run, for doctor.json; empty: write"
                " nothing",
            }
        },
    )


def check_multi_label(run: Pretrain, dataset: str) -> None:
    """Raises `UserError` for options that need one label per image."""
    for name, off in (
        ("online_knn_size", 0),
        ("sampler", "shuffle"),
        ("mixup_alpha", 0),
        ("cutmix_alpha", 0),
    ):
        group = {"online_knn_size": run.probe, "sampler": run.data}
        value = getattr(group.get(name, run.views), name)
        if value != off:
            raise UserError(
                f"{name}={value} needs one label per image, and {dataset} has"
                f" several: set {name}={off}"
            )
