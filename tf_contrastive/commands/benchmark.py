"""`benchmark`: speed and memory next to alternatives, checked to be equal."""

import shlex

from tf_contrastive import errors, files, flags, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.benchmark import COMPARED, Benchmark
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import check_divisible


def run(options: Benchmark) -> int:
    """Prints tables and writes a JSON file, or compares two such files.

    The file holds `benchmark`, `options` (flags), `environment` (`versions`,
    `platform`, `cpus`, `accelerators`), `passed`, `ratios` (the time of each
    alternative divided by ours), and `results`: for each case and
    implementation, the fields of the case and the measurements.

    Returns:
      0, or 1 if an implementation differs from ours or runs out of memory.
    """
    chosen = options.benchmarking
    name = chosen.benchmark
    if name in ("step", "all"):
        words = shlex.split(options.step.run_flags)
        pretrain = flags.parse(Pretrain, [*words, "--workdir=none"])
        pretrain.validate()
        counts = fields.read_counts(options.step.replicas)
        for count in counts if not options.compilation.compile_for else ():
            check_divisible(pretrain.schedule.batch_size, count)
    if options.compilation.compile_for and name != "step":
        raise errors.UserError(
            f"{errors.arg('compile_for', options.compilation.compile_for)} is"
            f" an option of {errors.arg('benchmark', 'step')}, not of"
            f" {errors.arg('benchmark', name)}: omit it"
        )
    # Imported here, so that errors in flags need not wait for TensorFlow.
    from tf_contrastive.lab.benchmarks import BENCHMARKS, measure, ratios

    if chosen.compare:
        print(ratios.side_by_side(*chosen.compare.split(",")))
        return 0
    output = chosen.output or f"benchmark_{name}.json"
    measure.check_output("output", output)
    if name == "all":
        report = ratios.joined(
            {each: BENCHMARKS[each](options) for each in COMPARED}
        )
    else:
        report = BENCHMARKS[name](options)
    print("\n\n".join(report.tables))
    content = {
        "benchmark": name,
        "options": fields.values(options),
        "environment": measure.environment(),
        "passed": report.passed,
        "ratios": report.ratios,
        "results": report.rows,
    }
    advice = (
        f"the table above is complete; set {errors.arg('output')} to keep it as"
        " a file"
    )
    files.write_json(output, content, advice)
    terminal.info(f"written: {output}")
    return 0 if report.passed else 1
