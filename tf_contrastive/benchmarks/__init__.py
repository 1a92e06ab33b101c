"""Speed and memory of this package's parts side by side with others'.

Layer 8. An entry of `BENCHMARKS` is `(options, say) -> measure.Report`; its
name stands in `config.BENCHMARKS`, too.
"""

from tf_contrastive.benchmarks import (
    evaluation,
    input,
    loss,
    serving,
    sheet,
    step,
)

BENCHMARKS = {
    "loss": loss.run,
    "input": input.run,
    "views": sheet.run,
    "step": step.run,
    "evaluation": evaluation.run,
    "serving": serving.run,
}
