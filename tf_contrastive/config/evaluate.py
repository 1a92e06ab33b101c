"""The options of `evaluate`, and what its presets stand for."""

import dataclasses
from typing import Any, ClassVar

from tf_contrastive.config.data import split_name
from tf_contrastive.config.dataset_names import optional_dataset_name
from tf_contrastive.config.fields import (
    list_of,
    option,
    replace,
    split_list,
    validate_fields,
    whole_numbers,
)
from tf_contrastive.config.linear import LINEAR_RECIPES, LinearProtocol
from tf_contrastive.config.protocols import (
    FinetuneProtocol,
    LogisticProtocol,
    RepresentationProtocols,
    RobustnessProtocol,
    TransferProtocol,
)
from tf_contrastive.config.schedule import resolve_warmup
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.errors import UserError

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
# Neighbours that vote where no list of them is given (SINCERE, appendix M).
KNN_K = 5
# What `--scale` stands for, beside the fields' own defaults, which are the
# papers': what each of them takes hours for on a CPU is cut down here.
SCALES: dict[str, dict[str, Any]] = {
    "paper": {},
    "cpu": {
        "linear_augmentation": "none",
        "linear_batch_size": 256,
        "finetune_fractions": "0.01,0.1",
        "finetune_epochs": "60,15",
        "finetune_batch_size": 256,
        # The untrained encoder, fine-tuned, is that baseline.
        "finetune_scratch": False,
        "transfer_methods": "linear",
        "transfer_examples": 5000,
        # A noise, a blur and a digital one.
        "robustness_corruptions": "gaussian_noise,defocus_blur,contrast",
        "robustness_examples": 2000,
        "view_examples": 2000,
        "transforms_train": 2000,
        "transforms_test": 2000,
    },
}
# Of 10 % of the labels (SimCLR, appendix B.5), and of shares of one's own.
FINETUNE_EPOCHS = "30"


def read_sides(value: str) -> tuple[str, str]:
    """Returns the two sides that a value of `--compare` names."""
    a, b = split_list(value)
    return a, b


