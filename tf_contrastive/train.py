"""A run, from top to bottom: options in, a trained encoder out.

`pretrain` is the run. `prepare` opens its data and resolves its options, once:
whatever needs a run before it is trained takes the `PreparedRun`.
"""

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import (
    callbacks,
    checkpoints,
    datasets,
    distribution,
    exporting,
    losses,
    optimizers,
    schedules,
    tensorboard,
)
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config import pretrain as configs
from tf_contrastive.config.data import (
    channel_statistics,
    check_pod,
    write_statistics,
)
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import (
    Machine,
    check_profile_steps,
    resolve_log_every,
    skipped_steps,
)
from tf_contrastive.encoders import backbones
from tf_contrastive.model import ContrastiveModel
from tf_contrastive.model.networks import build_model, precision
from tf_contrastive.tensorboard import histograms, hparams, projector
from tf_contrastive.views import RunViews

# Of the command, which writes it last.
RESULTS_FILE = "pretrain.json"

Schedules = dict[str, tf.keras.optimizers.schedules.LearningRateSchedule]


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
      run: what was trained; its options, with `auto` resolved.
      start_step: the step that it was resumed from, 0 for a new run.
      step: the step that it has reached.
      seconds: of fitting, in this process.
      metrics: means over the last epoch; accuracies in [0, 1].
    """

    run: "PreparedRun"
    start_step: int
    step: int
    seconds: float
    metrics: dict[str, float]


@distribution.failures.reported()
def pretrain(options: "Pretrain | PreparedRun") -> Result:
    """Trains an encoder, or resumes its training.

    Args:
      options: of the run, or what `prepare` returned for them; results go to
        their `runtime.workdir`.

    Raises:
      UserError: for invalid input, before the first step and before anything
        is written; its subclasses NonFiniteError, if what is trained is not
        finite, and InterruptedRunError, if the run was interrupted or lost a
        worker: the same command resumes it.
    """
    # ---- Strategy, data, and the options that follow from them
    run = prepare(options) if isinstance(options, Pretrain) else options
    runtime, source = run.options.runtime, run.source
    check_profile_steps(runtime.profile_steps, run.total_steps)
    size, shape = source.info.num_examples, source.info.image_shape
    configs.check_memory(run.options, run.machine, size, shape)
    checkpoints.check_workdir(run.options)
    if run.is_chief:
        checkpoints.FolderLock(runtime.workdir).check()
    source = datasets.in_memory(source, run.options.data.cache)
    run = dataclasses.replace(run, source=source)

    # ---- Model and optimizers
    host_copy = None
    embeds = run.is_chief and (
        runtime.histograms_every_epochs or runtime.projector_examples
    )
    if embeds:
        host_copy = tensorboard.HostCopy(run.options, source.info.num_classes)
    model, rates = run.build()

    with checkpoints.session(runtime.workdir, run.strategy) as (lock, listener):
        # ---- Checkpoints
        saved = checkpoints.Checkpoints(model, run.options, source.info, lock)
        start_step = saved.restore()
        if run.is_chief:
            callbacks.announce(
                run.options,
                source.info,
                run.machine.replicas,
                run.steps_per_epoch,
                start_step,
            )

        # ---- Callbacks, fit
        watchers: list[tf.keras.callbacks.Callback] = []
        if not runtime.steps_per_execution:
            # First, so that it times the step without the other callbacks.
            adaptive = callbacks.AdaptiveStepsPerExecution(
                saved, runtime, run.log_every_steps, run.strategy
            )
            watchers.append(adaptive)
        summaries = None
        results = os.path.join(runtime.workdir, RESULTS_FILE)
        if run.is_chief and (
            start_step < run.total_steps or not tf.io.gfile.exists(results)
        ):
            summaries = summaries_of(run, model, rates, host_copy, saved)
            row = hparams.HParams(run.events, run.options)
            watchers += [summaries, row]
            watchers += callbacks.reports(
                run.options, run.steps_per_epoch, run.events
            )
        keeper = callbacks.CheckpointCallback(
            saved,
            runtime,
            run.steps_per_epoch,
            listener,
            summaries.flush if summaries else lambda: None,
        )
        watchers.append(keeper)
        with checkpoints.saving_on_error(saved, run.strategy):
            seconds, metrics = fit(run, model, start_step, watchers)
        keeper.check_trained()
        if summaries:
            if host_copy and runtime.projector_examples:
                host_copy.update(model)
                shown = (run.validation or run).source
                projector.write(run.events, host_copy, shown, run.options)
            summaries.close()
            row.close()
        # Of the last epoch, if it ended in another process.
        metrics = metrics or saved.means.read()
    return Result(run, start_step, saved.step, seconds, metrics)


# ---- Strategy, data, and the options that follow from them -------------------


class Splits(NamedTuple):
    """A run's data."""

    train: datasets.Source
    # The part that `validation_fraction` cuts off.
    validation: datasets.Source | None = None
    # Of the linear stage, if there is one.
    test: datasets.Source | None = None


