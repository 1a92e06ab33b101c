"""A picture of some images of a dataset."""

import io
import os

import numpy as np

from tf_contrastive.datasets.source import Record, Source

# Images on a sheet, at least so many of a class, and classes, at most.
_IMAGES, _LEAST, _CLASSES = 64, 2, 32
# Images in a row; inches of an image, and of its caption.
_COLUMNS, _TILE, _CAPTION = 8, 1.2, 0.3
# The height of the stripes of extra channels, as a fraction of an image.
_STRIPES = 0.08


def contact_sheet(source: Source) -> bytes:
    """Returns some images of each class, with their names, as a PNG file.

    Images are evenly spread over a class, and classes over the dataset. Those
    of a dataset whose labels are not in memory are spread over the split. Extra
    channels are the stripes below an image: white is 1, dark gray is 0.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _chosen(source)
    examples = source.select(rows).examples().as_numpy_iterator()
    tiles = list(zip(rows, examples, strict=True))
    if source.info.has_labels:
        tiles.sort(key=lambda tile: tile[1]["label"])
    lines = -(-len(rows) // _COLUMNS)
    size = _COLUMNS * _TILE, lines * (_TILE + _CAPTION) + _CAPTION
    figure = Figure(size, layout="constrained")
    info = source.info
    figure.suptitle(
        f"{info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}",
        fontsize=8,
        parse_math=False,
    )
    for place, (row, example) in enumerate(tiles):
        axes = figure.add_subplot(lines, _COLUMNS, place + 1)
        axes.imshow(_with_stripes(example))
        axes.set_title(
            _caption(source, row, example), fontsize=5, parse_math=False
        )
        axes.set_axis_off()
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


def _chosen(source: Source) -> np.ndarray:
    """Returns the rows to show, class by class if labels are in memory."""
    info = source.info
    labels = (source.arrays or {}).get("label")
    if labels is None or not info.has_labels:
        return _spread(np.arange(info.num_examples), _IMAGES)
    labels = np.asarray(labels)
    classes = _spread(np.unique(labels), _CLASSES)
    each = max(_IMAGES // len(classes), _LEAST)
    rows = [_spread(np.flatnonzero(labels == c), each) for c in classes]
    return np.sort(np.concatenate(rows))


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """Returns at most `count` of the values, evenly spread."""
    places = np.linspace(0, len(values) - 1, min(count, len(values)))
    return values[places.astype(int)]


def _caption(source: Source, row: int, example: Record) -> str:
    """Returns the class of an image, and its file or number in the split."""
    name = f"{row:,}"
    if source.paths is not None:
        name = os.path.basename(source.paths[row])
    if not source.info.has_labels:
        return name[:24]
    label, names = int(example["label"]), source.info.label_names
    label_name = names[label] if names else f"class {label}"
    return f"{'unlabelled' if label < 0 else label_name[:24]}\n{name[:24]}"


def _with_stripes(example: Record) -> np.ndarray:
    """Returns the pixels of an example, with its extra channels below."""
    image = np.array(example["image"])
    values = np.asarray(example.get("extra", ()), np.float32)
    if values.ndim == 1 and len(values):
        gray = np.round(51 + 204 * np.clip(values, 0, 1)).astype(np.uint8)
        height, width, _ = image.shape
        x = (np.arange(width) + 0.5) * len(values) / width
        below = max(round(_STRIPES * height), 1)
        image[-below:] = gray[x.astype(int), np.newaxis]
    return image
