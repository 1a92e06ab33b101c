"""`datasets`: lists the datasets, or shows one."""

import dataclasses
from typing import ClassVar

from tf_contrastive.base import files, terminal
from tf_contrastive.base.errors import arg
from tf_contrastive.config.command import Command, Group, Terminal
from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset import (
    DATASETS,
    DatasetDeclaration,
    WithOptions,
    dataset_name,
)
from tf_contrastive.config.fields import group, option

# Seconds for reading labels from files.
_LABELS = 10.0


class Listing(Group):
    """What `datasets` shows."""

    show: str = option(
        "",
        "dataset to write a contact sheet of; empty: list the datasets",
        check=dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=split_name)
    output: str = option("contact_sheet.png", "PNG file to write")


class Datasets(Command):
    """List the datasets, or show one."""

    COMMON: ClassVar = (
        *("show", "data_dir", "split", "output", "label_feature"),
        *("test_fraction", "verbosity"),
    )

    listing: Listing = group(Listing())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())


def run(options: Datasets) -> int:
    """Lists datasets, or writes a contact sheet; returns 0."""
    if options.listing.show:
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


def _show(options: Datasets) -> None:
    """Writes some images as one PNG file, and prints what is known of all."""
    from tf_contrastive import datasets
    from tf_contrastive.datasets import description

    listing, output = options.listing, options.listing.output
    source = datasets.source(
        listing.show,
        listing.split,
        data_dir=listing.data_dir or None,
        reading=options.reading,
    )
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
