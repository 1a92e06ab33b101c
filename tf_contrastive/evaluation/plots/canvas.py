"""What every figure begins and ends with: axes, colours, a file."""

import io
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 100
# Blue and orange: told apart by all eyes, and in gray.
FIRST, SECOND, QUIET = "#1f77b4", "#d95f02", "#888888"
# Classes that get a panel of their own; the rest are in "all classes".
PANELS = 12


def panels(rows: int, columns: int, width: float, height: float, **options):
    """A figure of rows x columns axes [rows, columns], inches each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        (columns * width, rows * height), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(axis) -> None:
    """Takes away what holds no information."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def png(figure: "Figure") -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def pixels(figure: "Figure") -> np.ndarray:
    """The figure as uint8 [height, width, 3], such as TensorBoard takes."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()
