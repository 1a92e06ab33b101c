"""Benchmarks: their names and their options.

A benchmark's code is the function `run(common, options)` of the module with its
name: (`Common`, its options) -> `measure.Report`.
"""

import dataclasses
import shlex
from typing import ClassVar

from tf_contrastive import flags
from tf_contrastive.config.checks import each, matching, shell_words
from tf_contrastive.config.compilation import Compilation
from tf_contrastive.config.fields import group, option, replace
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import PRECISIONS, check_divisible
from tf_contrastive.config.views import augmentation_name

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
    """Base of declarations; `name` is also its module's, which has `run`."""

    name: ClassVar[str]

    def check(self) -> None:
        """Raises `UserError` for values that do not go together."""


@dataclasses.dataclass(frozen=True)
class Step(Benchmark):
    """The training step."""

    name = "step"

    run_flags: str = option(
        "--dataset=digits --image_size=32 --encoder=resnet18 --batch_size=64",
        "flags of pretrain, for the run whose step is measured",
        check=shell_words,
    )
    precisions: tuple[str, ...] = option(
        ("float32", "mixed_bfloat16"),
        "comma-separated precisions",
        choices=(p for p in PRECISIONS if p != "auto"),
    )
    replicas: tuple[int, ...] = option(
        (1, 2),
        "comma-separated numbers of replicas; above 1 on virtual CPU devices",
        minimum=1,
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
            for count in self.replicas:
                check_divisible(run.schedule.batch_size, count)


@dataclasses.dataclass(frozen=True)
class Loss(Benchmark):
    """Values of losses and gradients by projections."""

    name = "loss"

    losses: tuple[str, ...] = option(
        ("ntxent", "supcon", "sincere"),
        "comma-separated losses",
        choices=("ntxent", "supcon", "sincere"),
    )
    sizes: tuple[int, ...] = option(
        (1024, 4096, 16384, 65536),
        "comma-separated numbers of embeddings, two views per image",
        minimum=4,
        check=lambda sizes: (
            "even (two views per image)" if any(n % 2 for n in sizes) else None
        ),
    )
    dimension: int = option(128, "embedding dimension", minimum=2)
    classes: int = option(100, "classes of the images", minimum=2)
    dense_limit: int = option(
        16384,
        "largest number of embeddings for implementations whose memory grows"
        " with its square",
    )


@dataclasses.dataclass(frozen=True)
class Input(Benchmark):
    """Two views per example."""

    name = "input"

    policies: tuple[str, ...] = option(
        (
            *("simclr", "simaugment", "autoaugment"),
            *("randaugment", "stacked_randaugment"),
        ),
        "comma-separated augmentation policies",
        check=each(augmentation_name),
    )
    image_sizes: tuple[int, ...] = option(
        (224, 32),
        "comma-separated sides of views in pixels; above 64 the images are JPEG"
        " files, else arrays",
        minimum=1,
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

    tasks: tuple[str, ...] = option(
        ("knn", "logistic"),
        "comma-separated tasks",
        choices=("knn", "logistic"),
    )
    queries: int = option(10_000, "embeddings that kNN classifies", minimum=1)
    bank: int = option(50_000, "embeddings that kNN searches", minimum=1)
    bank_dimension: int = option(2048, "dimension of these", minimum=2)
    path_examples: int = option(
        10_000, "embeddings to fit logistic regression to", minimum=2
    )
    path_dimension: int = option(512, "dimension of these", minimum=2)
    path_penalties: int = option(45, "penalties, with a fit each", minimum=1)


@dataclasses.dataclass(frozen=True)
class Peer(Benchmark):
    """The training step beside lightly, on CPUs or one GPU."""

    name = "peer"

    peer_python: str = option(
        "",
        "Python with torch, torchvision and lightly, which is measured in turns"
        " with ours",
    )
    peer_steps: tuple[str, ...] = option(
        ("resnet18:32:64",),
        "comma-separated training steps, as NETWORK:SIDE:IMAGES, with two views"
        " of each image",
        check=each(
            matching(
                r"resnet(18|34|50|101|152):([89]|[1-9]\d{1,3})"
                r":([2-9]|[1-9]\d{1,5})",
                "NETWORK:SIDE:IMAGES, as in resnet18:32:64,resnet50:224:16,"
                " with a ResNet that torchvision has, at least 8 pixels and 2"
                " images",
            )
        ),
    )

    def steps(self) -> list[Pretrain]:
        """Returns the runs whose steps are measured: what lightly does, too."""
        runs = []
        for step in self.peer_steps:
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
                for precision in ("float32", "mixed_bfloat16")
            ]
        return runs


BENCHMARKS: dict[str, type[Benchmark]] = {
    declared.name: declared
    for declared in (Step, Loss, Input, Evaluation, Peer)
}
