"""The options of `quickstart`."""

import dataclasses

from tf_contrastive.config.fields import Command, Terminal, group, option


@dataclasses.dataclass(frozen=True)
class Runs:
    """Where the quickstart's runs are."""

    workdir: str = option("runs/quickstart", "folder of the runs")
    fresh: bool = option(False, "train again from scratch")


@dataclasses.dataclass(frozen=True)
class Quickstart(Command):
    """Train, evaluate, export and serve on embedded digits, in two minutes."""

    runs: Runs = group(Runs())
    terminal: Terminal = group(Terminal())
