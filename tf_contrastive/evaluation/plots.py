"""The canvas of the figures that protocols draw.

Figures are `matplotlib.figure.Figure`s drawn by Agg, without pyplot and its
global state. matplotlib is imported when the first figure is drawn.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Figure = Any  # Which the documentation reads.

_DPI = 100
# Blue and orange are distinguishable for the colour-blind, and in grey.
FIRST, SECOND, QUIET = "#1f77b4", "#d95f02", "#888888"
_STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
# Classes with a panel of their own; the others are only in "all classes".
PANELS = 12


def panels(
    rows: int, columns: int, width: float, height: float, **options: Any
) -> "tuple[Figure, np.ndarray]":
    """Returns a figure and its axes [rows, columns], each in inches."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(
        (columns * width, rows * height), dpi=_DPI, layout="constrained"
    )
    FigureCanvasAgg(figure)
    with rc_context(_STYLE):
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def grid(
    count: int, width: float, height: float, columns: int = 4
) -> "tuple[Figure, list[Axes]]":
    """Returns a figure and `count` axes, in rows of at most `columns`."""
    columns = min(count, columns)
    figure, axes = panels(-(-count // columns), columns, width, height)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def legend(figure: "Figure", axis: "Axes", place: str, **options: Any) -> None:
    """Explains what an axis shows, outside of all axes."""
    handles, labels = axis.get_legend_handles_labels()
    options |= {"loc": f"outside {place}", "fontsize": 8, "frameon": False}
    figure.legend(handles, labels, **options)


def png(figure: "Figure", dpi: int = _DPI) -> bytes:
    """Encodes a figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()


def confusion(
    labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]
) -> "Figure":
    """Draws which class (row) is taken for which (column), in % of the class.

    Labels and predictions are int [n], ids into the names.
    """
    counts = np.zeros([len(names), len(names)])
    np.add.at(counts, (labels, predictions), 1)
    percent = 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = 2.0 + 0.28 * len(names)
    figure, axes = panels(1, 1, side, side)
    axis = axes[0, 0]
    axis.imshow(percent, cmap="Blues", vmin=0, vmax=100)
    places = np.arange(len(names))
    axis.set_xticks(places, names, rotation=90)
    axis.set_yticks(places, names)
    axis.set_xlabel("predicted class")
    axis.set_ylabel("class")
    axis.set_title("% of each class")
    middle = {"fontsize": 7, "ha": "center", "va": "center"}
    for (row, column), value in np.ndenumerate(percent):
        if value >= 0.5:
            color = "white" if value > 50 else "black"
            axis.text(column, row, f"{value:.0f}", color=color, **middle)
    return figure
