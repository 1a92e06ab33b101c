"""Options of the evaluation protocols, except for the linear one."""

import dataclasses
from typing import Any

from tf_contrastive.config.fields import (
    POSITIVE_NUMBERS,
    list_of,
    numbers,
    option,
    positive_integers,
    read_counts,
    read_numbers,
    split_list,
)
from tf_contrastive.config.views import augmentation_name
from tf_contrastive.errors import UserError, arg


@dataclasses.dataclass(frozen=True)
class _Protocol:
    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of the protocol's `measure`."""
        values = vars(self).copy()
        for field in dataclasses.fields(self):
            if read := field.metadata["read"]:
                values[field.name] = read(values[field.name])
        return values


@dataclasses.dataclass(frozen=True)
class LogisticProtocol(_Protocol):
    """Logistic regression at the best of many penalties (SimCLR, B.8)."""

    penalties: int = option(45, "log-spaced penalties to try", minimum=1)
    lowest_penalty: float = option(
        1e-6, "lowest L2 penalty, relative to the sum of the losses", above=0.0
    )
    highest_penalty: float = option(
        1e5, "highest L2 penalty, where the path starts", above=0.0
    )

    def check(self) -> None:
        """Raises `UserError` for a path with ends in the wrong order."""
        if self.lowest_penalty > self.highest_penalty:
            lowest, highest = self.lowest_penalty, self.highest_penalty
            raise UserError(
                f"{arg('logistic_lowest_penalty', f'{lowest:g}')} is above"
                f" {arg('logistic_highest_penalty', f'{highest:g}')}: swap them"
            )


# The corruptions of ImageNet-C, which mCE averages.
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


ROBUSTNESS_CLASSIFIERS = ("head", "linear", "knn")


@dataclasses.dataclass(frozen=True)
class RobustnessProtocol(_Protocol):
    """Corrupted test images (Hendrycks and Dietterich 2019)."""

    classifier: str = option(
        "auto",
        "what is scored: head, the run's own classifier; linear, a new one on"
        " the frozen encoder; knn, five neighbours, without calibration; auto:"
        " head where the run has one, else linear",
        choices=("auto", *ROBUSTNESS_CLASSIFIERS),
    )
    corruptions: str = option(
        ",".join(CORRUPTIONS),
        "comma-separated corruptions, each at five severities, out of"
        f" {', '.join(CORRUPTIONS)}",
        check=list_of(CORRUPTIONS),
        read=split_list,
    )
    examples: int = option(0, "test images to corrupt, from the first; 0: all")
    bins: int = option(
        15, "confidence bins of the expected calibration error", minimum=1
    )
    baseline: str = option(
        "",
        "JSON file of a baseline's errors by corruption and on clean images,"
        " for mCE; empty: AlexNet's on ImageNet, none on other data",
    )


@dataclasses.dataclass(frozen=True)
class FinetuneProtocol(_Protocol):
    """Fine-tuning on fractions of the labels (SimCLR, appendix B.5)."""

    fractions: str = option(
        "0.01,0.1,1",
        "comma-separated fractions of the training labels, with the same number"
        " of each class",
        check=numbers(
            "distinct fractions above 0 and at most 1",
            "0.01,0.1",
            lambda x: min(x) > 0 and max(x) <= 1 and len(set(x)) == len(x),
        ),
        read=read_numbers,
    )
    epochs: str = option(
        "60,30,30",
        "comma-separated epochs of each fraction, or one number for all",
        check=positive_integers("60,30"),
        read=read_counts,
    )
    batch_size: int = option(4096, "images per step, at most all", minimum=1)
    learning_rates: str = option(
        "0.05",
        "comma-separated learning rates per 256 images, tuned on"
        " --validation_fraction of the labels",
        check=POSITIVE_NUMBERS,
        read=read_numbers,
    )
    augmentation: str = option(
        "crop",
        "augmentation policy of the training images",
        check=augmentation_name,
    )
    scratch: bool = option(True, "also train a random encoder, for comparison")

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        fractions = len(read_numbers(self.fractions))
        if len(read_counts(self.epochs)) not in (1, fractions):
            raise UserError(
                f"{arg('finetune_epochs', self.epochs)} for"
                f" {arg('finetune_fractions', self.fractions)}: set one number"
                f" for all, or {fractions}"
            )


TRANSFER_SUITES = ("simclr", "sincere")
TRANSFER_METHODS = ("linear", "finetune", "scratch")
_DECAYS = numbers(
    "distinct numbers from 0",
    "0,1e-5,1e-4",
    lambda x: min(x) >= 0 and len(set(x)) == len(x),
)


