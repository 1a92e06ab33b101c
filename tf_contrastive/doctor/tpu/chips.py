"""What a TPU of each generation has, per core of its compiler's topology."""

import math
import re
from typing import NamedTuple

from tf_contrastive.base import errors


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
