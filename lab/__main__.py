"""The laboratory's command line: `python -m lab COMMAND [flags]`."""

import sys

from lab.commands.benchmark import Benchmark
from lab.commands.reproduce import Reproduce
from tf_contrastive import __main__ as command_line

COMMANDS = {"reproduce": Reproduce, "benchmark": Benchmark}

if __name__ == "__main__":
    sys.exit(command_line.main("lab", COMMANDS))
