"""How long a run is, and how fast it goes."""

import dataclasses
import re
from typing import Any

from tf_contrastive.config.fields import (
    given_options,
    option,
    read_numbers,
    split_list,
)
from tf_contrastive.config.optimizer import LEARNING_RATES
from tf_contrastive.errors import UserError

# The options of each schedule, with their defaults (`schedules.build`).
SCHEDULE_OPTIONS: dict[str, dict[str, Any]] = {
    "cosine": {},
    "linear": {},
    # SupCon's linear stage, as in the authors' code.
    "exponential": {"decay_rate": 0.97, "decay_epochs": 0.5, "staircase": True},
    # He et al. 2016, of 90 epochs or 100 on ImageNet.
    "piecewise": {"decay_rate": 0.1, "boundaries": (30.0, 60.0, 90.0)},
    "constant": {},
}
SCHEDULES = tuple(SCHEDULE_OPTIONS)
SCALINGS = ("linear", "sqrt", "none")


def rising_epochs(value: str) -> str | None:
    """What a value of `--boundaries` may be, or None if `value` is one."""
    parts = split_list(value)
    if parts and all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        epochs = read_numbers(value)
        if epochs[0] > 0 and sorted(set(epochs)) == list(epochs):
            return None
    return "a comma-separated list of rising epochs above 0, such as 30,60,90"


def given_schedule(
    group: Any, kind: str, prefix: str | None = None
) -> dict[str, Any]:
    """Returns what was given of a schedule; see `given_options`."""
    given = given_options(group, kind, SCHEDULE_OPTIONS, prefix)
    if "boundaries" in given:
        given["boundaries"] = read_numbers(given["boundaries"])
    return given


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How long and how fast."""

    epochs: int = option(100, "epochs to train", minimum=1)
    batch_size: int = option(
        256,
        "images per step over all replicas (the global batch)",
        minimum=2,
    )
    learning_rate: float | None = option(
        None,
        "base learning rate, before scaling; default: "
        + ", ".join(
            f"{rate:g} ({name})" for name, rate in LEARNING_RATES.items()
        )
        + ", and a quarter of that to scale by sqrt",
        above=0.0,
    )
    learning_rate_scaling: str = option(
        "linear",
        "linear: base * batch_size / 256; sqrt: base * sqrt(batch_size)",
        choices=SCALINGS,
    )
    schedule: str = option(
        "cosine",
        "learning rate after the warm-up",
        choices=SCHEDULES,
    )
    decay_rate: float | None = option(
        None,
        "factor of each decay; default:"
        f" {SCHEDULE_OPTIONS['exponential']['decay_rate']:g} (exponential),"
        f" {SCHEDULE_OPTIONS['piecewise']['decay_rate']:g} (piecewise)",
        above=0.0,
        maximum=1.0,
    )
    decay_epochs: float | None = option(
        None,
        "epochs from decay to decay, after the warm-up (exponential); default:"
        f" {SCHEDULE_OPTIONS['exponential']['decay_epochs']:g}",
        above=0.0,
    )
    staircase: bool | None = option(
        None,
        "decay at once after so many epochs, not little by little"
        " (exponential); default: yes",
    )
    boundaries: str | None = option(
        None,
        "comma-separated epochs of the run, warm-up included, at which the"
        " learning rate decays (piecewise); default: 30,60,90",
        check=rising_epochs,
    )
    warmup_epochs: float = option(
        -1.0,
        "epochs of linear warm-up; -1: 10, and at most a tenth of --epochs",
        minimum=-1.0,
    )
    learning_rate_floor: float = option(
        0.0,
        "share of the peak learning rate at which the warm-up starts, and"
        " towards which the rate decays",
        minimum=0.0,
        maximum=1.0,
    )

    def options(self) -> dict[str, Any]:
        """What was given, as options of `schedules.build`.

        Raises:
          UserError: for an option that the schedule does not take.
        """
        return given_schedule(self, "schedule")


def resolve_warmup(warmup_epochs: float, epochs: float) -> float:
    """Returns the warm-up in epochs; -1: 10, at most a tenth of the run."""
    return min(10.0, epochs / 10) if warmup_epochs == -1 else warmup_epochs


def check_warmup(warmup_epochs: float, epochs: int, prefix: str = "") -> None:
    """Raises `UserError` for a warm-up that is longer than the run.

    Args:
      warmup_epochs: as given.
      epochs: of the run.
      prefix: of the flags' names.
    """
    if warmup_epochs > epochs:
        raise UserError(
            f"{prefix}warmup_epochs={warmup_epochs:g} is longer than"
            f" {prefix}epochs={epochs}: give at most"
            f" {prefix}warmup_epochs={epochs}"
        )


def check_boundaries(
    boundaries: tuple[float, ...],
    warmup_epochs: float,
    epochs: float,
    prefix: str = "",
) -> None:
    """Raises `UserError` for epochs at which no learning rate can decay.

    Args:
      boundaries: epochs of the run, rising.
      warmup_epochs: as for `resolve_warmup`.
      epochs: of the run.
      prefix: of the flags' names.
    """
    start = resolve_warmup(warmup_epochs, epochs)
    rising = sorted(set(boundaries)) == list(boundaries)
    if not rising or not all(start <= b < epochs for b in boundaries):
        given = ",".join(f"{b:g}" for b in boundaries)
        raise UserError(
            f"{prefix}boundaries={given}: give epochs that rise, from"
            f" {prefix}warmup_epochs={start:g} to less than"
            f" {prefix}epochs={epochs:g}"
        )