@dataclasses.dataclass(frozen=True)
class PreparedRun:
    """A run whose data are open, and whose options are resolved.

    Attributes:
      options: without `auto`.
      strategy: of its replicas.
      machine: what the options depend on of the strategy.
      source: training examples.
      validation: the run that measures the loss on the validation part.
      test: examples of the linear stage, if there is one.
    """

    options: Pretrain
    strategy: tf.distribute.Strategy
    machine: Machine
    source: datasets.Source
    validation: "PreparedRun | None" = None
    test: datasets.Source | None = None

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the results, and reports."""
        return distribution.is_chief(self.strategy)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches of an epoch."""
        return datasets.steps_per_epoch(
            self.source.info.num_examples, self.options.schedule.batch_size
        )

    @property
    def total_steps(self) -> int:
        """Steps of all epochs."""
        return self.steps_per_epoch * self.options.schedule.epochs

    @property
    def log_every_steps(self) -> int:
        """Steps between points in TensorBoard."""
        given = self.options.runtime.log_every_steps
        return resolve_log_every(given, self.total_steps)

    @property
    def events(self) -> str:
        """Folder of TensorBoard's events."""
        return os.path.join(self.options.runtime.workdir, tensorboard.EVENTS)

    def with_options(self, **options: Any) -> "PreparedRun":
        """Returns the run with some of its options replaced."""
        changed = fields.replace(self.options, **options)
        return dataclasses.replace(self, options=changed)

    def batches(self, start_step: int = 0) -> Any:
        """Returns the distributed batches, from a step on."""
        data = self.options.data
        made = RunViews(self.options.views, self.options.reading)
        maker = datasets.ViewMaker(
            made.geometric,
            made.finish,
            made.halvings,
            data.extra_channels,
            made.numbers,
        )
        order = datasets.Order(
            batch_size=self.options.schedule.batch_size,
            seed=self.options.runtime.seed,
            start_step=start_step,
            sampler=data.sampler,
            shuffle_buffer=data.shuffle_buffer,
            cache=data.cache,
        )

        def make(context: tf.distribute.InputContext) -> tf.data.Dataset:
            return datasets.training_batches(self.source, maker, order, context)

        if not distribution.is_pod(self.strategy):
            return self.strategy.distribute_datasets_from_function(make)
        with datasets.without_python():
            return self.strategy.distribute_datasets_from_function(make)

    def build(self) -> tuple[ContrastiveModel, Schedules]:
        """Returns the compiled model, and TensorBoard tag -> learning rate.

        Raises:
          UserError: if `init_from` holds another encoder, or the loss needs
            classes that there are not.
        """
        options = self.options
        with self.strategy.scope(), precision(options.runtime.precision):
            model = build_model(options, self.source.info.num_classes)
            workdir = options.runtime.workdir
            # What a run that is resumed has started from may be gone.
            resumed = bool(workdir and checkpoints.saved(workdir))
            if options.setup.init_from and not resumed:
                self._copy_weights(model.encoder)
                model.start_key_branch()
            return model, self.compile(model)

    def _copy_weights(self, encoder: tf.keras.Model) -> None:
        chosen, setup = self.options.encoder, self.options.setup
        if not setup.starts_from_weights(chosen):
            exporting.copy_weights(setup.init_from, encoder)
            return
        statistics = channel_statistics(setup.standardize)
        backbones.load_weights(
            chosen.label, setup.init_from, encoder, statistics
        )

    def learning_rate(
        self,
    ) -> tf.keras.optimizers.schedules.LearningRateSchedule:
        """Returns the learning rate of the encoder."""
        schedule = self.options.schedule
        return self._schedule(
            base_learning_rate=schedule.learning_rate,
            warmup_epochs=schedule.warmup_epochs,
            scaling=schedule.learning_rate_scaling,
            floor=schedule.learning_rate_floor,
        )

    def _schedule(self, **rate: Any) -> Any:
        """Returns a learning rate over the run."""
        schedule = self.options.schedule
        return schedules.build(
            schedule.decay.label,
            batch_size=schedule.batch_size,
            steps_per_epoch=self.steps_per_epoch,
            epochs=schedule.epochs,
            **schedule.decay.arguments(),
            **rate,
        )

    def compile(self, model: ContrastiveModel) -> Schedules:
        """Gives the model its optimizers; returns TensorBoard tag -> rate."""
        options, runtime = self.options, self.options.runtime
        rate = self.learning_rate()
        optimizer = optimizers.build(
            options.optimizer.label,
            learning_rate=rate,
            exempt=optimizers.biases_and_scales(
                model.encoder, model.projection_head
            ),
            **options.optimizer.arguments(),
        )
        further = model.further_optimizers(options, self._schedule)
        built = {"optimizer": (rate, optimizer), **further}
        compiled = {name: optimizer for name, (_, optimizer) in built.items()}
        if runtime.precision == "mixed_float16":
            scaled = tf.keras.mixed_precision.LossScaleOptimizer
            compiled = {name: scaled(x) for name, x in compiled.items()}
        elif skipped_steps(runtime.nan_policy):
            for optimizer in compiled.values():
                optimizer.skips_non_finite = True
        compiles_step = runtime.xla == "on"
        if compiles_step and isinstance(
            self.strategy, tf.distribute.MultiWorkerMirroredStrategy
        ):
            # Its collectives fail in a compiled function.
            tf.config.optimizer.set_jit("autoclustering")
            compiles_step = False
        model.compile(
            **compiled,
            # auto: a callback sets it before each execution.
            steps_per_execution=runtime.steps_per_execution or 1,
            jit_compile=compiles_step and not self.machine.on_tpu,
        )
        return {
            f"{name.removesuffix('_optimizer')}/learning_rate": rate
            for name, (rate, _) in built.items()
        }


