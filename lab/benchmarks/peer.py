"""SimCLR's step, on CPUs or a GPU, input and kNN beside those of lightly.

lightly, a PyTorch package, runs in a process of its own, in an interpreter of
the user's; it waits while ours is measured, and the other way round. Both have
the same network, loss, optimizer and augmentation; the number of weights, the
loss of the same projections and the accuracy of kNN are compared. Each has its
own fastest settings.
"""

import functools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import psutil
import tensorflow as tf

from lab.benchmarks import (
    evaluation,
    input,
    measure,
    peer_process,
)
from lab.benchmarks.options import Common, Peer
from tf_contrastive import classifiers, datasets, distribution, losses, train
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config import checks
from tf_contrastive.config.loss import NTXent
from tf_contrastive.config.optimizer import SGD
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.views import SimCLR
from tf_contrastive.datasets import synthetic
from tf_contrastive.model import networks

PEER = "lightly"
# Steps of one turn, behind one that is not timed.
_STEPS = 2
# Cores in use by others, above which no figure is to be trusted.
_QUIET = 0.5
# Of what is compared: the relative difference that is allowed.
_ALLOWED = {"parameters": 0.0, "loss": 1e-5, "correct": 1e-3}
# Defaults of lightly's kNN: of the votes, and their number.
_KNN_TEMPERATURE, _NEIGHBORS = 0.1, 200
_CLASSES = 100

_COLUMNS = {
    "work": "{work}",
    "implementation": "{implementation}",
    "images/s": "{images_per_second:,.1f}",
    "ours / peer": "{times_peer:.2f}",
    "parameters": "{parameters:,}",
    "settings": "{settings}",
    "load of others": "{load_of_others:.1f}",
    "note": "{note}",
}

# Measures once: images per second.
Turn = Callable[[], float]


class Case(NamedTuple):
    """What is compared.

    Attributes:
      work: its title.
      ours: implementation -> what measures it once, and its settings.
      facts: what lightly's process must describe equally.
      peer: the case of `peer_program`.
    """

    work: str
    ours: Mapping[str, tuple[Turn, str]]
    facts: Mapping[str, float]
    peer: Mapping[str, Any]


def run(common: Common, options: Peer) -> measure.Report:
    """Measures the cases one after the other."""
    environment = measure.environment()
    devices = environment["accelerators"]
    if devices and (len(devices) > 1 or "GPU" not in devices[0]):
        raise errors.UserError(
            f"{errors.arg('benchmark', options.name)} measures CPUs or one GPU,"
            f" and this machine has {', '.join(devices)}: hide them, such as by"
            " CUDA_VISIBLE_DEVICES=0, or -1 for CPUs"
        )
    python = ""
    if not common.only_ours:
        python = peer_process.interpreter(options.peer_python)
    load = os.getloadavg()[0]
    rows: list[measure.Row] = []
    with files.temporary_folder() as folder:
        for case in cases(options, folder):
            terminal.info(f"{case.work}: {', '.join([*case.ours, PEER])}")
            rows += _measure(case, python, common.repeats, folder)
    after = os.getloadavg()[0]
    versions = environment["versions"]
    for row in rows:
        row.update(cores=_cores(), load_before=load, load_after=after)
        versions = {**versions, **row["versions"]}
    steps_on = f"; steps on {_gpu_name()}" if devices else ""
    lines = [
        f"{_cores()} cores{steps_on}; load average {load:.1f} before,"
        f" {after:.1f} after",
        ", ".join(
            f"{name} {versions[name]}"
            for name in ("tensorflow", "keras", "torch", "torchvision", PEER)
            if versions.get(name)
        ),
    ]
    tables = ["\n".join(lines), measure.table(_COLUMNS, rows)]
    busiest = max(row["load_of_others"] or 0.0 for row in rows)
    if busiest > _QUIET:
        tables.append(
            f"Other processes kept up to {busiest:.1f} cores busy: do not trust"
            " these figures, and measure again on a quiet machine."
        )
    ratios = {
        f"{row['work']}, {row['implementation']}: {PEER}": row["times_peer"]
        for row in rows
        if row["times_peer"]
    }
    return measure.Report(rows, tables, ratios)


def cases(options: Peer, folder: str) -> Iterator[Case]:
    """Yields the cases of the tasks; their files are in `folder`."""
    tasks = checks.split_list(options.peer_tasks)
    for run in options.steps() if "step" in tasks else ():
        yield _step(run, options.peer_compile)
    sizes = checks.read_counts(options.peer_image_sizes)
    for size in sizes if "input" in tasks else ():
        yield _input(size, options.peer_seconds, folder)
    if "knn" in tasks:
        yield _knn(options.embeddings(), folder)