def _two_names(value: str) -> str | None:
    if not value or len(split_list(value)) == 2:
        return None
    return "two runs or files of results, such as `compare` runs/a runs/b"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What `evaluate` measures, and on what."""

    workdir: str = option("", "folder of the run to evaluate")
    saved_model: str = option(
        "", "export to evaluate instead of a run (needs --dataset)"
    )
    output_dir: str = option(
        "",
        "folder to write results into; empty: that of the run; of an export:"
        " none, a table is all",
    )
    compare: str = option(
        "",
        "A,B: two runs, or results within them (RUN:untrained,"
        " RUN/evaluation/trained-knn.npz), to be told apart by tests; the two"
        " words after --compare are it",
        check=_two_names,
    )
    protocols: str = option(
        "knn,prototype,linear",
        f"comma-separated protocols out of {', '.join(PROTOCOLS)}; all: each"
        " whose data is there",
        check=list_of((*PROTOCOLS, "all")),
    )
    scale: str = option(
        "paper",
        "paper: the papers' protocols, for accelerators; cpu: versions of their"
        " own, for minutes on a CPU (linear on embeddings that are made once);"
        " flags beside it win",
        choices=tuple(SCALES),
    )
    watch: bool = option(
        False, "evaluate each new checkpoint of the run until it has ended"
    )
    watch_every_seconds: float = option(
        30.0, "seconds between two looks for a new checkpoint", above=0.0
    )
    untrained: bool = option(
        True, "evaluate a random encoder of the same kind, too"
    )
    dataset: str = option(
        "", "dataset; empty: that of the run", check=optional_dataset_name
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    train_split: str = option(
        "train", "split that the classifiers learn from", check=split_name
    )
    test_split: str = option("test", "split that is scored", check=split_name)
    validation_fraction: float = option(
        0.1,
        "share of each class of train on which what must be chosen is chosen;"
        " never on test",
        above=0.0,
        maximum=0.9,
    )
    knn_k: str = option(
        "1,5",
        "comma-separated numbers of neighbours that vote (1: 1NN)",
        check=whole_numbers("1,5", distinct=True),
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )
    seed: int = option(
        0, "seed of all that is drawn: orders, views, parts of train", minimum=0
    )
    smoke: bool = option(
        False,
        "try the protocols out: on few images (digits, where --dataset is not"
        " here), for an epoch or two steps, at a point or two of their grids",
    )


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """All options of `evaluate`."""

    COMMON: ClassVar = (
        *("workdir", "saved_model", "output_dir", "compare", "protocols"),
        *("scale", "watch", "untrained", "dataset", "data_dir"),
        *("train_split", "test_split", "knn_k", "smoke", "verbosity"),
    )

    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    linear: LinearProtocol = dataclasses.field(default_factory=LinearProtocol)
    logistic: LogisticProtocol = dataclasses.field(
        default_factory=LogisticProtocol
    )
    robustness: RobustnessProtocol = dataclasses.field(
        default_factory=RobustnessProtocol
    )
    finetune: FinetuneProtocol = dataclasses.field(
        default_factory=FinetuneProtocol
    )
    transfer: TransferProtocol = dataclasses.field(
        default_factory=TransferProtocol
    )
    representation: RepresentationProtocols = dataclasses.field(
        default_factory=RepresentationProtocols
    )
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """What `--scale` and `--linear_recipe` stand for.

        Args:
          given: options that were given.

        Returns:
          Options beside them, over which those that were given win.
        """
        recipe = given.get("linear_recipe", LinearProtocol.linear_recipe)
        chosen = dict(LINEAR_RECIPES.get(recipe, {}))
        if "linear_learning_rate" in given:
            chosen.pop("linear_learning_rates", None)
        if given.get("linear_learning_rates"):
            chosen.pop("linear_learning_rate", None)
        if "linear_optimizer" in given:
            # Of another optimizer these would be no options, or other ones.
            for name in ("nesterov", "weight_decay", "learning_rate"):
                chosen.pop(f"linear_{name}", None)
        scale = dict(SCALES.get(given.get("scale", Evaluation.scale), {}))
        size = "linear_batch_size"
        if size in scale and size in chosen:
            chosen[size] = min(chosen[size], scale.pop(size))
        chosen |= scale
        if "finetune_fractions" in given:
            # One number, whatever their number is.
            chosen["finetune_epochs"] = FINETUNE_EPOCHS
        epochs = given.get("linear_epochs")
        if epochs and "linear_warmup_epochs" in chosen:
            # As of pretraining: at most a tenth.
            chosen["linear_warmup_epochs"] = resolve_warmup(-1, epochs)
        return chosen

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        e = self.evaluation
        if e.compare:
            self._check_compare()
            return
        if bool(e.workdir) == bool(e.saved_model):
            raise UserError(
                "give one of workdir=RUN and saved_model=EXPORT/VERSION,"
                " or `compare` A B"
            )
        if e.saved_model and not e.dataset:
            raise UserError(
                f"saved_model={e.saved_model} needs dataset=NAME: an export"
                " does not say on what it is to be scored"
            )
        if e.watch and not e.workdir:
            raise UserError(
                "`watch` needs workdir=RUN: an export gets no new checkpoint"
            )
        self.linear.check()
        self.logistic.check()
        self.finetune.check()

    def _check_compare(self) -> None:
        e = self.evaluation
        for name in ("workdir", "saved_model", "watch"):
            if value := getattr(e, name):
                flag = f"`{name}`" if value is True else f"{name}={value}"
                raise UserError(
                    f"compare={e.compare} reads results that are there, and"
                    f" takes no {flag}: give one or the other"
                )


def evaluate(**given: Any) -> Evaluate:
    """Options of `evaluate`, with what `scale` and `linear_recipe` stand for.

    Args:
      **given: by the name of the flag, whatever its group.
    """
    return replace(Evaluate(), **(Evaluate.presets(given) | given))
