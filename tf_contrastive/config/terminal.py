"""What every command takes: how much it tells while it works."""

import dataclasses

from tf_contrastive.config.fields import option

VERBOSITIES = ("quiet", "normal", "debug")


@dataclasses.dataclass(frozen=True)
class Terminal:
    """What stderr tells."""

    verbosity: str = option(
        "normal",
        "what stderr tells; quiet: warnings and errors; normal: progress, too;"
        " debug: also what TensorFlow and other libraries log",
        choices=VERBOSITIES,
        identity=False,
    )
