"""A plot of a claim's result: every seed, the means, and the paper's value."""

import statistics
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tf_contrastive.evaluation import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable with colour blindness, and in gray.
_COLORS = ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77", "#666666")

# (case, arm) -> (the values of its seeds, the paper's value or None).
Points = Mapping[tuple[str, str], tuple[list[float], float | None]]


def values(panels: Mapping[str, Points]) -> bytes:
    """Draws a panel for each value, with its cases and arms side by side.

    Args:
      panels: name of a value -> its points, at least one.

    Returns:
      A PNG file.
    """
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    width = max(0.5 * len(points) for points in panels.values())
    figure, axes = plots.panels(rows, columns, min(max(3.2, width), 5.0), 2.8)
    for axis, (name, points) in zip(axes.flat, panels.items(), strict=False):
        _draw(axis, name, points)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    return plots.png(figure)


def _draw(axis: "Axes", name: str, points: Points) -> None:
    plots.plain(axis)
    cases = list(dict.fromkeys(case for case, _ in points))
    arms = list(dict.fromkeys(arm for _, arm in points))
    step = 0.8 / len(arms)
    labelled = set()
    for (case, arm), (numbers, paper) in points.items():
        number = arms.index(arm)
        color = _COLORS[number % len(_COLORS)]
        x = cases.index(case) + (number - (len(arms) - 1) / 2) * step
        axis.plot([x] * len(numbers), numbers, "o", color=color, alpha=0.5)
        mean = statistics.fmean(numbers)
        label = None if arm in labelled else arm
        ends = [x - 0.4 * step, x + 0.4 * step]
        axis.plot(ends, [mean, mean], color=color, label=label)
        labelled.add(arm)
        if paper is not None:
            axis.plot(x, paper, "D", mec="black", mfc="none")
    printed = any(paper is not None for _, paper in points.values())
    title = f"{name}; diamonds: the paper" if printed else name
    axis.set_title(title, fontsize=9)
    labels = [textwrap.fill(case, 12) for case in cases]
    axis.set_xticks(range(len(cases)), labels, fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.1)
    if len(arms) > 1:
        axis.legend(fontsize=7, frameon=False)
