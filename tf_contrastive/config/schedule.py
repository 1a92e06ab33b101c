"""Training length, batch size and learning rate."""

from typing import Any

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.command import Group
from tf_contrastive.config.components import Component, Family, by_name
from tf_contrastive.config.fields import option
from tf_contrastive.config.optimizer import OPTIMIZERS

SCALINGS = ("linear", "sqrt", "none")


def _decay_rate(default: float) -> Any:
    return option(default, "factor of each decay", above=0.0, maximum=1.0)


def _decay_epochs(default: float | tuple[float, ...]) -> Any:
    return option(
        default,
        "epochs between decays, after the warm-up (exponential);"
        " comma-separated epochs, warm-up included, at which the learning rate"
        " decays (piecewise)",
        above=0.0,
    )


class Decay(Component):
    """A decay of the learning rate after the warm-up."""

    implementation = "tf_contrastive.schedules"


class Constant(Decay):
    """Stays at the peak."""

    name = "constant"


class Cosine(Decay):
    """Half a cosine."""

    name = "cosine"


class Linear(Decay):
    """A straight line."""

    name = "linear"


class Exponential(Decay):
    """The linear stage of SupCon's code."""

    name = "exponential"

    decay_rate: float = _decay_rate(0.97)
    decay_epochs: float = _decay_epochs(0.5)


class Piecewise(Decay):
    """He et al. 2016, for 90 or 100 epochs on ImageNet."""

    name = "piecewise"

    decay_rate: float = _decay_rate(0.1)
    decay_epochs: tuple[float, ...] = _decay_epochs((30.0, 60.0, 90.0))


SCHEDULES: dict[str, type[Component]] = by_name(
    [Cosine, Linear, Exponential, Piecewise, Constant]
)
_DECAY = Family(
    kind="schedule",
    members=SCHEDULES,
    help="learning rate schedule after the warm-up",
).option(Cosine())


class StageSchedule(Group):
    """Training length, batch size and learning rate of any stage."""

    decay: Component = _DECAY
    epochs: int = option(100, "epochs to train", minimum=1)
    batch_size: int = option(
        256, "images per step, over all replicas (global batch size)", minimum=2
    )
    learning_rate: float | None = option(
        None,
        "learning rate per 256 images, before scaling; auto: "
        + ", ".join(f"{o.learning_rate:g} ({n})" for n, o in OPTIMIZERS.items())
        + ", a quarter of that with sqrt scaling",
        above=0.0,
    )
    warmup_epochs: float | None = option(
        None,
        "epochs of linear warm-up; auto: 10, at most a tenth of all epochs",
    )

    def check(self, prefix: str = "") -> None:
        """Raises `UserError` for a warm-up or decay outside the run."""
        warmup = resolve_warmup(self.warmup_epochs, self.epochs)
        check_epochs(warmup, self.epochs, self.decay, prefix)


class Schedule(StageSchedule):
    """Training length, batch size and learning rate."""

    learning_rate_scaling: str = option(
        "linear",
        "linear: base * batch size / 256; sqrt: base * sqrt(batch size)",
        choices=SCALINGS,
    )
    learning_rate_floor: float = option(
        0.0,
        "fraction of the peak learning rate where the warm-up starts and the"
        " decay ends",
        maximum=1.0,
    )


def resolve_warmup(warmup_epochs: float | None, epochs: float) -> float:
    """Returns the warm-up in epochs; None: 10, at most a tenth of the run."""
    return min(10.0, epochs / 10) if warmup_epochs is None else warmup_epochs


def check_epochs(
    warmup: float, epochs: float, decay: Component, prefix: str = ""
) -> None:
    """Raises `UserError` for a warm-up or decays outside a run."""
    name = prefix + "warmup_epochs"
    if not 0 <= warmup <= epochs:
        raise UserError(
            f"{arg(name, warmup)}: set {arg(name, 0)} to"
            f" {arg(prefix + 'epochs', epochs)}"
        )
    if not isinstance(decay, Piecewise):
        return
    decays = decay.decay_epochs
    increasing = sorted(set(decays)) == list(decays)
    if not increasing or not all(warmup <= x < epochs for x in decays):
        raise UserError(
            f"{arg(prefix + 'decay_epochs', decays)}: use increasing epochs,"
            f" from {arg(name, warmup)} to less than"
            f" {arg(prefix + 'epochs', epochs)}"
        )
