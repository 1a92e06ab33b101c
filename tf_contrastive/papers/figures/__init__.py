"""Figures of single papers, as protocols of `evaluate`."""

from tf_contrastive.evaluation.protocols import Protocol, hyperparameters_of
from tf_contrastive.evaluation.subject import Subject
from tf_contrastive.papers.figures import kmeans, spectra, transformations, tsne


def _needs_spectrum(subject: Subject) -> str | None:
    if subject.run is None:
        return (
            "an export does not say of what kind its projection head is: give"
            " the `workdir` of a run"
        )
    return spectra.needs(subject)


# Additions to `evaluation.protocols.PROTOCOLS`.
PROTOCOLS = {
    "spectrum": Protocol(
        1,
        spectra.measure,
        hyperparameters_of("spectrum"),
        _needs_spectrum,
    ),
    "transforms": Protocol(
        1,
        transformations.measure,
        hyperparameters_of("transforms"),
        transformations.needs,
    ),
    "tsne": Protocol(1, tsne.measure, hyperparameters_of("tsne"), tsne.needs),
    "kmeans": Protocol(
        1, kmeans.measure, hyperparameters_of("kmeans"), kmeans.needs
    ),
}
