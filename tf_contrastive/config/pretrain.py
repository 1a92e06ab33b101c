"""The options of a run, how they go together, and `auto`."""

import dataclasses
import math

import psutil

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.data import (
    DEFAULT_IMAGE_SIZE,
    Data,
    Reading,
    channel_statistics,
    inherited,
    with_channels,
)
from tf_contrastive.config.dataset import or_of_run
from tf_contrastive.config.encoder import (
    ENCODER,
    EncoderDeclaration,
    EncoderSetup,
    resolve_setup,
)
from tf_contrastive.config.fields import group, replace
from tf_contrastive.config.linear import LinearStage, Probe
from tf_contrastive.config.loss import (
    LOSS,
    LOSSES,
    BatchOptions,
    LossDeclaration,
)
from tf_contrastive.config.optimizer import (
    LARS,
    OptimizerDeclaration,
    optimizer_option,
    resolve_learning_rate,
)
from tf_contrastive.config.projection import PROJECTION, HeadDeclaration
from tf_contrastive.config.runtime import (
    Machine,
    Runtime,
    check_divisible,
    resolve_precision,
)
from tf_contrastive.config.schedule import Schedule, resolve_warmup
from tf_contrastive.config.views import (
    Views,
    check_channels,
    resolve_views,
    resolve_wire_dtype,
)

_ONE_CPU = Machine()


