"""The laboratory's command line: `python -m lab COMMAND [flags]`."""

import sys

from lab.commands.benchmark import Benchmark
from lab.commands.reproduce import Reproduce
from tf_contrastive import __main__ as command_line

COMMANDS = {"reproduce": Reproduce, "benchmark": Benchmark}


def main() -> int:
    """Runs the command that the arguments name and returns its exit status."""
    _, *words = sys.argv
    # `benchmark loss` is `benchmark --benchmark=loss`.
    if words[:1] == ["benchmark"] and words[1:] and words[1][:1] != "-":
        sys.argv[2] = f"--benchmark={words[1]}"
    return command_line.main("lab", COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
