"""Bases of commands and of their groups of options."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import dataclass_transform

from tf_contrastive.config import fields
from tf_contrastive.config.fields import option


@dataclass_transform(frozen_default=True)
class Group:
    """Base of groups of options: frozen dataclasses, if of this package."""

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("tf_contrastive."):
            dataclasses.dataclass(frozen=True)(cls)


class Terminal(Group):
    """Output on stderr."""

    verbosity: str = option(
        "normal",
        "output on stderr; quiet: warnings and errors; normal: also progress;"
        " debug: also the logs of TensorFlow and other libraries",
        choices=("quiet", "normal", "debug"),
        identity=False,
        per_host=True,
    )


class Command(Group):
    """Base of a command's options, which are groups."""

    # Options that `--help` shows; `--helpfull` shows all. Empty: all.
    COMMON: ClassVar[tuple[str, ...]] = ()
    # Option that takes all flags that are not of this command.
    OTHERS: ClassVar[str] = ""
    # Whether only the first of a cluster's processes runs it.
    IS_OF_ONE: ClassVar[bool] = False

    if TYPE_CHECKING:
        terminal: Terminal = Terminal()  # The last group of each command.

    @classmethod
    def presets(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Returns the options that others among the given ones set."""
        return {}

    def shared_options(self) -> dict[str, str]:
        """Returns the options that all workers must share, by name."""
        return {
            option.name: fields.written(option.value)
            for option in fields.options(self)
            if not option.field.metadata["per_host"]
        }

    def validate(self) -> None:
        """Raises `UserError` for values, or pairs of them, that cannot work."""
        fields.validate_fields(self)
        self._check()

    def _check(self) -> None:
        """Raises `UserError` for values that do not go together."""
