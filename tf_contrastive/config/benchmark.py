"""The options of `benchmark`."""

import dataclasses
import re
from typing import ClassVar

from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.config.fields import (
    list_of,
    option,
    shell_words,
    split_list,
    validate_fields,
    whole_numbers,
)
from tf_contrastive.config.runtime import PRECISIONS
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.config.views import AUGMENTATIONS, augmentation_name
from tf_contrastive.errors import did_you_mean

BENCHMARKS = ("loss", "input", "views", "step", "evaluation", "serving")
BENCHMARK_LOSSES = ("ntxent", "supcon", "supcon_in", "sincere")
EVALUATION_TASKS = ("knn", "logistic")


def _benchmark_name(value: str) -> str | None:
    if value in BENCHMARKS:
        return None
    hint = did_you_mean(value, BENCHMARKS)
    return (
        f"one of {', '.join(BENCHMARKS)}{hint}, as in: benchmark"
        f" {BENCHMARKS[0]}"
    )


def _batch_sizes(value: str) -> str | None:
    sizes = split_list(value)
    if sizes and all(
        re.fullmatch(r"[0-9]+", n) and int(n) >= 4 and int(n) % 2 == 0
        for n in sizes
    ):
        return None
    return (
        "a comma-separated list of even numbers from 4 up (two views of each"
        " image), such as 1024,4096"
    )


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures, and how."""

    benchmark: str = option(
        "",
        f"what is measured, one of {', '.join(BENCHMARKS)}; the word after the"
        " command is it",
        check=_benchmark_name,
        required=True,
    )
    only_ours: bool = option(False, "leave out what it is compared with")
    repeats: int = option(
        7,
        "runs of which the median is taken; fewer where one takes seconds",
        minimum=1,
    )
    memory: bool = option(
        True, "measure peak memory, of each in a fresh process"
    )
    output: str = option(
        "", "JSON file to write; empty: benchmark_<what is measured>.json"
    )


@dataclasses.dataclass(frozen=True)
class LossBenchmark:
    """What `benchmark loss` computes: values and gradients by projections."""

    losses: str = option(
        ",".join(BENCHMARK_LOSSES),
        f"comma-separated losses out of {', '.join(BENCHMARK_LOSSES)}",
        check=list_of(BENCHMARK_LOSSES),
    )
    sizes: str = option(
        "1024,4096,16384,65536",
        "comma-separated numbers of embeddings, two views of each image",
        check=_batch_sizes,
    )
    dimension: int = option(128, "size of an embedding", minimum=2)
    classes: int = option(100, "classes of the images", minimum=2)
    temperature: float = option(
        0.1, "what similarities are divided by", above=0.0
    )
    block_size: int = option(
        0,
        "anchors that ours compares at a time; 0: as many as suit the batch",
        minimum=0,
    )
    dense_limit: int = option(
        16384,
        "most embeddings for what needs memory that grows with their square",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class InputBenchmark:
    """What `benchmark input` makes: two views an example."""

    policies: str = option(
        "simclr,simaugment,autoaugment,randaugment,stacked_randaugment",
        "comma-separated augmentation policies",
        check=list_of(AUGMENTATIONS, augmentation_name),
    )
    image_sizes: str = option(
        "224,32",
        "comma-separated sides of views; above 64 pixels they are made of JPEG"
        " files, else of arrays",
        check=whole_numbers("224,32", what="sides in pixels"),
    )
    input_batch_size: int = option(
        0, "examples of a batch; 0: 64, or 512 of at most 64 pixels", minimum=0
    )
    seconds: float = option(
        3.0, "length of one measurement, of which there are --repeats", above=0
    )
    profile: bool = option(False, "measure every operation by itself, too")
    device_fraction: bool = option(
        False,
        "measure compiled colours against a ResNet-50's forward and backward"
        " pass, too",
    )


@dataclasses.dataclass(frozen=True)
class SheetBenchmark:
    """What `benchmark views` shows."""

    plot: str = option("views.png", "PNG file of `benchmark views`")
    sheet_size: int = option(96, "side of a view on it in pixels", minimum=8)


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """What `benchmark step` trains."""

    run_flags: str = option(
        "--dataset=digits --image_size=32 --encoder=resnet18 --batch_size=64",
        "pretrain's flags, of the run whose step is measured",
        check=shell_words,
    )
    precisions: str = option(
        "float32,mixed_bfloat16",
        "comma-separated precisions",
        check=list_of(p for p in PRECISIONS if p != "auto"),
    )
    replicas: str = option(
        "1,2",
        "comma-separated numbers of replicas; beyond 1 they are virtual ones,"
        " of the CPU",
        check=whole_numbers("1,2", what="numbers from 1 up"),
    )
    end_to_end_seconds: float = option(
        20.0, "length of the measurement with the run's own input", above=0
    )


@dataclasses.dataclass(frozen=True)
class ServingBenchmark:
    """What `benchmark serving` serves."""

    serving_model: str = option(
        "", "export to serve; empty: one of an encoder with random weights"
    )
    serving_encoder: str = option(
        "resnet18", "that encoder, with 10 classes", choices=ENCODERS
    )
    serving_image_size: int = option(
        32, "side of the images of that encoder in pixels", minimum=8
    )
    serving_batch_sizes: str = option(
        "1,8,64",
        "comma-separated images of a request",
        check=whole_numbers("1,8,64", what="numbers from 1 up"),
    )
    serving_seconds: float = option(10.0, "length of each measurement", above=0)


@dataclasses.dataclass(frozen=True)
class EvaluationBenchmark:
    """What `benchmark evaluation` classifies."""

    tasks: str = option(
        ",".join(EVALUATION_TASKS),
        f"comma-separated tasks out of {', '.join(EVALUATION_TASKS)}",
        check=list_of(EVALUATION_TASKS),
    )
    queries: int = option(10_000, "embeddings that kNN classifies", minimum=1)
    bank: int = option(50_000, "embeddings that it looks through", minimum=1)
    bank_dimension: int = option(2048, "size of those embeddings", minimum=2)
    bank_classes: int = option(100, "classes of the bank", minimum=2)
    neighbors: int = option(5, "neighbours that vote", minimum=1)
    path_examples: int = option(
        10_000, "embeddings that logistic regression is fitted to", minimum=2
    )
    path_dimension: int = option(512, "size of those embeddings", minimum=2)
    path_classes: int = option(10, "classes of those embeddings", minimum=2)
    path_penalties: int = option(45, "penalties, each a fit", minimum=1)
    path_steps: int = option(
        100,
        "most steps of one of scikit-learn's fits; its own default, with which"
        " those of low penalties end before they are done",
        minimum=1,
    )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """All options of `benchmark`."""

    COMMON: ClassVar = (
        *("benchmark", "only_ours", "repeats", "memory", "output"),
        "verbosity",
    )

    benchmarking: Benchmarking = dataclasses.field(default_factory=Benchmarking)
    loss: LossBenchmark = dataclasses.field(default_factory=LossBenchmark)
    input: InputBenchmark = dataclasses.field(default_factory=InputBenchmark)
    sheet: SheetBenchmark = dataclasses.field(default_factory=SheetBenchmark)
    step: StepBenchmark = dataclasses.field(default_factory=StepBenchmark)
    evaluation: EvaluationBenchmark = dataclasses.field(
        default_factory=EvaluationBenchmark
    )
    serving: ServingBenchmark = dataclasses.field(
        default_factory=ServingBenchmark
    )
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)
