"""SimCLR's step on CPUs or one GPU beside that of lightly.

lightly, a PyTorch package, runs in a process of its own, in an interpreter of
the user's; it waits while ours is measured, and the other way round. Both have
the same network, loss and optimizer; the number of weights and the loss of the
same projections are compared. Each has its own fastest settings.
"""

import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from lab.benchmarks import measure, peer_program
from lab.benchmarks.options import Common, Peer
from tf_contrastive import datasets, distribution, losses, train
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.loss import NTXent
from tf_contrastive.config.optimizer import SGD
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.doctor import speed
from tf_contrastive.model import networks

PEER = "lightly"
_PACKAGES = ("torch", "torchvision", PEER)
# Steps of one turn by device, behind one that is not timed.
_STEPS = {"cpu": 2, "cuda": 20}
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
    python = _interpreter(options.peer_python)
    load = os.getloadavg()[0]
    rows: list[measure.Row] = []
    with files.temporary_folder() as folder:
        for case in cases(options):
            terminal.info(case.work)
            rows += _measure(case, python, common.repeats, folder)
    versions = measure.environment()["versions"]
    for row in rows:
        row.update(cores=_cores(), load_before=load)
        versions = {**versions, **row["versions"]}
    packages = ("tensorflow", "keras", *_PACKAGES)
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
        with _process(python, case.peer, folder) as answer:
            about = answer()
            _check_equal(case.facts, about)
            for _ in range(repeats):
                rates["ours"].append(case.turn())
                rates[PEER].append(answer())
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


# ---- The process of lightly --------------------------------------------------


def _interpreter(given: str) -> str:
    """Returns the path of an interpreter that has the packages.

    Raises:
      UserError: if it cannot be run or lacks one.
    """
    python = shutil.which(os.path.expanduser(given)) or given
    words = [python, "-c", f"import {', '.join(_PACKAGES)}"]
    try:
        subprocess.run(
            words, capture_output=True, check=True, env=_environment()
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise errors.UserError(
            f"{errors.arg('peer_python', given or None)}: must be a Python with"
            f" {', '.join(_PACKAGES)}; make one by: python3 -m venv peer &&"
            f" peer/bin/pip install {' '.join(_PACKAGES)}"
        ) from error
    return os.path.abspath(python)


def _environment() -> dict[str, str]:
    """Returns this environment without what is for this interpreter alone."""
    own = ("PYTHONPATH", "PYTHONHOME")
    kept = {name: text for name, text in os.environ.items() if name not in own}
    # It would ask lightly's server for newer versions.
    return {**kept, "LIGHTLY_DID_VERSION_CHECK": "True"}


@contextlib.contextmanager
def _process(
    python: str, case: Mapping[str, Any], folder: str
) -> Iterator[Callable[[], Any]]:
    """Runs a case of `peer_program`, which waits between its answers.

    Yields a function that returns the next answer: at first what describes the
    case, then images per second. It raises `UserError` if the process failed.
    """
    # A folder without modules whose names other packages use, too.
    program = shutil.copy(peer_program.__file__, folder)
    log = os.path.join(folder, "errors")
    with open(log, "w") as errors_file:
        process = subprocess.Popen(
            [python, program, json.dumps(case)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_file,
            env=_environment(),
            cwd=folder,
            text=True,
        )
    assert process.stdin is not None and process.stdout is not None
    asked, answers = process.stdin, process.stdout

    def answer() -> Any:
        with contextlib.suppress(BrokenPipeError):
            print(file=asked, flush=True)
        if line := answers.readline():
            return json.loads(line)
        status = process.wait()
        with open(log, errors="replace") as file:
            lines = file.read().strip().splitlines() or [f"status {status}"]
        if status < 0:
            lines.append(f"ended by {signal.Signals(-status).name}")
        raise errors.UserError(f"failed: {lines[-1]}")

    try:
        yield answer
    finally:
        process.kill()
        with contextlib.suppress(BrokenPipeError):
            process.communicate()


# ---- Cases -------------------------------------------------------------------


def _step(options: Pretrain) -> Case:
    """The training step of a run, with its default settings, on noise."""
    images, side = options.schedule.batch_size, options.views.image_size
    assert side
    noise = np.random.default_rng(0)
    pixels = noise.integers(0, 256, [images, side, side, 3], np.uint8)
    strategy = distribution.strategy("default")
    gpus = tf.config.list_physical_devices("GPU")
    device = "cuda" if gpus else "cpu"
    timed = _STEPS[device]
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
        return 2 * images * timed / steps(timed)

    steps(2)  # They build graphs.
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
            "device": device,
            "steps": timed,
            "projections": projections.tolist(),
        },
    )
