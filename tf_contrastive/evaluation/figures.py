"""The figures of protocols, each a function of numbers.

Figures are `matplotlib.figure.Figure`s drawn by Agg, without pyplot and its
global state. matplotlib is imported when the first figure is drawn.
"""

import io
from collections.abc import Mapping, Sequence
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
# Largest number of classes in a legend.
_LEGEND = 20


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
    count: int, width: float, height: float
) -> "tuple[Figure, list[Axes]]":
    """Returns a figure and `count` axes, in rows of at most four."""
    columns = min(count, 4)
    figure, axes = panels(-(-count // columns), columns, width, height)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def legend(figure: "Figure", axis: "Axes", place: str, **options: Any) -> None:
    """Explains what an axis shows, outside of all axes."""
    # By itself matplotlib leaves out labels with a first _.
    handles = [*axis.collections, *axis.lines]
    labels = [str(handle.get_label()) for handle in handles]
    options |= {"loc": f"outside {place}", "fontsize": 8, "frameon": False}
    for text in figure.legend(handles, labels, **options).get_texts():
        text.set_parse_math(False)


def png(figure: "Figure", dpi: int = _DPI) -> bytes:
    """Encodes a figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi)
    return stream.getvalue()


# ---- Of protocols ------------------------------------------------------------


def random_projections(projections: Mapping[str, Any]) -> "Figure":
    """Histograms of random projections, with the normal density of each.

    Chen et al. 2021 (Intriguing Properties), figure B.1.
    """
    values = np.asarray(projections["projections"])
    count = min(values.shape[1], PANELS)
    figure, axes = grid(count, 2.4, 1.7)
    # One range for all panels, not empty even for a single point.
    ends = values.min() - 1e-6, values.max() + 1e-6
    for number, axis in enumerate(axes):
        x = values[:, number]
        mean, deviation = x.mean(), x.std()
        axis.hist(x, bins=50, range=ends, density=True, color=FIRST, alpha=0.7)
        if deviation > 0:
            places = np.linspace(*ends, 200)
            density = np.exp(-(((places - mean) / deviation) ** 2) / 2)
            density /= deviation * np.sqrt(2 * np.pi)
            axis.plot(places, density, color=SECOND, linewidth=1.2)
        axis.set_yticks([])
        axis.set_title(f"KS {projections['ks_normal'][number]:.3f}", fontsize=8)
    figure.suptitle(
        "random orthogonal projections, and the normal density of each"
        " (KS: distance between them)",
        fontsize=9,
    )
    return figure


def neighbors(parts: Mapping[str, Any]) -> "Figure":
    """Cosines to the nearest image of the same class, and of another.

    `parts` maps the title of a panel to `separation.neighbor_histograms`.
    Medians are dotted lines. Feeney and Hughes 2024 (SINCERE), figure 2.
    """
    parts = dict(list(parts.items())[: PANELS + 1])
    figure, axes = grid(len(parts), 3.2, 2.3)
    for axis, (title, part) in zip(axes, parts.items(), strict=True):
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
        axis.set_title(title, parse_math=False)
        axis.locator_params(axis="y", nbins=4)
    axes[0].legend(fontsize=8, frameon=False, loc="upper left")
    figure.supxlabel("cosine to the nearest training image", fontsize=10)
    figure.supylabel("fraction of test images", fontsize=10)
    return figure


def spectrum(arrays: Mapping[str, np.ndarray]) -> "Figure":
    """Plots singular values and eigenvalues, on linear and log scales."""
    figure, axes = panels(1, 2, 4.0, 3.0)
    curves = {
        "singular values": (arrays["singular_values"], QUIET),
        "eigenvalues, magnitude": (arrays.get("eigenvalues"), FIRST),
    }
    for axis, scale in zip(axes[0], ("linear", "log"), strict=True):
        for name, (values, color) in curves.items():
            if values is not None:
                ranks = np.arange(1, len(values) + 1)
                axis.plot(ranks, values, color=color, label=name)
        axis.set_yscale(scale)
        axis.set_xlabel("rank")
        axis.set_title(f"{scale} scale")
    axes[0, 0].set_ylabel("size")
    axes[0, 0].legend(fontsize=8, frameon=False)
    return figure


def maps(
    maps: Mapping[str, np.ndarray],
    labels: np.ndarray,
    label_names: Sequence[str] = (),
) -> "Figure":
    """Plots points [n, 2] by the title of their panel, coloured by class."""
    from matplotlib import colormaps

    figure, axes = panels(1, len(maps), 4.4, 4.2)
    kinds = np.unique(labels)
    palette = colormaps["tab10" if len(kinds) <= 10 else "tab20"]
    for axis, (title, places) in zip(axes[0], maps.items(), strict=True):
        for number, kind in enumerate(kinds):
            named = 0 <= kind < len(label_names)
            axis.scatter(
                *places[labels == kind].T,
                s=8,
                color=palette(number % palette.N) if kind >= 0 else FIRST,
                linewidths=0,
                label=str(label_names[kind] if named else kind),
            )
        axis.set_title(title)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_aspect("equal", adjustable="datalim")
    if kinds[-1] >= 0 and len(kinds) <= _LEGEND:
        legend(figure, axes[0, 0], "right center", markerscale=2)
    return figure


def clusters(
    image: np.ndarray, clusters: Mapping[str, Mapping[int, np.ndarray]]
) -> "Figure":
    """Overlays an image, float [S, S, 3] in [0, 1], with its clusters.

    `clusters` maps features and a number of clusters to int [h, w].
    """
    from matplotlib import colormaps

    counts = list(next(iter(clusters.values())))
    figure, axes = panels(len(clusters), len(counts) + 1, 1.6, 1.7)
    # Adjacent colours of the palette are shades of one hue.
    order = [*range(0, 20, 2), *range(1, 20, 2)]
    palette = colormaps["tab20"](order)[:, :3]
    image = np.clip(image, 0, 1)
    gray = image.mean(axis=-1, keepdims=True)
    for row, (name, by_count) in zip(axes, clusters.items(), strict=True):
        row[0].imshow(image)
        row[0].set_ylabel(name.replace("_", " "), fontsize=7)
        for axis, count in zip(row[1:], counts, strict=True):
            colors = palette[by_count[count] % len(palette)]
            # Each pixel has the colour of its place.
            y, x = (
                np.arange(len(image)) * size // len(image)
                for size in colors.shape[:2]
            )
            blend = 0.45 * colors[y][:, x] + 0.55 * gray
            axis.imshow(np.clip(blend, 0, 1))
        for axis in row:
            axis.set_xticks([])
            axis.set_yticks([])
    axes[0, 0].set_title("image", fontsize=9)
    for axis, count in zip(axes[0, 1:], counts, strict=True):
        axis.set_title(f"{count} clusters", fontsize=9)
    return figure


def severities(
    accuracies: Mapping[str, Sequence[float]], clean: float
) -> "Figure":
    """Accuracy at severity 0 (clean), 1, 2, ... of each corruption."""
    from matplotlib import colormaps

    figure, axes = panels(1, 1, 6.4, 3.8)
    axis = axes[0, 0]
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
    mean = np.mean(list(curves.values()), axis=0)
    axis.plot(mean, color="black", linewidth=2.5, label="mean")
    severities = range(1, len(mean))
    axis.set_xticks([0, *severities], ["clean", *map(str, severities)])
    axis.set_xlabel("severity")
    axis.set_ylabel("accuracy")
    axis.set_ylim(bottom=0)
    legend(figure, axis, "right upper", borderaxespad=0.2)
    return figure
