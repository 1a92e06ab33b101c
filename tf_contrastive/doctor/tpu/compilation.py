"""TPUs of each generation, and their compiler in a process of its own."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
from importlib import util
from typing import Any, NamedTuple

import tensorflow as tf

from tf_contrastive import datasets, train
from tf_contrastive.base import errors, files, installation, terminal
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.runtime import Machine
from tf_contrastive.doctor.smoke import substitute
from tf_contrastive.doctor.tpu import compiler

# Where `launch/install --tpu-compile` installs jax and libtpu.
_ENVIRONMENTS = (
    ".venv-tpu/bin/python",
    os.path.join(installation.ROOT, ".venv-tpu", "bin", "python"),
)
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


class Chip(NamedTuple):
    """One chip, from Google's published system architecture of Cloud TPU."""

    cores: int  # Devices of a chip, as its compiler counts them.
    flops: float  # A second, in bfloat16.
    bytes: float  # Of the chip's memory, a second.
    memory: float  # In bytes.
    host_chips: int  # Chips of a host.


# Prefix of a topology's name -> chip.
CHIPS = {
    "v4": Chip(2, 275e12, 1228e9, 32 * 2**30, 4),
    "v5e": Chip(1, 197e12, 819e9, 16 * 2**30, 8),
    "v5p": Chip(2, 459e12, 2765e9, 95 * 2**30, 4),
    "v6e": Chip(1, 918e12, 1640e9, 32 * 2**30, 8),
}


class Topology(NamedTuple):
    """A TPU slice: `name` is that of its compiler, such as v4:2x2x1."""

    name: str
    chip: Chip
    chips: int

    @property
    def cores(self) -> int:
        """Number of replicas of a run on the slice."""
        return self.chips * self.chip.cores

    @property
    def hosts(self) -> int:
        """Number of machines that deliver its input."""
        return -(-self.chips // self.chip.host_chips)


def topology(name: str) -> Topology:
    """Reads a topology's name.

    Raises:
      UserError: for another form, or an unknown chip.
    """
    match = re.fullmatch(r"(v\d\w*):(\d+(?:x\d+){1,2})", name)
    if not match or match[1] not in CHIPS:
        raise errors.UserError(
            f"{errors.arg('compile_for', name)} is no topology: use CHIP:SHAPE,"
            f" such as v4:2x2x1 or v5e:2x2; chips: {', '.join(CHIPS)}"
        )
    chips = math.prod(map(int, match[2].split("x")))
    return Topology(name, CHIPS[match[1]], chips)


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
            [self._python, "-P", "-c", "import jax, libtpu"],
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
          mode: `compiler.WHOLE`; or `PLAN`, without "generated_code".

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
        run = fields.replace(run, standardize=None)
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
