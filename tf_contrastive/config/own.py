"""Parts of your own, named `module:name` where a member of a family is.

A run records such a name, and its folder may be somebody else's. So a module is
imported only if it was allowed: by the command line, which names it itself, or
by `allow`.
"""

import dataclasses
import functools
import importlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tf_contrastive.base import errors
from tf_contrastive.config import fields

_allowed: set[str] = set()
# Argument of the command line that allows modules.
ARGUMENT = "own_modules"


def allow(*names: str) -> None:
    """Allows that runs import "my_module", or one part, "my_module:name"."""
    _allowed.update(names)


def words() -> list[str]:
    """Returns the flag that allows the same modules in another process."""
    modules = sorted({name.partition(":")[0] for name in _allowed})
    return [f"--{ARGUMENT}={','.join(modules)}"] if modules else []


def load(kind: str, name: str, families: Iterable[str] = ()) -> Any:
    """Returns the object `module:name`, which is used as a `kind`.

    `families` are words before a colon that could have been meant.

    Raises:
      UserError: if the module is not allowed, cannot be imported, or has no
        such name.
    """
    module, _, attribute = name.partition(":")
    given = errors.arg(kind, name)
    if _allowed.isdisjoint({module, name}):
        hint = errors.did_you_mean(module, families)
        raise errors.UserError(
            f"{given}: {module}{hint} may be the code of somebody else, and is"
            " imported only where you name it: set"
            f" {errors.arg(ARGUMENT, module)}"
        )
    if not {"", os.getcwd()} & {*sys.path}:
        sys.path.append(os.getcwd())  # An installed command has not done so.
    try:
        found = importlib.import_module(module)
    except Exception as error:  # Of any type, from the user's code.
        hint = errors.did_you_mean(module, families)
        raise errors.UserError(
            f"{given}: {module} cannot be imported{hint}"
            f" ({errors.first_line(error)}): start in the folder of"
            f" {module.partition('.')[0]}, or set PYTHONPATH to it"
        ) from error
    if not hasattr(found, attribute):
        known = [name for name in vars(found) if not name.startswith("_")]
        raise errors.unknown(f"name in {module}", attribute, known)
    return getattr(found, attribute)


def declare(
    name: str, base: type, options: Mapping[str, Any], **traits: Any
) -> Any:
    """Returns the declaration of the part `module:name`, a subclass of `base`.

    Args:
      name: `module:name`.
      base: of the family's declarations.
      options: of the part, with their defaults.
      **traits: class variables of the declaration.
    """
    rows = [
        (
            option,
            (str if default is None else type(default)) | None,
            fields.option(
                default,
                "",
                minimum=-math.inf,
                maximum=math.inf,
                read=functools.partial(fields.read_like, option, default),
            ),
        )
        for option, default in options.items()
    ]
    return dataclasses.make_dataclass(
        name.rpartition(":")[2],
        rows,
        bases=(base,),
        namespace={**traits, "name": name, "is_own": True},
        kw_only=True,
        eq=False,
    )


def name_of(part: Any) -> str:
    """Returns the name of a function, or of an object's class."""
    return getattr(part, "__name__", type(part).__name__)


def is_layer(part: Any) -> bool:
    """Whether an object is a Keras layer or model, without importing Keras."""
    return hasattr(type(part), "trainable_variables")


def parameters(part: Any) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a function or class, or a layer's `call`."""
    return inspect.signature(part.call if is_layer(part) else part).parameters


def takes(part: Any, parameter: str) -> bool:
    """Whether a function or class, and no Keras layer, has a parameter."""
    return (
        not is_layer(part) and parameter in inspect.signature(part).parameters
    )


def accepts(function: Callable[..., Any], keyword: str) -> bool:
    """Whether a function has a parameter, or takes any keywords."""
    known = inspect.signature(function).parameters
    return keyword in known or any(
        p.kind is p.VAR_KEYWORD for p in known.values()
    )


def options_of(
    part: Callable[..., Any],
    inputs: Iterable[str] = (),
    given: Iterable[str] = (),
) -> dict[str, Any]:
    """Returns the options of a function or a class, with their defaults.

    They are its parameters with a default that are not among `inputs`, or that
    are `given`. A Keras layer has none.

    Raises:
      UserError: for another parameter without a default.
    """
    found: dict[str, Any] = {}
    if is_layer(part):
        return found
    for parameter in inspect.signature(part).parameters.values():
        name, default = parameter.name, parameter.default
        if name in inputs or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        if default is parameter.empty and name not in given:
            raise errors.UserError(
                f"parameter {name} of {name_of(part)} has no default: give it"
                " one, or bind it by functools.partial"
            )
        found[name] = default
    return found


def network_options(
    kind: str,
    part: Any,
    inputs: Iterable[str] = (),
    given: Iterable[str] = (),
) -> dict[str, Any]:
    """Returns the options of a function that makes a network.

    A Keras layer or model has none. Those that are `given` need no default.

    Raises:
      UserError: for something else.
    """
    if inspect.isroutine(part) or isinstance(part, type | functools.partial):
        return options_of(part, inputs, given)
    if not is_layer(part):
        takes = f", which may take {', '.join(inputs)}" if inputs else ""
        raise errors.UserError(
            f"{kind} {name_of(part)} is of the wrong form: must be a Keras"
            f" layer or model, or a function that returns one{takes}"
        )
    return {}


def check_options(
    part: Any,
    given: Iterable[str],
    known: Iterable[str],
    others: Iterable[str] = (),
) -> None:
    """Raises `UserError` for an option that a part does not have.

    `others` are arguments that could have been meant instead.
    """
    for option in given:
        if option not in known:
            names = [*known, *others]
            raise errors.unknown(f"option of {name_of(part)}", option, names)


def check_free(part: Any, options: Iterable[str], taken: Iterable[str]) -> None:
    """Raises `UserError` for an option whose name is that of another."""
    for name in options:
        if name in taken:
            raise errors.UserError(
                f"{name_of(part)} has a parameter {name}, which is an option of"
                " this package: use another name"
            )
