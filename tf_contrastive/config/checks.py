"""Checks of options' values: what is allowed, or None if a value is."""

import operator
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any

from tf_contrastive.base.errors import UserError, arg, did_you_mean

# Value -> None if it is allowed, else what is allowed.
Check = Callable[[Any], str | None]
# The sizes of float32's normal numbers: TensorFlow makes 0 of smaller ones, and
# infinity of larger ones.
_FLOAT32_MIN, _FLOAT32_MAX = 2.0**-126, (2 - 2.0**-23) * 2.0**127
FLOAT32 = "that float32 holds (1.2e-38 to 3.4e38 in size, or 0)"
# Counts and sizes are int32 in some operations of TensorFlow.
INT_MAX = 2**31 - 1


def one_of(value: Any, known: Iterable[str]) -> str | None:
    """Checks a name; the answer to another one suggests the nearest."""
    known = list(known)
    if value in known:
        return None
    return f"one of {', '.join(known)}{did_you_mean(str(value), known)}"


def is_float32(value: Any) -> bool:
    """Whether float32 holds a number, but for its last digits."""
    return value == 0 or _FLOAT32_MIN <= abs(value) <= _FLOAT32_MAX


def bounds(
    value: float, limits: Mapping[str, Any], is_float: bool
) -> str | None:
    """Checks a number by its limits; see `fields.option`."""
    minimum, above, most = (limits[n] for n in ("minimum", "above", "maximum"))
    if minimum is None and above is None:
        minimum = 0
    known = [
        (word, limit, holds)
        for word, limit, holds in (
            ("at least", minimum, operator.ge),
            ("above", above, operator.gt),
            ("at most", most, operator.le),
        )
        if limit is not None
    ]
    text = " and ".join(f"{word} {limit:.12g}" for word, limit, _ in known)
    if is_float and not is_float32(value):
        return f"{text}, and a number {FLOAT32}"
    if not is_float and most is None and value > INT_MAX:
        return f"at most {INT_MAX}"
    within = all(holds(value, limit) for _, limit, holds in known)
    return None if within else text


def check_float32(values: Mapping[str, Any]) -> None:
    """Raises `UserError` for the first number that float32 does not hold.

    Values that are not numbers are left out.
    """
    for name, value in values.items():
        if isinstance(value, Real) and not is_float32(value):
            raise UserError(f"{arg(name, value)}: must be a number {FLOAT32}")


def text(value: str) -> str | None:
    """Checks a text: `config.flags` has a line for each option, in UTF-8."""
    if value.startswith("~"):
        return "a path whose ~ is replaced by the folder of a user"
    if value.isprintable() and value == value.strip():
        return None
    return "printable text on one line, without spaces at its ends"


def plain_path(value: str) -> str | None:
    """Checks a folder of checkpoints for characters of patterns.

    TensorFlow deletes old checkpoints by patterns that it makes of the path.
    """
    if set(value) & set("*?[]\\"):
        return "a folder without the characters * ? [ ] and \\"
    return None


def split_list(value: str) -> list[str]:
    """Splits a comma-separated value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def each(check: Check) -> Check:
    """Makes the check of a list whose entries have one."""
    return lambda values: next(filter(None, map(check, values)), None)


def distinct(values: Sequence[Any]) -> str | None:
    """Checks that a list has no value twice."""
    is_distinct = len(set(values)) == len(values)
    return None if is_distinct else "a list without repeated values"


def matching(pattern: str, allowed: str) -> Check:
    """Makes the check of a text by a regular expression."""
    return lambda value: None if re.fullmatch(pattern, value) else allowed


def shell_words(value: str) -> str | None:
    """Checks flags within a flag, which a shell must be able to split."""
    try:
        shlex.split(value)
    except ValueError:
        return "flags as a shell splits them, with every quote closed"
    return None


def check_encoder(options: Any, data: str, otherwise: str = "") -> None:
    """Raises `UserError` unless there is one encoder, of a run or an export.

    An export needs the option named `data`; `otherwise` ends a message.
    """
    if bool(options.workdir) == bool(options.saved_model):
        raise UserError(
            f"set one of {arg('workdir', 'RUN')} and"
            f" {arg('saved_model', 'EXPORT/VERSION')}{otherwise}"
        )
    if options.saved_model and not getattr(options, data):
        raise UserError(
            f"{arg('saved_model', options.saved_model)} needs"
            f" {arg(data, 'NAME')}: an export does not name its dataset"
        )