class Pretrain(Command):
    """A run: its data, views, networks, loss, optimizer and machine."""

    data: Data = group(Data())
    reading: Reading = group(Reading())
    views: Views = group(Views())
    encoder: EncoderDeclaration = ENCODER
    setup: EncoderSetup = group(EncoderSetup())
    projection: HeadDeclaration = PROJECTION
    loss: LossDeclaration = LOSS
    batch: BatchOptions = group(BatchOptions())
    probe: Probe = group(Probe())
    optimizer: OptimizerDeclaration = optimizer_option(
        LARS(), flags=("weight_decay", "momentum")
    )
    schedule: Schedule = group(Schedule())
    linear: LinearStage = group(LinearStage(), "linear_", identity=False)
    runtime: Runtime = group(Runtime())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        self.setup.check(self.encoder)
        self.schedule.check()
        self.runtime.check()
        self.check_replicas(max(self.runtime.virtual_devices, 1))
        self._check_loss()
        self._check_mixing()
        if self.views.small_views:
            self._check_small_views()
        self.linear.check()
        self._check_channels()
        if self.views.image_size:
            self.encoder.resolved(self.views.image_size)

    def _check_channels(self) -> None:
        """Raises `UserError` for options of images of other channels."""
        reading, setup = self.reading, self.setup
        reading.check()
        check_channels(self.views.policy, reading.float_channels)
        if setup.standardize not in (None, "dataset", "none"):
            count = len(channel_statistics(setup.standardize).mean)
            if count != reading.channels:
                raise UserError(
                    f"{arg('standardize', setup.standardize)} is of {count}"
                    f" channels, and images have {reading.channels}: set as"
                    f" many, or {arg('standardize', 'dataset')}"
                )
        if reading.channels != 3 and setup.starts_from_weights(self.encoder):
            raise UserError(
                f"{arg('init_from', setup.init_from)} holds an encoder of 3"
                f" channels: leave {arg('channels', reading.channels)} out, or"
                f" {arg('init_from')}"
            )

    @property
    def learns_labels(self) -> bool:
        """Whether the encoder is trained by labels."""
        return self.loss.needs_labels or self.probe.cross_entropy_weight > 0

    def input(
        self, name: str, data_dir: str, given: Reading
    ) -> tuple[str, str, Reading]:
        """Returns name, data_dir and reading of images for the run's encoder.

        By default the run's, read as it did but for what is set.
        """
        name = or_of_run(name, self.data.dataset)
        if name == self.data.dataset:
            given = inherited(given, self.reading)
        reading = with_channels(given, self.reading)
        return name, data_dir or self.data.data_dir, reading

    @property
    def channels(self) -> int:
        """Channels of a view, of resolved options."""
        return self.reading.channels + (self.data.extra_channels or 0)

    def _check_loss(self) -> None:
        loss, views = self.loss, self.views.views
        batch_size = self.schedule.batch_size
        if not loss.needs_labels and views < 2:
            raise UserError(
                f"{arg('views', views)} leaves {loss.label} without positives:"
                f" set {arg('views', '2')} or more"
            )
        if loss.compares_two_views and views != 2:
            raise UserError(
                f"{arg('views', views)}: {loss.label}"
                + f" with {arg('negatives', 'other_view')}"
                * (not loss.takes_keys)
                + f" compares two views: set {arg('views', '2')}"
            )
        if loss.takes_keys:
            self._check_keys()
        self._check_joint()
        if self.reading.admits_unlabelled:
            self._check_unlabelled()
        _check_holds("online_knn_size", self.probe.online_knn_size, batch_size)

    def _check_keys(self) -> None:
        policy, given = self.runtime.nan_policy, arg("loss", self.loss.label)
        batch_size = self.schedule.batch_size
        _check_holds("queue_size", self.batch.queue_size, batch_size)
        if policy != "stop":
            raise UserError(
                f"{arg('nan_policy', policy)}: non-finite keys would stay in"
                f" the queue of {given}: set {arg('nan_policy', 'stop')}"
            )
        library = self.encoder.library
        if library and not library.can_be_copied:
            raise UserError(
                f"{arg('encoder', self.encoder.label)}: has layers that"
                f" cannot be copied, as {given} does: use another encoder"
            )

    def _check_joint(self) -> None:
        probe = self.probe
        if not probe.cross_entropy_weight:
            return
        given = arg("cross_entropy_weight", probe.cross_entropy_weight)
        if self.loss.takes_logits:
            raise UserError(
                f"{given} adds cross entropy to another loss than"
                f" {arg('loss', self.loss.label)}: leave it out"
            )
        if not probe.probe:
            raise UserError(
                f"{given} trains the probe with the encoder: leave out"
                f" {arg('probe', False)}"
            )

    def _check_unlabelled(self) -> None:
        given = arg("unlabelled", self.reading.unlabelled)
        if self.loss.needs_labels and "unlabelled" not in self.loss.declared():
            takers = [
                name
                for name, other in LOSSES.items()
                if "unlabelled" in other.declared() or not other.needs_labels
            ]
            raise UserError(
                f"{given}: {arg('loss', self.loss.label)} needs a label of each"
                f" image: use {', '.join(takers)}"
            )
        self._check_one_label(f"with {given} some have none")

    def _check_one_label(self, why: str, online_knn_size: int = 0) -> None:
        """Raises `UserError` for options that need one label per image."""
        for name, value, off in (
            ("online_knn_size", online_knn_size, 0),
            ("sampler", self.data.sampler, "shuffle"),
            ("mixup_alpha", self.views.mixup_alpha, 0),
            ("cutmix_alpha", self.views.cutmix_alpha, 0),
        ):
            if value != off:
                raise UserError(
                    f"{arg(name, value)} needs one label per image, and {why}:"
                    f" set {arg(name, off)}"
                )

    def _check_mixing(self) -> None:
        views = self.views
        if not views.mixed:
            return
        name = "mixup_alpha" if views.mixup_alpha else "cutmix_alpha"
        given = arg(name, f"{getattr(views, name):g}")
        if not self.loss.takes_logits:
            takers = [n for n, other in LOSSES.items() if other.takes_logits]
            raise UserError(
                f"{given} makes labels of several classes, which"
                f" {arg('loss', self.loss.label)} does not take: set"
                f" {arg('loss', ' or '.join(takers))}, or {arg(name, 0)}"
            )
        if self.data.balances_classes:
            raise UserError(
                f"{given} mixes each image with its neighbour in the batch,"
                f" which {arg('sampler', self.data.sampler)} chooses by class:"
                f" set {arg('sampler', 'shuffle')} or {arg(name, 0)}"
            )

    def _check_small_views(self) -> None:
        """Raises `UserError` for what needs views of one size."""
        loss, views, encoder = self.loss, self.views, self.encoder
        policy = views.policy
        takers = " or ".join(
            n for n, other in LOSSES.items() if other.takes_small_views
        )
        one_view = getattr(loss, "contrast", "") == "one_view"
        for refused, name, value, other in (
            (not loss.takes_small_views, "loss", loss.label, takers),
            (loss.compares_two_views, "negatives", "other_view", "all_views"),
            (one_view, "contrast", "one_view", "all_views"),
            (not policy.crops, "augmentation", policy.label, "simclr"),
            (views.mixup_alpha, "mixup_alpha", views.mixup_alpha, 0),
            (views.cutmix_alpha, "cutmix_alpha", views.cutmix_alpha, 0),
            (encoder.one_size, "encoder", encoder.label, "resnet50"),
        ):
            if refused:
                raise UserError(
                    f"{arg('small_views', views.small_views)}:"
                    f" {arg(name, value)} takes views of one size: set"
                    f" {arg(name, other)}, or leave out small views"
                )

    def check_replicas(self, replicas: int) -> None:
        """Raises `UserError` if so many replicas cannot share a batch."""
        batch_size = self.schedule.batch_size
        check_divisible(batch_size, replicas)
        images, chunks = batch_size // replicas, self.batch.grad_cache_chunks
        if images % chunks:
            fitting = [n for n in range(1, images + 1) if images % n == 0]
            best = min(fitting, key=lambda n: abs(n - chunks))
            raise UserError(
                f"{arg('grad_cache_chunks', chunks)} does not divide the"
                f" {images} images of a replica: set"
                f" {arg('grad_cache_chunks', best)}"
            )
        if self.views.mixed and images % 2:
            raise UserError(
                f"{arg('batch_size', batch_size)} gives each of {replicas}"
                " replica(s) an odd number of images, which cannot be mixed in"
                f" pairs: use a multiple of {2 * replicas}"
            )

    def check_labels(
        self, dataset: str, has_labels: bool, multi_label: bool
    ) -> None:
        """Raises `UserError` for options that need other labels."""
        weight = self.probe.cross_entropy_weight
        if weight and (multi_label or not has_labels):
            raise UserError(
                f"{arg('cross_entropy_weight', weight)} needs one label"
                f" per image, which {dataset} does not have: leave it out"
            )
        if multi_label:
            size = self.probe.online_knn_size
            self._check_one_label(f"{dataset} has several", size)
            return
        if self.loss.needs_labels and not has_labels:
            others = [n for n, x in LOSSES.items() if not x.needs_labels]
            raise UserError(
                f"{arg('loss', self.loss.label)} needs labels, and {dataset}"
                " has none: use a dataset of two or more classes, or a loss"
                f" without labels ({', '.join(others)})"
            )
        if self.data.balances_classes and not has_labels:
            raise UserError(
                f"{arg('sampler', self.data.sampler)} needs a label of each"
                f" image, and {dataset} has none: set"
                f" {arg('sampler', 'shuffle')}"
            )


