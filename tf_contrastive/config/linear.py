"""Linear classifiers: along with the encoder, after it, and on any one."""

import dataclasses
from typing import Any

from tf_contrastive.config.fields import (
    given_options,
    option,
    positive_numbers,
    read_numbers,
)
from tf_contrastive.config.optimizer import (
    OPTIMIZER_OPTIONS,
    OPTIMIZERS,
    resolve_learning_rate,
)
from tf_contrastive.config.schedule import (
    SCHEDULE_OPTIONS,
    SCHEDULES,
    check_boundaries,
    check_warmup,
    given_schedule,
    rising_epochs,
)
from tf_contrastive.config.views import augmentation_name
from tf_contrastive.errors import UserError

# What a linear stage has in the place of the optimizers' own defaults:
# SimCLR, appendix B.6.
LINEAR_OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    # As in SimCLR's code, which leaves the classifier out of the adaptation:
    # it starts at zero, and LARS goes by the norm of the weights.
    "lars": {"weight_decay": 0.0, "trust_coefficient": None},
    "sgd": {"weight_decay": 0.0, "nesterov": True},
    "rmsprop": {"weight_decay": 0.0},
    "adam": {"weight_decay": 0.0},
    "adamw": {"weight_decay": 0.0},
}

# What `--linear_recipe` stands for, beside the fields' own defaults.
LINEAR_RECIPES: dict[str, dict[str, Any]] = {
    # Appendix B.6: Nesterov's momentum, which is the fields' default.
    "simclr": {},
    # The same with LARS, by the numbers of pretraining.
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
        "linear_learning_rates": "0.01,0.03,0.1,0.3,1",
    },
    # Section 10.1, with the learning rate and decay of the authors' code, and
    # the augmentation of its best model.
    "supcon": {
        "linear_epochs": 350,
        "linear_batch_size": 2048,
        "linear_augmentation": "autoaugment",
        "linear_optimizer": "rmsprop",
        "linear_learning_rate": 0.05,
        "linear_weight_decay": 1e-6,
        "linear_schedule": "exponential",
    },
}


