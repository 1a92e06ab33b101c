"""Plots of measurements."""

import subprocess
import sys
from pathlib import Path

import contexts
import numpy as np
import pytest

from tf_contrastive import evaluation
from tf_contrastive.evaluation import robustness

_ROOT = Path(__file__).resolve().parents[2]


_RNG = np.random.RandomState(0)


def test_plots_of_reliability_and_of_severities():
    confidences = _RNG.uniform(0.1, 1, size=500)
    bins = evaluation.reliability(
        confidences, _RNG.uniform(size=500) < confidences
    )
    curves = {"fog": [0.8, 0.7, 0.6], "gaussian_noise": [0.7, 0.5, 0.3]}
    figures = {
        "reliability": robustness.reliability_diagram({"clean": bins}),
        "severity": robustness.severity_curves(curves, clean=0.9),
        "one": robustness.severity_curves({"fog": [0.5]}, clean=0.6),
    }
    contexts.check_plots({"plots": figures})


@pytest.mark.parametrize("panels", [1, 3])
def test_legend_of_reliability_hides_nothing(panels):
    bins = evaluation.reliability(np.linspace(0.03, 1, 60), np.ones(60))
    figure = robustness.reliability_diagram(
        {str(k): bins for k in range(panels)}
    )
    figure.canvas.draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    assert len(legend.get_texts()) == 2
    assert figure.bbox.fully_containsx(box.x0)
    assert figure.bbox.fully_containsx(box.x1)
    for axis in figure.axes:
        assert axis.get_legend() is None
        assert not axis.get_tightbbox().overlaps(box)


@pytest.mark.slow
def test_plots_do_not_import_pyplot():
    code = (
        "import sys\n"
        "from tf_contrastive.evaluation import plots, robustness\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.png(robustness.severity_curves({'fog': [0.5]}, 0.6))\n"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=_ROOT)
