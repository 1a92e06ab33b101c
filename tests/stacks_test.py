"""Runs and exports of one stack of packages are read by the other one.

`python tests/stacks_test.py` writes tests/testdata/STACK with the TensorFlow
that is installed.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import saved_run
import small
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting
from tf_contrastive.commands import evaluate, export
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.commands.export import Export
from tf_contrastive.config import fields
from tf_contrastive.evaluation import report

pytestmark = [pytest.mark.usefixtures("small_encoder"), pytest.mark.keras]

_DATA = Path(__file__).resolve().parent / "testdata"
_STACKS = ("card", "current")


def _images():
    digits, _ = datasets.load("digits", "test[:20]")
    images = np.stack([example["image"] for example in digits])
    return images / np.float32(255)


def _make(folder):
    """Writes a run, an export, and what its encoder makes of some images."""
    shutil.rmtree(folder, ignore_errors=True)
    run = folder / "run"
    os.chdir(folder.parent)
    saved_run.make(f"{folder.name}/run", branches=True, width=0.03125)
    (run / "checkpoints" / "ckpt-0.index").unlink()
    (run / "checkpoints" / "ckpt-0.data-00000-of-00001").unlink()
    encoder = checkpoints.load_encoder(checkpoints.load_run(str(run)))
    path = exporting.export(encoder, str(folder / "export"))
    shutil.rmtree(f"{path}/assets.extra")
    embeddings = exporting.load(str(run))(_images()).numpy()
    np.savez(folder / "expected.npz", h=embeddings, tensorflow=tf.__version__)


@pytest.fixture(params=_STACKS)
def stack(request, tmp_path):
    shutil.copytree(_DATA / request.param, tmp_path / "stack")
    return tmp_path / "stack"


def test_encoders_of_each_stack_embed_the_same(stack):
    expected = np.load(stack / "expected.npz")["h"]
    assert np.std(expected, axis=0).max() > 0.01
    for kind in ("run", "export"):
        h = exporting.load(str(stack / kind))(_images()).numpy()
        np.testing.assert_allclose(
            h, expected, atol=1e-5 * np.abs(expected).max()
        )


@pytest.mark.slow
def test_a_run_of_each_stack_is_evaluated_and_exported(stack):
    run = str(stack / "run")
    options = fields.replace(Evaluate(), workdir=run, protocols="knn")
    assert evaluate.run(options) == 0
    rows = report.read(run)["results"]
    assert {row["protocol"] for row in rows} == {"knn"}
    assert export.run(fields.replace(Export(), workdir=run, head="probe")) == 0
    served = tf.saved_model.load(f"{run}/export/1").signatures["classify"]
    pixels = tf.constant(np.rint(_images() * 255), tf.uint8)
    assert served(images=pixels)["probabilities"].shape == [20, 10]


if __name__ == "__main__":
    with small.encoder():
        _make(
            _DATA / ("card" if tf.__version__.startswith("2.15") else "current")
        )
