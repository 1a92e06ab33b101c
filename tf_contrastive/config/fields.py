"""Options as fields of dataclasses, groups of them, and their checks."""

import copy
import dataclasses
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from tf_contrastive.errors import UserError, did_you_mean, unknown

T = TypeVar("T")
# Value -> None if it is allowed, else what is allowed.
Check = Callable[[str], str | None]
# Component, such as a loss -> its options and their defaults.
Components = Mapping[str, Mapping[str, Any]]


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] | None = None,
    check: Check | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    required: bool = False,
    identity: bool = True,
    read: Callable[[str], Any] | None = None,
) -> Any:
    """A dataclass field that holds all that its flag needs.

    Args:
      default: the default. The field's annotation is the flag's type.
      help: one line, with the unit.
      choices: the allowed values of a closed set.
      check: the check of an open set.
      minimum, maximum, above: bounds of a number (`above` is exclusive).
      required: whether the command line must set it.
      identity: whether it affects what a run computes. The others may change
        when a run is resumed.
      read: for `read_values`: text -> value, such as the numbers of a list.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices) if choices else None,
        "check": check,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "required": required,
        "identity": identity,
        "read": read,
    }
    return dataclasses.field(default=default, metadata=metadata)


def component_option(
    components: Components, name: str, help: str, **metadata: Any
) -> Any:
    """An option whose default depends on the component, such as the loss.

    Args:
      components: the options of each component.
      name: of the option in `components`.
      help: one line, to which the components' defaults are appended.
      **metadata: see `option`.
    """
    takers: dict[str, list[str]] = {}
    for component, defaults in components.items():
        if name in defaults:
            takers.setdefault(_text(defaults[name]), []).append(component)
    texts = [
        default if len(names) > 4 else f"{default} ({', '.join(names)})"
        for default, names in takers.items()
    ]
    return option(None, f"{help}; default: {', '.join(texts)}", **metadata)


def _text(default: Any) -> str:
    if isinstance(default, tuple):
        return ",".join(map(_text, default))
    if isinstance(default, float):
        return f"{default:g}"
    return default if isinstance(default, str) else str(default).lower()


@dataclasses.dataclass(frozen=True)
class _Place:
    """How a group's options differ from its dataclass; see `group`."""

    prefix: str = ""
    help: str = ""
    identity: bool = True
    omit: Sequence[str] = ()
    changes: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=dict
    )


