"""The options of `pretrain` and `doctor`, and how they go together."""

import dataclasses
from typing import ClassVar

from tf_contrastive.config.data import Data, check_data_service
from tf_contrastive.config.encoder import Encoder, Projection, resolve_encoder
from tf_contrastive.config.fields import validate_fields
from tf_contrastive.config.linear import LinearStage, Probe
from tf_contrastive.config.loss import (
    LOSS_OPTIONS,
    VIEW_LOSSES,
    Loss,
    check_chunks,
)
from tf_contrastive.config.optimizer import Optimizer
from tf_contrastive.config.runtime import (
    DoctorRuntime,
    Runtime,
    check_cross_device_ops,
    check_divisible,
)
from tf_contrastive.config.schedule import (
    SCHEDULE_OPTIONS,
    Schedule,
    check_boundaries,
    check_warmup,
)
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.config.views import Views, check_pairs
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class Pretrain:
    """All options of `pretrain`."""

    # What `--help` shows; `--helpfull` shows all.
    COMMON: ClassVar = (
        *("dataset", "data_dir", "augmentation", "image_size"),
        *("encoder", "init_from", "loss", "temperature"),
        *("learning_rate", "batch_size", "epochs", "warmup_epochs"),
        *("linear_epochs", "workdir", "strategy", "precision", "smoke"),
        "verbosity",
    )

    data: Data = dataclasses.field(default_factory=Data)
    views: Views = dataclasses.field(default_factory=Views)
    encoder: Encoder = dataclasses.field(default_factory=Encoder)
    projection: Projection = dataclasses.field(default_factory=Projection)
    loss: Loss = dataclasses.field(default_factory=Loss)
    probe: Probe = dataclasses.field(default_factory=Probe)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    linear: LinearStage = dataclasses.field(default_factory=LinearStage)
    runtime: Runtime = dataclasses.field(default_factory=Runtime)
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        schedule, runtime = self.schedule, self.runtime
        check_warmup(schedule.warmup_epochs, schedule.epochs)
        self.optimizer.options()
        decay = SCHEDULE_OPTIONS[schedule.schedule] | schedule.options()
        if "boundaries" in decay:
            check_boundaries(
                decay["boundaries"], schedule.warmup_epochs, schedule.epochs
            )
        replicas = runtime.virtual_devices
        if replicas:
            if runtime.strategy not in ("auto", "mirrored"):
                raise UserError(
                    f"virtual_devices={replicas} needs strategy=mirrored,"
                    f" not {runtime.strategy}"
                )
            check_divisible(schedule.batch_size, replicas)
        check_cross_device_ops(
            runtime.cross_device_ops, runtime.strategy, replicas
        )
        check_data_service(self.data.data_service, self.data.sampler)
        self._check_loss()
        self._check_mixing()
        self.linear.check()
        if self.views.image_size:
            resolve_encoder(self.encoder, self.views.image_size)

    def _check_loss(self) -> None:
        loss, views = self.loss, self.views.views
        options = LOSS_OPTIONS[loss.loss] | loss.options()
        if loss.loss in VIEW_LOSSES and views < 2:
            raise UserError(
                f"views={views} leaves {loss.loss} without positives: give"
                " views=2 or more"
            )
        of_two = loss.loss == "moco" or options.get("negatives") == "other_view"
        if of_two and views != 2:
            raise UserError(
                f"views={views}: {loss.loss}"
                + ("" if loss.loss == "moco" else " with negatives=other_view")
                + " compares two views: give views=2"
            )
        if loss.loss == "moco" and loss.queue_size < self.schedule.batch_size:
            raise UserError(
                f"queue_size={loss.queue_size} holds less than one batch of"
                f" {self.schedule.batch_size}: give at least"
                f" queue_size={self.schedule.batch_size}"
            )
        if loss.loss == "moco" and self.runtime.nan_policy != "stop":
            raise UserError(
                f"nan_policy={self.runtime.nan_policy}: keys that are no"
                " numbers would stay in moco's queue: give nan_policy=stop"
            )
        online, size = self.probe.online_knn_size, self.schedule.batch_size
        if 0 < online < size:
            raise UserError(
                f"online_knn_size={online} holds less than one batch of"
                f" {size}: give at least online_knn_size={size}, or 0"
            )
        replicas = max(self.runtime.virtual_devices, 1)
        check_chunks(loss.grad_cache_chunks, size, replicas)

    def _check_mixing(self) -> None:
        views = self.views
        if not views.mixed:
            return
        name = "mixup_alpha" if views.mixup_alpha else "cutmix_alpha"
        flag = f"{name}={getattr(views, name):g}"
        if self.loss.loss != "cross_entropy":
            raise UserError(
                f"{flag} makes labels of several classes, of which"
                f" loss={self.loss.loss} can make nothing: give"
                f" loss=cross_entropy, or {name}=0"
            )
        if self.data.sampler != "shuffle":
            raise UserError(
                f"{flag} mixes each image with its neighbour in the batch,"
                f" which sampler={self.data.sampler} chooses by its class:"
                f" give sampler=shuffle, or {name}=0"
            )
        check_pairs(
            self.schedule.batch_size, max(self.runtime.virtual_devices, 1)
        )


@dataclasses.dataclass(frozen=True)
class Doctor(Pretrain):
    """All options of `doctor`: those of `pretrain`, of which it tells."""

    runtime: DoctorRuntime = dataclasses.field(default_factory=DoctorRuntime)


def check_multi_label(run: Pretrain, dataset: str) -> None:
    """Raises `UserError` for what takes one label per image, not several."""
    given = {
        f"online_knn_size={run.probe.online_knn_size}": "online_knn_size=0",
        f"sampler={run.data.sampler}": "sampler=shuffle",
        f"mixup_alpha={run.views.mixup_alpha:g}": "mixup_alpha=0",
        f"cutmix_alpha={run.views.cutmix_alpha:g}": "cutmix_alpha=0",
    }
    for flag, instead in given.items():
        if flag != instead:
            raise UserError(
                f"{flag} takes one label per image, and {dataset} has several:"
                f" give {instead}"
            )
