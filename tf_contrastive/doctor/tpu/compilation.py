"""Runs the TPU's compiler in a process of its own."""

import copy
import dataclasses
import json
import os
import re
import subprocess
import sys
from importlib import util
from typing import Any

import tensorflow as tf

from tf_contrastive import datasets, train
from tf_contrastive.base import errors, files, installation, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Machine
from tf_contrastive.doctor.smoke import substitute
from tf_contrastive.doctor.tpu import compiler
from tf_contrastive.doctor.tpu.chips import Topology
from tf_contrastive.doctor.tpu.lowering import Step

# Batches at most, besides the run's own, to find the largest.
_MORE = 6
# Batches that TPUs fill their vector units with.
_MULTIPLE = 8
# Where `launch/install --tpu-compile` installs jax and libtpu.
_ENVIRONMENTS = (
    ".venv-tpu/bin/python",
    os.path.join(installation.ROOT, ".venv-tpu", "bin", "python"),
)
_IMPORTED = """\
from importlib.metadata import version
print(version("jax"), version("libtpu"))"""
# Of a dataset that is not on this machine: ImageNet's.
_EXAMPLES = 1_281_167

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}
# Of two versions of libtpu; the second one counts temporaries alone.
_EXCESS = re.compile(
    r"(?:Used |\()([\d.]+)([KMG])(?: of |\) exceeds available HBM \()"
    r"([\d.]+)([KMG])"
)

# What `compiler.py` prints of a program.
Facts = dict[str, Any]


class Compiler:
    """Compiles programs for a slice.

    Args:
      target: the slice.
      python: an interpreter with jax and libtpu; empty: that of
        `launch/install --tpu-compile`.
      cores: of the slice that run a program; by default, all.

    Raises:
      UserError: if there is no such interpreter.
    """

    def __init__(
        self, target: Topology, python: str = "", cores: int = 0
    ) -> None:
        self.target, self.cores = target, cores or target.cores
        self._python = _interpreter(python)
        done = subprocess.run(
            # -P: no module of the current folder is imported.
            [self._python, "-P", "-c", _IMPORTED],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise self._failure(done)

    def _failure(self, done: subprocess.CompletedProcess) -> errors.UserError:
        lines = done.stderr.strip().splitlines()
        reason = lines[-1] if lines else f"status {done.returncode}"
        return errors.UserError(
            f"{errors.arg('compile_for', self.target.name)}: the compiler"
            f" failed ({reason}): run launch/install --tpu-compile"
        )

    def compile(
        self, hlo: bytes, title: str, mode: str = compiler.WHOLE
    ) -> Facts:
        """Compiles serialized HLO; see `needed` for one that does not fit.

        Args:
          hlo: the program.
          title: its name in progress lines.
          mode: how far, one of `compiler.MODES`. Only a whole program has
            "generated_code" and "cycles".

        Raises:
          UserError: if it fails for any other reason than memory.
        """
        with (
            terminal.elapsed(f"compiling for {self.target.name}: {title}"),
            files.temporary_folder() as folder,
        ):
            program = os.path.join(folder, "program.hlo")
            files.write(program, hlo)
            done = subprocess.run(
                [
                    self._python,
                    compiler.__file__,
                    program,
                    self.target.name,
                    str(self.cores),
                    mode,
                ],
                capture_output=True,
                text=True,
                check=False,
            )
        try:
            facts = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, ValueError) as error:
            raise self._failure(done) from error
        if "error" in facts and not _EXCESS.search(facts["error"]):
            raise errors.UserError(
                f"{errors.arg('compile_for', self.target.name)}:"
                f" {errors.first_line(facts['error'])}"
            )
        return facts


def _interpreter(given: str) -> str:
    """Returns an interpreter with jax and libtpu."""
    for candidate in (given,) if given else _ENVIRONMENTS:
        if os.access(candidate, os.X_OK):
            return candidate
    if not given and all(map(util.find_spec, ("jax", "libtpu"))):
        return sys.executable
    raise errors.UserError(
        f"{errors.arg('compile_for')}: there is no {candidate}: run"
        " launch/install --tpu-compile in a clone, or install the extra"
        " tpu-compile in an environment of Python 3.12 or 3.13, and set"
        f" {errors.arg('compile_python')} to its bin/python"
    )


