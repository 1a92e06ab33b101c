"""How encoders are scored: the options of protocols, and their presets."""

from typing import Any, TypeVar

from tf_contrastive.base.errors import arg
from tf_contrastive.config.checks import distinct
from tf_contrastive.config.command import Command, Group
from tf_contrastive.config.data import Data, Reading, split_name
from tf_contrastive.config.dataset import dataset_name, or_of_run
from tf_contrastive.config.fields import argument, group, option, replace
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.config.protocols import (
    PROTOCOLS,
    ProtocolDeclaration,
    Protocols,
)
from tf_contrastive.config.views import DEFAULT_PREPROCESSING, PREPROCESSINGS


def _two_names(names: tuple[str, ...]) -> str | None:
    if len(names) == len(set(names)) == 2:
        return None
    return f"two different runs, such as {arg('compare')} runs/a runs/b"


class EncoderOptions(Group):
    """An encoder, and how it embeds data."""

    workdir: str = option(
        "", "folder of the run with the encoder", per_host=True
    )
    saved_model: str = option(
        "",
        "export, published checkpoint, or pretrained:NAME, to use instead of a"
        " run; needs the name of a dataset",
    )
    data_dir: str = option(
        "", "folder of prepared TensorFlow Datasets", per_host=True
    )
    embedding_batch_size: int = option(
        256, "images embedded at a time", minimum=1
    )


class EncoderSource(EncoderOptions):
    """An encoder, and the data that it embeds."""

    dataset: str = option("", "dataset; empty: the run's", check=dataset_name)


class Evaluation(EncoderSource):
    """What is evaluated, on what data, by which protocols."""

    output_dir: str = option(
        "",
        "folder for the results; empty: the run's folder; an export's results"
        " are only printed",
        per_host=True,
    )
    compare: tuple[str, ...] = option(
        (),
        "A,B or --compare A B: two runs, or encoders of runs (RUN:untrained),"
        " that are compared by statistical tests",
        check=_two_names,
    )
    protocols: tuple[str, ...] = option(
        ("knn", "prototype", "linear"),
        f"comma-separated protocols out of {', '.join(PROTOCOLS)}; all: every"
        " protocol whose data is available",
        choices=(*PROTOCOLS, "all"),
        check=distinct,
    )
    scale: str = option(
        "paper",
        "preset: paper (the papers' protocols, for accelerators) or cpu"
        " (reduced protocols, minutes on a CPU); other flags override it",
        choices=("paper", "cpu"),
    )
    watch: bool = option(
        False, "evaluate each new checkpoint until the run has ended"
    )
    # Between checks for a new checkpoint.
    watch_every_seconds: float = argument(30.0, above=0.0)
    untrained: bool = option(
        True,
        "also evaluate a random encoder of the same architecture, except with"
        " --watch",
    )
    train_split: str = option(
        "",
        "split that the classifiers learn from; empty: the run's, and train for"
        " exports and other datasets",
        check=split_name,
    )
    test_split: str = option(
        "",
        "split to score, of other images than train_split; empty: the run's,"
        " and test for exports and other datasets",
        check=split_name,
    )
    features: tuple[str, ...] = option(
        ("h",),
        "comma-separated features that knn and linear classify: h, of the"
        " encoder; z, of the projection head",
        choices=("h", "z"),
        check=distinct,
    )
    validation_fraction: float = option(
        0.1,
        "fraction of each class of train on which hyperparameters are tuned",
        above=0.0,
        maximum=0.9,
    )
    # Test images whose augmented views are compared, at most.
    view_examples: int = argument(10_000, minimum=2)
    preprocessing: str = option(
        "auto",
        "of evaluated images, to the encoder's side S; "
        + "; ".join(f"{name}: {x.help}" for name, x in PREPROCESSINGS.items())
        + f"; auto: {DEFAULT_PREPROCESSING}, and in transfer that of the"
        " suite's paper",
        choices=("auto", *PREPROCESSINGS),
    )
    seed: int = option(
        0, "seed of orders, views and validation splits", maximum=2**32 - 1
    )


_Options = TypeVar("_Options", bound="Scoring")


class _Evaluated(Command):
    """The group that comes before those of the protocols in `--help`."""

    evaluation: Evaluation = group(Evaluation())


class Scoring(Protocols, _Evaluated):
    """How encoders are scored: data, protocols, and their options."""

    reading: Reading = group(Reading())

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that `scale` sets."""
        if given.get("scale") != "cpu":
            return {}
        return {
            f"{protocol.prefix}{name}": value
            for protocol in PROTOCOLS.values()
            for name, value in protocol.cpu.items()
        }

    @classmethod
    def of(cls: type[_Options], **given: Any) -> _Options:
        """Returns options by name, with the presets' values."""
        return replace(cls(), **(cls.presets(given) | given))

    def hyperparameters(self, name: str) -> dict[str, Any]:
        """Returns the keyword arguments of a protocol's `measure`."""
        protocol: ProtocolDeclaration = getattr(self, name)
        shared = vars(self.evaluation) | {
            "linear": LinearStage.hyperparameters(self.linear),
            "logistic_options": self.logistic.hyperparameters(),
        }
        return protocol.hyperparameters() | {
            option: shared[option] for option in protocol.shared
        }

    def recorded(self, name: str) -> dict[str, Any]:
        """Returns a protocol's hyperparameters, as the results have them."""
        preprocessing = {"preprocessing": self.evaluation.preprocessing}
        return self.hyperparameters(name) | preprocessing

    def version_of(self, name: str) -> str:
        """Returns a protocol's version, such as 1, or 1-cpu at a scale."""
        protocol, scale = PROTOCOLS[name], self.evaluation.scale
        scaled = scale != Evaluation.scale and protocol.cpu
        return f"{protocol.version}{f'-{scale}' if scaled else ''}"

    def _check(self) -> None:
        for name in PROTOCOLS:
            getattr(self, name).check()


def resolve_splits(options: _Options, run: Data | None) -> _Options:
    """Returns options with the splits of the run that made the encoder.

    `run` holds the run's options of data; None: an export.
    """
    e = options.evaluation
    train, test = "train", "test"
    if run and or_of_run(e.dataset, run.dataset) == run.dataset:
        train, test = run.split, run.test_split
    return replace(
        options,
        train_split=e.train_split or train,
        test_split=e.test_split or test,
    )
