"""The options of `benchmark`."""

import dataclasses
from typing import Any, ClassVar

from tf_contrastive.config import allocations
from tf_contrastive.config.encoder import ENCODERS
from tf_contrastive.config.fields import (
    Command,
    Terminal,
    group,
    list_of,
    numbers,
    one_of,
    option,
    positive_integers,
    read_counts,
    shell_words,
)
from tf_contrastive.config.loss import NTXent
from tf_contrastive.config.pretrain import Compilation
from tf_contrastive.config.runtime import PRECISIONS
from tf_contrastive.config.views import AUGMENTATIONS, augmentation_name
from tf_contrastive.errors import UserError, arg

BENCHMARKS = ("loss", "input", "views", "step", "evaluation", "serving")
# Those with ratios, which "all" runs. The step is the first, since the CPU is
# split into virtual devices before it is used.
COMPARED = ("step", "loss", "input", "evaluation", "serving")
# Options of `--quick`, where they are not set.
QUICK = {
    "repeats": 3,
    "memory": False,
    "sizes": "1024,4096",
    "image_sizes": "224",
    "seconds": 0.5,
    "precisions": "float32",
    "replicas": "1",
    "end_to_end_seconds": 3.0,
    "serving_batch_sizes": "1,8",
    "serving_seconds": 2.0,
    "queries": 2_000,
    "bank": 20_000,
    "path_examples": 2_000,
    "path_penalties": 9,
}
BENCHMARK_LOSSES = ("ntxent", "supcon", "supcon_in", "sincere")
EVALUATION_TASKS = ("knn", "logistic")


def _benchmark_name(value: str) -> str | None:
    allowed = one_of(value, (*BENCHMARKS, "all"))
    return allowed and f"{allowed}, as in: benchmark {BENCHMARKS[0]}"


def _two_files(value: str) -> str | None:
    if all(value.partition(",")[::2]) and value.count(",") == 1:
        return None
    return f"two files of benchmarks, such as {arg('compare')} a.json b.json"


@dataclasses.dataclass(frozen=True)
class Benchmarking:
    """What `benchmark` measures, and how."""

    benchmark: str = option(
        "",
        f"benchmark to run, one of {', '.join(BENCHMARKS)}; all: those that"
        f" compare ({', '.join(COMPARED)}), in one table; may be the word after"
        " the command",
        check=_benchmark_name,
    )
    quick: bool = option(
        False, "smaller cases and fewer repeats: ten minutes for all"
    )
    compare: str = option(
        "",
        "A,B or --compare A B: two files of benchmarks, of two machines or"
        " commits, whose ratios to show side by side",
        check=_two_files,
    )
    only_ours: bool = option(False, "leave out the implementations of others")
    repeats: int = option(
        7,
        "runs, whose median is reported; fewer where a run takes seconds",
        minimum=1,
    )
    memory: bool = option(
        True, "measure peak allocations, in a fresh process each"
    )
    output: str = option(
        "", "JSON file to write; empty: benchmark_<benchmark>.json"
    )


@dataclasses.dataclass(frozen=True)
class LossBenchmark:
    """`benchmark loss`: values of losses and gradients by projections."""

    losses: str = option(
        ",".join(BENCHMARK_LOSSES),
        f"comma-separated losses out of {', '.join(BENCHMARK_LOSSES)}",
        check=list_of(BENCHMARK_LOSSES),
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
        auto=0,
    )
    dense_limit: int = option(
        16384,
        "largest number of embeddings for implementations whose memory grows"
        " with its square",
    )


@dataclasses.dataclass(frozen=True)
class InputBenchmark:
    """`benchmark input`: two views per example."""

    policies: str = option(
        "simclr,simaugment,autoaugment,randaugment,stacked_randaugment",
        "comma-separated augmentation policies",
        check=list_of(AUGMENTATIONS, augmentation_name),
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
        auto=0,
    )
    seconds: float = option(3.0, "length of one of the --repeats", above=0)


@dataclasses.dataclass(frozen=True)
class SheetBenchmark:
    """`benchmark views`: a contact sheet."""

    plot: str = option("views.png", "PNG file to write")
    sheet_size: int = option(96, "side of a view on it in pixels", minimum=8)


@dataclasses.dataclass(frozen=True)
class StepBenchmark:
    """`benchmark step`: the training step."""

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


@dataclasses.dataclass(frozen=True)
class ServingBenchmark:
    """`benchmark serving`: requests to TensorFlow Serving."""

    serving_model: str = option(
        "", "export to serve; empty: an encoder with random weights"
    )
    serving_encoder: str = option(
        "resnet18", "that encoder, with 10 classes", choices=ENCODERS
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
class EvaluationBenchmark:
    """`benchmark evaluation`: classifiers of embeddings."""

    tasks: str = option(
        ",".join(EVALUATION_TASKS),
        f"comma-separated tasks out of {', '.join(EVALUATION_TASKS)}",
        check=list_of(EVALUATION_TASKS),
    )
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
class Benchmark(Command):
    """Compare speed and memory with other packages: benchmark loss."""

    COMMON: ClassVar = (
        "benchmark",
        "quick",
        "compare",
        "only_ours",
        "repeats",
        "memory",
        "output",
        "verbosity",
    )

    benchmarking: Benchmarking = group(Benchmarking())
    loss: LossBenchmark = group(LossBenchmark())
    input: InputBenchmark = group(InputBenchmark())
    sheet: SheetBenchmark = group(SheetBenchmark())
    step: StepBenchmark = group(StepBenchmark())
    evaluation: EvaluationBenchmark = group(EvaluationBenchmark())
    serving: ServingBenchmark = group(ServingBenchmark())
    compilation: Compilation = group(Compilation())
    terminal: Terminal = group(Terminal())

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the smaller cases of `quick`."""
        return dict(QUICK) if given.get("quick") else {}

    def _check(self) -> None:
        chosen = self.benchmarking
        if bool(chosen.benchmark) == bool(chosen.compare):
            raise UserError(
                f"{arg('benchmark', chosen.benchmark)} and"
                f" {arg('compare', chosen.compare)}: set one of them, as in:"
                " benchmark loss"
            )
        loss, task = self.loss, self.evaluation
        largest = max(read_counts(loss.sizes))
        allocations.check(
            allocations.Allocation(name, value, 4.0 * rows * columns)
            for name, value, rows, columns in (
                ("dimension", loss.dimension, largest, loss.dimension),
                ("bank", task.bank, task.bank, task.bank_dimension),
                ("queries", task.queries, task.queries, task.bank_dimension),
                (
                    "path_examples",
                    task.path_examples,
                    task.path_examples,
                    task.path_dimension,
                ),
            )
        )
