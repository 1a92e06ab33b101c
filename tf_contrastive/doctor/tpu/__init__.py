"""What a run's training step takes of a TPU, compiled without having one.

The step is lowered here by TensorFlow and compiled by the TPU's own compiler,
in a process of its own. All numbers are the compiler's, for one core: memory is
what the program will take; times are lower bounds by the chip's published
speed.
"""

import math
import os

import tensorflow as tf

from tf_contrastive.base import terminal
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets.description import Rows
from tf_contrastive.doctor import speed
from tf_contrastive.doctor.tpu import compilation, lowering

# Seconds for which the input is measured.
INPUT_SECONDS = 3.0


def inspect(
    run: Pretrain, compile_for: str, compile_python: str = ""
) -> dict[str, Rows]:
    """Compiles the step of a run; returns heading -> name -> value.

    `compile_python` is an interpreter with jax and libtpu; empty: that of
    `launch/install --tpu-compile`.

    Raises:
      UserError: for an unknown topology, options that cannot work, or without
        the compiler.
    """
    target = compilation.topology(compile_for)
    compiler = compilation.Compiler(target, compile_python)
    prepared, is_here = compilation.prepare(run, target.cores)
    run = prepared.options
    step = lowering.Step(prepared)
    images = run.schedule.batch_size // target.cores
    facts = compiler.compile(step.lower(images), step.title)
    chip, mib = target.chip, 2.0**20
    needed, limit = compilation.needed(facts)
    memory: Rows = {
        "images_per_core": images,
        "memory_mib": round(needed / mib),
        "available_mib": round((limit or chip.memory / chip.cores) / mib),
        "fits": "yes" if limit is None else "no",
    }
    report: dict[str, Rows] = {
        "topology": {
            "topology": target.name,
            "chips": target.chips,
            "cores": target.cores,
            "hosts": target.hosts,
            "encoder": run.encoder.label,
            "image_size": run.views.side,
            "views": run.views.summary,
            "augment_on": run.views.augment_on,
            "wire_dtype": run.views.wire_dtype,
            "precision": run.runtime.precision,
            "batch_size": run.schedule.batch_size,
        },
        "memory_per_core": memory,
    }
    if limit is not None:
        return report
    rate = None
    if is_here:
        terminal.info("measuring the input")
        rate = speed.measure_input(prepared, INPUT_SECONDS)
    by_flops = facts["flops"] / (chip.flops / chip.cores)
    by_bytes = facts["bytes"] / (chip.bytes / chip.cores)
    report["step_of_a_core"] = {
        "teraflops": round(facts["flops"] / 1e12, 4),
        "gigabytes": round(facts["bytes"] / 1e9, 3),
        "loops_counted_once": facts["loops"],
        "argument_mib": round(facts["argument"] / mib),
        "temporary_mib": round(facts["temp"] / mib),
        "collectives": facts["collectives"],
        "collectives_before_combining": facts["collectives_before"],
        "collective_mib": round(facts["collective_bytes"] / mib, 1),
        "float64": "yes" if facts["float64"] else "no",
        "dynamic_shapes": "yes" if facts["dynamic_shapes"] else "no",
        "milliseconds_by_flops": round(1000 * by_flops, 2),
        "milliseconds_by_bytes": round(1000 * by_bytes, 2),
    }
    per_host = run.schedule.batch_size / max(by_flops, by_bytes) / target.hosts
    cpus = os.cpu_count() or 1
    # Bytes of an image's views on their way to the device.
    image = run.views.pixels * run.channels
    image *= tf.as_dtype(run.views.wire_dtype).size
    report["input"] = {
        "images_per_second_and_host": round(per_host),
        "megabytes_per_second_and_host": round(per_host * image / 1e6),
        "images_per_second_here": rate and round(rate, 1),
        "cpu_cores_per_host": rate and math.ceil(per_host / (rate / cpus)),
    }
    return report
