"""Puts the papers' datasets and protocols beside the general ones."""

from tf_contrastive import datasets
from tf_contrastive.evaluation import protocols
from tf_contrastive.papers import datasets as paper_datasets
from tf_contrastive.papers import figures


def add_papers() -> None:
    """Makes the names of `papers` known to `datasets` and `evaluation`."""
    datasets.DERIVED.update(paper_datasets.DATASETS)
    protocols.PROTOCOLS.update(figures.PROTOCOLS)
