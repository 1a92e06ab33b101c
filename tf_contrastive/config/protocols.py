"""Evaluation protocols, each declared in one place.

A declaration has the protocol's options with their defaults, its traits, and
where the function that measures is. `Protocols`, at the end, names them.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.checks import distinct
from tf_contrastive.config.command import Group
from tf_contrastive.config.fields import argument, group, option
from tf_contrastive.config.linear import (
    LinearSchedule,
    LinearStage,
    linear_augmentation,
)
from tf_contrastive.config.transfer import METHODS, SUITES
from tf_contrastive.config.views import augmentation_name

# Options that few set are given in one flag, PROTOCOL_options=KEY=VALUE,...
_option = functools.partial(option, family="options")
_grid = functools.partial(_option, check=distinct)

# Neighbours that vote, where one number is needed (SINCERE, appendix M).
KNN_K = 5


class ProtocolDeclaration(Group):
    """Hyperparameters of a named result, as fields, and its traits.

    The defaults of the fields are the papers'.

    Attributes:
      implementation: MODULE:FUNCTION that measures, imported when it is used:
        (context, **hyperparameters) -> `report.Measurement`; or a generator of
        (variant, function that measures it).
      lacks: MODULE:FUNCTION, context -> what the protocol lacks besides the
        traits below, or None.
      version: from 1. A change of the code that can change results increases
        it, so that incomparable results are not compared.
      prefix: of the names that the fields have among the command's options.
      shared: options of `Evaluation` that are hyperparameters of it, too.
      cpu: fields, and options of `shared`, that `scale=cpu` sets, since the
        papers' values take hours on a CPU.
      needs_labels: whether both splits must have classes to score.
      learns: whether what it scores on test has learnt from train.
      needs_projections: whether the encoder must have a projection head.
      changes_colors: whether it changes three colours of 8 bits.
      smallest: split -> images that it must have.
    """

    implementation: ClassVar[str]
    lacks: ClassVar[str] = ""
    version: ClassVar[int] = 1
    prefix: ClassVar[str] = ""
    shared: ClassVar[tuple[str, ...]] = ()
    cpu: ClassVar[Mapping[str, Any]] = {}
    needs_labels: ClassVar[bool] = False
    learns: ClassVar[bool] = False
    needs_projections: ClassVar[bool] = False
    changes_colors: ClassVar[bool] = False
    smallest: ClassVar[Mapping[str, int]] = {}

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of its `measure`, except shared."""
        return dict(vars(self))

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""


# ---- Classifiers -------------------------------------------------------------


class _Classifier(ProtocolDeclaration):
    """A classifier of test images that learns from those of train."""

    needs_labels = True
    learns = True


class KNN(_Classifier):
    """The vote of the nearest neighbours (SINCERE, appendix M)."""

    implementation = "tf_contrastive.evaluation.classification:measure_knn"
    lacks = "tf_contrastive.evaluation.classification:lacks_neighbors"
    prefix = "knn_"
    shared = ("features",)

    k: tuple[int, ...] = option(
        (1, 5),
        "comma-separated numbers of neighbours that vote (1: 1NN)",
        minimum=1,
        check=distinct,
    )


class Prototype(_Classifier):
    """The nearest class prototype."""

    implementation = (
        "tf_contrastive.evaluation.classification:measure_prototype"
    )


class Head(ProtocolDeclaration):
    """The classifier that cross-entropy training made."""

    implementation = "tf_contrastive.evaluation.classification:measure_head"
    lacks = "tf_contrastive.evaluation.classification:lacks_head"
    needs_labels = True


class LinearProtocolSchedule(LinearSchedule):
    """The schedule of the linear protocol."""

    epochs: int = option(90, "epochs to train", minimum=1)
    batch_size: int = option(4096, "images per step, at most all", minimum=1)


