"""Options as fields of dataclasses, groups of them, and commands.

An option whose type has None is `auto` on the command line where it is None:
its value follows from others, or from the data and the devices.
"""

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Callable, Iterable, Iterator
from types import NoneType
from typing import Any, NamedTuple, TypeVar

from tf_contrastive.base.errors import UserError, arg, unknown
from tf_contrastive.config import checks

T = TypeVar("T")
AUTO = "auto"
# A part of the user's own, module:name.
_OWN = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
# What precedes the allowed entries of a list.
_LIST = "a comma-separated list, each"
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
# Type -> how a value is read from text, and what the text must be.
_READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: _BOOLEANS[text.lower()], "true or false"),
    int: (int, "an integer"),
    float: (float, "a number"),
    # Shells leave the ~ of --output=~/a.
    str: (os.path.expanduser, "a text"),
}


def option(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    check: checks.Check | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    required: bool = False,
    identity: bool = True,
    family: str = "",
    own: bool = False,
    per_host: bool = False,
    has_flag: bool = True,
    components: Any = None,
) -> Any:
    """A dataclass field that holds all that its flag needs.

    The field's annotation is the flag's type. A tuple is a comma-separated
    list, whose entries have the choices and bounds.

    Args:
      default: a text or a list that is empty by default may always be empty.
      help: one line, with the unit.
      choices: the allowed values of a closed set.
      check: the check of an open set.
      minimum, maximum, above: bounds of a number (`above` is exclusive).
        Without `minimum` and `above` it is at least 0. An integer without a
        maximum is at most 2**31 - 1, and a float is one that float32 holds.
      required: whether the command line must set it.
      identity: whether it affects what a run computes. The others may change
        when a run is resumed.
      family: flag in which it is given as KEY=VALUE; empty: a flag of its own.
      own: whether `module:name` is allowed beside the choices.
      per_host: whether each worker may have a value of its own.
      has_flag: see `argument`.
      components: the `components.Family` that it names a member of.
    """
    metadata = {**locals(), "choices": tuple(choices)}
    del metadata["default"]
    return dataclasses.field(default=default, metadata=metadata)


# A field that only Python sets, with the checks of an option and no flag.
argument = functools.partial(option, help="", has_flag=False)


class Option(NamedTuple):
    """An option of a command.

    Attributes:
      name: with the prefixes of its groups.
      value: of the command.
      field: its declaration, with its name in the flag of its family.
      family: flag in which it is given as KEY=VALUE; empty: a flag of its own.
      component: the `components.Family` that it is of, if any.
      group: the command's field that holds it.
      identity: whether it affects what a run computes.
    """

    name: str
    value: Any
    field: dataclasses.Field
    family: str = ""
    component: Any = None
    group: str = ""
    identity: bool = True

    @property
    def word(self) -> str:
        """What precedes its value on the command line, without --."""
        return f"{self.family}={self.field.name}" if self.family else self.name


def group(defaults: Any, prefix: str = "", identity: bool = True) -> Any:
    """A field that holds a group of options, under a prefix of their names."""
    return dataclasses.field(
        default=defaults, metadata={"prefix": prefix, "identity": identity}
    )


def options(
    config: Any, prefix: str = "", every: bool = False
) -> Iterator[Option]:
    """Yields the options of a command, or of a group of one.

    `every`: also those of components that are not chosen, as None.
    """
    for field in dataclasses.fields(config):
        value, about = getattr(config, field.name), field.metadata
        found: Iterable[Option] = ()
        if family := about.get("components"):
            found = family.options(field, value, every)
        elif "prefix" in about:
            found = options(value, about["prefix"], every)
        elif about["has_flag"]:
            found = [Option(field.name, value, field, about["family"])]
        for option in found:
            yield option._replace(
                name=prefix + option.name,
                family=option.family and prefix + option.family,
                group=field.name,
                identity=option.identity and about["identity"],
            )


