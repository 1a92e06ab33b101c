"""Figures of evaluations.

They are `matplotlib.figure.Figure`s, drawn by Agg, without pyplot: nothing of
what a notebook or another thread draws is touched. matplotlib is imported when
the first is drawn.
"""

from tf_contrastive.evaluation.pictures.canvas import (
    panels,
    pixels,
    plain,
    png,
)
from tf_contrastive.evaluation.pictures.representations import (
    maps,
    overlays,
    projection_histograms,
    spectrum,
    tasks,
)
from tf_contrastive.evaluation.pictures.scores import (
    neighbor_histograms,
    reliability_diagram,
    severity_curves,
)

__all__ = [
    "maps",
    "neighbor_histograms",
    "overlays",
    "panels",
    "pixels",
    "plain",
    "png",
    "projection_histograms",
    "reliability_diagram",
    "severity_curves",
    "spectrum",
    "tasks",
]
