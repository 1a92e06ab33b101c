"""Parts of your own, named `module:name` where a member of a family is.

A run records such a name, and may be somebody else's. So a module is imported
only if it was allowed: by the command line, which names it, or by `allow`.
"""

import importlib
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from tf_contrastive.base import errors
from tf_contrastive.config import fields

allowed: set[str] = set()
# Argument of the command line that allows modules.
ARGUMENT = "own_modules"


def allow(*names: str) -> None:
    """Allows that runs import "my_module", or one part, "my_module:name"."""
    for name in names:
        if not re.fullmatch(r"\w+(\.\w+)*(:\w+)?", name):
            raise errors.UserError(
                f"{errors.arg(ARGUMENT, name)}: must be names of modules"
            )
    allowed.update(names)


def words() -> list[str]:
    """Returns the flag that allows the same parts in another process."""
    return [f"--{ARGUMENT}={','.join(sorted(allowed))}"] if allowed else []


def load(kind: str, name: str, families: Iterable[str] = ()) -> Any:
    """Returns the object `module:name`, which is used as a `kind`.

    `families` are words before a colon that could have been meant.
    """
    module, _, attribute = name.partition(":")
    given = errors.arg(kind, name)
    hint = errors.did_you_mean(module, families)
    if allowed.isdisjoint({module, name}):
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

    `options` are the part's, with their defaults. Those whose default is
    neither a truth value, a number nor a text keep it in a run.
    """
    namespace: dict[str, Any] = {**traits, "name": name, "is_own": True}
    types = namespace["__annotations__"] = {}
    for option, default in options.items():
        if isinstance(default, bool | int | float | str):
            types[option] = type(default) | None
            namespace[option] = fields.option(
                default, "", minimum=-math.inf, maximum=math.inf
            )
    return type(name.rpartition(":")[2], (base,), namespace)
