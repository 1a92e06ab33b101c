"""A picture of some images of a dataset."""

import io
import os

import numpy as np

from tf_contrastive.datasets.source import Record, Source

# Images on a sheet, at most, and in a row; inches of an image, and of its
# caption.
_IMAGES = 64
_COLUMNS, _TILE, _CAPTION = 8, 1.2, 0.3


def contact_sheet(source: Source) -> bytes:
    """Returns some images with their names, as a PNG file.

    They are evenly spread over the split, and sorted by class.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    info = source.info
    count = min(_IMAGES, info.num_examples)
    rows = np.linspace(0, info.num_examples - 1, count).astype(int)
    examples = source.select(rows).examples().as_numpy_iterator()
    tiles = list(zip(rows, examples, strict=True))
    if info.has_labels:
        tiles.sort(key=lambda tile: tile[1]["label"])
    lines = -(-len(rows) // _COLUMNS)
    size = _COLUMNS * _TILE, lines * (_TILE + _CAPTION) + _CAPTION
    figure = Figure(size, layout="constrained")
    figure.suptitle(
        f"{info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}",
        fontsize=8,
        parse_math=False,
    )
    for place, (row, example) in enumerate(tiles):
        axes = figure.add_subplot(lines, _COLUMNS, place + 1)
        axes.imshow(example["image"])
        axes.set_title(
            _caption(source, row, example), fontsize=5, parse_math=False
        )
        axes.set_axis_off()
    file = io.BytesIO()
    FigureCanvasAgg(figure).print_png(file)
    return file.getvalue()


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
