"""Devices, precision, checkpoints and logging of a run."""

import dataclasses
import functools

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import matching, plain_path
from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import argument, option

PRECISIONS = ("auto", "float32", "mixed_bfloat16", "mixed_float16")
# Compute capability of GPUs -> precision that their tensor cores have.
_GPU_PRECISIONS = {(8, 0): "mixed_bfloat16", (7, 0): "mixed_float16"}
# Steps between points in TensorBoard, and the least number of points, where
# `log_every_steps` is auto.
_LOG_EVERY_STEPS, _LOG_POINTS = 50, 50
# An option that may change when a run is resumed.
_setting = functools.partial(option, identity=False)


def skipped_steps(policy: str) -> int:
    """Returns how many non-finite steps a `nan_policy` skips at most."""
    return 0 if policy == "stop" else int(policy.removeprefix("skip:"))


def _step_window(steps: tuple[int, ...]) -> str | None:
    """Checks `profile_steps`."""
    if len(steps) == 2 and steps[0] <= steps[1]:
        return None
    return "the FIRST and the LAST step, counted from 1, such as 100,120"


class Devices(Group):
    """Devices and how they work together."""

    strategy: str = _setting(
        "auto",
        "tf.distribute strategy; auto: chosen by the available devices",
        choices=("auto", "default", "mirrored", "multiworker", "tpu"),
    )
    virtual_devices: int = _setting(
        0,
        "virtual CPU devices, to try strategy mirrored without GPUs; 0: none",
        maximum=1024,
    )
    tpu: str = _setting(
        "",
        "name of a TPU, or local for that of this machine; empty: $TPU_NAME if"
        " it is set, else local",
    )

    def check(self) -> None:
        """Raises `UserError` for options that do not go together."""
        if self.virtual_devices and self.strategy not in ("auto", "mirrored"):
            raise UserError(
                f"{arg('virtual_devices', self.virtual_devices)} needs"
                f" {arg('strategy', 'mirrored')}, not {self.strategy}"
            )


class Runtime(Devices):
    """Devices, precision, checkpoints and logging of a run."""

    workdir: str = _setting(
        "",
        "folder of the run; the same folder and flags resume it",
        required=True,
        check=plain_path,
        per_host=True,
    )
    seed: int = option(
        0, "seed of weights, order of examples and views", maximum=2**32 - 1
    )
    precision: str = option(
        "auto",
        "precision policy; auto: mixed_bfloat16 on TPUs and on GPUs from"
        " Ampere on, mixed_float16 with loss scaling on Volta and Turing, else"
        " float32",
        choices=PRECISIONS,
    )
    xla: str = _setting(
        "auto",
        "compile the step with XLA: on or off; auto: on GPUs (TPUs always do)",
        choices=("auto", "on", "off"),
    )
    nan_policy: str = _setting(
        "stop",
        "what to do if a loss or gradient is not finite: stop, or skip:N to"
        " skip at most N such steps",
        check=matching(
            r"stop|skip:[1-9]\d*",
            "stop, or skip:N for at most N steps, such as skip:10",
        ),
    )
    # Training steps per host call. None: as many as take 5 s, at most up to the
    # next log step, checkpoint or end of an epoch.
    steps_per_execution: int | None = argument(None, minimum=1)
    checkpoint_every_steps: int | None = _setting(
        None,
        "steps between checkpoints; auto: at the end of every epoch",
        minimum=1,
    )
    keep_checkpoints: int = _setting(
        3, "newest checkpoints to keep", minimum=1, family="runtime_options"
    )
    log_every_steps: int | None = _setting(
        None,
        f"steps between scalars in TensorBoard, beside those at the end of"
        f" every epoch; auto: {_LOG_EVERY_STEPS}, or less where a run would"
        f" have fewer than {_LOG_POINTS} points",
        minimum=1,
    )
    histograms_every_epochs: int = _setting(
        5,
        "epochs between TensorBoard histograms of similarities and norms, of"
        " one small batch; 0: none",
    )
    projector_examples: int = _setting(
        500,
        "images in TensorBoard's projector at the end of the run, of the"
        " validation split if there is one; 0: none",
        maximum=10_000,
    )
    profile_steps: tuple[int, ...] = _setting(
        (),
        "FIRST,LAST: steps to profile for TensorBoard, counted from 1; empty:"
        " none",
        minimum=1,
        check=_step_window,
    )
    smoke: bool = _setting(
        False,
        "try the recipe out: two steps in seconds, with a small encoder, small"
        " views and few images (digits, if the dataset is not available)",
    )


@dataclasses.dataclass(frozen=True)
class Machine:
    """What options depend on of the devices of a run.

    Attributes:
      hosts: machines, or processes, that hold the replicas.
      on_tpu: whether the replicas are TPU cores.
      on_cpu: whether there is no accelerator.
      gpu_capability: lowest compute capability of the GPUs, if there are some.
      rounded_products: whether they round the factors of float32 products.
    """

    replicas: int = 1
    hosts: int = 1
    on_tpu: bool = False
    on_cpu: bool = True
    gpu_capability: tuple[int, int] | None = None
    rounded_products: bool = False


def resolve_precision(precision: str, machine: Machine) -> str:
    """Returns the precision, which the devices must have."""
    if precision == "mixed_float16" and machine.on_tpu:
        raise UserError(
            f"{arg('precision', 'mixed_float16')}: TPUs compute in bfloat16:"
            f" set {arg('precision', 'mixed_bfloat16')}"
        )
    if precision != "auto":
        return precision
    if machine.on_tpu:
        return "mixed_bfloat16"
    capability = machine.gpu_capability or (0, 0)
    fitting = (n for least, n in _GPU_PRECISIONS.items() if capability >= least)
    return next(fitting, "float32")


def resolve_log_every(steps: int | None, total_steps: int) -> int:
    """Returns `log_every_steps` of a run of so many steps."""
    return steps or min(_LOG_EVERY_STEPS, max(1, total_steps // _LOG_POINTS))


def check_profile_steps(window: tuple[int, ...], steps: int) -> None:
    """Raises `UserError` if a run has fewer steps than are to be profiled."""
    if window and window[1] > steps:
        raise UserError(
            f"{arg('profile_steps', window)}: the run has {steps:,} steps:"
            f" choose steps from 1 to {steps}"
        )


def check_divisible(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if replicas do not divide the global batch."""
    if batch_size % replicas:
        lower = max(batch_size // replicas, 1) * replicas
        raise UserError(
            f"{arg('batch_size', batch_size)} is not divisible by {replicas}"
            f" replicas: set {arg('batch_size', lower)} or {lower + replicas}"
        )
