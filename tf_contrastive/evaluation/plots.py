"""The canvas of the figures that protocols draw.

Figures are `matplotlib.figure.Figure`s drawn by Agg, without pyplot and its
global state. matplotlib is imported when the first figure is drawn.
"""

import io
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
# Blue and orange are distinguishable for the colour-blind, and in grey.
FIRST, SECOND, QUIET = "#1f77b4", "#d95f02", "#888888"
# Classes with a panel of their own; the others are only in "all classes".
PANELS = 12


def panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> "tuple[Figure, np.ndarray]":
    """Returns a figure and its axes [rows, columns], each in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        (columns * width, rows * height), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(axis: "Axes") -> None:
    """Removes the top and right spines."""
    axis.spines[["top", "right"]].set_visible(False)


def png(figure: "Figure", dpi: int = _DPI) -> bytes:
    """Encodes a figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()
