"""How a split was understood, in rows for people, and a picture of it."""

import io
import os
import time
from typing import NamedTuple

import numpy as np

from tf_contrastive.datasets.source import Record, Source

Rows = dict[str, str | float | list[str] | None]

# Labels read from files at a time.
_BATCH = 256
# Classes that are listed, and unreadable images that are named.
_LISTED = _NAMED = 10
# Images on a sheet, at most, and in a row; inches of an image, and of its
# caption.
_IMAGES = 64
_COLUMNS, _TILE, _CAPTION = 8, 1.2, 0.3


class Classes(NamedTuple):
    """The classes of a split, or of its first examples."""

    sizes: np.ndarray  # Examples of each class, int64 [classes].
    examples: int  # That were counted.


def count_classes(source: Source, seconds: float) -> Classes | None:
    """Counts the examples of each class; None without labels.

    Labels in files are read from the first on, for about `seconds`. An example
    of several classes counts for each.
    """
    info = source.info
    if info.num_classes is None:
        return None
    sizes = np.zeros([info.num_classes], np.int64)
    if source.arrays is not None:
        batches = iter([source.arrays["label"].numpy()])
    else:
        labels = source.records.map(lambda record: record["label"])
        batches = labels.batch(_BATCH).as_numpy_iterator()
    examples, end = 0, time.perf_counter() + seconds
    for batch in batches:
        examples += len(batch)
        classes = batch.nonzero()[1] if info.multi_label else batch
        known = (classes >= 0) & (classes < len(sizes))
        sizes += np.bincount(classes[known], minlength=len(sizes))
        if time.perf_counter() > end:
            break
    return Classes(sizes, examples)


def describe(source: Source, classes: Classes | None) -> Rows:
    """Returns name -> value of what is known of a split, and of its classes."""
    info = source.info
    rows: Rows = {
        "dataset": f"{info.name} {info.split}",
        **{what: value for what, value in info.found if value},
        "examples": info.num_examples,
        "classes": info.num_classes,
    }
    if classes is not None:
        part = classes.examples < info.num_examples
        heading = [f"of the first {classes.examples:,} images:"] * part
        rows["class_sizes"] = heading + _sizes(classes.sizes, info.label_names)
        if not part:
            rows["smallest_class"] = int(classes.sizes.min())
            rows["largest_class"] = int(classes.sizes.max())
    rows["unreadable_images"] = len(info.bad_images)
    if info.bad_images:
        rows["unreadable"] = ", ".join(info.bad_images[:_NAMED])
    return rows


def _sizes(sizes: np.ndarray, names: tuple[str, ...]) -> list[str]:
    """Lists the largest classes with their sizes."""
    order = np.argsort(-sizes, kind="stable")[:_LISTED]
    lines = [f"{names[i] if names else i}: {sizes[i]:,}" for i in order]
    if len(sizes) > _LISTED:
        lines.append(f"and {len(sizes) - _LISTED:,} smaller ones")
    return lines


# ---- A picture ---------------------------------------------------------------


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
        axes.imshow(info.shown(example["image"]).numpy())
        caption = _caption(source, row, example)
        axes.set_title(caption, fontsize=5, parse_math=False)
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
