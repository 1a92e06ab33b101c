"""Linear classifiers: during pretraining, after it, and in evaluation."""

from typing import Any

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import argument, group, option, values
from tf_contrastive.config.optimizer import (
    OPTIMIZERS,
    SGD,
    OptimizerDeclaration,
    optimizer_option,
    resolve_learning_rate,
)
from tf_contrastive.config.schedule import StageSchedule, resolve_warmup
from tf_contrastive.config.views import augmentation_name

# Defaults of the linear classifier that differ from the optimizers' own
# (SimCLR, appendix B.6).
LINEAR_OPTIMIZER_OPTIONS: dict[str, dict[str, Any]] = {
    name: {"weight_decay": 0.0} for name in OPTIMIZERS
}
LINEAR_OPTIMIZER_OPTIONS["sgd"]["nesterov"] = True
# The second stage of SupCon's code.
LINEAR_OPTIMIZER_OPTIONS["rmsprop"]["epsilon"] = 0.001


class Probe(Group):
    """The linear probe behind a stop-gradient, trained with the encoder."""

    probe: bool = option(
        True, "train a linear probe with the encoder, if there are labels"
    )
    # Of the probe's SGD, per 256 images.
    probe_learning_rate: float = argument(0.1, above=0.0)
    cross_entropy_weight: float = option(
        0.0,
        "weight of the probe's cross entropy in the loss, by which encoder and"
        " probe are trained jointly; 0: a stop-gradient",
        family="loss_options",
    )
    online_knn_size: int = option(
        0,
        "latest training images in the online kNN bank, such as 4096; needs"
        " labels and a small part of an epoch's time; 0: no online kNN",
        maximum=1 << 22,
    )


class LinearSchedule(StageSchedule):
    """The schedule of the linear stage."""

    epochs: int = option(0, "epochs; 0: no linear stage")
    batch_size: int = option(256, "images per step, at most all", minimum=1)
    warmup_epochs: float | None = option(
        0.0, "epochs of linear warm-up; auto: 10, at most a tenth of all epochs"
    )


def linear_augmentation(default: str) -> Any:
    """The option of the policy of the classifier's training images."""
    return option(
        default,
        "augmentation policy of the training images, drawn every epoch, with"
        " the run's other options of views; none: embed each image once",
        check=augmentation_name,
    )


class LinearStage(Group):
    """A linear classifier on the frozen encoder.

    `pretrain` trains it after the encoder, which it does not change.
    """

    schedule: LinearSchedule = group(LinearSchedule())
    augmentation: str = linear_augmentation("none")
    label_smoothing: float = option(
        0.0, "fraction of the target spread over all classes", maximum=0.9999
    )
    l2_normalize_features: bool = option(
        False, "l2-normalize the encoder's output before the classifier"
    )
    optimizer: OptimizerDeclaration = optimizer_option(
        SGD(**LINEAR_OPTIMIZER_OPTIONS["sgd"]),
        flags=("weight_decay",),
        defaults=LINEAR_OPTIMIZER_OPTIONS,
        without=("momentum", "momentum_style"),
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of `evaluation.linear_probe`."""
        schedule, optimizer = self.schedule, self.optimizer
        return {
            "normalize_features": self.l2_normalize_features,
            "starts_at_zero": not optimizer.scales_by_weights,
            "epochs": schedule.epochs,
            "batch_size": schedule.batch_size,
            "label_smoothing": self.label_smoothing,
            "optimizer": optimizer.label,
            "optimizer_options": optimizer.arguments(),
            "learning_rate": resolve_learning_rate(
                schedule.learning_rate, optimizer, "linear"
            ),
            "schedule": schedule.decay.label,
            "schedule_options": schedule.decay.arguments(),
            "warmup_epochs": resolve_warmup(
                schedule.warmup_epochs, schedule.epochs
            ),
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        if self.schedule.epochs:
            self.schedule.check("linear_")
            return
        defaults = values(type(self)(), "linear_")
        for name, value in values(self, "linear_").items():
            if value != defaults.get(name, value):
                raise UserError(
                    f"{arg(name, value)} has no effect:"
                    f" {arg('linear_epochs', '0')} disables the linear stage;"
                    f" set {arg('linear_epochs', 90)}"
                )