def prepare(
    run: Pretrain,
    strategy: tf.distribute.Strategy | None = None,
    machine: Machine | None = None,
    splits: Splits | None = None,
) -> PreparedRun:
    """Opens the data and resolves the options of a run.

    Args:
      run: its options.
      strategy: of its replicas; None: the options'.
      machine: the devices that it is meant for; None: the strategy's.
      splits: its data; None: they are opened.
    """
    run.validate()
    if run.runtime.smoke:
        raise errors.UserError(
            f"{errors.arg('smoke', 'True')}: train what doctor.smoke.shrink"
            " makes of these options"
        )
    runtime = run.runtime
    strategy = strategy or distribution.strategy(
        runtime.strategy,
        virtual_devices=runtime.virtual_devices,
        tpu=runtime.tpu,
    )
    machine = machine or _machine(strategy)
    run.check_replicas(machine.replicas)
    on_pod = distribution.is_pod(strategy)
    if on_pod:
        check_pod(runtime.workdir, run.data)
    splits = splits or open_data(run)
    source, info = splits.train, splits.train.info
    if info.by_pillow and on_pod:
        raise errors.UserError(
            f"{info.name} has images that Python decodes, such as WebP, TIFF or"
            " GIF, and the hosts of this TPU do not run it: convert them to"
            " JPEG or PNG"
        )
    run = configs.resolve(
        run,
        machine,
        dataset=info.name,
        image_shape=info.image_shape,
        extra_channels=info.extra_channels,
        multi_label=info.multi_label,
    )
    if run.setup.standardize == "dataset":
        statistics = write_statistics(datasets.channel_statistics(source))
        run = fields.replace(run, standardize=statistics)
    read = {"the training split": source.content}
    if splits.test:
        read["the test split"] = splits.test.content
    distribution.check_same(strategy, run.shared_options(), read)
    prepared = PreparedRun(run, strategy, machine, source, test=splits.test)
    if splits.validation is None:
        return prepared
    count, replicas = splits.validation.info.num_examples, machine.replicas
    size = min(run.schedule.batch_size, count)
    if size < 2 * replicas:
        fraction = f"{run.data.validation_fraction:g}"
        raise errors.UserError(
            f"{errors.arg('validation_fraction', fraction)} cuts off"
            f" {count} examples, fewer than 2 for each of {replicas}"
            " replicas: use a larger fraction, or 0"
        )
    measuring = dataclasses.replace(
        prepared.with_options(
            batch_size=size - size % replicas, sampler="shuffle"
        ),
        source=splits.validation,
    )
    return dataclasses.replace(prepared, validation=measuring)


