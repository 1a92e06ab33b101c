"""Figures of scores: margins, calibration, robustness."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_contrastive.evaluation.plots import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def neighbor_histograms(parts: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Cosines to the nearest image of the same class, and of another.

    Args:
      parts: title of a panel -> what `separation.neighbor_histograms` returns.

    SINCERE, figure 2; medians are dotted.
    """
    shown = dict(list(parts.items())[: canvas.PANELS + 1])
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    start = min(_lowest(part) for part in shown.values())
    figure, axes = canvas.panels(rows, columns, 3.2, 2.3)
    for axis, (title, part) in zip(axes.flat, shown.items(), strict=False):
        canvas.plain(axis)
        for name, color in (("target", canvas.FIRST), ("noise", canvas.SECOND)):
            axis.stairs(
                part[name],
                part["edges"],
                fill=True,
                color=color,
                alpha=0.6,
                label={
                    "target": "same class",
                    "noise": "other class",
                }[name],
            )
            if np.isfinite(part[f"{name}_median"]):
                axis.axvline(part[f"{name}_median"], color=color, linestyle=":")
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.locator_params(axis="y", nbins=4)
        axis.set_xlim(start, part["edges"][-1])
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.supxlabel("cosine to the nearest training image", fontsize=10)
    figure.supylabel("share of test images", fontsize=10)
    return figure


def _lowest(part: Mapping[str, Any]) -> float:
    """Where a panel starts: by tenths, where the first image is."""
    occupied = np.flatnonzero(np.asarray(part["target"]) + part["noise"])
    first = part["edges"][occupied[0] if len(occupied) else 0]
    return max(np.floor(10 * first) / 10, part["edges"][0])


def reliability_diagram(
    parts: Mapping[str, Mapping[str, np.ndarray]],
) -> "Figure":
    """Accuracy by confidence, and how many images have it.

    Args:
      parts: title of a panel -> what `calibration.reliability` returns.
    """
    from tf_contrastive.evaluation import calibration

    figure, axes = canvas.panels(
        2,
        len(parts),
        3.2,
        2.2,
        sharex=True,
        sharey="row",
        height_ratios=[3, 1],
    )
    for column, (title, bins) in zip(axes.T, parts.items(), strict=True):
        edges, full = bins["edges"], bins["count"] > 0
        widths, left = np.diff(edges), edges[:-1]
        middle = left + widths / 2
        top, bottom = column
        top.plot([0, 1], [0, 1], color=canvas.QUIET, linestyle=":", linewidth=1)
        top.bar(
            middle[full],
            bins["accuracy"][full],
            widths[full],
            color=canvas.FIRST,
            alpha=0.8,
            edgecolor="white",
            linewidth=0.5,
            label="accuracy",
        )
        top.plot(
            middle[full],
            bins["confidence"][full],
            color=canvas.SECOND,
            marker="o",
            markersize=3,
            linestyle="none",
            label="mean confidence",
        )
        error = calibration.calibration_error(bins)
        top.set_title(f"{title}: ECE {error:.3f}", fontsize=10)
        top.set_ylim(0, 1)
        shares = bins["count"] / bins["count"].sum()
        bottom.bar(
            middle, shares, widths, color=canvas.QUIET, edgecolor="white"
        )
        bottom.set_xlabel("confidence", fontsize=9)
        bottom.set_xlim(0, 1)
        for axis in column:
            canvas.plain(axis)
            axis.tick_params(labelsize=8)
    axes[0, 0].set_ylabel("accuracy", fontsize=9)
    axes[1, 0].set_ylabel("share", fontsize=9)
    # Outside, since bars may stand anywhere.
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=2,
        fontsize=8,
        frameon=False,
    )
    return figure


def severity_curves(
    accuracies: Mapping[str, Sequence[float]],
    clean: float | None = None,
    label: str = "accuracy",
) -> "Figure":
    """How a score falls with the severity of each corruption.

    Args:
      accuracies: corruption -> score at severity 1, 2, ...
      clean: score on clean images, at severity 0.
      label: what the score is.
    """
    from matplotlib import colormaps

    figure, axes = canvas.panels(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    canvas.plain(axis)
    colors = colormaps["tab20"].colors
    start = [] if clean is None else [clean]
    curves = {name: [*start, *values] for name, values in accuracies.items()}
    first = 0 if start else 1
    for number, (name, values) in enumerate(curves.items()):
        axis.plot(
            range(first, first + len(values)),
            values,
            color=colors[number % len(colors)],
            marker="o",
            markersize=3,
            linewidth=1.2,
            label=name.replace("_", " "),
        )
    lengths = {len(values) for values in curves.values()}
    if len(curves) > 1 and len(lengths) == 1:
        mean = np.mean(list(curves.values()), axis=0)
        axis.plot(
            range(first, first + len(mean)),
            mean,
            color="black",
            linewidth=2.5,
            label="mean",
        )
    axis.set_xticks(range(first, first + max(lengths)))
    if start:
        names = ["clean", *(str(k) for k in range(1, max(lengths)))]
        axis.set_xticklabels(names)
    axis.set_xlabel("severity")
    axis.set_ylabel(label)
    axis.set_ylim(bottom=0)
    figure.legend(
        loc="outside right upper", fontsize=8, frameon=False, borderaxespad=0.2
    )
    return figure


def projection_histograms(found: Mapping[str, np.ndarray]) -> "Figure":
    """Histograms of random projections, with the normal density of each.

    Args:
      found: what `hypersphere.random_projections` returns.

    Intriguing Properties, figure B.1.
    """
    values = np.asarray(found["projections"])
    shown = min(values.shape[1], canvas.PANELS)
    columns = min(shown, 4)
    rows = -(-shown // columns)
    figure, axes = canvas.panels(rows, columns, 2.4, 1.7)
    # One range for all; wide enough for one point, too.
    ends = values.min() - 1e-6, values.max() + 1e-6
    for number, axis in enumerate(axes.flat):
        if number >= shown:
            axis.set_visible(False)
            continue
        x = values[:, number]
        canvas.plain(axis)
        mean, deviation = x.mean(), x.std()
        axis.hist(x, 50, ends, density=True, color=canvas.FIRST, alpha=0.7)
        if deviation > 0:
            grid = np.linspace(*ends, 200)
            density = np.exp(-(((grid - mean) / deviation) ** 2) / 2)
            density /= deviation * np.sqrt(2 * np.pi)
            axis.plot(grid, density, color=canvas.SECOND, linewidth=1.2)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
        axis.set_title(f"KS {found['ks_normal'][number]:.3f}", fontsize=8)
    figure.suptitle(
        "random orthogonal projections, and the normal density of each"
        " (KS: distance between them)",
        fontsize=9,
    )
    return figure
