"""Figures of single papers, as protocols of `evaluate`."""

from tf_contrastive.evaluation.protocols import Protocol, hyperparameters_of
from tf_contrastive.papers.figures import kmeans, spectra, transformations, tsne

# Additions to `evaluation.protocols.PROTOCOLS`.
PROTOCOLS = {
    name: Protocol(1, part.measure, hyperparameters_of(name), part.needs)
    for name, part in {
        "spectrum": spectra,
        "transforms": transformations,
        "tsne": tsne,
        "kmeans": kmeans,
    }.items()
}