def _check_holds(name: str, size: int, batch_size: int) -> None:
    """Raises `UserError` for a memory of less than a batch; 0: none."""
    if 0 < size < batch_size:
        raise UserError(
            f"{arg(name, size)} holds less than one batch of {batch_size}: set"
            f" at least {arg(name, batch_size)}"
        )


def check_memory(
    run: Pretrain,
    machine: Machine,
    num_examples: int,
    image_shape: tuple[int, ...] | None,
) -> None:
    """Raises `UserError` for images that a host's memory cannot hold.

    Those are a batch's views, or all images by `cache`; `doctor` predicts the
    memory of a step. `run` is resolved.
    """
    present, views = psutil.virtual_memory().total, run.views
    images = run.schedule.batch_size / machine.hosts
    needed = images * views.pixels * run.channels
    needed *= 4 if views.wire_dtype == "float32" else 1
    name: str = arg("batch_size", run.schedule.batch_size)
    if run.data.cache == "memory" and image_shape:
        kept = float(num_examples * math.prod(image_shape))
        kept *= 4 if run.reading.float_channels else 1
        if kept > needed:
            needed, name = kept, arg("cache", "memory")
    if needed > present:
        raise UserError(
            f"{name} needs {needed / 2**30:,.0f} GiB of memory for images"
            f" ({views.views} views of {views.side} pixels), and this machine"
            f" has {present / 2**30:,.1f} GiB: set a smaller"
            f" {arg('batch_size')}, {arg('image_size')} or {arg('views')}, or"
            f" {arg('cache', 'none')}"
        )


