"""Training length, batch size and learning rate."""

import dataclasses
import functools
from typing import Any

from tf_contrastive.config.fields import (
    given_options,
    numbers,
    option,
    read_numbers,
)
from tf_contrastive.config.optimizer import LEARNING_RATES
from tf_contrastive.errors import UserError

# The options of each schedule, with their defaults (`schedules.build`).
SCHEDULE_OPTIONS: dict[str, dict[str, Any]] = {
    "cosine": {},
    "linear": {},
    # The linear stage of SupCon's code.
    "exponential": {"decay_rate": 0.97, "decay_epochs": 0.5, "staircase": True},
    # He et al. 2016, for 90 or 100 epochs on ImageNet.
    "piecewise": {"decay_rate": 0.1, "boundaries": (30.0, 60.0, 90.0)},
    "constant": {},
}
SCHEDULES = tuple(SCHEDULE_OPTIONS)
SCALINGS = ("linear", "sqrt", "none")
# An option of some of them, with a default of each.
_option = functools.partial(option, None, components=SCHEDULE_OPTIONS)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Training length, batch size and learning rate."""

    epochs: int = option(100, "epochs to train", minimum=1)
    batch_size: int = option(
        256, "images per step, over all replicas (global batch size)", minimum=2
    )
    learning_rate: float | None = option(
        None,
        "base learning rate, before scaling; default: "
        + ", ".join(f"{r:g} ({name})" for name, r in LEARNING_RATES.items())
        + ", a quarter of that with sqrt scaling",
        above=0.0,
    )
    learning_rate_scaling: str = option(
        "linear",
        "linear: base * batch size / 256; sqrt: base * sqrt(batch size)",
        choices=SCALINGS,
    )
    schedule: str = option(
        "cosine", "learning rate schedule after the warm-up", choices=SCHEDULES
    )
    decay_rate: float | None = _option(
        "factor of each decay", above=0.0, maximum=1.0
    )
    decay_epochs: float | None = _option(
        "epochs between decays, after the warm-up", above=0.0
    )
    staircase: bool | None = _option("decay in steps, not continuously")
    boundaries: str | None = _option(
        "comma-separated epochs, warm-up included, at which the learning rate"
        " decays",
        check=numbers(
            "increasing epochs above 0",
            "30,60,90",
            lambda x: min(x) > 0 and sorted(set(x)) == list(x),
        ),
    )
    warmup_epochs: float = option(
        -1.0,
        "epochs of linear warm-up; -1: 10, at most a tenth of all epochs",
        minimum=-1.0,
    )
    learning_rate_floor: float = option(
        0.0,
        "fraction of the peak learning rate where the warm-up starts and the"
        " decay ends",
        maximum=1.0,
    )

    def options(self, prefix: str = "") -> dict[str, Any]:
        """Returns what was set, as options of `schedules.build`."""
        given = given_options(self, "schedule", SCHEDULE_OPTIONS, prefix)
        if "boundaries" in given:
            given["boundaries"] = read_numbers(given["boundaries"])
        return given

    def check(self, prefix: str = "") -> None:
        """Raises `UserError` for a warm-up or decay outside the run."""
        if self.warmup_epochs > self.epochs:
            raise UserError(
                f"{prefix}warmup_epochs={self.warmup_epochs:g} is longer than"
                f" {prefix}epochs={self.epochs}: set at most"
                f" {prefix}warmup_epochs={self.epochs}"
            )
        if -1 < self.warmup_epochs < 0:
            raise UserError(
                f"{prefix}warmup_epochs={self.warmup_epochs:g}: must be at"
                " least 0, or -1 for 10 epochs, at most a tenth of the run"
            )
        decay = SCHEDULE_OPTIONS[self.schedule] | self.options(prefix)
        if "boundaries" in decay:
            check_boundaries(
                decay["boundaries"], self.warmup_epochs, self.epochs, prefix
            )


def resolve_warmup(warmup_epochs: float, epochs: float) -> float:
    """Returns the warm-up in epochs; -1: 10, at most a tenth of the run."""
    return min(10.0, epochs / 10) if warmup_epochs == -1 else warmup_epochs


def check_boundaries(
    boundaries: tuple[float, ...],
    warmup_epochs: float,
    epochs: float,
    prefix: str = "",
) -> None:
    """Raises `UserError` for epochs at which no learning rate can decay."""
    start = resolve_warmup(warmup_epochs, epochs)
    increasing = sorted(set(boundaries)) == list(boundaries)
    if not increasing or not all(start <= b < epochs for b in boundaries):
        text = ",".join(f"{b:g}" for b in boundaries)
        raise UserError(
            f"{prefix}boundaries={text}: use increasing epochs, from"
            f" {prefix}warmup_epochs={start:g} to less than"
            f" {prefix}epochs={epochs:g}"
        )
