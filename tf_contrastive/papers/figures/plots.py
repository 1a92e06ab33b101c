"""Figures of representations themselves, and of what they still tell."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tf_contrastive.evaluation.plots import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Classes that a legend names.
_LEGEND = 20


def spectrum(found: Mapping[str, Any]) -> "Figure":
    """A linear projection's spectrum, on a linear and on a log scale.

    Args:
      found: what `spectra.spectrum` returns.

    SimCLR, appendix B.4.
    """
    figure, axes = canvas.panels(1, 2, 4.0, 3.0)
    curves = {"singular values": found["singular_values"]}
    if found["eigenvalues"] is not None:
        curves["eigenvalues, magnitude"] = found["eigenvalues"]
    for axis, scale in zip(axes[0], ("linear", "log"), strict=True):
        canvas.plain(axis)
        for (name, values), color in zip(
            curves.items(), (canvas.QUIET, canvas.FIRST), strict=False
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
    figure, axes = canvas.panels(1, 1, 5.2, 3.0)
    axis = axes[0, 0]
    canvas.plain(axis)
    bars = [("h", canvas.FIRST), ("z", canvas.SECOND)]
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

    figure, axes = canvas.panels(1, len(places), 4.4, 4.2)
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
                color=colors[number % len(colors)]
                if kind >= 0
                else canvas.FIRST,
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
    figure, axes = canvas.panels(len(clusters), len(counts) + 1, 1.6, 1.7)
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
