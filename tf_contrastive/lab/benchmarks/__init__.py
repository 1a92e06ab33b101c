"""Speed and memory of this package's parts next to alternatives.

Entries of `BENCHMARKS` are functions options -> `measure.Report`; their names
are those of `config.benchmark.BENCHMARKS`.
"""

from tf_contrastive.lab.benchmarks import (
    evaluation,
    input,
    loss,
    serving,
    step,
    views,
)

BENCHMARKS = {
    "loss": loss.run,
    "input": input.run,
    "views": views.run,
    "step": step.run,
    "evaluation": evaluation.run,
    "serving": serving.run,
}
