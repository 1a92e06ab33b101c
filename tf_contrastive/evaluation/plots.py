"""Figures of evaluations.

They are `matplotlib.figure.Figure`s drawn by Agg, without pyplot and its global
state. matplotlib is imported when the first figure is drawn.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_contrastive.evaluation import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from tf_contrastive.evaluation.hypersphere import RandomProjections
    from tf_contrastive.evaluation.separation import NeighborHistograms

_DPI = 100
# Blue and orange are distinguishable for the colour-blind, and in grey.
FIRST, SECOND, QUIET = "#1f77b4", "#d95f02", "#888888"
# Classes with a panel of their own; the others are only in "all classes".
PANELS = 12


# ---- Drawing -----------------------------------------------------------------


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


# ---- Figures -----------------------------------------------------------------


def neighbor_histograms(parts: "Mapping[str, NeighborHistograms]") -> "Figure":
    """Cosines to the nearest image of the same class, and of another.

    `parts` maps the title of a panel to `separation.neighbor_histograms`.
    Medians are dotted lines. Feeney and Hughes 2024 (SINCERE), figure 2.
    """
    parts = dict(list(parts.items())[: PANELS + 1])
    columns = min(len(parts), 4)
    rows = -(-len(parts) // columns)
    # The first occupied bin, rounded down to tenths.
    starts = []
    for part in parts.values():
        occupied = np.flatnonzero(np.asarray(part["target"]) + part["noise"])
        first = part["edges"][occupied[0] if len(occupied) else 0]
        starts.append(max(np.floor(10 * first) / 10, part["edges"][0]))
    figure, axes = panels(rows, columns, 3.2, 2.3)
    for axis, (title, part) in zip(axes.flat, parts.items(), strict=False):
        plain(axis)
        for values, median, color, label in (
            (part["target"], part["target_median"], FIRST, "same class"),
            (part["noise"], part["noise_median"], SECOND, "other class"),
        ):
            axis.stairs(
                values,
                part["edges"],
                fill=True,
                color=color,
                alpha=0.6,
                label=label,
            )
            if np.isfinite(median):
                axis.axvline(median, color=color, linestyle=":")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.locator_params(axis="y", nbins=4)
        axis.set_xlim(min(starts), part["edges"][-1])
    for axis in axes.flat[len(parts) :]:
        axis.set_visible(False)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.supxlabel("cosine to the nearest training image", fontsize=10)
    figure.supylabel("fraction of test images", fontsize=10)
    return figure


def reliability_diagram(
    parts: Mapping[str, metrics.Reliability],
) -> "Figure":
    """Accuracy by confidence, and their distribution, by title of a panel."""
    figure, axes = panels(
        2, len(parts), 3.2, 2.2, sharex=True, sharey="row", height_ratios=[3, 1]
    )
    for column, (title, bins) in zip(axes.T, parts.items(), strict=True):
        edges, full = bins["edges"], bins["count"] > 0
        widths, left = np.diff(edges), edges[:-1]
        middle = left + widths / 2
        top, bottom = column
        top.plot([0, 1], [0, 1], color=QUIET, linestyle=":", linewidth=1)
        top.bar(
            middle[full],
            bins["accuracy"][full],
            widths[full],
            color=FIRST,
            alpha=0.8,
            edgecolor="white",
            linewidth=0.5,
            label="accuracy",
        )
        top.plot(
            middle[full],
            bins["confidence"][full],
            color=SECOND,
            marker="o",
            markersize=3,
            linestyle="none",
            label="mean confidence",
        )
        error = metrics.calibration_error(bins)
        top.set_title(f"{title}: ECE {error:.3f}", fontsize=10)
        top.set_ylim(0, 1)
        fractions = bins["count"] / bins["count"].sum()
        bottom.bar(middle, fractions, widths, color=QUIET, edgecolor="white")
        bottom.set_xlabel("confidence", fontsize=9)
        bottom.set_xlim(0, 1)
        for axis in column:
            plain(axis)
            axis.tick_params(labelsize=8)
    axes[0, 0].set_ylabel("accuracy", fontsize=9)
    axes[1, 0].set_ylabel("fraction", fontsize=9)
    # Outside of the axes, which may be full of bars.
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return figure


def severity_curves(
    accuracies: Mapping[str, Sequence[float]], clean: float
) -> "Figure":
    """Accuracy at severity 0 (clean), 1, 2, ... of each corruption."""
    from matplotlib import colormaps

    figure, axes = panels(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    plain(axis)
    colors = colormaps["tab20"]
    curves = {name: [clean, *values] for name, values in accuracies.items()}
    for number, (name, values) in enumerate(curves.items()):
        axis.plot(
            values,
            color=colors(number % 20),
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=name.replace("_", " "),
        )
    lengths = {len(values) for values in curves.values()}
    if len(curves) > 1 and len(lengths) == 1:
        mean = np.mean(list(curves.values()), axis=0)
        axis.plot(mean, color="black", linewidth=2.5, label="mean")
    severities = range(1, max(lengths))
    axis.set_xticks([0, *severities], ["clean", *map(str, severities)])
    axis.set_xlabel("severity")
    axis.set_ylabel("accuracy")
    axis.set_ylim(bottom=0)
    figure.legend(
        loc="outside right upper", fontsize=8, frameon=False, borderaxespad=0.2
    )
    return figure


def projection_histograms(projections: "RandomProjections") -> "Figure":
    """Histograms of `random_projections`, with the normal density of each.

    Chen et al. 2021 (Intriguing Properties), figure B.1.
    """
    values = np.asarray(projections["projections"])
    count = min(values.shape[1], PANELS)
    columns = min(count, 4)
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, 2.4, 1.7)
    # One range for all panels, not empty even for a single point.
    ends = values.min() - 1e-6, values.max() + 1e-6
    for number, axis in enumerate(axes.flat):
        if number >= count:
            axis.set_visible(False)
            continue
        x = values[:, number]
        plain(axis)
        mean, deviation = x.mean(), x.std()
        axis.hist(x, 50, ends, density=True, color=FIRST, alpha=0.7)
        if deviation > 0:
            grid = np.linspace(*ends, 200)
            density = np.exp(-(((grid - mean) / deviation) ** 2) / 2)
            density /= deviation * np.sqrt(2 * np.pi)
            axis.plot(grid, density, color=SECOND, linewidth=1.2)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
        axis.set_title(f"KS {projections['ks_normal'][number]:.3f}", fontsize=8)
    figure.suptitle(
        "random orthogonal projections, and the normal density of each"
        " (KS: distance between them)",
        fontsize=9,
    )
    return figure
