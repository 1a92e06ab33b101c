"""The options of `evaluate` and its presets."""

import dataclasses
from typing import Any, ClassVar

from tf_contrastive.config import allocations
from tf_contrastive.config.data import Data, Reading, split_name
from tf_contrastive.config.dataset import dataset_name
from tf_contrastive.config.fields import (
    Command,
    Terminal,
    group,
    list_of,
    option,
    positive_integers,
    replace,
    split_list,
)
from tf_contrastive.config.linear import LINEAR_RECIPES, LinearProtocol
from tf_contrastive.config.protocols import (
    FinetuneProtocol,
    LogisticProtocol,
    RepresentationProtocols,
    RobustnessProtocol,
    TransferProtocol,
)
from tf_contrastive.config.runtime import STRATEGIES, Devices
from tf_contrastive.config.schedule import resolve_warmup
from tf_contrastive.config.views import PREPROCESSINGS
from tf_contrastive.errors import UserError, arg

PROTOCOLS = (
    "knn",
    "prototype",
    "head",
    "linear",
    "logistic",
    "finetune",
    "transfer",
    "robustness",
    "separation",
    "kl_bound",
    "contrastive",
    "uniformity",
    "spectrum",
    "transforms",
    "tsne",
    "kmeans",
)
# Neighbours that vote, where one number is needed (SINCERE, appendix M).
KNN_K = 5
# Resamples of confidence intervals, and draws of permutation tests.
BOOTSTRAP_RESAMPLES = 1000
PERMUTATION_DRAWS = 100_000
# The options that `scale` sets. The defaults are the papers'; those that take
# hours on a CPU are reduced.
SCALES: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "linear_augmentation": "none",
        "linear_batch_size": 256,
        "finetune_fractions": "0.01,0.1",
        "finetune_epochs": "60,15",
        "finetune_batch_size": 256,
        # The baseline is the untrained encoder, fine-tuned.
        "finetune_scratch": False,
        "transfer_methods": "linear",
        "transfer_examples": 5000,
        # A noise, a blur and a digital corruption.
        "robustness_corruptions": "gaussian_noise,defocus_blur,contrast",
        "robustness_examples": 2000,
        "view_examples": 2000,
        "transforms_train": 2000,
        "transforms_test": 2000,
    },
}
# For 10 % of the labels (SimCLR, appendix B.5), and for other fractions.
FINETUNE_EPOCHS = "30"


# Splits for training and for scoring where there is no run to take them from.
_SPLITS = ("train", "test")