@dataclasses.dataclass(frozen=True)
class Probe:
    """The linear probe that is trained along, behind a stop-gradient."""

    probe: bool = option(True, "train a linear probe along, where labels exist")
    probe_learning_rate: float = option(
        0.1,
        "learning rate of the probe's SGD, per 256 images",
        above=0.0,
    )
    online_knn_size: int = option(
        0,
        "latest training images among which the nearest neighbour of each new"
        " one is looked for, where labels exist, such as 4096; a small part of"
        " an epoch; 0: none",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class LinearStage:
    """The linear classifier on the frozen encoder, trained when that is done.

    It changes nothing of the encoder, so that a finished run takes others.
    """

    linear_epochs: int = option(
        0,
        "epochs of a linear classifier on the frozen encoder, after the"
        " encoder's own; 0: none",
        minimum=0,
        identity=False,
    )
    linear_batch_size: int = option(
        256,
        "images per step of the linear stage, at most all",
        minimum=1,
        identity=False,
    )
    linear_augmentation: str = option(
        "none",
        "augmentation policy of the images that the linear stage learns from,"
        " new ones every epoch, with the run's other options of views; none:"
        " the images as they are, embedded once",
        check=augmentation_name,
        identity=False,
    )
    linear_label_smoothing: float = option(
        0.0,
        "share of the linear stage's target spread over all classes",
        minimum=0.0,
        maximum=0.9999,
        identity=False,
    )
    linear_optimizer: str = option(
        "sgd",
        "optimizer of the linear stage",
        choices=OPTIMIZERS,
        identity=False,
    )
    linear_momentum: float | None = option(
        None,
        "as --momentum, of the linear stage (lars, sgd, rmsprop); default: 0.9",
        minimum=0.0,
        maximum=0.9999,
        identity=False,
    )
    linear_nesterov: bool | None = option(
        None,
        "as --nesterov, of the linear stage (lars, sgd); default: yes of sgd",
        identity=False,
    )
    linear_weight_decay: float | None = option(
        None,
        "as --weight_decay, of the linear stage; default: 0",
        minimum=0.0,
        identity=False,
    )
    linear_learning_rate: float | None = option(
        None,
        "learning rate of the linear stage, per 256 images; default: that of"
        " its optimizer, as for --learning_rate",
        above=0.0,
        identity=False,
    )
    linear_schedule: str = option(
        "cosine",
        "learning rate of the linear stage after its warm-up",
        choices=SCHEDULES,
        identity=False,
    )
    linear_decay_rate: float | None = option(
        None,
        "as --decay_rate, of the linear stage (exponential, piecewise)",
        above=0.0,
        maximum=1.0,
        identity=False,
    )
    linear_decay_epochs: float | None = option(
        None,
        "as --decay_epochs, of the linear stage (exponential)",
        above=0.0,
        identity=False,
    )
    linear_boundaries: str | None = option(
        None,
        "as --boundaries, of the linear stage (piecewise)",
        check=rising_epochs,
        identity=False,
    )
    linear_warmup_epochs: float = option(
        0.0,
        "epochs of the linear stage's linear warm-up",
        minimum=0.0,
        identity=False,
    )

    def optimizer_options(self) -> dict[str, Any]:
        """Options of `optimizers.build` that are not that optimizer's own.

        Raises:
          UserError: for one that the optimizer does not take.
        """
        given = given_options(
            self, "linear_optimizer", OPTIMIZER_OPTIONS, "linear_"
        )
        return LINEAR_OPTIMIZER_OPTIONS[self.linear_optimizer] | given

    def schedule_options(self) -> dict[str, Any]:
        """What was given, as options of `schedules.build`.

        Raises:
          UserError: for an option that the schedule does not take.
        """
        return given_schedule(self, "linear_schedule", "linear_")

    def hyperparameters(self) -> dict[str, Any]:
        """All of it, as keyword arguments of `evaluation.linear_probe`."""
        return {
            "epochs": self.linear_epochs,
            "batch_size": self.linear_batch_size,
            "label_smoothing": self.linear_label_smoothing,
            "optimizer": self.linear_optimizer,
            "optimizer_options": self.optimizer_options(),
            "learning_rate": resolve_learning_rate(
                self.linear_learning_rate, self.linear_optimizer, "linear"
            ),
            "schedule": self.linear_schedule,
            "schedule_options": self.schedule_options(),
            "warmup_epochs": self.linear_warmup_epochs,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if not self.linear_epochs:
            self._check_absent()
            return
        self.optimizer_options()
        warmup, epochs = self.linear_warmup_epochs, self.linear_epochs
        check_warmup(warmup, epochs, "linear_")
        decay = SCHEDULE_OPTIONS[self.linear_schedule] | self.schedule_options()
        if "boundaries" in decay:
            check_boundaries(decay["boundaries"], warmup, epochs, "linear_")

    def _check_absent(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                raise UserError(
                    f"{field.name}={value} is of the linear stage, of which"
                    " linear_epochs=0 leaves nothing: give its epochs, such"
                    f" as linear_epochs={LinearProtocol.linear_epochs}"
                )


@dataclasses.dataclass(frozen=True)
class LinearProtocol(LinearStage):
    """The linear stage of an encoder that is there already."""

    linear_recipe: str = option(
        "simclr",
        "whose numbers: simclr (Nesterov's momentum, 90 epochs); simclr_lars;"
        " sincere (SGD, 100 epochs, its learning rate chosen); supcon (RMSProp"
        " with exponential decay, 350 epochs); flags beside it win",
        choices=tuple(LINEAR_RECIPES),
    )
    linear_epochs: int = option(
        90, "epochs of the linear classifier", minimum=1
    )
    linear_batch_size: int = option(
        4096, "images per step of the linear classifier, at most all", minimum=1
    )
    linear_augmentation: str = option(
        "crop",
        "augmentation policy of the images that the linear classifier learns"
        " from, new ones every epoch, with the run's other options of views;"
        " none: the images as they are, embedded once",
        check=augmentation_name,
    )
    linear_learning_rates: str = option(
        "",
        "comma-separated learning rates per 256 images, tried on"
        " --validation_fraction of train; empty: --linear_learning_rate",
        check=positive_numbers,
    )

    def hyperparameters(self) -> dict[str, Any]:
        """All of it, as keyword arguments of the linear protocol."""
        return super().hyperparameters() | {
            "learning_rates": read_numbers(self.linear_learning_rates),
            "augmentation": self.linear_augmentation,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().check()
        if self.linear_learning_rates and self.linear_learning_rate:
            raise UserError(
                f"linear_learning_rate={self.linear_learning_rate:g} and"
                f" linear_learning_rates={self.linear_learning_rates}: give"
                " one of them, or linear_learning_rates= for none"
            )
