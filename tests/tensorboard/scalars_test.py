"""Points that TensorBoard gets while a model is fitted."""

import types

import counting_model
import numpy as np
import pytest

from tf_contrastive import tensorboard
from tf_contrastive.config.runtime import resolve_log_every
from tf_contrastive.tensorboard import scalars


def _points(logdir, tag):
    return scalars.read(str(logdir)).get(tag, {})


def test_a_point_is_the_mean_over_the_steps_since_the_last(tmp_path):
    """Every epoch ends with a point."""
    callback = tensorboard.TensorBoard(
        str(tmp_path),
        every_steps=2,
        batch_size=10,
        schedules={"optimizer/learning_rate": lambda step: 10.0 * step},
    )
    counting_model.fit([1, 3, 5, 9, 2, 4, 7, 8, 9], 3, callback)
    points = {2: 2, 3: 5, 4: 9, 6: 3, 8: 7.5, 9: 9}
    assert _points(tmp_path, "loss/contrastive") == points
    # The rate that the last step used, not that of the next.
    assert _points(tmp_path, "optimizer/learning_rate")[4] == 30


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 1), (16, 1), (2499, 49), (10**6, 50)]
)
def test_a_short_run_has_fifty_points(steps, expected):
    assert resolve_log_every(None, steps) == expected


def test_the_grid_has_a_column_per_image_and_a_row_per_view():
    originals = np.full([3, 1, 4, 4, 5], 0.5, np.float32)
    views = np.zeros([3, 2, 4, 4, 5], np.float32)
    views[2, 1] = 0.25
    # One white pixel between images.
    expected = np.ones([1, 3 * 4 + 2, 3 * 4 + 2, 3])
    for left in (0, 5, 10):
        expected[:, :4, left : left + 4] = 0.5
        expected[:, 5:9, left : left + 4] = 0
        expected[:, 10:, left : left + 4] = (left == 10) * 0.25
    grid = tensorboard.view_grid(originals, views)
    np.testing.assert_array_equal(grid, expected)


def test_histograms_are_of_the_first_step_some_epochs_and_the_end(tmp_path):
    def measure():
        return {"similarity/positives": np.float32([0.1, 0.9])}, {"x": 2.0}

    callback = tensorboard.TensorBoard(
        str(tmp_path),
        every_steps=1,
        batch_size=10,
        schedules={},
        histograms=types.SimpleNamespace(measure=measure),
        histograms_every_epochs=2,
    )
    counting_model.fit([1.0] * 10, 2, callback)
    assert list(_points(tmp_path, "x")) == [1, 4, 8, 10]
