"""A claim's result as a picture: every seed, and the paper's number."""

import statistics
import textwrap
from collections.abc import Mapping

import tensorflow as tf

from tf_contrastive.evaluation import plots

# Told apart by all eyes, and in gray.
_COLORS = ("#1f77b4", "#d95f02", "#7570b3", "#1b9e77", "#666666")

Found = tuple[list[float], float | None]


def write(
    path: str, values: Mapping[str, Mapping[tuple[str, str], Found]]
) -> None:
    """Writes a PNG: a panel for each value, a column for each case and arm.

    Args:
      path: of the file.
      values: value -> (case, arm) -> (its seeds' numbers, the paper's number
        or None). Those without a number are left out.
    """
    shown = {
        name: {key: found for key, found in columns.items() if found[0]}
        for name, columns in values.items()
    }
    shown = {name: columns for name, columns in shown.items() if columns}
    if not shown:
        return
    columns = min(len(shown), 3)
    rows = -(-len(shown) // columns)
    most = max(len(part) for part in shown.values())
    width = min(max(3.2, 0.5 * most), 5.0)
    figure, axes = plots.panels(rows, columns, width, 2.8)
    for axis, (name, part) in zip(axes.flat, shown.items(), strict=False):
        _draw(axis, name, part)
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    with tf.io.gfile.GFile(path, "wb") as file:
        file.write(plots.png(figure))


def _draw(axis, name: str, part: Mapping[tuple[str, str], Found]) -> None:
    """Cases side by side, and within each its arms; of one case, its arms."""
    plots.plain(axis)
    cases = list(dict.fromkeys(case for case, _ in part))
    arms = list(dict.fromkeys(arm for _, arm in part))
    step = 0.8 / len(arms)
    for place, arm in enumerate(arms):
        color = _COLORS[place % len(_COLORS)]
        label: str | None = arm
        for at, case in enumerate(cases):
            if (case, arm) not in part:
                continue
            numbers, theirs = part[case, arm]
            x = at + (place - (len(arms) - 1) / 2) * step
            spread = [x] * len(numbers)
            axis.plot(spread, numbers, "o", color=color, alpha=0.5)
            mean = statistics.fmean(numbers)
            ends = [x - 0.4 * step, x + 0.4 * step]
            axis.plot(ends, [mean, mean], color=color, label=label)
            label = None
            if theirs is not None:
                axis.plot(x, theirs, "D", mec="black", mfc="none")
    told = any(theirs is not None for _, theirs in part.values())
    axis.set_title(f"{name}; diamonds: the paper" if told else name, fontsize=9)
    labels = [textwrap.fill(case, 12) for case in cases]
    axis.set_xticks(range(len(cases)), labels, fontsize=8)
    axis.tick_params(axis="y", labelsize=8)
    axis.margins(x=0.1)
    if len(arms) > 1:
        axis.legend(fontsize=7, frameon=False)
