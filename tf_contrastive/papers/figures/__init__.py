"""Figures of single papers, as protocols of `evaluate`."""

from tf_contrastive.evaluation.protocols import Protocol, hyperparameters_of
from tf_contrastive.papers.figures import kmeans, spectra, transformations, tsne

# Additions to `evaluation.protocols.PROTOCOLS`.
PROTOCOLS = {
    name: Protocol(1, measure, hyperparameters_of(name), needs, writes)
    for name, measure, needs, writes in (
        (
            "spectrum",
            spectra.measure,
            spectra.needs,
            lambda o: ("share_of_top_*", "effective_rank", "rows", "columns"),
        ),
        (
            "transforms",
            transformations.measure,
            transformations.needs,
            lambda o: [
                f"{task}_{name}"
                for task in transformations.TASKS
                for name in ("h", "z", "chance")
            ],
        ),
        (
            "tsne",
            tsne.measure,
            tsne.needs,
            lambda o: ("divergence_h", "divergence_z", "images"),
        ),
        (
            "kmeans",
            kmeans.measure,
            lambda context: None,
            lambda o: ("explained_*",),
        ),
    )
}
