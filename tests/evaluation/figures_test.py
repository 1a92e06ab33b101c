"""Figures of measurements."""

from pathlib import Path

import contexts
import numpy as np

from tf_contrastive import evaluation
from tf_contrastive.evaluation import figures

_ROOT = Path(__file__).resolve().parents[2]


_RNG = np.random.RandomState(0)


def test_plots_of_reliability_and_of_severities():
    confidences = _RNG.uniform(0.1, 1, size=500)
    bins = evaluation.reliability(
        confidences, _RNG.uniform(size=500) < confidences
    )
    curves = {"fog": [0.8, 0.7, 0.6], "gaussian_noise": [0.7, 0.5, 0.3]}
    drawn = {
        "reliability": figures.reliability({"clean": bins}),
        "severity": figures.severities(curves, clean=0.9),
        "one": figures.severities({"fog": [0.5]}, clean=0.6),
    }
    contexts.check_plots({"plots": drawn})