def _two_names(value: str) -> str | None:
    if len(split_list(value)) == 2:
        return None
    return (
        f"two runs or files of results, such as {arg('compare')} runs/a runs/b"
    )


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What is evaluated, on what data, by which protocols."""

    workdir: str = option("", "folder of the run to evaluate")
    saved_model: str = option(
        "",
        "export, or pretrained:NAME, to evaluate instead of a run (needs"
        " --dataset)",
    )
    output_dir: str = option(
        "",
        "folder for the results; empty: the run's folder; an export's results"
        " are only printed",
    )
    compare: str = option(
        "",
        "A,B or --compare A B: two runs, or results within them"
        " (RUN:untrained, RUN/evaluation/trained-knn.npz), to compare by"
        " statistical tests",
        check=_two_names,
    )
    protocols: str = option(
        "knn,prototype,linear",
        f"comma-separated protocols out of {', '.join(PROTOCOLS)}; all: every"
        " protocol whose data is available",
        check=list_of((*PROTOCOLS, "all")),
    )
    scale: str = option(
        "paper",
        "preset: paper (the papers' protocols, for accelerators) or cpu"
        " (reduced protocols, minutes on a CPU); other flags override it",
        choices=SCALES,
    )
    watch: bool = option(
        False, "evaluate each new checkpoint until the run has ended"
    )
    watch_every_seconds: float = option(
        30.0, "seconds between checks for a new checkpoint", above=0.0
    )
    untrained: bool = option(
        True, "also evaluate a random encoder of the same architecture"
    )
    dataset: str = option("", "dataset; empty: the run's", check=dataset_name)
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    train_split: str = option(
        "",
        "split that the classifiers learn from; empty: the run's, and train for"
        " exports and other datasets",
        check=split_name,
    )
    test_split: str = option(
        "",
        "split to score; empty: the run's, and test for exports and other"
        " datasets",
        check=split_name,
    )
    features: str = option(
        "h",
        "comma-separated features that knn and linear classify: h, of the"
        " encoder; z, of the projection head",
        check=list_of(("h", "z")),
    )
    validation_fraction: float = option(
        0.1,
        "fraction of each class of train on which hyperparameters are tuned",
        above=0.0,
        maximum=0.9,
    )
    knn_k: str = option(
        "1,5",
        "comma-separated numbers of neighbours that vote (1: 1NN)",
        check=positive_integers("1,5", distinct=True),
    )
    preprocessing: str = option(
        "auto",
        "of evaluated images, to the encoder's side S; center_crop: resize the"
        " shorter side to 8/7 S (S up to 64 pixels) and keep the centre;"
        " shorter_side: resize it to S (bicubic) and keep the centre;"
        " squash_crop: resize both sides to 8/7 S (S up to 64 pixels) and keep"
        " the centre; squash: resize both sides to S; auto: center_crop, and in"
        " transfer that of the suite's paper",
        choices=("auto", *PREPROCESSINGS),
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    seed: int = option(
        0, "seed of orders, views and validation splits", maximum=2**32 - 1
    )


@dataclasses.dataclass(frozen=True)
class EvaluationDevices(Devices):
    """Devices that share the images."""

    strategy: str = option(
        "auto",
        "tf.distribute strategy, whose replicas share the images; auto: chosen"
        " by the available devices, and default with --watch, beside a running"
        " job",
        choices=STRATEGIES,
    )


@dataclasses.dataclass(frozen=True)
class Evaluate(Command):
    """Score a run or an export by the papers' protocols; --compare A B."""

    COMMON: ClassVar = (
        "workdir",
        "saved_model",
        "output_dir",
        "compare",
        "protocols",
        "scale",
        "watch",
        "untrained",
        "dataset",
        "data_dir",
        "train_split",
        "test_split",
        "knn_k",
        "strategy",
        "verbosity",
    )

    evaluation: Evaluation = group(Evaluation())
    linear: LinearProtocol = group(LinearProtocol(), "linear_")
    logistic: LogisticProtocol = group(LogisticProtocol(), "logistic_")
    robustness: RobustnessProtocol = group(RobustnessProtocol(), "robustness_")
    finetune: FinetuneProtocol = group(FinetuneProtocol(), "finetune_")
    transfer: TransferProtocol = group(TransferProtocol(), "transfer_")
    representation: RepresentationProtocols = group(RepresentationProtocols())
    reading: Reading = group(Reading())
    devices: EvaluationDevices = group(EvaluationDevices())
    terminal: Terminal = group(Terminal())

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that `scale` and `linear_recipe` set."""
        recipe = given.get("linear_recipe", LinearProtocol.recipe)
        preset = dict(LINEAR_RECIPES.get(recipe, {}))
        if "linear_learning_rate" in given:
            preset.pop("linear_learning_rates", None)
        if given.get("linear_learning_rates"):
            preset.pop("linear_learning_rate", None)
        own = preset.get("linear_optimizer", LinearProtocol.optimizer.optimizer)
        if given.get("linear_optimizer", own) != own:
            # The recipe's values are for its own optimizer.
            for name in ("nesterov", "weight_decay", "learning_rate"):
                preset.pop(f"linear_{name}", None)
        scale = dict(SCALES.get(given.get("scale", Evaluation.scale), {}))
        size = "linear_batch_size"
        if size in scale and size in preset:
            preset[size] = min(preset[size], scale.pop(size))
        preset |= scale
        if "finetune_fractions" in given:
            # One number fits any number of fractions.
            preset["finetune_epochs"] = FINETUNE_EPOCHS
        epochs = given.get("linear_epochs")
        if epochs and "linear_warmup_epochs" in preset:
            preset["linear_warmup_epochs"] = resolve_warmup(None, epochs)
        return preset

    def _check(self) -> None:
        e = self.evaluation
        if e.compare:
            for name in ("workdir", "saved_model", "watch"):
                if value := getattr(e, name):
                    text = arg(name, None if value is True else value)
                    raise UserError(
                        f"{arg('compare', e.compare)} and {text}: set one of"
                        f" them; {arg('compare')} reads results of earlier"
                        " evaluations"
                    )
            return
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                f"set one of {arg('workdir', 'RUN')} and"
                f" {arg('saved_model', 'EXPORT/VERSION')}, or {arg('compare')}"
                " A B"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                f"{arg('saved_model', e.saved_model)} needs"
                f" {arg('dataset', 'NAME')}: an export does not name its"
                " dataset"
            )
        if e.watch and not e.workdir:
            raise UserError(
                f"{arg('watch')} needs {arg('workdir', 'RUN')}: an export gets"
                " no new checkpoints"
            )
        if e.watch and self.devices.strategy == "multiworker":
            raise UserError(
                f"{arg('watch')} and {arg('strategy', 'multiworker')}: new"
                " checkpoints are scored by one process: set another strategy"
            )
        self.devices.check()
        self.linear.check()
        self.logistic.check()
        self.finetune.check()
        # Beside the least that an encoder's features need.
        path, bins = self.logistic.penalties, self.robustness.bins
        hidden = self.representation.transforms_hidden
        allocations.check(
            allocations.Allocation(name, value, size * value)
            for name, value, size in (
                ("logistic_penalties", path, 8 * allocations.FEATURES),
                ("robustness_bins", bins, 3 * 8),
                ("transforms_hidden", hidden, 3 * 4 * allocations.FEATURES),
                ("linear_epochs", self.linear.schedule.epochs, 4),
            )
        )


def resolve_splits(options: Evaluate, run: Data | None) -> Evaluate:
    """Returns options with the splits of the run that made the encoder.

    `run` holds the run's options of data; None: an export.
    """
    e = options.evaluation
    own = run is not None and e.dataset in ("", run.dataset)
    train, test = (run.split, run.test_split) if run and own else _SPLITS
    evaluation = dataclasses.replace(
        e,
        train_split=e.train_split or train,
        test_split=e.test_split or test,
    )
    return dataclasses.replace(options, evaluation=evaluation)


def evaluate(**given: Any) -> Evaluate:
    """Returns options of `evaluate`, by name, with the presets' values."""
    return replace(Evaluate(), **(Evaluate.presets(given) | given))