def _machine(strategy: tf.distribute.Strategy) -> Machine:
    """Returns what options depend on of a strategy's devices."""
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return Machine(
        replicas=strategy.num_replicas_in_sync,
        hosts=distribution.num_hosts(strategy),
        on_tpu=on_tpu,
        on_cpu=not (on_tpu or tf.config.list_logical_devices("GPU")),
        gpu_capability=distribution.gpu_capability(strategy),
        rounded_products=losses.matrix_products.rounded_by_device(strategy),
    )


def open_data(run: Pretrain) -> Splits:
    """Opens the training split, and those that are cut off or scored.

    Raises:
      UserError: for data that are absent, or lack the labels that they need.
    """
    train, validation, test = open_split(run, run.data.split), None, None
    run.check_labels(
        run.data.dataset, train.info.has_labels, train.info.multi_label
    )
    # Checked now, so that a run does not end in an error at its end.
    if run.linear.schedule.epochs:
        test = open_split(run, run.data.test_split)
        datasets.check_scorable(train.info, test.info)
    if fraction := run.data.validation_fraction:
        train, validation = train.split_validation(fraction, run.runtime.seed)
    return Splits(train, validation, test)


def open_split(run: Pretrain, split: str) -> datasets.Source:
    """Opens a split of a run's dataset."""
    return datasets.source(
        run.data.dataset,
        split,
        data_dir=run.data.data_dir or None,
        reading=run.reading,
    )


# ---- Callbacks, fit ----------------------------------------------------------


def summaries_of(
    run: PreparedRun,
    model: ContrastiveModel,
    rates: Schedules,
    host_copy: tensorboard.HostCopy | None,
    saved: checkpoints.Checkpoints,
) -> tensorboard.TensorBoard:
    """Returns the callback that writes TensorBoard's events."""
    every_epochs = run.options.runtime.histograms_every_epochs
    done = saved.step % run.steps_per_epoch
    # After the first step; in a thread, which is in no strategy's scope.
    made = functools.cache(lambda: _in_thread(lambda: histograms.views_of(run)))

    def write_views() -> None:
        originals = _in_thread(lambda: histograms.originals_of(run))
        pixels, _ = made()
        originals, pixels = map(run.source.info.shown, (originals, pixels))
        tf.summary.image("views", tensorboard.view_grid(originals, pixels))

    return tensorboard.TensorBoard(
        run.events,
        every_steps=run.log_every_steps,
        batch_size=run.options.schedule.batch_size,
        schedules={**rates},
        write_first=write_views,
        histograms=(
            tensorboard.Histograms(host_copy, model, made)
            if host_copy and every_epochs
            else None
        ),
        histograms_every_epochs=every_epochs,
        resumed=saved.means.read() if done else None,
    )


def _in_thread(function: Callable[[], Any]) -> Any:
    with futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def fit(
    run: PreparedRun,
    model: ContrastiveModel,
    start_step: int = 0,
    watchers: Sequence[tf.keras.callbacks.Callback] = (),
) -> tuple[float, dict[str, float]]:
    """Fits from `start_step` to the end of the last epoch.

    The loss on the validation part is measured after every epoch, on the same
    batches in the same views.

    Returns:
      (seconds, means over the last epoch by metric; {} if nothing was left).
    """
    started, validation = time.perf_counter(), run.validation
    epochs, steps_per_epoch = run.options.schedule.epochs, run.steps_per_epoch
    epoch, done = divmod(start_step, steps_per_epoch)
    # (first step, first epoch, epoch to stop before, steps of an epoch). Keras
    # starts at the beginning of an epoch: an interrupted one is a piece.
    pieces = []
    if done and epoch < epochs:
        pieces.append((start_step, epoch, epoch + 1, steps_per_epoch - done))
        epoch += 1
    if epoch < epochs:
        pieces.append((epoch * steps_per_epoch, epoch, epochs, steps_per_epoch))
    metrics: dict[str, float] = {}
    if run.options.runtime.xla == "on":
        distribution.compiled.align_names()
    for step, first, stop, steps in pieces:
        history = model.fit(
            run.batches(step),
            initial_epoch=first,
            epochs=stop,
            steps_per_epoch=steps,
            callbacks=list(watchers),
            validation_data=validation and validation.batches(),
            validation_steps=validation and validation.steps_per_epoch,
            verbose=0,
        )
        metrics = {k: float(v[-1]) for k, v in history.history.items()}
    return time.perf_counter() - started, metrics
