"""`datasets`: the values of `--dataset`; shows one, or packs its images."""

import dataclasses
import math
import os
from typing import Any

import numpy as np

from tf_contrastive import errors, files
from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset import DATASETS, WithOptions, dataset_name
from tf_contrastive.config.fields import Command, Terminal, group, option
from tf_contrastive.errors import UserError, arg

# Images on a contact sheet, their side in pixels, and the height of the stripes
# that show extra channels.
_IMAGES, _TILE, _STRIPES = 64, 96, 8


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    show: str = option(
        "",
        "dataset to write a contact sheet of; empty: list the datasets",
        check=dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show or pack", check=split_name)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Packing:
    """Images that are resized once, and then read as packed:FOLDER."""

    pack: str = option(
        "",
        "folder to write the images of `dataset` to, as TFRecord files; an"
        " interrupted command is repeated",
    )
    dataset: str = option("", "dataset to pack", check=dataset_name)
    pack_side: int = option(
        448,
        "shorter side in pixels to which larger images are shrunk; twice the"
        " side of a view leaves crops most of their detail",
        minimum=8,
    )


@dataclasses.dataclass(frozen=True)
class Datasets(Command):
    """List the datasets, show one (--show=NAME) or pack one (--pack=FOLDER)."""

    listing: Listing = group(Listing())
    packing: Packing = group(Packing())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        pack, dataset = self.packing.pack, self.packing.dataset
        if bool(pack) != bool(dataset):
            raise UserError(
                f"{arg('pack', pack)} and {arg('dataset', dataset)}: set both,"
                " the folder to write and the dataset to read"
            )
        if pack and self.listing.show:
            raise UserError(
                f"{arg('pack', pack)} and {arg('show', self.listing.show)}: set"
                " one of them"
            )


def run(options: Datasets) -> int:
    """Lists the datasets, writes a contact sheet, or packs one; returns 0."""
    if options.packing.pack:
        print(_pack(options))
        return 0
    if options.listing.show:
        print(_contact_sheet(options.listing, options.reading))
        return 0
    for name, declared in DATASETS.items():
        text = (declared.__doc__ or "").splitlines()[0]
        if not issubclass(declared, WithOptions):
            print(f"{declared.form:14} {text}")
            continue
        example = f" Example: {declared.form}" * (declared.form != name)
        print(f"{name:14} {text}{example}")
        for field in dataclasses.fields(declared):
            default = f" (default: {field.default})" * bool(field.default)
            print(f"{'':16} {field.name}: {field.metadata['help']}{default}")
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