def values(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of all options of a command or a group, by name."""
    return {option.name: option.value for option in options(config, prefix)}


def replace(config: T, **values: Any) -> T:
    """Returns `config` with the named options of any group replaced.

    A value may be given as its text. A new component keeps the options that
    were given to the previous one, if it has them.
    """

    def of(group: Any, prefix: str) -> Any:
        changed = {}
        for field in dataclasses.fields(group):
            value, about = getattr(group, field.name), field.metadata
            if family := about.get("components"):
                value = family.replaced(field, value, values, prefix)
            elif "prefix" in about:
                value = of(value, prefix + about["prefix"])
            elif (name := prefix + field.name) in values:
                value = read(name, field, values.pop(name))
            changed[field.name] = value
        return dataclasses.replace(group, **changed)

    replaced: T = of(config, "")
    if values:
        known = [option.name for option in options(replaced)]
        raise unknown("option", next(iter(values)), known)
    return replaced


def written(value: Any) -> str:
    """Returns a value as it is written on the command line."""
    if value is None:
        return AUTO
    if isinstance(value, tuple):
        return ",".join(map(written, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def validate_fields(config: Any) -> None:
    """Raises `UserError` for the first option whose value is not allowed."""
    for option in options(config):
        validate(option.name, option.field, option.value)


def validate(
    name: str, field: dataclasses.Field, value: Any, allowed: str | None = None
) -> None:
    """Raises `UserError` for a value of which only others are `allowed`."""
    if allowed := allowed or problem(field, value):
        allowed += f", or {AUTO}" * is_optional(field)
        given = arg(name, None if value in ("", ()) else value)
        raise UserError(f"{given}: must be {allowed}")


def is_optional(field: dataclasses.Field) -> bool:
    """Whether an option may be None, which is `auto`."""
    return NoneType in typing.get_args(field.type)


def module_of(name: str) -> str | None:
    """Returns the module of `module:name`, a part of your own, or None."""
    match = _OWN.fullmatch(name)
    return match and match[1]


def is_list(field: dataclasses.Field) -> bool:
    """Whether an option is a comma-separated list."""
    return typing.get_origin(field.type) is tuple


def value_type(field: dataclasses.Field) -> type:
    """Returns the type of a value other than None, or of a list's entries."""
    kind = (typing.get_args(field.type) or (field.type,))[0]
    return kind if kind in _READERS else str  # The name of a component.


def read(name: str, field: dataclasses.Field, value: Any) -> Any:
    """Returns an allowed value of an option, given as itself or as its text."""
    if value == AUTO and is_optional(field):
        return None
    reader, form = _READERS[value_type(field)]
    try:
        if is_list(field):
            form = f"{_LIST} {form}"
            is_text = isinstance(value, str)
            parts = checks.split_list(value) if is_text else value
            value = tuple(map(reader, parts))
        elif isinstance(value, str):
            value = reader(value)
    except (KeyError, ValueError):
        validate(name, field, value, form)
    validate(name, field, value)
    return value


def problem(field: dataclasses.Field, value: Any) -> str | None:
    """Returns what `field` allows, or None if `value` is allowed."""
    about, listed = field.metadata, is_list(field)
    if value is None:
        return None if is_optional(field) else "set"
    if value == field.default and value in ("", ()):
        return "set; it has no default" if about["required"] else None
    if value == ():
        return "set"
    for entry in value if listed else (value,):
        if about["choices"]:
            is_own = about["own"] and module_of(entry)
            allowed = None if is_own else checks.one_of(entry, about["choices"])
        elif isinstance(entry, str):
            allowed = checks.text(entry)
        else:  # A truth value is 0 or 1.
            is_float = value_type(field) is float
            allowed = checks.bounds(entry, about, is_float)
        if allowed:
            return f"{_LIST} {allowed}" if listed else allowed
    return about["check"](value) if about["check"] else None
