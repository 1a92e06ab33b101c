"""Linear classifiers: during pretraining, after it, and in evaluation."""

import dataclasses
from typing import Any

from tf_contrastive.config.components import choice
from tf_contrastive.config.fields import (
    POSITIVE_NUMBERS,
    group,
    option,
    options,
    read_numbers,
)
from tf_contrastive.config.optimizer import OPTIMIZERS, resolve_learning_rate
from tf_contrastive.config.schedule import StageSchedule, resolve_warmup
from tf_contrastive.config.views import augmentation_name
from tf_contrastive.errors import UserError, arg

# Defaults of the linear classifier that differ from the optimizers' own
# (SimCLR, appendix B.6).
LINEAR_OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # SimCLR's code excludes the classifier from the adaptation: it starts at
    # zero, and LARS divides by the norm of the weights.
    "lars": {"weight_decay": 0.0, "trust_coefficient": None},
    "sgd": {"weight_decay": 0.0, "nesterov": True},
    # The second stage of SupCon's code.
    "rmsprop": {"weight_decay": 0.0, "epsilon": 0.001},
    "adam": {"weight_decay": 0.0},
    "adamw": {"weight_decay": 0.0},
}

# The options that `linear_recipe` sets.
LINEAR_RECIPES: dict[str, dict[str, Any]] = {
    # Appendix B.6: Nesterov momentum, which is the default.
    "simclr": {},
    # The same with LARS and the numbers of pretraining.
    "simclr_lars": {
        "linear_optimizer": "lars",
        "linear_learning_rate": 0.3,
        "linear_weight_decay": 1e-6,
        "linear_warmup_epochs": 10.0,
    },
    # Appendix J: learning rate chosen on a tenth of train.
    "sincere": {
        "linear_epochs": 100,
        "linear_batch_size": 128,
        "linear_nesterov": False,
        "linear_weight_decay": 1e-4,
        "linear_decay_all": True,
        "linear_learning_rates": "0.01,0.03,0.1,0.3,1",
    },
    # Section 10.1, the augmentation of its best model, and the other numbers
    # of the authors' code.
    "supcon": {
        "linear_epochs": 350,
        "linear_batch_size": 2048,
        "linear_augmentation": "autoaugment",
        "linear_optimizer": "rmsprop",
        "linear_learning_rate": 0.05,
        "linear_weight_decay": 1e-6,
        "linear_decay_all": True,
        "linear_schedule": "exponential",
        "linear_warmup_epochs": 12.0,
        "linear_label_smoothing": 0.05,
        "linear_l2_normalize_features": True,
    },
}


@dataclasses.dataclass(frozen=True)
class Probe:
    """The linear probe behind a stop-gradient, trained with the encoder."""

    probe: bool = option(
        True, "train a linear probe with the encoder, if there are labels"
    )
    probe_learning_rate: float = option(
        0.1, "learning rate of the probe's SGD, per 256 images", above=0.0
    )
    online_knn_size: int = option(
        0,
        "latest training images in the online kNN bank, such as 4096; needs"
        " labels and a small part of an epoch's time; 0: no online kNN",
    )


_Choice: Any = choice(
    "optimizer",
    OPTIMIZERS,
    "sgd",
    "optimizer",
    flags=("weight_decay",),
    prefixed=("epsilon",),
    defaults=LINEAR_OPTIMIZER_OPTIONS,
)


@dataclasses.dataclass(frozen=True)
class LinearOptimizer(_Choice):
    """The optimizer of a linear classifier."""


def _batch_size(default: int) -> Any:
    return option(default, "images per step, at most all", minimum=1)


@dataclasses.dataclass(frozen=True)
class LinearSchedule(StageSchedule):
    """The schedule of the linear stage."""

    epochs: int = option(0, "epochs; 0: no linear stage")
    batch_size: int = _batch_size(256)
    warmup_epochs: float | None = option(
        0.0,
        "epochs of linear warm-up; auto: 10, at most a tenth of all epochs",
        auto=-1,
    )


@dataclasses.dataclass(frozen=True)
class LinearProtocolSchedule(LinearSchedule):
    """The schedule of the linear protocol."""

    epochs: int = option(90, "epochs to train", minimum=1)
    batch_size: int = _batch_size(4096)


def _augmentation(default: str) -> Any:
    return option(
        default,
        "augmentation policy of the training images, drawn every epoch, with"
        " the run's other options of views; none: embed each image once",
        check=augmentation_name,
    )


@dataclasses.dataclass(frozen=True)
class LinearStage:
    """A linear classifier on the frozen encoder.

    `pretrain` trains it after the encoder, which it does not change.
    """

    schedule: LinearSchedule = group(LinearSchedule())
    augmentation: str = _augmentation("none")
    label_smoothing: float = option(
        0.0, "fraction of the target spread over all classes", maximum=0.9999
    )
    l2_normalize_features: bool = option(
        False, "l2-normalize the encoder's output before the classifier"
    )
    optimizer: LinearOptimizer = group(LinearOptimizer())

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of `evaluation.linear_probe`."""
        schedule, optimizer = self.schedule, self.optimizer.optimizer
        # Only where it is set, so that earlier results stay comparable.
        normalized = {"normalize_features": True}
        return (normalized if self.l2_normalize_features else {}) | {
            "epochs": schedule.epochs,
            "batch_size": schedule.batch_size,
            "label_smoothing": self.label_smoothing,
            "optimizer": optimizer,
            "optimizer_options": self.optimizer.options("linear_"),
            "learning_rate": resolve_learning_rate(
                schedule.learning_rate, optimizer, "linear"
            ),
            "schedule": schedule.schedule,
            "schedule_options": schedule.options("linear_"),
            "warmup_epochs": resolve_warmup(
                schedule.warmup_epochs, schedule.epochs
            ),
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if self.schedule.epochs:
            self.optimizer.options("linear_")
            self.schedule.check("linear_")
            return
        given, defaults = options(self, "linear_"), options(type(self)())
        for own, other in zip(given, defaults, strict=True):
            if own.value != other.value:
                raise UserError(
                    f"{arg(own.name, own.value)} has no effect:"
                    f" {arg('linear_epochs', '0')} disables the linear stage;"
                    " set"
                    f" {arg('linear_epochs', LinearProtocol.schedule.epochs)}"
                )


@dataclasses.dataclass(frozen=True)
class LinearProtocol(LinearStage):
    """The linear evaluation protocol, with SimCLR's numbers."""

    recipe: str = option(
        "simclr",
        "preset: simclr (Nesterov momentum, 90 epochs), simclr_lars, sincere"
        " (SGD, 100 epochs, tuned learning rate), supcon (RMSProp, exponential"
        " decay, 350 epochs); other flags override it",
        choices=tuple(LINEAR_RECIPES),
    )
    schedule: LinearProtocolSchedule = group(LinearProtocolSchedule())
    augmentation: str = _augmentation("crop")
    learning_rates: str = option(
        "",
        "comma-separated learning rates per 256 images, tuned on"
        " --validation_fraction of train; empty: --linear_learning_rate",
        check=POSITIVE_NUMBERS,
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of the linear protocol."""
        return super().hyperparameters() | {
            "learning_rates": read_numbers(self.learning_rates),
            "augmentation": self.augmentation,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().check()
        if self.learning_rates and self.schedule.learning_rate:
            rate = f"{self.schedule.learning_rate:g}"
            raise UserError(
                f"{arg('linear_learning_rate', rate)} and"
                f" {arg('linear_learning_rates', self.learning_rates)}: set one"
                f" of them, or {arg('linear_learning_rates', '')} for none"
            )