@dataclasses.dataclass(frozen=True)
class TransferProtocol(_Protocol):
    """The encoder on other datasets (SimCLR, appendix B.8; SINCERE, J)."""

    suite: str = option(
        "simclr",
        "simclr: 12 datasets, each with its own metric; sincere: six of them,"
        " by top-1, for encoders of 32 pixels",
        choices=TRANSFER_SUITES,
    )
    methods: str = option(
        ",".join(TRANSFER_METHODS),
        "comma-separated: linear (logistic regression on the frozen encoder),"
        " finetune, scratch (training a random encoder)",
        check=list_of(TRANSFER_METHODS),
        read=split_list,
    )
    examples: int = option(0, "examples of each split, from the first; 0: all")
    batch_size: int = option(256, "images per step, at most all", minimum=1)
    steps: int = option(
        20_000, "fine-tuning steps at each point of the grid", minimum=1
    )
    learning_rates: str = option(
        "1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2,0.1",
        "comma-separated learning rates of the fine-tuning grid",
        check=POSITIVE_NUMBERS,
        read=read_numbers,
    )
    weight_decays: str = option(
        "0,1e-6,3.16e-6,1e-5,3.16e-5,1e-4,3.16e-4,1e-3",
        "comma-separated weight decays of the fine-tuning grid, each divided"
        " by the learning rate",
        check=_DECAYS,
        read=read_numbers,
    )
    scratch_steps: int = option(
        40_000, "steps of training a random encoder", minimum=1
    )
    scratch_learning_rates: str = option(
        "1e-3,3.16e-3,1e-2,3.16e-2,0.1,0.316,1",
        "comma-separated learning rates of the grid for a random encoder",
        check=POSITIVE_NUMBERS,
        read=read_numbers,
    )
    scratch_weight_decays: str = option(
        "1e-5,3.16e-5,1e-4,3.16e-4,1e-3,3.16e-3,1e-2,3.16e-2",
        "comma-separated weight decays of the grid for a random encoder, each"
        " divided by the learning rate",
        check=_DECAYS,
        read=read_numbers,
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of the protocol's `measure`."""
        values = super().hyperparameters()
        grid = ("steps", "learning_rates", "weight_decays")
        for name, prefix in (("grid", ""), ("scratch_grid", "scratch_")):
            values[name] = {x: values.pop(f"{prefix}{x}") for x in grid}
        return values


@dataclasses.dataclass(frozen=True)
class RepresentationProtocols(_Protocol):
    """Protocols that measure the representations themselves."""

    view_examples: int = option(
        10_000,
        "test images whose augmented views are compared, at most (contrastive,"
        " uniformity, kl_bound)",
        minimum=2,
    )
    contrastive_batch_size: int = option(
        4096,
        "images among which the other view is searched (contrastive)",
        minimum=2,
    )
    kl_batch_size: int = option(
        512, "images that are compared with one another (kl_bound)", minimum=2
    )
    random_directions: int = option(
        12, "orthogonal directions of histograms (uniformity)", minimum=1
    )
    transforms_train: int = option(
        10_000, "training images to transform, at most", minimum=40
    )
    transforms_test: int = option(
        10_000, "test images to transform, at most", minimum=2
    )
    transforms_hidden: int = option(
        512, "hidden units of the transformation classifiers", minimum=1
    )
    tsne_examples: int = option(
        2000, "test images on the t-SNE map, at most", minimum=4
    )
    tsne_classes: int = option(
        10, "random classes on the t-SNE map, at most", minimum=1
    )
    tsne_perplexity: float = option(
        30.0, "t-SNE perplexity; lowered for small samples", above=1.0
    )
    kmeans_images: int = option(
        4, "random test images whose local features are clustered", minimum=1
    )
    kmeans_clusters: str = option(
        "2,4,8,16",
        "comma-separated numbers of clusters per image (kmeans)",
        check=positive_integers("1,5", distinct=True),
        read=read_counts,
    )
    kmeans_scale: int = option(
        2,
        "image side for local features, as a multiple of the encoder's (kmeans;"
        " an export only takes its own side)",
        minimum=1,
        maximum=8,
    )

    def hyperparameters_of(self, protocol: str) -> dict[str, Any]:
        """Returns the keyword arguments of a protocol, without the seed."""
        values = self.hyperparameters()
        return {name: values[name] for name in _REPRESENTATION[protocol]}


_REPRESENTATION: dict[str, tuple[str, ...]] = {
    "separation": (),
    "kl_bound": ("view_examples", "kl_batch_size"),
    "contrastive": ("view_examples", "contrastive_batch_size"),
    "uniformity": ("view_examples", "random_directions"),
    "spectrum": (),
    "transforms": ("transforms_train", "transforms_test", "transforms_hidden"),
    "tsne": ("tsne_examples", "tsne_classes", "tsne_perplexity"),
    "kmeans": ("kmeans_images", "kmeans_clusters", "kmeans_scale"),
}