def _measure(
    case: Case, python: str, repeats: int, folder: str
) -> list[measure.Row]:
    """Measures a case in turns; lightly's process ends before the others' load.

    Only the times of processes that have ended are known to be ours.
    """
    turns = {name: turn for name, (turn, _) in case.ours.items()}
    rates: dict[str, list[float]] = {name: [] for name in (*turns, PEER)}
    about: dict[str, Any] = {}
    note = ""
    start, others = time.perf_counter(), _seconds_of_others()
    try:
        if not python:
            _in_turns(turns, rates, repeats)
        else:
            with peer_process.Process(python, dict(case.peer), folder) as peer:
                about = peer.about
                _check_equal(case.facts, about)
                _in_turns({**turns, PEER: peer.turn}, rates, repeats)
    except errors.UserError as error:
        note = str(error)
    others = _seconds_of_others() - others
    load = others / (time.perf_counter() - start)
    if note:
        rates[PEER].clear()
    medians = {n: statistics.median(r) for n, r in rates.items() if r}
    peer_rate = medians.get(PEER)
    common = {
        "work": case.work,
        # Where the machine counts otherwise, such as in some sandboxes.
        "load_of_others": None if load < -_QUIET else max(load, 0.0),
        "versions": about.get("versions", {}),
    }
    rows = [
        {
            **common,
            "implementation": name,
            "images_per_second": medians.get(name),
            "times_peer": peer_rate and medians[name] / peer_rate,
            "parameters": case.facts.get("parameters"),
            "settings": settings,
            "note": "",
        }
        for name, (_, settings) in case.ours.items()
    ]
    if python:
        rows.append(
            {
                **common,
                "implementation": PEER,
                "images_per_second": peer_rate,
                "times_peer": None,
                "parameters": about.get("parameters"),
                "settings": about.get("settings", ""),
                "note": note,
                "failed": bool(note),
            }
        )
    return rows


def _in_turns(
    turns: Mapping[str, Turn], rates: dict[str, list[float]], repeats: int
) -> None:
    """Adds the rate of each turn, which measures itself, to its rates."""
    for _ in range(repeats):
        for name, turn in turns.items():
            rates[name].append(turn())


def _check_equal(facts: Mapping[str, float], about: Mapping[str, Any]) -> None:
    """Raises `UserError` if lightly's process computes something else."""
    for name, ours in facts.items():
        theirs = about[name]
        if not math.isclose(theirs, ours, rel_tol=_ALLOWED[name]):
            raise errors.UserError(f"differs from ours: {name} (ours: {ours})")


def _seconds_of_others() -> float:
    """Returns the processors' seconds in other processes, since some time."""
    times = psutil.cpu_times()
    busy = ("user", "nice", "system", "irq", "softirq", "steal")
    return sum(getattr(times, n, 0.0) for n in busy) - sum(os.times()[:4])


def _gpu_name() -> str:
    """Returns the name of the first GPU."""
    [gpu, *_] = tf.config.list_physical_devices("GPU")
    details = tf.config.experimental.get_device_details(gpu)
    return str(details.get("device_name", "a GPU"))


def _cores() -> int:
    """Returns the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- Cases -------------------------------------------------------------------


def _step(options: Pretrain, compiled: bool) -> Case:
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
    model, _ = prepared.build()
    projections = noise.normal(size=[2, 4, 8]).round(3)
    optimizer = run.optimizer
    assert isinstance(run.loss, NTXent) and isinstance(optimizer, SGD)
    loss = losses.build("ntxent", temperature=run.loss.temperature)
    precision = run.runtime.precision
    with networks.precision(precision):
        step = model.make_train_function()
        batches = iter(synthetic.batches(run, None, images, strategy))

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
        {"ours": (turn, "defaults")},
        {
            "parameters": sum(
                v.shape.num_elements() for v in model.trainable_variables
            ),
            "loss": float(loss(np.float32(projections.transpose(1, 0, 2)))),
        },
        {
            "task": "step",
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
            "gpu": prepared.machine.gpu_capability is not None,
            "compiled": compiled,
            "steps": _STEPS,
            "projections": projections.tolist(),
        },
    )


def _input(size: int, seconds: float, folder: str) -> Case:
    """The batches that `pretrain` reads with SimCLR's policy."""
    path = input.images(size, folder)
    source = input.source_of(path)
    case = input.Case("simclr", size, input.default_batch_size(size))

    def turn(**options: Any) -> float:
        batches = iter(input.run_of(source, case, **options).batches())
        return case.batch_size * input.speed(batches, seconds)

    policy = input.run_of(source, case).options.views.policy
    assert isinstance(policy, SimCLR)
    style = "color_jitter_style=linear"
    return Case(
        f"input at {size} pixels",
        {
            "ours": (turn, "defaults"),
            "ours, linear colours": (
                functools.partial(turn, color_jitter_style="linear"),
                style,
            ),
        },
        {},
        {
            "task": "views",
            "path": path,
            "side": size,
            "strength": policy.color_jitter_strength,
            "blur": policy.blur,
            "min_crop_area": policy.min_crop_area,
            "batch_size": case.batch_size,
            "workers": _cores(),
            "seconds": seconds,
        },
    )


def _knn(sizes: tuple[int, int, int], folder: str) -> Case:
    """The class of each query by its nearest neighbours in a bank."""
    bank, queries, dimension = sizes
    rows, labels = evaluation.embeddings(bank + queries, dimension, _CLASSES)
    neighbors = min(_NEIGHBORS, bank)
    path = os.path.join(folder, "embeddings.npz")
    np.savez(
        path,
        bank=rows[:bank],
        labels=labels[:bank],
        queries=rows[bank:],
        classes=labels[bank:],
    )

    def predict() -> np.ndarray:
        [predictions] = classifiers.knn(
            rows[:bank],
            labels[:bank],
            rows[bank:],
            [neighbors],
            weights="exp",
            temperature=_KNN_TEMPERATURE,
        )
        return predictions

    def turn() -> float:
        start = time.perf_counter()
        predict()
        return queries / (time.perf_counter() - start)

    return Case(
        f"{neighbors}NN of {queries:,} against {bank:,} embeddings of"
        f" {dimension:,}",
        {"ours": (turn, "defaults")},
        {"correct": float(np.mean(predict() == labels[bank:]))},
        {
            "task": "knn",
            "path": path,
            "neighbors": neighbors,
            "temperature": _KNN_TEMPERATURE,
            "batch_sizes": [256, 1024],
        },
    )
