"""Figures of single papers, as protocols of `evaluate`."""

from tf_contrastive.evaluation.protocols import Protocol, knobs_of
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
        knobs_of("spectrum"),
        _needs_spectrum,
    ),
    "transforms": Protocol(
        1,
        transformations.measure,
        knobs_of("transforms"),
        transformations.needs,
    ),
    "tsne": Protocol(1, tsne.measure, knobs_of("tsne"), tsne.needs),
    "kmeans": Protocol(1, kmeans.measure, knobs_of("kmeans"), kmeans.needs),
}
