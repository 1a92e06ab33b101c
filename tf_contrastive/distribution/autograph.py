"""Functions that AutoGraph calls as they are written.

Layer 1: imports nothing of the package. To convert what needs no converting
takes a third of the time that a step takes to be traced.
"""

from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable)


def as_written(function: _Function) -> _Function:
    """Keeps AutoGraph from a function or method, and from nothing it calls.

    `tf.autograph.experimental.do_not_convert` would keep it from the user's
    layers within, too, which may need it, and would hide the arguments of a
    layer's `call` from Keras.
    """
    function.autograph_info__ = {}  # What AutoGraph asks for.
    return function
