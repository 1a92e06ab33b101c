"""Options as fields of dataclasses, their values, and errors of them."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tf_contrastive.errors import UserError, did_you_mean, unknown


def option(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    check: Callable[[Any], str | None] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    required: bool = False,
    identity: bool = True,
) -> Any:
    """A dataclass field that carries all that its flag needs.

    Args:
      default: the default; its type, or the field's annotation, is the flag's.
      help: one line, with the unit.
      choices: the closed set of values, if it is one.
      check: value -> None, or what is allowed, for open sets.
      minimum, maximum, above: bounds of a number (`above` is exclusive).
      required: whether the command needs it to be given.
      identity: whether it decides what the run computes. The others may differ
        when a run is resumed.
    """
    metadata = {
        "help": help,
        "choices": choices,
        "check": check,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "required": required,
        "identity": identity,
    }
    return dataclasses.field(default=default, metadata=metadata)


def given_options(
    group: Any,
    kind: str,
    tables: dict[str, dict[str, Any]],
    prefix: str | None = None,
) -> dict[str, Any]:
    """Returns what was given of a group's options that depend on a name.

    Args:
      group: such as a `Loss`; an option that is None was not given.
      kind: the field that holds the name.
      tables: name -> its options.
      prefix: what may stand before an option's name in that of its field;
        None: `kind` and an underscore.

    Raises:
      UserError: for an option that what is named does not take.
    """
    chosen = getattr(group, kind)
    prefix = f"{kind}_" if prefix is None else prefix
    given = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        name = field.name.removeprefix(prefix)
        takers = [n for n, known in tables.items() if name in known]
        if value is None or not takers:
            continue
        if chosen not in takers:
            raise UserError(
                f"`{field.name}` is no option of {kind}={chosen}: it is one"
                f" of {', '.join(takers)}"
            )
        given[name] = value
    return given


def fields(config: Any) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (group name, field, value) of every option of a command."""
    for group in dataclasses.fields(config):
        values = getattr(config, group.name)
        for field in dataclasses.fields(values):
            yield group.name, field, getattr(values, field.name)


def replace(config: Any, **values: Any) -> Any:
    """Returns `config` with the named fields replaced, whatever their group."""
    groups: dict[str, dict[str, Any]] = {}
    for group, field, _ in fields(config):
        if field.name in values:
            groups.setdefault(group, {})[field.name] = values.pop(field.name)
    if values:
        known = [field.name for _, field, _ in fields(config)]
        raise unknown("option", next(iter(values)), known)
    return dataclasses.replace(
        config,
        **{
            name: dataclasses.replace(getattr(config, name), **changed)
            for name, changed in groups.items()
        },
    )


def differences(before: Any, after: Any) -> list[str]:
    """Returns what two configs of a command differ in, as `--name=old -> new`.

    Options that were not given before are left out.
    """
    return [
        f"{field.name}={old} -> {new if new != '' else '(none)'}"
        for (_, field, old), (_, _, new) in zip(
            fields(before), fields(after), strict=True
        )
        if old is not None and old != new
    ]


def problem(field: dataclasses.Field, value: Any) -> str | None:
    """Returns what is allowed for `field`, or None if `value` is."""
    m = field.metadata
    if value is None:
        return None if field.default is None else "given"
    if m["choices"] and value not in m["choices"]:
        hint = did_you_mean(str(value), m["choices"])
        return f"one of {', '.join(m['choices'])}{hint}"
    if m["check"] and (allowed := m["check"](value)):
        return allowed
    if isinstance(value, float) and not math.isfinite(value):
        return f"a finite number{_range(m, ', ')}"
    within = (
        (m["minimum"] is None or value >= m["minimum"])
        and (m["above"] is None or value > m["above"])
        and (m["maximum"] is None or value <= m["maximum"])
    )
    if not within:
        return _range(m)
    if m["required"] and value in ("", None):
        return "given; it has no default"
    return None


def _range(metadata: Mapping[str, Any], before: str = "") -> str:
    """The bounds of a number in words, behind `before` if there are any."""
    words = [
        f"{word} {metadata[bound]:.12g}"
        for word, bound in (
            ("at least", "minimum"),
            ("above", "above"),
            ("at most", "maximum"),
        )
        if metadata[bound] is not None
    ]
    return before * bool(words) + " and ".join(words)


def validate_fields(config: Any) -> None:
    """Raises `UserError` for the first option whose value is not allowed."""
    for _, field, value in fields(config):
        if allowed := problem(field, value):
            if value == "":
                raise UserError(f"`{field.name}`: must be {allowed}")
            if isinstance(value, float):
                value = f"{value}".removesuffix(".0")  # As it was typed.
            raise UserError(f"{field.name}={value}: must be {allowed}")


def shell_words(value: str) -> str | None:
    """What flags within a flag may be, or None if a shell can read `value`."""
    import shlex  # As difflib above.

    try:
        shlex.split(value)
    except ValueError:
        return "flags as a shell reads them, each quote with its other half"
    return None


def split_list(value: str) -> list[str]:
    """Splits a comma-separated flag value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def read_numbers(value: str) -> tuple[float, ...]:
    """Returns the numbers that a comma-separated value lists."""
    return tuple(float(part) for part in split_list(value))


def read_counts(value: str) -> tuple[int, ...]:
    """Returns the whole numbers that a comma-separated value lists."""
    return tuple(int(part) for part in split_list(value))


def list_of(
    known: Iterable[str],
    problem_of: Callable[[str], str | None] | None = None,
) -> Callable[[str], str | None]:
    """Makes the check of a comma-separated list of names.

    Args:
      known: the names.
      problem_of: what is wrong with a name, if that takes more than `known`.
    """
    known = tuple(known)

    def check(value: str) -> str | None:
        names = split_list(value)
        if problem_of:
            bad = [name for name in names if problem_of(name)]
        else:
            bad = [name for name in names if name not in known]
        if names and not bad:
            return None
        hint = did_you_mean(bad[0], known) if bad else ""
        return f"a comma-separated list of {', '.join(known)}{hint}"

    return check


_POSITIVE_NUMBERS = (
    "a comma-separated list of numbers above 0, such as 0.03,0.1,0.3"
)


def positive_numbers(value: str) -> str | None:
    """What a list of numbers above 0 may be, or None if `value` is one."""
    number = r"\d+(\.\d+)?(e-?\d+)?"
    parts = split_list(value)
    good = [re.fullmatch(number, part) and float(part) > 0 for part in parts]
    if all(good) and len(set(parts)) == len(parts):
        return None
    return _POSITIVE_NUMBERS


def some_positive_numbers(value: str) -> str | None:
    """As `positive_numbers`, of a list that must not be empty."""
    return positive_numbers(value) if value else _POSITIVE_NUMBERS


def whole_numbers(
    example: str,
    *,
    what: str = "whole numbers from 1 up",
    distinct: bool = False,
) -> Callable[[str], str | None]:
    """Makes the check of a comma-separated list of numbers from 1 up.

    Args:
      example: a list that is allowed.
      what: the numbers are, in words.
      distinct: whether each may stand there once.
    """

    def check(value: str) -> str | None:
        parts = split_list(value)
        good = [re.fullmatch(r"[1-9]\d*", part) for part in parts]
        once = not distinct or len(set(parts)) == len(parts)
        if parts and all(good) and once:
            return None
        return f"a comma-separated list of {what}, such as {example}"

    return check