def group(
    defaults: Any,
    prefix: str = "",
    *,
    help: str = "",
    identity: bool = True,
    omit: Sequence[str] = (),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Any:
    """A field that holds a group of options of a command or of another group.

    The same dataclass may occur twice: `group(Schedule(), "linear_")` has the
    options `linear_epochs`, `linear_batch_size`, ...

    Args:
      defaults: an instance of the group, with its defaults.
      prefix: prepended to the names of its options.
      help: prepended to their help.
      identity: whether any of them affects what a run computes.
      omit: fields that are not options here.
      changes: field -> metadata (see `option`) that differs here.
    """
    place = _Place(prefix, help, identity, omit, changes or {})
    return dataclasses.field(default=defaults, metadata={"place": place})


def fields(config: Any) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields (group name, field, value) of every option of a command."""
    for field in dataclasses.fields(config):
        for inner, value in _options(getattr(config, field.name), _of(field)):
            yield field.name, inner, value


def group_options(
    values: Any, prefix: str = ""
) -> Iterator[tuple[dataclasses.Field, Any]]:
    """Yields (field, value) of every option of a group."""
    return _options(values, _Place(prefix))


def _of(field: dataclasses.Field) -> _Place:
    return field.metadata.get("place", _Place())


def _options(
    values: Any, place: _Place
) -> Iterator[tuple[dataclasses.Field, Any]]:
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if field.name in place.omit:
            continue
        if dataclasses.is_dataclass(value):
            inner = _of(field)
            inner = dataclasses.replace(
                inner,
                prefix=place.prefix + inner.prefix,
                help=place.help + inner.help,
                identity=place.identity and inner.identity,
            )
            yield from _options(value, inner)
            continue
        renamed = copy.copy(field)
        renamed.name = place.prefix + field.name
        about = field.metadata | place.changes.get(field.name, {})
        about["help"] = place.help + about["help"]
        about["identity"] = place.identity and about["identity"]
        renamed.metadata = MappingProxyType(about)
        yield renamed, value


def replace(config: T, **values: Any) -> T:
    """Returns `config` with the named options replaced, whatever their group.

    Raises:
      UserError: for an unknown name.
    """
    known = [field.name for _, field, _ in fields(config)]
    for name in values:
        if name not in known:
            raise unknown("option", name, known)
    return _replaced(config, values, "")


def _replaced(group: Any, values: Mapping[str, Any], prefix: str) -> Any:
    changed = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        if dataclasses.is_dataclass(value):
            changed[field.name] = _replaced(
                value, values, prefix + _of(field).prefix
            )
        else:
            changed[field.name] = values.get(prefix + field.name, value)
    return dataclasses.replace(group, **changed)


def read_values(group: Any) -> dict[str, Any]:
    """Returns a group's values by field, texts converted by their `read`."""
    return {
        field.name: (field.metadata["read"] or (lambda value: value))(
            getattr(group, field.name)
        )
        for field in dataclasses.fields(group)
    }


def given_options(
    group: Any, kind: str, components: Components, prefix: str = ""
) -> dict[str, Any]:
    """Returns the options that were set of those that depend on a component.

    Args:
      group: such as a `Loss`. An option that is None was not set.
      kind: the field that names the component. A field `kind_NAME` holds the
        component's option NAME.
      components: the options of each component.
      prefix: of the group's options, for errors.

    Raises:
      UserError: for an option that the component does not take.
    """
    component = getattr(group, kind)
    given = {}
    for field in dataclasses.fields(group):
        value = getattr(group, field.name)
        name = field.name.removeprefix(f"{kind}_")
        takers = [c for c, options in components.items() if name in options]
        if value is None or not takers:
            continue
        if component not in takers:
            raise UserError(
                f"`{prefix}{field.name}` is not an option of"
                f" {prefix}{kind}={component}, only of {', '.join(takers)}"
            )
        given[name] = value
    return given


def differences(before: Any, after: Any) -> list[str]:
    """Returns how two configs of a command differ, as `name=old -> new`.

    Options that were not set before are left out.
    """
    return [
        f"{field.name}={old} -> {new if new != '' else '(none)'}"
        for (_, field, old), (_, _, new) in zip(
            fields(before), fields(after), strict=True
        )
        if old is not None and old != new
    ]


def validate_fields(config: Any) -> None:
    """Raises `UserError` for the first option whose value is not allowed."""
    for _, field, value in fields(config):
        if allowed := problem(field, value):
            if value == "":
                raise UserError(f"`{field.name}`: must be {allowed}")
            if isinstance(value, float):
                value = f"{value}".removesuffix(".0")  # As it was typed.
            raise UserError(f"{field.name}={value}: must be {allowed}")


def check_options(group: type, prefix: str, values: Mapping[str, Any]) -> None:
    """Raises `UserError` for the first value that its option does not allow.

    Args:
      group: the dataclass of the options, such as `Loss`.
      prefix: what may precede an option's name in the name of its field.
      values: by the options' names.
    """
    known = {f.name.removeprefix(prefix): f for f in dataclasses.fields(group)}
    for name, value in values.items():
        if allowed := problem(known[name], value):
            raise UserError(f"{name}={value}: must be {allowed}")


def problem(field: dataclasses.Field, value: Any) -> str | None:
    """Returns what `field` allows, or None if `value` is allowed."""
    about = field.metadata
    if value is None:
        return None if field.default is None else "set"
    if about["choices"] and value not in about["choices"]:
        hint = did_you_mean(str(value), about["choices"])
        return f"one of {', '.join(about['choices'])}{hint}"
    if about["check"] and (allowed := about["check"](value)):
        return allowed
    if about["required"] and value == "":
        return "set; it has no default"
    bounds = " and ".join(
        f"{word} {about[bound]:.12g}"
        for word, bound in (
            ("at least", "minimum"),
            ("above", "above"),
            ("at most", "maximum"),
        )
        if about[bound] is not None
    )
    if isinstance(value, float) and not math.isfinite(value):
        return ", ".join(filter(None, ("a finite number", bounds)))
    if (
        (about["minimum"] is not None and value < about["minimum"])
        or (about["above"] is not None and value <= about["above"])
        or (about["maximum"] is not None and value > about["maximum"])
    ):
        return bounds
    return None


def split_list(value: str) -> list[str]:
    """Splits a comma-separated value."""
    return [part.strip() for part in value.split(",") if part.strip()]


def read_numbers(value: str) -> tuple[float, ...]:
    """Returns the numbers of a comma-separated value."""
    return tuple(float(part) for part in split_list(value))


def read_counts(value: str) -> tuple[int, ...]:
    """Returns the integers of a comma-separated value."""
    return tuple(int(part) for part in split_list(value))


def numbers(
    what: str,
    example: str,
    allowed: Callable[[Sequence[float]], bool],
    *,
    integers: bool = False,
    empty: bool = False,
) -> Check:
    """Makes the check of a comma-separated list of numbers.

    Args:
      what: the allowed numbers, in words.
      example: an allowed list.
      allowed: numbers -> whether they are allowed.
      integers: whether they must be integers.
      empty: whether the list may be empty.
    """

    def check(value: str) -> str | None:
        try:
            parsed = (read_counts if integers else read_numbers)(value)
            valid = all(map(math.isfinite, parsed)) and (
                allowed(parsed) if parsed else empty
            )
        except ValueError:
            valid = False
        if valid:
            return None
        return f"a comma-separated list of {what}, such as {example}"

    return check


def positive_numbers(example: str, *, empty: bool = False) -> Check:
    """Makes the check of a list of distinct numbers above 0; see `numbers`."""
    return numbers(
        "distinct numbers above 0",
        example,
        lambda x: min(x) > 0 and len(set(x)) == len(x),
        empty=empty,
    )


def positive_integers(example: str, *, distinct: bool = False) -> Check:
    """Makes the check of a list of integers from 1; see `numbers`."""
    return numbers(
        "distinct integers from 1" if distinct else "integers from 1",
        example,
        lambda x: min(x) >= 1 and not (distinct and len(set(x)) < len(x)),
        integers=True,
    )


def list_of(known: Iterable[str], problem_of: Check | None = None) -> Check:
    """Makes the check of a comma-separated list of names.

    Args:
      known: the names.
      problem_of: the check of one name, if there are more than `known`.
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


def shell_words(value: str) -> str | None:
    """Checks flags within a flag, which a shell must be able to split."""
    try:
        shlex.split(value)
    except ValueError:
        return "flags as a shell splits them, with every quote closed"
    return None
