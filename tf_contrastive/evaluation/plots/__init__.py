"""Figures of evaluations.

They are `matplotlib.figure.Figure`s, drawn by Agg, without pyplot: nothing of
what a notebook or another thread draws is touched. matplotlib is imported when
the first is drawn.
"""

from tf_contrastive.evaluation.plots.canvas import panels, pixels, plain, png
from tf_contrastive.evaluation.plots.scores import (
    neighbor_histograms,
    projection_histograms,
    reliability_diagram,
    severity_curves,
)

__all__ = [
    "neighbor_histograms",
    "panels",
    "pixels",
    "plain",
    "png",
    "projection_histograms",
    "reliability_diagram",
    "severity_curves",
]
