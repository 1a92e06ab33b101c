"""The options of `pretrain` and `doctor`, how they go together, and `auto`."""

import dataclasses
from typing import Any, ClassVar

from tf_contrastive.config.data import (
    DEFAULT_IMAGE_SIZE,
    Data,
    Reading,
    check_data_service,
)
from tf_contrastive.config.encoder import (
    CONVNET,
    ENCODERS,
    Encoder,
    Projection,
    resolve_encoder,
)
from tf_contrastive.config.fields import (
    Command,
    Terminal,
    group,
    matching,
    option,
    replace,
)
from tf_contrastive.config.linear import LinearStage, Probe
from tf_contrastive.config.loss import (
    LOSSES,
    Loss,
    check_chunks,
    resolve_products,
)
from tf_contrastive.config.optimizer import Optimizer, resolve_learning_rate
from tf_contrastive.config.runtime import (
    CheckedRuntime,
    Runtime,
    check_divisible,
    resolve_precision,
)
from tf_contrastive.config.schedule import Schedule, resolve_warmup
from tf_contrastive.config.views import (
    Views,
    check_pairs,
    resolve_views,
    resolve_wire_dtype,
)
from tf_contrastive.errors import UserError, arg


@dataclasses.dataclass(frozen=True)
class Pretrain(Command):
    """Train an encoder; the same command resumes it."""

    COMMON: ClassVar = (
        "dataset",
        "data_dir",
        "augmentation",
        "image_size",
        "encoder",
        "init_from",
        "loss",
        "temperature",
        "learning_rate",
        "batch_size",
        "epochs",
        "warmup_epochs",
        "linear_epochs",
        "workdir",
        "strategy",
        "precision",
        "smoke",
        "verbosity",
    )

    data: Data = group(Data())
    reading: Reading = group(Reading())
    views: Views = group(Views())
    encoder: Encoder = group(Encoder())
    projection: Projection = group(Projection())
    loss: Loss = group(Loss())
    probe: Probe = group(Probe())
    optimizer: Optimizer = group(Optimizer())
    schedule: Schedule = group(Schedule())
    linear: LinearStage = group(LinearStage(), "linear_", identity=False)
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
        runtime.check()
        replicas = runtime.virtual_devices
        if replicas:
            check_divisible(batch_size, replicas)
            if runtime.xla == "on":
                raise UserError(
                    f"{arg('xla', 'on')}: {arg('virtual_devices', replicas)}"
                    f" cannot be compiled: set {arg('xla', 'off')}"
                )
        check_chunks(self.loss.grad_cache_chunks, batch_size, max(replicas, 1))
        check_data_service(self.data.data_service, self.data.sampler)

    def _check_loss(self) -> None:
        loss, views = self.loss, self.views.views
        batch_size = self.schedule.batch_size
        chosen = loss.chosen()
        if not chosen.needs_labels and views < 2:
            raise UserError(
                f"{arg('views', views)} leaves {loss.loss} without positives:"
                f" set {arg('views', '2')} or more"
            )
        if chosen.compares_two_views and views != 2:
            raise UserError(
                f"{arg('views', views)}: {loss.loss}"
                + f" with {arg('negatives', 'other_view')}"
                * (not chosen.takes_keys)
                + f" compares two views: set {arg('views', '2')}"
            )
        if chosen.takes_keys and loss.queue_size < batch_size:
            raise UserError(
                f"{arg('queue_size', loss.queue_size)} holds less than one"
                f" batch of {batch_size}: set at least"
                f" {arg('queue_size', batch_size)}"
            )
        if chosen.takes_keys and self.runtime.nan_policy != "stop":
            raise UserError(
                f"{arg('nan_policy', self.runtime.nan_policy)}: non-finite keys"
                f" would stay in the queue of {arg('loss', loss.loss)}: set"
                f" {arg('nan_policy', 'stop')}"
            )
        encoder = self.encoder.encoder
        if chosen.takes_keys and encoder.startswith("keras_cv:csp_darknet"):
            raise UserError(
                f"{arg('encoder', encoder)}: has layers that cannot be copied,"
                f" as {arg('loss', loss.loss)} does: use another encoder"
            )
        online = self.probe.online_knn_size
        if 0 < online < batch_size:
            raise UserError(
                f"{arg('online_knn_size', online)} holds less than one batch of"
                f" {batch_size}: set at least"
                f" {arg('online_knn_size', batch_size)}, or 0"
            )

    def _check_mixing(self) -> None:
        views = self.views
        if not views.mixed:
            return
        name = "mixup_alpha" if views.mixup_alpha else "cutmix_alpha"
        given = arg(name, f"{getattr(views, name):g}")
        if not self.loss.chosen().takes_logits:
            takers = [n for n, other in LOSSES.items() if other.takes_logits]
            raise UserError(
                f"{given} makes labels of several classes, which"
                f" {arg('loss', self.loss.loss)} does not take: set"
                f" {arg('loss', ' or '.join(takers))}, or {arg(name, 0)}"
            )
        if self.data.sampler != "shuffle":
            raise UserError(
                f"{given} mixes each image with its neighbour in the batch,"
                f" which {arg('sampler', self.data.sampler)} chooses by class:"
                f" set {arg('sampler', 'shuffle')} or {arg(name, 0)}"
            )
        check_pairs(
            self.schedule.batch_size, max(self.runtime.virtual_devices, 1)
        )


