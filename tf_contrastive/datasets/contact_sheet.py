"""A picture of some images of a dataset."""

import io
import os

import numpy as np
import tensorflow as tf
from PIL import Image, ImageDraw, ImageFont

from tf_contrastive.datasets.source import Record, Source

# Images on a sheet, at least so many of a class, and classes, at most.
_IMAGES, _LEAST, _CLASSES = 64, 2, 32
# Pixels: side of an image, space around it, images in a row, height of a line
# of text, and of the stripes that show extra channels.
_TILE, _GAP, _COLUMNS, _LINE, _STRIPES = 112, 8, 8, 16, 8
_PAGE, _LETTERBOX, _FRAME = "white", "#e8e8e8", "#b0b0b0"
_TEXT, _CAPTION = "black", "#555555"


def contact_sheet(source: Source) -> bytes:
    """Returns some images of each class, with their names, as a PNG file.

    Images are evenly spread over a class, and classes over the dataset. Those
    of a dataset whose labels are not in memory are spread over the split. Extra
    channels are the stripes below an image: white is 1, dark gray is 0.
    """
    rows, left_out = _chosen(source)
    groups: dict[int, list[tuple[int, np.ndarray]]] = {}
    for row, example in zip(rows, source.select(rows).examples(), strict=True):
        label = int(example["label"]) if source.info.has_labels else 0
        groups.setdefault(label, []).append((row, _tile(example)))
    sections = [
        (_heading(source, label), groups[label]) for label in sorted(groups)
    ]
    if left_out:
        sections.append((f"{left_out:,} more classes are not shown", []))
    return _png(source, sections)


def _chosen(source: Source) -> tuple[np.ndarray, int]:
    """Returns the rows to show, and how many classes are not among them."""
    info = source.info
    labels = (source.arrays or {}).get("label")
    if labels is None or not info.has_labels:
        return _spread(np.arange(info.num_examples), _IMAGES), 0
    labels = np.asarray(labels)
    present = np.unique(labels)
    classes = _spread(present, _CLASSES)
    each = max(_IMAGES // len(classes), _LEAST)
    rows = [_spread(np.flatnonzero(labels == c), each) for c in classes]
    return np.sort(np.concatenate(rows)), len(present) - len(classes)


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """Returns at most `count` of the values, evenly spread."""
    places = np.linspace(0, len(values) - 1, min(count, len(values)))
    return values[places.astype(int)]


def _heading(source: Source, label: int) -> str:
    info, sizes = source.info, source.class_sizes()
    if not info.has_labels:
        return f"{info.name} {info.split}: {info.num_examples:,} images"
    name = info.label_names[label] if info.label_names else f"class {label}"
    if label < 0:
        return "without a label"
    return name if sizes is None else f"{name}: {sizes[label]:,} images"


def _tile(example: Record) -> np.ndarray:
    """Returns an example as pixels [h, w, 3] that fit a tile."""
    # Without a crop, unlike in evaluation.
    height, width = example["image"].shape[:2]
    scale = _TILE / max(height, width)
    size = [max(round(side * scale), 1) for side in (height, width)]
    image = tf.image.resize(example["image"], size, antialias=True) / 255
    image = np.clip(image, 0.0, 1.0)
    if "extra" in example and example["extra"].shape.rank == 1:
        values = np.clip(np.asarray(example["extra"], np.float32), 0.0, 1.0)
        if len(values):
            x = (np.arange(size[1]) + 0.5) * len(values) / size[1]
            image[-_STRIPES:] = 0.2 + 0.8 * values[x.astype(int), np.newaxis]
    return np.round(image * 255).astype(np.uint8)


def _name(source: Source, row: int) -> str:
    """Returns the name of an image's file, or its number in the split."""
    if source.paths is None:
        return f"{row:,}"
    return os.path.basename(source.paths[row])


def _png(
    source: Source, sections: list[tuple[str, list[tuple[int, np.ndarray]]]]
) -> bytes:
    """Draws sections of a heading and of (row, pixels)."""
    import matplotlib

    fonts = os.path.join(matplotlib.get_data_path(), "fonts", "ttf")
    heading, caption = (
        ImageFont.truetype(os.path.join(fonts, name), size)
        for name, size in (("DejaVuSans-Bold.ttf", 12), ("DejaVuSans.ttf", 10))
    )
    cell = _TILE + _GAP
    heights = [
        _LINE + _GAP + -(-len(tiles) // _COLUMNS) * (cell + _LINE)
        for _, tiles in sections
    ]
    columns = max(min(len(tiles), _COLUMNS) for _, tiles in sections)
    # A heading is cut off where it is wider than three images.
    width = _GAP + max(columns, 3) * cell
    page = Image.new("RGB", (width, _GAP + sum(heights)), _PAGE)
    draw = ImageDraw.Draw(page)
    top = _GAP
    for (title, tiles), height in zip(sections, heights, strict=True):
        title = _shortened(title, heading, width - 2 * _GAP)
        draw.text((_GAP, top), title, _TEXT, heading)
        for place, (row, pixels) in enumerate(tiles):
            y, x = divmod(place, _COLUMNS)
            x, y = _GAP + x * cell, top + _LINE + y * (cell + _LINE)
            frame = (x - 1, y - 1, x + _TILE, y + _TILE)
            draw.rectangle(frame, _LETTERBOX, _FRAME)
            h, w = pixels.shape[:2]
            corner = x + (_TILE - w) // 2, y + (_TILE - h) // 2
            page.paste(Image.fromarray(pixels), corner)
            name = _shortened(_name(source, row), caption, _TILE)
            draw.text((x, y + _TILE + 2), name, _CAPTION, caption)
        top += height
    file = io.BytesIO()
    page.save(file, "PNG")
    return file.getvalue()


def _shortened(text: str, font: ImageFont.FreeTypeFont, width: int) -> str:
    """Returns a text that fits, without its middle where it does not."""
    kept = text
    for length in range(len(text) - 1, 1, -1):
        if font.getlength(kept) <= width:
            break
        kept = text[: length // 2] + "…" + text[len(text) - length // 2 :]
    return kept
