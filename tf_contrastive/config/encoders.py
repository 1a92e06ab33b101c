"""The options of `encoders`."""

import dataclasses

from tf_contrastive.config.fields import Command, Terminal, group


@dataclasses.dataclass(frozen=True)
class Encoders(Command):
    """List the trained encoders that come with the package."""

    terminal: Terminal = group(Terminal())
