"""How far the protocols of `evaluate` go, the linear one aside."""

import dataclasses
from typing import Any

from tf_contrastive.config.fields import (
    list_of,
    option,
    positive_numbers,
    read_counts,
    read_numbers,
    some_positive_numbers,
    split_list,
    whole_numbers,
)
from tf_contrastive.config.views import augmentation_name
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class LogisticProtocol:
    """Logistic regression at the best of many penalties (SimCLR, B.8)."""

    logistic_penalties: int = option(
        45, "penalties of the path, log-spaced", minimum=1
    )
    logistic_lowest_penalty: float = option(
        1e-6, "lowest l2 penalty, against the sum of the losses", above=0.0
    )
    logistic_highest_penalty: float = option(
        1e5, "highest l2 penalty, where the path starts", above=0.0
    )

    def check(self) -> None:
        """Raises `UserError` for a path that would go upwards."""
        lowest = self.logistic_lowest_penalty
        highest = self.logistic_highest_penalty
        if lowest > highest:
            raise UserError(
                f"logistic_lowest_penalty={lowest:g} is above"
                f" logistic_highest_penalty={highest:g}: exchange them"
            )

    def hyperparameters(self) -> dict[str, Any]:
        """The keyword arguments of `evaluation.logistic.measure`."""
        return {
            field.name.removeprefix("logistic_"): getattr(self, field.name)
            for field in dataclasses.fields(self)
        }


# The corruptions of ImageNet-C that mCE is the mean of, and four more.
CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
EXTRA_CORRUPTIONS = ("gaussian_blur", "saturate", "spatter", "speckle_noise")


