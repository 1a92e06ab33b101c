"""Where and how a run runs, and what it leaves behind on its way."""

import dataclasses
import re

from tf_contrastive.config.fields import option
from tf_contrastive.errors import UserError

STRATEGIES = ("auto", "default", "mirrored", "multiworker", "tpu")
# How replicas add -> the strategies that can do it so.
CROSS_DEVICE_OPS = {
    "auto": STRATEGIES,
    "nccl": ("mirrored", "multiworker"),
    "ring": ("multiworker",),
    "hierarchical_copy": ("mirrored",),
    "reduction_to_one_device": ("mirrored",),
}
PRECISIONS = ("auto", "float32", "mixed_bfloat16")

# Seconds after which the host looks in at the latest, to hear a signal, save or
# show something, unless a single step takes longer.
LOOK_SECONDS = 10.0


def skipped_steps(policy: str) -> int:
    """Non-finite steps that `nan_policy` passes over at most."""
    return 0 if policy == "stop" else int(policy.removeprefix("skip:"))


def read_step_window(value: str) -> tuple[int, int] | None:
    """Returns (first, last) of `--profile_steps`, None if there are none."""
    if not value:
        return None
    first, last = map(int, value.split(","))
    return first, last


def _step_window(value: str) -> str | None:
    if not value:
        return None
    if re.fullmatch(r"[1-9]\d*,[1-9]\d*", value):
        first, last = read_step_window(value)
        if first <= last:
            return None
    return "FIRST,LAST, two steps counted from 1 such as 100,120"


def _nan_policy(value: str) -> str | None:
    if value == "stop" or re.fullmatch(r"skip:[1-9]\d*", value):
        return None
    return "stop, or skip:N for at most N steps, such as skip:10"


@dataclasses.dataclass(frozen=True)
class Runtime:
    """Where and how it runs."""

    workdir: str = option(
        "",
        "folder of the run; the same folder and flags resume it",
        required=True,
        identity=False,
    )
    seed: int = option(
        0, "seed of weights, order and views", minimum=0, maximum=2**32 - 1
    )
    strategy: str = option(
        "auto",
        "tf.distribute strategy; auto: by the devices found",
        choices=STRATEGIES,
        identity=False,
    )
    virtual_devices: int = option(
        0,
        "split the CPU into so many devices, to try mirrored without GPUs",
        minimum=0,
        identity=False,
    )
    tpu: str = option("local", "local, or the name of a TPU", identity=False)
    cross_device_ops: str = option(
        "auto",
        "how replicas add; nccl: GPUs; ring: multiworker; hierarchical_copy and"
        " reduction_to_one_device: mirrored",
        choices=tuple(CROSS_DEVICE_OPS),
        identity=False,
    )
    precision: str = option(
        "auto",
        "precision policy; auto: mixed_bfloat16 on TPUs, else float32",
        choices=PRECISIONS,
    )
    nan_policy: str = option(
        "stop",
        "when a loss or gradient is not finite: stop, or skip:N to pass over at"
        " most N such steps",
        check=_nan_policy,
        identity=False,
    )
    steps_per_execution: int = option(
        0,
        "steps between two looks of the host; 0: as many as take half of"
        f" {LOOK_SECONDS:g} s, and at most up to the next point in TensorBoard,"
        " checkpoint or end of an epoch",
        minimum=0,
        identity=False,
    )
    checkpoint_every_steps: int = option(
        0,
        "steps between checkpoints; 0: at the end of every epoch",
        minimum=0,
        identity=False,
    )
    keep_checkpoint_every_hours: float = option(
        0.0,
        "hours after each of which one checkpoint is kept for good, beside the"
        " newest; 0: none",
        minimum=0.0,
        identity=False,
    )
    keep_checkpoints: int = option(
        3,
        "newest checkpoints to keep",
        minimum=1,
        identity=False,
    )
    log_every_steps: int = option(
        50,
        "steps between points in TensorBoard",
        minimum=1,
        identity=False,
    )
    histograms_every_epochs: int = option(
        5,
        "epochs between histograms in TensorBoard, of similarities, norms and"
        " trust ratios of one small batch of views; 0: none",
        minimum=0,
        identity=False,
    )
    projector_examples: int = option(
        500,
        "images whose features TensorBoard's projector shows when the run is"
        " finished, of the validation cut if there is one; 0: none",
        minimum=0,
        maximum=10_000,
        identity=False,
    )
    profile_steps: str = option(
        "",
        "FIRST,LAST: steps, counted from 1, of which TensorBoard gets a"
        " profile; empty: none",
        check=_step_window,
        identity=False,
    )
    smoke: bool = option(
        False,
        "try the recipe out: two steps in seconds, with a small encoder, small"
        " views and few images (digits, where the dataset is not here), and"
        " all else as it is",
        identity=False,
    )


@dataclasses.dataclass(frozen=True)
class DoctorRuntime(Runtime):
    """Where and how the run would run."""

    workdir: str = option(
        "",
        "folder of the run, in which doctor.json is written; empty: nothing is",
        identity=False,
    )


def check_profile_steps(value: str, steps: int) -> None:
    """Raises `UserError` if a run of so many steps does not have them all."""
    window = read_step_window(value)
    if window and window[1] > steps:
        raise UserError(
            f"profile_steps={value}: the run has {steps:,} steps: give steps"
            f" from 1 to {steps}"
        )


def check_divisible(batch_size: int, replicas: int) -> None:
    """Raises `UserError` if replicas cannot share the global batch evenly."""
    if batch_size % replicas:
        lower = max(batch_size // replicas, 1) * replicas
        raise UserError(
            f"batch_size={batch_size} is not divisible by the {replicas}"
            f" replicas that share it: give batch_size={lower} or"
            f" {lower + replicas}"
        )


def check_cross_device_ops(
    ops: str, strategy: str, virtual_devices: int
) -> None:
    """Raises `UserError` for collectives that a strategy does not have.

    Args:
      ops: of `CROSS_DEVICE_OPS`.
      strategy: `auto` has those of any.
      virtual_devices: CPU devices to mirror over, 0 for none.
    """
    if virtual_devices and strategy == "auto":
        strategy = "mirrored"
    can = CROSS_DEVICE_OPS[ops]
    if strategy != "auto" and strategy not in can:
        known = [k for k, able in CROSS_DEVICE_OPS.items() if strategy in able]
        raise UserError(
            f"cross_device_ops={ops} goes with strategy={' or '.join(can)},"
            f" not {strategy}: give cross_device_ops={' or '.join(known)}"
        )
    if virtual_devices and ops == "nccl":
        raise UserError(
            f"cross_device_ops=nccl needs GPUs, virtual_devices="
            f"{virtual_devices} are none: give cross_device_ops=auto"
        )
