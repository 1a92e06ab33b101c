"""Benchmarks: their names, their options, and the smaller ones of `--quick`.

A benchmark's code is the function `run(common, options)` of the module with its
name: (`Common`, its options) -> `measure.Report`.
"""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from lab.benchmarks import peer_process
from tf_contrastive import flags
from tf_contrastive.config.checks import (
    list_of,
    matching,
    numbers,
    positive_integers,
    read_counts,
    shell_words,
    split_list,
)
from tf_contrastive.config.compilation import Compilation
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.config.fields import group, option, replace
from tf_contrastive.config.loss import NTXent
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import PRECISIONS, check_divisible
from tf_contrastive.config.views import POLICIES, augmentation_name

# A run with a step that PyTorch does, too: one bias more, a decay of all
# weights, and nothing besides encoder, projection and loss.
_PEER_FLAGS = (
    "--loss=ntxent",
    "--temperature=0.5",
    "--projection_options=bias=true",
    "--optimizer=sgd",
    "--optimizer_options=decay_all=true,momentum_style=pytorch",
    "--weight_decay=1e-4",
    "--learning_rate=0.01",
    "--standardize=none",
    "--augment_on=host",
    "--noprobe",
    "--workdir=none",
)


@dataclasses.dataclass(frozen=True)
class Common:
    """Options of all benchmarks."""

    quick_values: ClassVar = {"repeats": 3, "memory": False}

    only_ours: bool = option(False, "leave out the implementations of others")
    repeats: int = option(
        7,
        "runs, whose median is reported; fewer where a run takes seconds",
        minimum=1,
    )
    memory: bool = option(
        True, "measure peak allocations, in a fresh process each"
    )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Base of declarations.

    Attributes:
      name: also of the module with its `run`.
      quick_values: options of `--quick`, where they are not set.
    """

    name: ClassVar[str]
    quick_values: ClassVar[Mapping[str, Any]] = {}

    def in_all(self) -> bool:
        """Whether it has ratios to alternatives, which "all" shows."""
        return True

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""

    def check_machine(self) -> None:
        """Raises `UserError` if this machine lacks what it needs."""


@dataclasses.dataclass(frozen=True)
class Step(Benchmark):
    """The training step."""

    name = "step"
    quick_values: ClassVar = {
        "precisions": "float32",
        "replicas": "1",
        "end_to_end_seconds": 3.0,
    }

    run_flags: str = option(
        "--dataset=digits --image_size=32 --encoder=resnet18 --batch_size=64",
        "flags of pretrain, for the run whose step is measured",
        check=shell_words,
    )
    precisions: str = option(
        "float32,mixed_bfloat16",
        "comma-separated precisions",
        check=list_of(p for p in PRECISIONS if p != "auto"),
    )
    replicas: str = option(
        "1,2",
        "comma-separated numbers of replicas; above 1 on virtual CPU devices",
        check=positive_integers("1,2"),
    )
    end_to_end_seconds: float = option(
        20.0, "length of the measurement with the run's own input", above=0
    )
    compilation: Compilation = group(Compilation())

    def run(self) -> Pretrain:
        """Returns the run whose step is measured."""
        words = shlex.split(self.run_flags)
        return flags.parse(Pretrain, [*words, "--workdir=none"])

    def check(self) -> None:
        """Checks the run."""
        run = self.run()
        run.validate()
        if not self.compilation.compile_for:
            for count in read_counts(self.replicas):
                check_divisible(run.schedule.batch_size, count)


@dataclasses.dataclass(frozen=True)
class Loss(Benchmark):
    """Values of losses and gradients by projections."""

    name = "loss"
    quick_values: ClassVar = {"sizes": "1024,4096"}

    losses: str = option(
        "ntxent,supcon,supcon_in,sincere", "comma-separated losses"
    )
    sizes: str = option(
        "1024,4096,16384,65536",
        "comma-separated numbers of embeddings, two views per image",
        check=numbers(
            "even integers from 4 (two views per image)",
            "1024,4096",
            lambda x: min(x) >= 4 and not any(n % 2 for n in x),
            read_counts,
        ),
    )
    dimension: int = option(128, "embedding dimension", minimum=2)
    classes: int = option(100, "classes of the images", minimum=2)
    temperature: float = option(
        NTXent.temperature,
        "divides the similarities",
        minimum=1e-4,
        maximum=1e4,
    )
    block_size: int | None = option(
        None,
        "anchors that ours compares at a time; auto: chosen by the batch size",
        minimum=1,
    )
    dense_limit: int = option(
        16384,
        "largest number of embeddings for implementations whose memory grows"
        " with its square",
    )


@dataclasses.dataclass(frozen=True)
class Input(Benchmark):
    """Two views per example."""

    name = "input"
    quick_values: ClassVar = {"image_sizes": "224", "seconds": 0.5}

    policies: str = option(
        "simclr,simaugment,autoaugment,randaugment,stacked_randaugment",
        "comma-separated augmentation policies",
        check=list_of(POLICIES, augmentation_name),
    )
    image_sizes: str = option(
        "224,32",
        "comma-separated sides of views in pixels; above 64 the images are JPEG"
        " files, else arrays",
        check=positive_integers("224,32"),
    )
    input_batch_size: int | None = option(
        None,
        "examples per batch; auto: 64, or 512 up to 64 pixels",
        minimum=1,
    )
    seconds: float = option(3.0, "length of one of the --repeats", above=0)


@dataclasses.dataclass(frozen=True)
class Evaluation(Benchmark):
    """Classifiers of embeddings."""

    name = "evaluation"
    quick_values: ClassVar = {
        "queries": 2_000,
        "bank": 20_000,
        "path_examples": 2_000,
        "path_penalties": 9,
    }

    tasks: str = option("knn,logistic", "comma-separated tasks")
    queries: int = option(10_000, "embeddings that kNN classifies", minimum=1)
    bank: int = option(50_000, "embeddings that kNN searches", minimum=1)
    bank_dimension: int = option(2048, "dimension of these", minimum=2)
    bank_classes: int = option(100, "classes of the bank", minimum=2)
    neighbors: int = option(5, "neighbours that vote", minimum=1)
    path_examples: int = option(
        10_000, "embeddings to fit logistic regression to", minimum=2
    )
    path_dimension: int = option(512, "dimension of these", minimum=2)
    path_classes: int = option(10, "classes of these", minimum=2)
    path_penalties: int = option(45, "penalties, with a fit each", minimum=1)
    path_steps: int = option(
        100,
        "steps of a fit of scikit-learn, at most; with 100, its own default,"
        " fits at low penalties do not converge",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class Serving(Benchmark):
    """An export's signatures."""

    name = "serving"
    quick_values: ClassVar = {
        "serving_batch_sizes": "1,8",
        "serving_seconds": 2.0,
    }

    serving_model: str = option(
        "", "export to serve; empty: an encoder with random weights"
    )
    serving_encoder: str = option(
        "resnet18", "that encoder, with 10 classes", choices=ResNet.networks
    )
    serving_image_size: int = option(
        32, "image side of that encoder in pixels", minimum=8
    )
    serving_batch_sizes: str = option(
        "1,8,64",
        "comma-separated images per request",
        check=positive_integers("1,8,64"),
    )
    serving_seconds: float = option(10.0, "length of each measurement", above=0)


