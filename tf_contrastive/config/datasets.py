"""The options of `datasets`."""

import dataclasses

from tf_contrastive.config.data import Reading, split_name
from tf_contrastive.config.dataset_names import dataset_name
from tf_contrastive.config.fields import Command, Terminal, group, option


@dataclasses.dataclass(frozen=True)
class Listing:
    """What `datasets` shows."""

    show: str = option(
        "",
        "dataset to write a contact sheet of; empty: list the datasets",
        check=dataset_name,
    )
    data_dir: str = option("", "folder of prepared TensorFlow Datasets")
    split: str = option("train", "split to show", check=split_name)
    output: str = option("contact_sheet.png", "PNG file to write")


@dataclasses.dataclass(frozen=True)
class Datasets(Command):
    """List the datasets; --show=NAME writes a contact sheet."""

    listing: Listing = group(Listing())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())