class Linear(LinearStage, _Classifier):
    """The linear evaluation protocol, with SimCLR's numbers.

    Those of SupCon and SINCERE are flagfiles: configs/shared/linear_*.flags.
    """

    implementation = "tf_contrastive.evaluation.classification:measure_linear"
    lacks = "tf_contrastive.evaluation.classification:lacks_features"
    prefix = "linear_"
    shared = ("features", "validation_fraction", "seed")
    cpu: ClassVar = {"augmentation": "none", "batch_size": 256}

    schedule: LinearProtocolSchedule = group(LinearProtocolSchedule())
    augmentation: str = linear_augmentation("crop")
    learning_rates: tuple[float, ...] = option(
        (),
        "comma-separated learning rates per 256 images, tuned on"
        " --validation_fraction of train; empty: --linear_learning_rate",
        above=0.0,
        check=distinct,
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of the linear protocol."""
        return super().hyperparameters() | {
            "learning_rates": self.learning_rates,
            "augmentation": self.augmentation,
        }

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""
        super().check()
        if self.learning_rates and self.schedule.learning_rate:
            raise UserError(
                f"{arg('linear_learning_rate', self.schedule.learning_rate)}"
                f" and {arg('linear_learning_rates', self.learning_rates)}: set"
                f" one of them, or {arg('linear_learning_rates', '')} for none"
            )


class Logistic(_Classifier):
    """Logistic regression at the best of many penalties (SimCLR, B.8)."""

    implementation = "tf_contrastive.evaluation.logistic:measure"
    prefix = "logistic_"
    shared = ("validation_fraction", "seed")

    penalties: int = _option(
        45, "log-spaced penalties to try", minimum=1, maximum=10_000
    )
    lowest_penalty: float = _option(
        1e-6, "lowest L2 penalty, relative to the sum of the losses", above=0.0
    )
    highest_penalty: float = _option(
        1e5, "highest L2 penalty, where the path starts", above=0.0
    )

    def check(self) -> None:
        """Raises `UserError` for a path with ends in the wrong order."""
        if self.lowest_penalty > self.highest_penalty:
            lowest = arg("logistic_lowest_penalty", self.lowest_penalty)
            highest = arg("logistic_highest_penalty", self.highest_penalty)
            raise UserError(f"{lowest} is above {highest}: swap them")


class FineTuning(NamedTuple):
    """How an optimizer fine-tunes."""

    learning_rate: float  # Per 256 images.
    weight_decay: float = 0.0  # Of kernels.
    warmup_epochs: float = 0.0  # At most a tenth of all.
    drop_path: float = 0.0  # Stochastic depth of vision transformers.


FINE_TUNING = {
    # SimCLR, appendix B.5, with Nesterov momentum.
    "sgd": FineTuning(0.05),
    # DeiT, table 9, as in MoCo v3: 5e-4 for 512 images.
    "adamw": FineTuning(2.5e-4, 0.05, 5.0, 0.1),
}


class Finetune(_Classifier):
    """Fine-tuning on fractions of the labels (SimCLR, appendix B.5)."""

    implementation = "tf_contrastive.evaluation.finetune:measure"
    lacks = "tf_contrastive.evaluation.finetune:lacks_copy_or_labels"
    prefix = "finetune_"
    shared = ("seed",)
    cpu: ClassVar = {
        "fractions": "0.01,0.1",
        "epochs": "60,15",
        "batch_size": 256,
        # The baseline is the untrained encoder, fine-tuned.
        "scratch": False,
    }

    fractions: tuple[float, ...] = option(
        (0.01, 0.1, 1.0),
        "comma-separated fractions of the training labels; 0.01 and 0.1 of"
        " imagenet2012: SimCLR's lists, from the prepared imagenet2012_subset",
        above=0.0,
        maximum=1.0,
        check=distinct,
    )
    epochs: tuple[int, ...] = option(
        (60, 30, 30),
        "comma-separated epochs of each fraction, or one number for all",
        minimum=1,
    )
    batch_size: int = option(4096, "images per step, at most all", minimum=1)
    learning_rate: float | None = option(
        None,
        "learning rate per 256 images; auto: "
        + ", ".join(
            f"{x.learning_rate:g} ({n})" for n, x in FINE_TUNING.items()
        ),
        above=0.0,
    )
    augmentation: str = option(
        "crop",
        "augmentation policy of the training images",
        check=augmentation_name,
    )
    scratch: bool = option(True, "also train a random encoder, for comparison")

    def check(self) -> None:
        """Raises `UserError` for epochs that do not fit the fractions."""
        fractions = len(self.fractions)
        if len(self.epochs) not in (1, fractions):
            raise UserError(
                f"{arg('finetune_epochs', self.epochs)} for"
                f" {arg('finetune_fractions', self.fractions)}: set one"
                " number for all, or one for each"
            )


class Transfer(ProtocolDeclaration):
    """The encoder on other datasets (SimCLR, appendix B.8; SINCERE, J)."""

    implementation = "tf_contrastive.evaluation.transfer:measure"
    lacks = "tf_contrastive.evaluation.transfer:lacks_datasets"
    version = 3
    prefix = "transfer_"
    shared = ("logistic_options", "validation_fraction", "seed")
    cpu: ClassVar = {"methods": "linear", "examples": 5000}

    suite: str = option(
        "simclr",
        "simclr: 12 datasets, each with its own metric; sincere: six of them,"
        " by top-1, for encoders of 32 pixels",
        choices=SUITES,
    )
    methods: tuple[str, ...] = option(
        METHODS,
        "comma-separated: linear (logistic regression on the frozen encoder),"
        " finetune, scratch (training a random encoder)",
        choices=METHODS,
        check=distinct,
    )
    # Of each split, from the first; 0: all.
    examples: int = argument(0)
    batch_size: int = _option(256, "images per step, at most all", minimum=1)
    steps: int = _option(
        20_000, "fine-tuning steps at each point of the grid", minimum=1
    )
    learning_rates: tuple[float, ...] = _grid(
        (1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2, 0.1),
        "comma-separated learning rates of the fine-tuning grid",
        above=0.0,
    )
    weight_decays: tuple[float, ...] = _grid(
        (0.0, 1e-6, 3.16e-6, 1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3),
        "comma-separated weight decays of the fine-tuning grid, each divided"
        " by the learning rate",
    )
    scratch_steps: int = _option(
        40_000, "steps of training a random encoder", minimum=1
    )
    scratch_learning_rates: tuple[float, ...] = _grid(
        (1e-3, 3.16e-3, 1e-2, 3.16e-2, 0.1, 0.316, 1.0),
        "comma-separated learning rates of the grid for a random encoder",
        above=0.0,
    )
    scratch_weight_decays: tuple[float, ...] = _grid(
        (1e-5, 3.16e-5, 1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2, 3.16e-2),
        "comma-separated weight decays of the grid for a random encoder, each"
        " divided by the learning rate",
    )

    def hyperparameters(self) -> dict[str, Any]:
        """Returns the keyword arguments of the protocol's `measure`."""
        values = super().hyperparameters()
        grid = ("steps", "learning_rates", "weight_decays")
        for name, prefix in (("grid", ""), ("scratch_grid", "scratch_")):
            values[name] = {x: values.pop(f"{prefix}{x}") for x in grid}
        return values


class Robustness(_Classifier):
    """Corrupted test images (Hendrycks and Dietterich 2019)."""

    implementation = "tf_contrastive.evaluation.robustness:measure"
    lacks = "tf_contrastive.evaluation.robustness:lacks_classifier_or_images"
    version = 4
    prefix = "robustness_"
    changes_colors = True
    shared = ("linear", "seed")
    # A noise, a blur and a digital corruption.
    cpu: ClassVar = {
        "corruptions": "gaussian_noise,defocus_blur,contrast",
        "examples": 2000,
    }

    classifier: str = option(
        "auto",
        "what is scored: head, the run's own classifier; linear, a new one on"
        " the frozen encoder; knn, --robustness_k neighbours, without"
        " calibration; auto: head where the run has one, else linear",
        choices=("auto", "head", "linear", "knn"),
    )
    k: int = option(
        KNN_K,
        "neighbours that vote, for --robustness_classifier=knn",
        minimum=1,
    )
    # Empty: all that are prepared or can be made.
    corruptions: tuple[str, ...] = argument(())
    # Test images to corrupt, from the first; 0: all.
    examples: int = argument(0)


# ---- Measures of the representations -----------------------------------------


class _OfViews(ProtocolDeclaration):
    """A measure of augmented views of test images."""

    shared = ("view_examples", "seed")
    cpu: ClassVar = {"view_examples": 2000}
    smallest: ClassVar = {"test": 2}


class Separation(_Classifier):
    """Margins between classes (SINCERE, section 4.1)."""

    implementation = "tf_contrastive.evaluation.separation:measure"
    version = 2


class KLBound(_OfViews):
    """A lower bound of a divergence by SINCERE's loss (theorem 11)."""

    implementation = "tf_contrastive.evaluation.projections:measure_kl"
    needs_labels = True
    needs_projections = True


class Contrastive(_OfViews):
    """The other view of an image among others (SimCLR, section 5.1)."""

    implementation = "tf_contrastive.evaluation.projections:measure_task"
    needs_projections = True


class Uniformity(_OfViews):
    """The distribution on the hypersphere (Wang and Isola 2020)."""

    implementation = "tf_contrastive.evaluation.hypersphere:measure"


class Spectrum(ProtocolDeclaration):
    """The dimensions that a linear projection keeps (SimCLR, B.4)."""

    implementation = "tf_contrastive.evaluation.spectra:measure"
    lacks = "tf_contrastive.evaluation.spectra:lacks_linear_map"
    needs_projections = True


class Transforms(ProtocolDeclaration):
    """The transformations that h and z encode (SimCLR, section 4.2)."""

    implementation = "tf_contrastive.evaluation.transformations:measure"
    learns = True
    changes_colors = True
    shared = ("seed",)
    cpu: ClassVar = {"transforms_train": 2000, "transforms_test": 2000}
    # A stratified tenth, for early stopping, needs an image of each of 4
    # classes.
    smallest: ClassVar = {"train": 40, "test": 40}

    # Images to transform, at most.
    transforms_train: int = argument(10_000, minimum=40)
    transforms_test: int = argument(10_000, minimum=2)


class TSNE(ProtocolDeclaration):
    """Maps of h and z in two dimensions (SimCLR, appendix B.4)."""

    implementation = "tf_contrastive.evaluation.tsne:measure"
    shared = ("seed",)
    smallest: ClassVar = {"test": 4}


class KMeans(ProtocolDeclaration):
    """The regions that inner layers group (Intriguing Properties, 3.2)."""

    implementation = "tf_contrastive.evaluation.kmeans:measure"
    lacks = "tf_contrastive.evaluation.kmeans:lacks_layers"
    shared = ("seed",)


class Protocols(Group):
    """Every protocol, under its name: the only list of them."""

    knn: KNN = group(KNN(), KNN.prefix)
    prototype: Prototype = group(Prototype())
    head: Head = group(Head())
    linear: Linear = group(Linear(), Linear.prefix)
    logistic: Logistic = group(Logistic(), Logistic.prefix)
    finetune: Finetune = group(Finetune(), Finetune.prefix)
    transfer: Transfer = group(Transfer(), Transfer.prefix)
    robustness: Robustness = group(Robustness(), Robustness.prefix)
    separation: Separation = group(Separation())
    kl_bound: KLBound = group(KLBound())
    contrastive: Contrastive = group(Contrastive())
    uniformity: Uniformity = group(Uniformity())
    spectrum: Spectrum = group(Spectrum())
    transforms: Transforms = group(Transforms())
    tsne: TSNE = group(TSNE())
    kmeans: KMeans = group(KMeans())


PROTOCOLS: dict[str, type[ProtocolDeclaration]] = {
    name: type(declaration) for name, declaration in vars(Protocols()).items()
}
