"""What a function, a class or a Keras layer of the user's takes."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from tf_contrastive.base import errors


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
    """Whether a function or class has a parameter; a Keras layer has none."""
    return not is_layer(part) and parameter in parameters(part)


def options_of(
    part: Any,
    inputs: Iterable[str] = (),
    given: Iterable[str] = (),
    kind: str = "part",
) -> dict[str, Any]:
    """Returns the options of a function or a class, with their defaults.

    They are its parameters that are not among `inputs`; those `given` need no
    default. A Keras layer or model has none.
    """
    if not callable(part):
        raise errors.UserError(
            f"{kind} {name_of(part)} is of the wrong form: must be a function,"
            " or a Keras layer or model"
        )
    options = {
        name: parameter.default
        for name, parameter in parameters(part).items()
        if not (is_layer(part) or name in inputs)
        and parameter.kind
        not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    for name in given:
        if name not in options:
            raise errors.unknown(f"option of {name_of(part)}", name, options)
    for name, default in options.items():
        if default is inspect.Parameter.empty and name not in given:
            raise errors.UserError(
                f"parameter {name} of {name_of(part)} has no default: give it"
                " one, or bind it by functools.partial"
            )
    return options
