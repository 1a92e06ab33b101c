"""What the options of every command have in common."""

import dataclasses
from typing import Any, ClassVar

from tf_contrastive.config.fields import option, validate_fields


@dataclasses.dataclass(frozen=True)
class Terminal:
    """Output on stderr."""

    verbosity: str = option(
        "normal",
        "output on stderr; quiet: warnings and errors; normal: also progress;"
        " debug: also the logs of TensorFlow and other libraries",
        choices=("quiet", "normal", "debug"),
        identity=False,
    )


class Command:
    """Base of a command's options: a frozen dataclass of groups."""

    # Options that `--help` shows; `--helpfull` shows all. Empty: all.
    COMMON: ClassVar[tuple[str, ...]] = ()

    terminal: Terminal

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that presets among the given ones set."""
        del given
        return {}

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        validate_fields(self)
        self._check()

    def _check(self) -> None:
        """Raises `UserError` for values that do not go together."""
