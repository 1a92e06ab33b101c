"""Views a second: this package's input against others', and against the floor.

At more than 64 pixels views are made of JPEG files, scikit-learn's two sample
photographs (427 x 640 pixels), below of arrays. The floor is what every policy
needs: decode, random crop, resize and flip. What of a policy a device would do
is compared with the forward and backward pass of an encoder.
"""

import tempfile
from collections.abc import Callable
from typing import Any

from tf_contrastive.benchmarks import measure
from tf_contrastive.benchmarks.input import images, operations, rates
from tf_contrastive.benchmarks.input.makers import Case
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import Benchmark
from tf_contrastive.config.encoder import CIFAR_STEM_MAX_SIDE

__all__ = ["run"]


def run(options: Benchmark, say: Callable[[str], None]) -> measure.Report:
    """Measures every policy at every size.

    Args:
      options: validated.
      say: is told what is being done.
    """
    chosen, how = options.input, options.benchmarking
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for size in map(int, fields.split_list(chosen.image_sizes)):
            source = images.source(size, folder)
            small = size <= CIFAR_STEM_MAX_SIDE
            batch = chosen.input_batch_size or (512 if small else 64)
            cases = [
                Case(policy, size, batch)
                for policy in fields.split_list(chosen.policies)
            ]
            results += rates.of_cases(cases, source, how, chosen.seconds, say)
    tables = [rates.table(results)]
    policies = fields.split_list(chosen.policies)
    for wanted, measured, table in (
        (chosen.profile, operations.profile, operations.profile_table),
        (
            chosen.device_fraction,
            operations.device_fractions,
            operations.device_table,
        ),
    ):
        if wanted:
            rows = []
            for size in map(int, fields.split_list(chosen.image_sizes)):
                say(f"{measured.__name__} at {size} pixels")
                rows += measured(policies, size, how.repeats)
            results += rows
            tables.append(table(rows))
    return measure.Report(results, tables, passed=True)