def needed(facts: Facts) -> tuple[float, float | None]:
    """Returns (bytes that a program needs, bytes that there are, if it fails).

    The second is None for a program that fits. The first includes the program's
    own code, if it was generated.
    """
    if "error" not in facts:
        return facts["memory"] + facts.get("generated_code", 0), None
    match = _EXCESS.search(facts["error"])
    assert match
    used, unit, limit, limit_unit = match.groups()
    return float(used) * _UNITS[unit], float(limit) * _UNITS[limit_unit]


def prepare(run: Pretrain, cores: int) -> tuple[train.PreparedRun, bool]:
    """Returns the run on that many cores, and whether its data are here.

    Raises:
      UserError: for a batch that these cores cannot share.
    """
    if run.setup.standardize == "dataset":  # Any constants compile equally.
        run = fields.replace(run, standardize="imagenet")
    strategy = tf.distribute.get_strategy()
    machine = Machine(cores, on_tpu=True, on_cpu=False, rounded_products=True)
    try:
        return train.prepare(run, strategy, machine), True
    except errors.AbsentDataError:
        splits = train.Splits(_assumed(run))
        return train.prepare(run, strategy, machine, splits), False


def _assumed(run: Pretrain) -> datasets.Source:
    """Returns digits that look like data that are not on this machine."""
    name, side = substitute(run.data.dataset)
    similar = train.open_data(
        fields.replace(run, dataset=name, split="train", test_split="test")
    ).train
    terminal.warning(
        f"{run.data.dataset} is not on this machine: assuming images of"
        f" {side} pixels and {similar.info.num_classes:,} classes"
    )
    info = dataclasses.replace(
        similar.info,
        name=run.data.dataset,
        num_examples=_EXAMPLES,
        image_shape=(side, side, 3),
    )
    return dataclasses.replace(similar, info=info)


class Programs:
    """The compiled programs of a run, for any batch of a core."""

    def __init__(self, run: train.PreparedRun, compiler: Compiler) -> None:
        self._run, self._compiler = run.options, compiler
        encoder, runtime = run.options.encoder, run.options.runtime
        self._title = f"{encoder.label}, {runtime.precision}"
        with terminal.elapsed(f"building {self._title}"):
            self._step = Step(run)
        self._lowered: dict[int, bytes] = {}
        self._steps: dict[tuple[int, str], Facts] = {}

    def on(self, compiler: Compiler) -> "Programs":
        """Returns the same programs, for another slice of as many cores."""
        programs = copy.copy(self)
        programs._compiler, programs._steps = compiler, {}
        return programs

    def step(self, images: int, mode: str = compiler.WHOLE) -> Facts:
        """Compiles the training step of `images` per core."""
        key = images, mode
        title = f"{self._title}, {images} images per core"
        if images not in self._lowered:
            with terminal.elapsed(f"lowering {title}"):
                self._lowered[images] = self._step.lower(images)
        if key not in self._steps:
            self._steps[key] = self._compiler.compile(
                self._lowered[images], title, mode
            )
        return self._steps[key]

    def largest(self, images: int) -> int | None:
        """Returns the largest batch per core that fits, of those tried.

        Larger ones do not fit, or only because the compiler computes
        activations twice. Memory grows linearly with the batch, nearly: two
        programs show how, and the next ones correct it.

        Args:
          images: per core, of the run.
        """
        chip = self._compiler.target.chip
        memory = chip.memory / chip.cores
        unit = _MULTIPLE * max(self._run.batch.grad_cache_chunks, 1)
        images = min(images, 4 * unit)
        points: list[tuple[int, float]] = []
        fits, fails = 0, sys.maxsize
        for _ in range(1 + _MORE):
            size, limit = needed(self.step(images, compiler.PLAIN_PLAN))
            if limit is None:
                fits = images
                points.append((images, size))
            else:
                fails, memory = images, limit
            if fits // unit + 1 >= fails / unit:
                break
            line = [(0, 0.0), *(points or [(images, size)])]
            (x0, y0), (x1, y1) = line[-2:]
            estimate = int(x1 + (memory - y1) * (x1 - x0) / (y1 - y0))
            between = fits // unit + 1, -(-fails // unit) - 1
            images = unit * min(max(estimate // unit, between[0]), between[1])
        return fits or None
