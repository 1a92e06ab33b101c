"""Figures of evaluations.

They are `matplotlib.figure.Figure`s, drawn by Agg, without pyplot: nothing of
what a notebook or another thread draws is touched. matplotlib is imported when
the first is drawn.
"""

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 100
# Blue and orange: told apart by all eyes, and in gray.
_FIRST, _SECOND, _QUIET = "#1f77b4", "#d95f02", "#888888"
# Classes that get a panel of their own; the rest are in "all classes".
_PANELS = 12
# Classes that a legend names.
_LEGEND = 20


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


# ---- Separation --------------------------------------------------------------


def neighbor_histograms(parts: Mapping[str, Mapping[str, Any]]) -> "Figure":
    """Cosines to the nearest image of the same class, and of another.

    Args:
      parts: title of a panel -> what `separation.neighbor_histograms` returns.

    SINCERE, figure 2; medians are dotted.
    """
    shown = dict(list(parts.items())[: _PANELS + 1])
    columns = min(len(shown), 4)
    rows = -(-len(shown) // columns)
    start = min(_lowest(part) for part in shown.values())
    figure, axes = panels(rows, columns, 3.2, 2.3)
    for axis, (title, part) in zip(axes.flat, shown.items(), strict=False):
        plain(axis)
        for name, color in (("target", _FIRST), ("noise", _SECOND)):
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


# ---- Calibration and corruptions ---------------------------------------------


def reliability_diagram(
    parts: Mapping[str, Mapping[str, np.ndarray]],
) -> "Figure":
    """Accuracy by confidence, and how many images have it.

    Args:
      parts: title of a panel -> what `calibration.reliability` returns.
    """
    from tf_contrastive.evaluation import calibration

    figure, axes = panels(
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
        top.plot([0, 1], [0, 1], color=_QUIET, linestyle=":", linewidth=1)
        top.bar(
            middle[full],
            bins["accuracy"][full],
            widths[full],
            color=_FIRST,
            alpha=0.8,
            edgecolor="white",
            linewidth=0.5,
            label="accuracy",
        )
        top.plot(
            middle[full],
            bins["confidence"][full],
            color=_SECOND,
            marker="o",
            markersize=3,
            linestyle="none",
            label="mean confidence",
        )
        error = calibration.calibration_error(bins)
        top.set_title(f"{title}: ECE {error:.3f}", fontsize=10)
        top.set_ylim(0, 1)
        shares = bins["count"] / bins["count"].sum()
        bottom.bar(middle, shares, widths, color=_QUIET, edgecolor="white")
        bottom.set_xlabel("confidence", fontsize=9)
        bottom.set_xlim(0, 1)
        for axis in column:
            plain(axis)
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

    figure, axes = panels(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
    plain(axis)
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


# ---- Representations ---------------------------------------------------------


def projection_histograms(found: Mapping[str, np.ndarray]) -> "Figure":
    """Histograms of random projections, with the normal density of each.

    Args:
      found: what `representation.random_projections` returns.

    Intriguing Properties, figure B.1.
    """
    values = np.asarray(found["projections"])
    shown = min(values.shape[1], _PANELS)
    columns = min(shown, 4)
    rows = -(-shown // columns)
    figure, axes = panels(rows, columns, 2.4, 1.7)
    # One range for all; wide enough for one point, too.
    ends = values.min() - 1e-6, values.max() + 1e-6
    for number, axis in enumerate(axes.flat):
        if number >= shown:
            axis.set_visible(False)
            continue
        x = values[:, number]
        plain(axis)
        mean, deviation = x.mean(), x.std()
        axis.hist(x, 50, ends, density=True, color=_FIRST, alpha=0.7)
        if deviation > 0:
            grid = np.linspace(*ends, 200)
            density = np.exp(-(((grid - mean) / deviation) ** 2) / 2)
            density /= deviation * np.sqrt(2 * np.pi)
            axis.plot(grid, density, color=_SECOND, linewidth=1.2)
        axis.set_yticks([])
        axis.tick_params(labelsize=7)
        axis.set_title(f"KS {found['ks_normal'][number]:.3f}", fontsize=8)
    figure.suptitle(
        "random orthogonal projections, and the normal density of each"
        " (KS: distance between them)",
        fontsize=9,
    )
    return figure


def spectrum(found: Mapping[str, Any]) -> "Figure":
    """A linear projection's spectrum, on a linear and on a log scale.

    Args:
      found: what `representation.spectrum` returns.

    SimCLR, appendix B.4.
    """
    figure, axes = panels(1, 2, 4.0, 3.0)
    curves = {"singular values": found["singular_values"]}
    if found["eigenvalues"] is not None:
        curves["eigenvalues, magnitude"] = found["eigenvalues"]
    for axis, scale in zip(axes[0], ("linear", "log"), strict=True):
        plain(axis)
        for (name, values), color in zip(
            curves.items(), (_QUIET, _FIRST), strict=False
        ):
            axis.plot(
                np.arange(1, len(values) + 1), values, color=color, label=name
            )
        axis.set_yscale(scale)
        axis.set_xlabel("rank")
        axis.set_title(f"{scale} scale", fontsize=10)
    axes[0, 0].set_ylabel("size")
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure


def tasks(found: Mapping[str, float]) -> "Figure":
    """How well h and z tell transformations, and what guessing would give.

    Args:
      found: metrics of the protocol `transforms`.

    SimCLR, table 2.
    """
    names = [k.removesuffix("_h") for k in found if k.endswith("_h")]
    figure, axes = panels(1, 1, 5.2, 3.0)
    axis = axes[0, 0]
    plain(axis)
    bars = [("h", _FIRST), ("z", _SECOND)]
    bars = [(s, c) for s, c in bars if f"{names[0]}_{s}" in found]
    places = np.arange(len(names))
    width = 0.8 / len(bars)
    for number, (space, color) in enumerate(bars):
        drawn = axis.bar(
            places + (number - (len(bars) - 1) / 2) * width,
            [100 * found[f"{name}_{space}"] for name in names],
            width * 0.95,
            color=color,
            label=space,
        )
        # The line of chance may pass behind the numbers.
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        axis.bar_label(
            drawn, fmt="%.1f", fontsize=8, padding=2, bbox=behind, zorder=4
        )
    for place, name in zip(places, names, strict=True):
        axis.hlines(
            100 * found[f"{name}_chance"],
            place - 0.45,
            place + 0.45,
            color="black",
            linestyle=":",
            label="chance" if place == 0 else None,
        )
    axis.set_xticks(places, names)
    axis.set_ylim(0, 108)
    axis.set_ylabel("accuracy, %")
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def maps(
    places: Mapping[str, np.ndarray],
    labels: np.ndarray | None = None,
    label_names: Sequence[str] = (),
) -> "Figure":
    """Points in a plane, coloured by class.

    Args:
      places: title of a panel -> float [n, 2].
      labels: int [n], -1 or None where there are none.
      label_names: name of class 0, 1, ...

    SimCLR, appendix B.5.
    """
    from matplotlib import colormaps

    figure, axes = panels(1, len(places), 4.4, 4.2)
    count = len(next(iter(places.values())))
    size = max(4, min(20, 10_000 / count))
    labels = np.full(count, -1) if labels is None else np.asarray(labels)
    kinds = np.unique(labels)
    colors = colormaps["tab10" if len(kinds) <= 10 else "tab20"].colors
    for axis, (title, where) in zip(axes[0], places.items(), strict=True):
        for number, kind in enumerate(kinds):
            rows = labels == kind
            named = 0 <= kind < len(label_names)
            axis.scatter(
                *where[rows].T,
                s=size,
                color=colors[number % len(colors)] if kind >= 0 else _FIRST,
                linewidths=0,
                alpha=0.8,
                label=str(label_names[kind] if named else kind),
            )
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal", adjustable="datalim")
    if kinds[-1] >= 0 and len(kinds) <= _LEGEND:
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(
            handles,
            names,
            loc="outside right center",
            fontsize=8,
            frameon=False,
            markerscale=(30 / size) ** 0.5,
        )
    return figure


def overlays(
    image: np.ndarray, clusters: Mapping[str, Mapping[int, np.ndarray]]
) -> "Figure":
    """Regions of an image that features group together, in colours over it.

    Args:
      image: float [S, S, 3] in [0, 1].
      clusters: kind of features -> number of clusters -> int [h, w].

    Intriguing Properties, figures 3 and 4.
    """
    from matplotlib import colormaps

    counts = list(next(iter(clusters.values())))
    figure, axes = panels(len(clusters), len(counts) + 1, 1.6, 1.7)
    palette = np.array(colormaps["tab20"].colors)
    # Neighbours of the palette are shades of one colour.
    palette = np.concatenate([palette[::2], palette[1::2]])
    image = np.clip(image, 0, 1)
    gray = image.mean(axis=-1, keepdims=True)
    for row, (name, by_count) in zip(axes, clusters.items(), strict=True):
        row[0].imshow(image)
        row[0].set_ylabel(name.replace("_", " "), fontsize=7)
        for axis, count in zip(row[1:], counts, strict=True):
            colors = palette[by_count[count] % len(palette)]
            blend = 0.45 * _enlarged(colors, len(image)) + 0.55 * gray
            axis.imshow(np.clip(blend, 0, 1))
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0, 0].set_title("image", fontsize=9)
    for axis, count in zip(axes[0, 1:], counts, strict=True):
        axis.set_title(f"{count} clusters", fontsize=9)
    return figure


def _enlarged(cells: np.ndarray, side: int) -> np.ndarray:
    """Cells [h, w, 3] as pixels [side, side, 3], each its nearest."""
    rows, columns = (np.arange(side) * size // side for size in cells.shape[:2])
    return cells[rows][:, columns]
