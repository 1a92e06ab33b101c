"""`datasets`: the values of `--dataset`; shows one, or packs its images."""

import dataclasses
import math
import os
from typing import Any

import numpy as np

from tf_contrastive import errors, files
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset_names import PROBING_DATASETS
from tf_contrastive.config.datasets import Datasets, Listing

# In the order of the list; those of PROBING_DATASETS are followed by their
# options.
_DATASETS = {
    "digits": "1,797 handwritten digits of 8x8 pixels, embedded",
    "folder:PATH": "a folder per class, or images without labels",
    "csv:PATH": "lines of path,label, or of paths",
    "packed:FOLDER": "what `datasets --pack` has made of another dataset",
    "tfrecord:GLOB": "tf.train.Example with an encoded image and a label",
    "NAME": "any prepared dataset of TensorFlow Datasets, such as cifar10",
    "cifar2": "cats and dogs of cifar10",
    "imagenet100": "100 classes of imagenet2012",
    "subset": "a fraction of train, with equally many images of each class:"
    " subset:fraction=0.1,of=cifar10",
    "multidigits": "digits of mnist on a black canvas:"
    " multidigits:count=4,placement=grid",
    "digit_on_image": "a digit of mnist at nine places of an image:"
    " digit_on_image:unique=16,of=cifar10",
    "randbit": "images with the bits of a random integer as channels:"
    " randbit:bits=5,of=cifar10",
    "kbits": "such channels on black images: kbits:bits=5",
}
# Images on a contact sheet, their side in pixels, and the height of the stripes
# that show extra channels.
_IMAGES, _TILE, _STRIPES = 64, 96, 8


def run(options: Datasets) -> int:
    """Lists the datasets, writes a contact sheet, or packs one; returns 0."""
    if options.packing.pack:
        print(_pack(options))
        return 0
    if options.listing.show:
        print(_contact_sheet(options.listing, options.reading))
        return 0
    for name, text in _DATASETS.items():
        print(f"{name:14} {text}")
        if name in PROBING_DATASETS:
            for field in dataclasses.fields(PROBING_DATASETS[name]):
                default = f" (default: {field.default})" * bool(field.default)
                help_text = field.metadata["help"]
                print(f"{'':16} {field.name}: {help_text}{default}")
    return 0


def _pack(options: Datasets) -> str:
    """Writes resized images; returns a description."""
    from tf_contrastive import datasets

    chosen, listing = options.packing, options.listing
    source = datasets.source(
        chosen.dataset,
        listing.split,
        data_dir=listing.data_dir or None,
        reading=options.reading,
    )
    folder = os.path.expanduser(chosen.pack)
    try:
        count = datasets.pack(source, folder, chosen.pack_side)
    except errors.UserError as error:
        cause = error.__cause__ or error
        raise datasets.name_unreadable(cause) or error from cause
    return (
        f"packed {count:,} images of {listing.split}: read them by"
        f" --dataset=packed:{chosen.pack}"
    )


def _contact_sheet(chosen: Listing, reading: Reading) -> str:
    """Writes some images as one PNG file; returns a description."""
    # Imported here, so that the list does not start TensorFlow.
    import tensorflow as tf

    from tf_contrastive import datasets

    source = datasets.source(
        chosen.show,
        chosen.split,
        data_dir=chosen.data_dir or None,
        reading=reading,
    )
    # Of all classes, where files are sorted by them.
    count = source.info.num_examples
    rows = np.unique(np.linspace(0, count - 1, _IMAGES).astype(int))
    tiles = [_tile(x) for x in source.select(rows).examples()]
    columns = math.ceil(math.sqrt(len(tiles)))
    tiles += [np.zeros_like(tiles[0])] * (-len(tiles) % columns)
    grid = np.reshape(tiles, [-1, columns, _TILE, _TILE, 3])
    sheet = np.concatenate(np.concatenate(grid, axis=1), axis=1)
    pixels = tf.image.convert_image_dtype(sheet, tf.uint8)
    sheet_png = tf.io.encode_png(pixels).numpy()
    files.write(
        chosen.output, sheet_png, f"set {errors.arg('output')} to another file"
    )
    info = source.info
    extra = ""
    if info.extra_channels:
        extra = f", {info.extra_channels} extra channels (the stripes below)"
    return (
        f"{info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}, shape {info.image_shape or 'varies'}{extra};"
        f" contact sheet: {chosen.output}"
    )


def _tile(example: dict[str, Any]) -> np.ndarray:
    """Returns an example as a square of floats in [0, 1]."""
    import tensorflow as tf

    # Without a crop, unlike in evaluation.
    image = tf.image.resize_with_pad(
        example["image"], _TILE, _TILE, antialias=True
    )
    image = np.clip(image / 255, 0.0, 1.0)
    if "extra" in example and example["extra"].shape.rank == 1:
        values = np.clip(np.asarray(example["extra"], np.float32), 0.0, 1.0)
        if len(values):
            # A stripe for each channel: white is 1, dark gray is 0.
            x = (np.arange(_TILE) + 0.5) * len(values) / _TILE
            image[-_STRIPES:] = 0.2 + 0.8 * values[x.astype(int), np.newaxis]
    return image
