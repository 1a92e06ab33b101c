"""Datasets by name: encoded records, their decoding, and their metadata.

`pipeline` makes training and evaluation batches of them.
"""

from tf_contrastive.config.data import Reading
from tf_contrastive.datasets.array_source import from_arrays
from tf_contrastive.datasets.color_statistics import channel_statistics
from tf_contrastive.datasets.decoding import without_python
from tf_contrastive.datasets.description import contact_sheet
from tf_contrastive.datasets.folders import from_path
from tf_contrastive.datasets.opening import load, name_unreadable, source
from tf_contrastive.datasets.overlap import check_disjoint, find_overlap
from tf_contrastive.datasets.own_data import from_dataset
from tf_contrastive.datasets.pipeline import (
    ViewMaker,
    evaluation_batches,
    evaluation_part,
    in_memory,
    part_size,
    training_batches,
    view_batches,
)
from tf_contrastive.datasets.sampler import Order, steps_per_epoch
from tf_contrastive.datasets.source import Info, Source, check_scorable

__all__ = [
    "Info",
    "Order",
    "Reading",
    "Source",
    "ViewMaker",
    "channel_statistics",
    "check_disjoint",
    "check_scorable",
    "contact_sheet",
    "evaluation_batches",
    "evaluation_part",
    "find_overlap",
    "from_arrays",
    "from_dataset",
    "from_path",
    "in_memory",
    "load",
    "name_unreadable",
    "part_size",
    "source",
    "steps_per_epoch",
    "training_batches",
    "view_batches",
    "without_python",
]
