"""tools/same_numbers.py: which differences between two records it shows."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf

from tf_contrastive.config.protocols import PROTOCOLS
from tools import same_numbers

_WEIGHTS = {"kernel": np.float32([[1, 2], [3, 4]]), "bias": np.float32([5, 6])}
_ROW = {"top1": 0.5, "variant": "", "seconds": 1.0}


def _files(folder, weights=_WEIGHTS, row=_ROW, loss=1.0, speed=2.0):
    """Writes what a run and its evaluation leave, and returns its hashes."""
    root = tf.train.Checkpoint(
        **{name: tf.Variable(value) for name, value in weights.items()}
    )
    root.save(str(folder / "run" / "checkpoints" / "ckpt"))
    np.savez(folder / "run" / "knn.npz", about="{}", correct=[True, False])
    (folder / "run" / "evaluation.json").write_text(
        json.dumps({"step": 3, "results": [row]})
    )
    writer = tf.summary.create_file_writer(str(folder / "run" / "events"))
    with writer.as_default(step=3):
        tf.summary.scalar("loss", loss)
        tf.summary.scalar("input/images_per_second", speed)
        tf.summary.text("command", str(folder))
    writer.close()
    return same_numbers.read(folder)


_BIAS, _KERNEL = _WEIGHTS["bias"], _WEIGHTS["kernel"]


@pytest.mark.parametrize(
    ("change", "result", "kind"),
    [
        # Times, and where it ran.
        ({"row": _ROW | {"seconds": 9.0}, "speed": 3.0}, None, None),
        (
            {"weights": _WEIGHTS | {"bias": np.nextafter(_BIAS, 9)}},
            *("run/checkpoints", "different: 1 of 2"),
        ),
        # Equal bytes of another type.
        (
            {"weights": _WEIGHTS | {"kernel": _KERNEL.view(np.int32)}},
            *("run/checkpoints", "different: 1 of 2"),
        ),
        (
            {"weights": {"offset": _BIAS, "kernel": _KERNEL}},
            *("run/checkpoints", "renamed: 2 of 3"),
        ),
        (
            {"row": _ROW | {"top1": 0.5 + 1e-16}},
            *("run/evaluation.json", "different: 1 of 3"),
        ),
        ({"loss": 1.0 + 2.0**-23}, "run/events", "different: 1 of 1"),
    ],
)
def test_one_changed_number_is_found(change, result, kind, tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
    a = _files(tmp_path / "a")
    b = _files(tmp_path / "b", **change)
    files = ("checkpoints", "evaluation.json", "events", "knn.npz")
    assert sorted(a) == [f"run/{name}" for name in files]
    records = [{"jobs": {"moco": results}} for results in (a, b)]
    differences = {
        result: difference
        for _, result, difference in same_numbers.compare(*records, [])
        if difference != "equal"
    }
    assert list(differences) == [result] * (result is not None)
    if result:
        assert differences[result].startswith(kind)


def test_the_jobs_have_every_protocol_that_needs_no_other_data():
    given = re.findall(r"--protocols=([\w,]+)", str(same_numbers.JOBS))
    assert {*",".join(given).split(",")} == {*PROTOCOLS} - {"transfer"}
