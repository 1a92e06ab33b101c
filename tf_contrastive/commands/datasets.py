"""`datasets`: lists the datasets, shows one, or packs one."""

import dataclasses
from typing import Any

from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset import (
    DATASETS,
    DatasetDeclaration,
    WithOptions,
    dataset_name,
)
from tf_contrastive.config.fields import Command, Terminal, group, option

# Seconds for reading labels from files.
_LABELS = 10.0


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
    """List the datasets, show one, or pack one."""

    listing: Listing = group(Listing())
    packing: Packing = group(Packing())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        dataset, folder = self.packing.dataset, self.packing.pack
        if bool(folder) != bool(dataset):
            raise UserError(
                f"{arg('pack', folder)} and {arg('dataset', dataset)}: set"
                " both, the folder to write and the dataset to read"
            )


def run(options: Datasets) -> int:
    """Lists datasets, writes a contact sheet, or packs; returns 0."""
    if options.packing.pack:
        _pack(options)
    elif options.listing.show:
        _show(options)
    else:
        for declared in DATASETS.values():
            _describe(declared)
    return 0


def _describe(declared: type[DatasetDeclaration]) -> None:
    """Prints what a declaration says."""
    text = (declared.__doc__ or "").splitlines()[0]
    if not issubclass(declared, WithOptions):
        print(f"{declared.form:14} {text}")
        return
    example = f" Example: {declared.form}" * (declared.form != declared.name)
    print(f"{declared.name:14} {text}{example}")
    for field in dataclasses.fields(declared):
        default = f" (default: {field.default})" * bool(field.default)
        print(f"{'':16} {field.name}: {field.metadata['help']}{default}")


def _open(options: Datasets, name: str) -> Any:
    """Opens the split of a dataset."""
    from tf_contrastive import datasets

    listing, data_dir = options.listing, options.listing.data_dir or None
    return datasets.source(
        name, listing.split, data_dir=data_dir, reading=options.reading
    )


def _pack(options: Datasets) -> None:
    """Writes resized images, and prints how to read them."""
    from tf_contrastive import datasets

    chosen = options.packing
    source = _open(options, chosen.dataset)
    datasets.pack(source, chosen.pack, chosen.pack_side)
    print(
        f"packed {source.info.num_examples:,} images of {source.info.split}:"
        f" read them by --dataset=packed:{chosen.pack}"
    )


def _show(options: Datasets) -> None:
    """Writes some images as one PNG file, and prints what is known of all."""
    from tf_contrastive import datasets
    from tf_contrastive.datasets import description

    output = options.listing.output
    source = _open(options, options.listing.show)
    sheet = datasets.contact_sheet(source)
    files.write(output, sheet, f"set {arg('output')} to another file")
    info = source.info
    classes = description.count_classes(source, _LABELS)
    rows = description.describe(source, classes)
    rows["image_shape"] = str(info.image_shape or "varies")
    if info.extra_channels:
        rows["extra_channels"] = info.extra_channels
    rows["contact_sheet"] = output
    terminal.print_sections({"data": rows})
