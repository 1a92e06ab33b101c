"""The options of `datasets`."""

import dataclasses

from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.data import split_name
from tf_contrastive.config.dataset_names import dataset_name
from tf_contrastive.config.fields import group, option
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    list: bool = option(
        False, "print the values of --dataset, as without any flag"
    )
    show: str = option(
        "", "dataset to write a contact sheet of", check=dataset_name
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=split_name)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Datasets(Command):
    """All options of `datasets`."""

    listing: Listing = group(Listing())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        if self.listing.list and self.listing.show:
            raise UserError(
                f"`list` and show={self.listing.show}: set one of them"
            )