def _check_small_views(
    encoder: EncoderDeclaration, side: int, extra_channels: int
) -> None:
    """Raises `UserError` for small views that cannot be encoded."""
    if extra_channels:
        raise UserError(
            f"{arg('extra_channels', extra_channels)}: small views have none of"
            f" feature `extra`: set {arg('extra_channels', 0)} or"
            f" {arg('small_views', 0)}"
        )
    try:
        encoder.resolved(side)
    except UserError as error:
        raise UserError(
            f"{arg('small_image_size', side)} is too small for"
            f" {encoder.label} as it is built for the large views: set a larger"
            f" {arg('small_image_size')}"
        ) from error


def image_side(image_shape: tuple[int, ...] | None) -> int:
    """Returns the side of a view in pixels, by the shape of the images."""
    return min((image_shape or (DEFAULT_IMAGE_SIZE,))[:2])


def resolve(
    run: Pretrain,
    machine: Machine = _ONE_CPU,
    *,
    dataset: str,
    image_shape: tuple[int, ...] | None,
    extra_channels: int = 0,
    multi_label: bool = False,
) -> Pretrain:
    """Returns the run with every option that depends on data and devices.

    Args:
      run: validated.
      machine: its devices.
      dataset: the name under which the data were opened.
      image_shape: (height, width, channels), or None where it varies.
      extra_channels: channels of the dataset's feature `extra`.
      multi_label: whether an image has several labels.
    """
    size = run.views.image_size or image_side(image_shape)
    given = run.data.extra_channels
    extra = extra_channels if given is None else given
    if extra > extra_channels:
        raise UserError(
            f"{arg('extra_channels', extra)}: {dataset} has {extra_channels}"
            " channels of feature `extra`: set"
            f" {arg('extra_channels', extra_channels)} or less"
        )
    schedule = run.schedule
    loss = run.loss.with_defaults(unlabelled=run.reading.unlabelled)
    if getattr(loss, "similarity_products", "") == "auto":
        products = "split" if machine.rounded_products else "plain"
        loss = loss.with_options(similarity_products=products)
    encoder = run.encoder.resolved(size)
    setup = resolve_setup(run.setup, encoder, run.reading.channels)
    views = resolve_views(run.views, dataset, size)
    if views.small_views:
        _check_small_views(encoder, views.small_side, extra)
    if views.augment_on == "auto":
        on_device = machine.on_tpu or machine.gpu_capability
        place = "device" if on_device else "host"
        views = dataclasses.replace(views, augment_on=place)
    xla = run.runtime.xla
    if xla == "auto":
        xla = "on" if machine.gpu_capability else "off"
    run = dataclasses.replace(
        run,
        views=views,
        encoder=encoder,
        setup=setup,
        projection=run.projection.with_defaults(
            **({} if run.projection.is_own else run.loss.head)
        ),
        loss=loss,
    )
    return replace(
        run,
        extra_channels=extra,
        wire_dtype=resolve_wire_dtype(views, extra, run.reading),
        # The probe takes one class per image.
        probe=run.probe.probe and not multi_label,
        learning_rate=resolve_learning_rate(
            schedule.learning_rate,
            run.optimizer,
            schedule.learning_rate_scaling,
        ),
        warmup_epochs=resolve_warmup(schedule.warmup_epochs, schedule.epochs),
        precision=resolve_precision(run.runtime.precision, machine),
        xla=xla,
    )
