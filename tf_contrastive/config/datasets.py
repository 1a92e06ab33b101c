"""The options of `datasets`."""

import dataclasses

from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset import dataset_name
from tf_contrastive.config.fields import Command, Terminal, group, option
from tf_contrastive.errors import UserError, arg


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
