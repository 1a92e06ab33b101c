"""Keyword arguments that do not exist: the nearest one is named."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tf_contrastive.base import errors

_Function = TypeVar("_Function", bound=Callable[..., Any])


def check(
    function: Callable[..., Any], given: Iterable[str], *more: str
) -> None:
    """Raises `TypeError` for a keyword that a function or class does not have.

    With the nearest one. A class has those that its bases name, too, and both
    have `more`.
    """
    known = (*of(function), *more)
    for name in given:
        if name not in known:
            hint = errors.did_you_mean(name, known)
            raise TypeError(
                f"{function.__name__}() has no argument {name!r}{hint}"
            )


@functools.cache
def of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Returns the keywords of a function, or of a class and its bases."""
    parts: tuple[Any, ...] = (function,)
    if isinstance(function, type):
        parts = tuple(
            vars(base)["__init__"]
            for base in function.__mro__
            if "__init__" in vars(base) and base is not object
        )
    names = {
        name: None
        for part in parts
        for name, parameter in inspect.signature(part).parameters.items()
        if parameter.kind
        in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    return tuple(names)


class Checked:
    """Base of classes whose constructors name the nearest keyword."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Checks the keywords, unless `__init__` takes any."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            check(cls, keywords)
        return super().__new__(cls)


def named(function: _Function) -> _Function:
    """Decorates a function, so that misspelt arguments are named.

    Where it takes options, too, those that are nearest to a missing argument.
    """
    parameters = inspect.signature(function).parameters.values()
    takes_options = any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = [
        p.name
        for p in parameters
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]

    @functools.wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        if not takes_options:
            check(function, keywords)
        missing = [name for name in needed if name not in keywords]
        for name in keywords:
            if missing and errors.nearest(name, missing):
                check(function, [name])
        return function(*arguments, **keywords)

    return checked  # type: ignore[return-value]
