"""The options of `datasets`."""

import dataclasses

from tf_contrastive.config.data import split_name
from tf_contrastive.config.dataset_names import optional_dataset_name
from tf_contrastive.config.fields import option, validate_fields
from tf_contrastive.config.terminal import Terminal
from tf_contrastive.errors import UserError


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    list: bool = option(
        False, "print what --dataset takes; as without any flag"
    )
    show: str = option(
        "",
        "dataset of which to write a contact sheet",
        check=optional_dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=split_name)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Datasets:
    """All options of `datasets`."""

    listing: Listing = dataclasses.field(default_factory=Listing)
    terminal: Terminal = dataclasses.field(default_factory=Terminal)

    def validate(self) -> None:
        """Raises `UserError` for values that cannot work."""
        validate_fields(self)
        if self.listing.list and self.listing.show:
            raise UserError(
                f"`list` and show={self.listing.show}: give one of them"
            )