@dataclasses.dataclass(frozen=True)
class Compilation:
    """Compilation for a TPU that is not there."""

    compile_for: str = option(
        "",
        "compile the step for a TPU instead, without having one: CHIP:SHAPE,"
        " such as v4:2x2x1, v5e:2x2 or v6e:2x4; doctor prints memory per core,"
        " the largest batch that fits, and the rate that the input must"
        " deliver; benchmark step compares it with the encoder alone",
        check=matching(
            r"|v\d\w*:\d+(x\d+){1,2}",
            "CHIP:SHAPE, such as v4:2x2x1 or v5e:2x2",
        ),
        identity=False,
    )
    compile_python: str = option(
        "",
        "Python with jax and libtpu; empty: that of launch/install"
        " --tpu-compile",
        identity=False,
    )


@dataclasses.dataclass(frozen=True)
class Doctor(Pretrain):
    """Check a pretrain command: memory, speed, known problems."""

    runtime: CheckedRuntime = group(CheckedRuntime())
    compilation: Compilation = group(Compilation())


def check_multi_label(run: Pretrain, dataset: str) -> None:
    """Raises `UserError` for options that need one label per image."""
    for name, value, off in (
        ("online_knn_size", run.probe.online_knn_size, 0),
        ("sampler", run.data.sampler, "shuffle"),
        ("mixup_alpha", run.views.mixup_alpha, 0),
        ("cutmix_alpha", run.views.cutmix_alpha, 0),
    ):
        if value != off:
            raise UserError(
                f"{arg(name, value)} needs one label per image, and {dataset}"
                f" has several: set {arg(name, off)}"
            )


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
    gpu_capability: tuple[int, int] | None = None,
    rounded_products: bool = False,
) -> Pretrain:
    """Returns the run with every option that depends on data and devices.

    Args:
      run: validated.
      dataset: the name under which the data were opened.
      image_shape: (height, width, 3), or None where it varies.
      extra_channels: channels of the dataset's feature `extra`.
      multi_label: whether an image has several labels.
      replicas: that share the batch.
      on_tpu: whether the replicas are TPU cores.
      gpu_capability: lowest compute capability of the GPUs, if the replicas are
        GPUs.
      rounded_products: whether they round the factors of float32 products.
    """
    size = run.views.image_size or image_side(image_shape)
    extra = run.data.extra_channels
    if extra > extra_channels:
        raise UserError(
            f"{arg('extra_channels', extra)}: {dataset} has {extra_channels}"
            " channels of feature `extra`: set"
            f" {arg('extra_channels', extra_channels)} or less"
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
        "precision": resolve_precision(
            run.runtime.precision, on_tpu, gpu_capability
        ),
        "similarity_products": resolve_products(run.loss, rounded_products),
    }
    if run.runtime.xla == "auto":
        values["xla"] = "on" if gpu_capability else "off"
    if run.views.augment_on == "auto":
        on_device = on_tpu or gpu_capability
        values["augment_on"] = "device" if on_device else "host"
    run = dataclasses.replace(
        run,
        views=resolve_views(run.views, dataset, size),
        encoder=resolve_encoder(run.encoder, size),
    )
    run = replace(run, **values)
    wire_dtype = resolve_wire_dtype(
        run.views,
        extra_channels=run.data.extra_channels,
        # Otherwise it standardizes the pixels first, in float32.
        rounds_input=run.encoder.standardize == "none"
        and run.encoder.encoder in (*ENCODERS, CONVNET)
        and run.runtime.precision == "mixed_bfloat16",
    )
    return replace(run, wire_dtype=wire_dtype)
