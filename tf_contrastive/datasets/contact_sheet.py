"""A picture of some images of a dataset."""

import math

import numpy as np
import tensorflow as tf

from tf_contrastive.datasets.source import Record, Source

# Images on a contact sheet, their side in pixels, and the height of the stripes
# that show extra channels.
_IMAGES, _TILE, _STRIPES = 64, 96, 8


def contact_sheet(source: Source) -> bytes:
    """Returns some images, evenly spread over the split, as a PNG file.

    Extra channels are the stripes below an image: white is 1, dark gray is 0.
    """
    # Of all classes, where files are sorted by them.
    count = source.info.num_examples
    rows = np.unique(np.linspace(0, count - 1, _IMAGES).astype(int))
    tiles = [_tile(x) for x in source.select(rows).examples()]
    columns = math.ceil(math.sqrt(len(tiles)))
    tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    grid = np.reshape(tiles, [-1, columns, _TILE, _TILE, 3])
    sheet = np.concatenate(np.concatenate(grid, axis=1), axis=1)
    pixels = tf.image.convert_image_dtype(sheet, tf.uint8)
    return tf.io.encode_png(pixels).numpy()


def _tile(example: Record) -> np.ndarray:
    """Returns an example as a square of floats in [0, 1]."""
    # Without a crop, unlike in evaluation.
    image = tf.image.resize_with_pad(
        example["image"], _TILE, _TILE, antialias=True
    )
    image = np.clip(image / 255, 0.0, 1.0)
    if "extra" in example and example["extra"].shape.rank == 1:
        values = np.clip(np.asarray(example["extra"], np.float32), 0.0, 1.0)
        if len(values):
            x = (np.arange(_TILE) + 0.5) * len(values) / _TILE
            image[-_STRIPES:] = 0.2 + 0.8 * values[x.astype(int), np.newaxis]
    return image