@dataclasses.dataclass(frozen=True)
class RobustnessProtocol:
    """Corrupted test images (Hendrycks and Dietterich 2019)."""

    robustness_corruptions: str = option(
        ",".join(CORRUPTIONS),
        "comma-separated corruptions, each at five severities, out of"
        f" {', '.join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))}",
        check=list_of((*CORRUPTIONS, *EXTRA_CORRUPTIONS)),
    )
    robustness_examples: int = option(
        0, "test images that are corrupted, the first; 0: all", minimum=0
    )
    robustness_bins: int = option(
        15, "bins of confidence of the calibration error", minimum=1
    )
    robustness_baseline: str = option(
        "",
        "JSON file of a baseline's errors by corruption and of clean images,"
        " for mCE; empty: AlexNet's on ImageNet, none on other data",
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.robustness.measure`."""
        return {
            "corruptions": split_list(self.robustness_corruptions),
            "examples": self.robustness_examples,
            "bins": self.robustness_bins,
            "baseline": self.robustness_baseline,
        }


def _fractions(value: str) -> str | None:
    if value and not positive_numbers(value) and max(read_numbers(value)) <= 1:
        return None
    return "a comma-separated list of shares above 0 up to 1, such as 0.01,0.1"


@dataclasses.dataclass(frozen=True)
class FinetuneProtocol:
    """The encoder trained on, with few labels (SimCLR, appendix B.5)."""

    finetune_fractions: str = option(
        "0.01,0.1,1",
        "comma-separated shares of the training labels, the same number of"
        " every class",
        check=_fractions,
    )
    finetune_epochs: str = option(
        "60,30,30",
        "comma-separated epochs of each share, or one number for all",
        check=whole_numbers("60,30"),
    )
    finetune_batch_size: int = option(
        4096, "images per step, at most all", minimum=1
    )
    finetune_learning_rates: str = option(
        "0.05",
        "comma-separated learning rates per 256 images, of which the best on"
        " --validation_fraction of the labels is taken",
        check=some_positive_numbers,
    )
    finetune_augmentation: str = option(
        "crop",
        "augmentation policy of the images learned from",
        check=augmentation_name,
    )
    finetune_scratch: bool = option(
        True, "train a random encoder likewise, too, for comparison"
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.finetune.measure`."""
        return {
            "fractions": list(read_numbers(self.finetune_fractions)),
            "epochs": list(read_counts(self.finetune_epochs)),
            "batch_size": self.finetune_batch_size,
            "learning_rates": list(read_numbers(self.finetune_learning_rates)),
            "augmentation": self.finetune_augmentation,
            "scratch": self.finetune_scratch,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        fractions = read_numbers(self.finetune_fractions)
        epochs = read_counts(self.finetune_epochs)
        if len(epochs) not in (1, len(fractions)):
            raise UserError(
                f"finetune_epochs={self.finetune_epochs} for"
                f" finetune_fractions={self.finetune_fractions}: give one"
                f" number for all, or {len(fractions)}"
            )


TRANSFER_SUITES = ("simclr", "sincere")
TRANSFER_METHODS = ("linear", "finetune", "scratch")


def _decays(value: str) -> str | None:
    others = [part for part in split_list(value) if part != "0"]
    if value and not positive_numbers(",".join(others)):
        return None
    return "a comma-separated list of numbers from 0 up, such as 0,1e-5,1e-4"


def _grid(steps: int, rates: str, decays: str) -> dict[str, Any]:
    return {
        "steps": steps,
        "learning_rates": list(read_numbers(rates)),
        "weight_decays": list(read_numbers(decays)),
    }


@dataclasses.dataclass(frozen=True)
class TransferProtocol:
    """The encoder on other datasets (SimCLR, appendix B.8; SINCERE, J)."""

    transfer_suite: str = option(
        "simclr",
        "simclr: 12 datasets, each with its own metric; sincere: six of them,"
        " by top-1, for encoders of 32 pixels",
        choices=TRANSFER_SUITES,
    )
    transfer_methods: str = option(
        ",".join(TRANSFER_METHODS),
        "comma-separated: linear (logistic regression on the frozen encoder),"
        " finetune, scratch (a random encoder, trained likewise)",
        check=list_of(TRANSFER_METHODS),
    )
    transfer_examples: int = option(
        0, "examples of each split, the first; 0: all", minimum=0
    )
    transfer_batch_size: int = option(
        256, "images per step, at most all", minimum=1
    )
    transfer_steps: int = option(
        20_000, "steps of fine-tuning at each point of the grid", minimum=1
    )
    transfer_learning_rates: str = option(
        "1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2,0.1",
        "comma-separated learning rates of fine-tuning's grid",
        check=some_positive_numbers,
    )
    transfer_weight_decays: str = option(
        "0,1e-6,3.16e-6,1e-5,3.16e-5,1e-4,3.16e-4,1e-3",
        "comma-separated weight decays of its grid, each divided by the"
        " learning rate",
        check=_decays,
    )
    transfer_scratch_steps: int = option(
        40_000, "steps of a random encoder", minimum=1
    )
    transfer_scratch_learning_rates: str = option(
        "1e-3,3.16e-3,1e-2,3.16e-2,0.1,0.316,1",
        "comma-separated learning rates of a random encoder's grid",
        check=some_positive_numbers,
    )
    transfer_scratch_weight_decays: str = option(
        "1e-5,3.16e-5,1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2",
        "comma-separated weight decays of its grid, likewise divided",
        check=_decays,
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Keyword arguments of `evaluation.transfer.measure`."""
        return {
            "suite": self.transfer_suite,
            "methods": split_list(self.transfer_methods),
            "examples": self.transfer_examples,
            "batch_size": self.transfer_batch_size,
            "grid": _grid(
                self.transfer_steps,
                self.transfer_learning_rates,
                self.transfer_weight_decays,
            ),
            "scratch_grid": _grid(
                self.transfer_scratch_steps,
                self.transfer_scratch_learning_rates,
                self.transfer_scratch_weight_decays,
            ),
        }


@dataclasses.dataclass(frozen=True)
class RepresentationProtocols:
    """How far the protocols go that look at representations themselves."""

    view_examples: int = option(
        10_000,
        "test images whose augmented views are compared, at most (contrastive,"
        " uniformity, kl_bound)",
        minimum=2,
    )
    contrastive_batch_size: int = option(
        4096,
        "images among which the other view is to be found (contrastive)",
        minimum=2,
    )
    kl_batch_size: int = option(
        512, "images that are compared with one another (kl_bound)", minimum=2
    )
    random_directions: int = option(
        12, "orthogonal directions of histograms (uniformity)", minimum=1
    )
    transforms_train: int = option(
        10_000, "training images that are transformed, at most", minimum=20
    )
    transforms_test: int = option(
        10_000, "test images that are transformed, at most", minimum=2
    )
    transforms_hidden: int = option(
        512, "hidden units of the networks that tell transformations", minimum=1
    )
    tsne_examples: int = option(
        2000, "test images on the t-SNE map, at most", minimum=4
    )
    tsne_classes: int = option(
        10, "random classes on the t-SNE map, at most", minimum=1
    )
    tsne_perplexity: float = option(
        30.0, "neighbours that t-SNE heeds, less of few images", above=1.0
    )
    kmeans_images: int = option(
        4, "random test images whose local features are clustered", minimum=1
    )
    kmeans_clusters: str = option(
        "2,4,8,16",
        "comma-separated numbers of clusters of each image (kmeans)",
        check=whole_numbers("1,5", distinct=True),
    )
    kmeans_scale: int = option(
        2,
        "times the encoder's own image side at which local features are made"
        " (kmeans; an export takes its own side only)",
        minimum=1,
        maximum=8,
    )

    def hyperparameters(self, protocol: str) -> dict[str, Any]:
        """The keyword arguments of a protocol's `measure`, without the seed."""
        values = {
            name: getattr(self, name) for name in _HYPERPARAMETERS[protocol]
        }
        if "kmeans_clusters" in values:
            values["kmeans_clusters"] = list(read_counts(self.kmeans_clusters))
        return values


_HYPERPARAMETERS: dict[str, tuple[str, ...]] = {
    "separation": (),
    "kl_bound": ("view_examples", "kl_batch_size"),
    "contrastive": ("view_examples", "contrastive_batch_size"),
    "uniformity": ("view_examples", "random_directions"),
    "spectrum": (),
    "transforms": ("transforms_train", "transforms_test", "transforms_hidden"),
    "tsne": ("tsne_examples", "tsne_classes", "tsne_perplexity"),
    "kmeans": ("kmeans_images", "kmeans_clusters", "kmeans_scale"),
}
