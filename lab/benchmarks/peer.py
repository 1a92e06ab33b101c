"""SimCLR's step on CPUs beside that of lightly.

lightly, a PyTorch package, runs in a process of its own, in an interpreter of
the user's; it waits while ours is measured, and the other way round. Both have
the same network, loss and optimizer; the number of weights and the loss of the
same projections are compared. Each has its own fastest settings.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lab.benchmarks import measure, peer_process
from lab.benchmarks.options import Common, Peer
from tf_contrastive import datasets, distribution, losses, train
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.loss import NTXent
from tf_contrastive.config.optimizer import SGD
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import speed
from tf_contrastive.model import networks

PEER = "lightly"
# Steps of one turn, behind one that is not timed.
_STEPS = 2
# Of what is compared: the relative difference that is allowed.
_ALLOWED = {"parameters": 0.0, "loss": 1e-5}

_COLUMNS = {
    "work": "{work}",
    "implementation": "{implementation}",
    "images/s": "{images_per_second:,.1f}",
    "ours / peer": "{times_peer:.2f}",
    "parameters": "{parameters:,}",
    "settings": "{settings}",
    "note": "{note}",
}

# Measures once: images per second.
Turn = Callable[[], float]


class Case(NamedTuple):
    """What is compared.

    Attributes:
      work: its title.
      turn: measures ours once.
      facts: what lightly's process must describe equally.
      peer: the case of `peer_program`.
    """

    work: str
    turn: Turn
    facts: Mapping[str, float]
    peer: Mapping[str, Any]


def run(common: Common, options: Peer) -> measure.Report:
    """Measures the steps one after the other."""
    environment = measure.environment()
    if environment["accelerators"]:
        raise errors.UserError(
            f"{errors.arg('benchmark', options.name)} measures CPUs, and this"
            f" machine has {', '.join(environment['accelerators'])}: hide them,"
            " such as by CUDA_VISIBLE_DEVICES=-1"
        )
    python = peer_process.interpreter(options.peer_python)
    load = os.getloadavg()[0]
    rows: list[measure.Row] = []
    with files.temporary_folder() as folder:
        for case in cases(options):
            terminal.info(case.work)
            rows += _measure(case, python, common.repeats, folder)
    versions = environment["versions"]
    for row in rows:
        row.update(cores=_cores(), load_before=load)
        versions = {**versions, **row["versions"]}
    packages = ("tensorflow", "keras", "torch", "torchvision", PEER)
    lines = [
        f"{_cores()} cores; load average {load:.1f} before",
        ", ".join(f"{n} {versions[n]}" for n in packages if versions.get(n)),
    ]
    text = "\n".join([*lines, "", measure.table(_COLUMNS, rows)])
    return measure.Report(rows, text)


def cases(options: Peer) -> Iterator[Case]:
    """Yields the steps to compare."""
    return map(_step, options.steps())


def _measure(
    case: Case, python: str, repeats: int, folder: str
) -> list[measure.Row]:
    """Measures a case in turns."""
    rates: dict[str, list[float]] = {"ours": [], PEER: []}
    about: dict[str, Any] = {}
    note = ""
    try:
        with peer_process.Process(python, dict(case.peer), folder) as peer:
            about = peer.about
            _check_equal(case.facts, about)
            for _ in range(repeats):
                rates["ours"].append(case.turn())
                rates[PEER].append(peer.turn())
    except errors.UserError as error:
        note = str(error)
        rates[PEER].clear()
    ours, theirs = (
        statistics.median(rate) if rate else None for rate in rates.values()
    )
    row = {"work": case.work, "versions": about.get("versions", {})}
    return [
        row
        | {
            "implementation": "ours",
            "images_per_second": ours,
            "times_peer": ours / theirs if ours and theirs else None,
            "parameters": case.facts["parameters"],
            "settings": "defaults",
            "note": "",
        },
        row
        | {
            "implementation": PEER,
            "images_per_second": theirs,
            "times_peer": None,
            "parameters": about.get("parameters"),
            "settings": about.get("settings", ""),
            "note": note,
            "failed": bool(note),
        },
    ]


def _check_equal(facts: Mapping[str, float], about: Mapping[str, Any]) -> None:
    """Raises `UserError` if lightly's process computes something else."""
    for name, ours in facts.items():
        theirs = about[name]
        if not math.isclose(theirs, ours, rel_tol=_ALLOWED[name]):
            raise errors.UserError(f"differs from ours: {name} (ours: {ours})")


def _cores() -> int:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- Cases -------------------------------------------------------------------


def _step(options: Pretrain) -> Case:
    """The training step of a run, with its default settings, on noise."""
    images, side = options.schedule.batch_size, options.views.image_size
    assert side
    noise = np.random.default_rng(0)
    pixels = noise.integers(0, 256, [images, side, side, 3], np.uint8)
    strategy = distribution.strategy("default")
    prepared = train.prepare(
        options,
        strategy,
        splits=train.Splits(datasets.from_arrays(pixels)),
    ).with_options(steps_per_execution=1)
    run = prepared.options
    optimizer = run.optimizer
    assert isinstance(run.loss, NTXent) and isinstance(optimizer, SGD)
    model, _ = prepared.build()
    projections = noise.normal(size=[2, 4, 8]).round(3)
    loss = losses.build("ntxent", temperature=run.loss.temperature)
    precision = run.runtime.precision
    with networks.precision(precision):
        step = model.make_train_function()
        batches = iter(speed.noise(run, None, images, strategy))

    def steps(count: int) -> float:
        start = time.perf_counter()
        with networks.precision(precision):
            for _ in range(count):
                step(batches)
        tf.test.experimental.sync_devices()
        return time.perf_counter() - start

    def turn() -> float:
        steps(1)
        return 2 * images * _STEPS / steps(_STEPS)

    steps(_STEPS)  # They build graphs.
    return Case(
        f"step, {run.encoder.label} at {side} pixels, {images} images of two"
        f" views, {precision}",
        turn,
        {
            "parameters": sum(
                v.shape.num_elements() for v in model.trainable_variables
            ),
            "loss": float(loss(np.float32(projections.transpose(1, 0, 2)))),
        },
        {
            "network": run.encoder.label,
            "cifar_stem": getattr(run.encoder, "stem", "") == "cifar",
            "side": side,
            "images": images,
            "bfloat16": precision == "mixed_bfloat16",
            "temperature": run.loss.temperature,
            "momentum": optimizer.momentum,
            "weight_decay": optimizer.weight_decay,
            "projection": run.projection.sizes(1)[-1],
            "cores": _cores(),
            "steps": _STEPS,
            "projections": projections.tolist(),
        },
    )
