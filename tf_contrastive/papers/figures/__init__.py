"""Figures of single papers, as protocols of `evaluate`."""

from tf_contrastive.evaluation.protocols import Protocol, hyperparameters_of
from tf_contrastive.papers.figures import kmeans, spectra, transformations, tsne

# Additions to `evaluation.protocols.PROTOCOLS`.
PROTOCOLS = {
    name: Protocol(1, measure, hyperparameters_of(name), needs)
    for name, measure, needs in (
        ("spectrum", spectra.measure, spectra.needs),
        ("transforms", transformations.measure, transformations.needs),
        ("tsne", tsne.measure, tsne.needs),
        ("kmeans", kmeans.measure, lambda context: None),
    )
}