@dataclasses.dataclass(frozen=True)
class Peer(Benchmark):
    """The step, the input and kNN beside lightly, on CPUs."""

    name = "peer"
    quick_values: ClassVar = {
        "peer_precisions": "float32",
        "peer_image_sizes": "224",
        "peer_seconds": 0.5,
        "peer_embeddings": "20000:2000:2048",
    }

    peer_python: str = option(
        "",
        "Python with torch, torchvision and lightly, which is measured in turns"
        " with ours; all: with it, this benchmark is one of them",
    )
    peer_tasks: str = option(
        "step,input,knn",
        "comma-separated tasks",
        check=list_of(("step", "input", "knn")),
    )
    peer_steps: str = option(
        "resnet18:32:64",
        "comma-separated training steps, as NETWORK:SIDE:IMAGES, with two views"
        " of each image",
        check=matching(
            r"(resnet(18|34|50|101|152):([89]|[1-9]\d{1,3})"
            r":([2-9]|[1-9]\d{1,5})(,(?=.)|$))+",
            "NETWORK:SIDE:IMAGES, as in resnet18:32:64,resnet50:224:16, with a"
            " ResNet that torchvision has, at least 8 pixels and 2 images",
        ),
    )
    peer_precisions: str = option(
        "float32,mixed_bfloat16",
        "comma-separated precisions of the steps",
        check=list_of(("float32", "mixed_bfloat16")),
    )
    peer_compile: bool = option(
        False,
        "try torch.compile for the steps of lightly, too: it takes minutes, and"
        " a C++ compiler",
    )
    peer_image_sizes: str = option(
        "224,32",
        "comma-separated sides of the input's views in pixels; above 64 the"
        " images are JPEG files, else arrays",
        check=positive_integers("224,32"),
    )
    peer_seconds: float = option(
        3.0, "length of one of the --repeats of the input", above=0
    )
    peer_embeddings: str = option(
        "50000:10000:2048",
        "embeddings of kNN, as BANK:QUERIES:DIMENSION",
        check=matching(
            r"([1-9]\d{0,7}):([1-9]\d{0,7}):([2-9]|[1-9]\d{1,4})",
            "BANK:QUERIES:DIMENSION, as in 50000:10000:2048",
        ),
    )

    def embeddings(self) -> tuple[int, int, int]:
        """Returns the embeddings of kNN: bank, queries, dimension."""
        bank, queries, dimension = map(int, self.peer_embeddings.split(":"))
        return bank, queries, dimension

    def in_all(self) -> bool:
        """It needs an interpreter."""
        return bool(self.peer_python)

    def steps(self) -> list[Pretrain]:
        """Returns the runs whose steps are measured: what lightly does, too."""
        runs = []
        for step in split_list(self.peer_steps):
            network, side, images = step.split(":")
            words = [
                f"--encoder={network}",
                f"--image_size={side}",
                f"--batch_size={images}",
                *_PEER_FLAGS,
            ]
            run = flags.parse(Pretrain, words)
            runs += [
                replace(run, precision=precision)
                for precision in split_list(self.peer_precisions)
            ]
        return runs

    def check_machine(self) -> None:
        """Checks the interpreter."""
        peer_process.interpreter(self.peer_python)


@dataclasses.dataclass(frozen=True)
class Views(Benchmark):
    """A contact sheet."""

    name = "views"

    plot: str = option("views.png", "PNG file to write")
    sheet_size: int = option(96, "side of a view on it in pixels", minimum=8)

    def in_all(self) -> bool:
        """It is a picture."""
        return False


# The step is the first of "all", since the CPU is split into virtual devices
# before it is used.
BENCHMARKS: dict[str, type[Benchmark]] = {
    declared.name: declared
    for declared in (Step, Loss, Input, Evaluation, Serving, Peer, Views)
}
