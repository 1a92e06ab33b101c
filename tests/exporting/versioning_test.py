"""Versions of exports: counted, and complete or absent."""

import os

import numpy as np
import pytest
import tensorflow as tf
from export_helpers import SIZE

from tf_contrastive import exporting
from tf_contrastive.base import errors
from tf_contrastive.exporting import model_card, versioning

pytestmark = pytest.mark.keras


def _tiny_model(features):
    """A model with one signature, whose export takes a second."""
    inputs = tf.keras.Input([SIZE, SIZE, 5])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(features)(pooled))


def test_versions_count_up_and_the_newest_is_loaded(tmp_path):
    (tmp_path / "7").mkdir(parents=True)  # One that was never completed.
    (tmp_path / "notes").mkdir()
    base = str(tmp_path)
    model = _tiny_model(5)
    assert exporting.export(model, base) == f"{base}/8"
    assert exporting.export(_tiny_model(7), base) == f"{base}/9"
    images = np.random.default_rng(0).random([2, SIZE, SIZE, 5], np.float32)
    assert exporting.load(base)(images).shape == (2, 7)
    found = exporting.load(f"{base}/8")(images)
    np.testing.assert_allclose(found, model(images), atol=1e-6)
    assert sorted(os.listdir(base)) == ["7", "8", "9", "notes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "module", "name", "when"),
    [
        ("", tf.saved_model, "save", "after"),
        ("", os, "rename", "before"),
        ("ram://", model_card, "text", "before"),
        ("ram://", tf.io.gfile, "copy", "after"),
    ],
)
def test_an_interrupted_export_leaves_no_version(
    scheme, module, name, when, tmp_path, monkeypatch
):
    base = f"{scheme}{tmp_path}"
    original = getattr(module, name)

    def interrupted(*args, **kwargs):
        if when == "after":
            original(*args, **kwargs)
        # A server that polls now must not find anything to load.
        assert exporting.find(base) is None
        if not scheme:
            assert exporting.folders(base) == {}
        raise KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(_tiny_model(5), base)
    assert exporting.find(base) is None
    assert tf.io.gfile.listdir(base) == []


def test_simultaneous_exports_make_two_versions(tmp_path, monkeypatch):
    base, text = str(tmp_path), model_card.text
    paths = []

    def export_another(*args):
        monkeypatch.setattr(model_card, "text", text)
        paths.append(exporting.export(_tiny_model(7), base))
        # The first export has looked at the folder before that.
        monkeypatch.setattr(versioning, "folders", outdated)
        return text(*args)

    def outdated(path):
        monkeypatch.setattr(versioning, "folders", exporting.folders)
        return {}

    monkeypatch.setattr(model_card, "text", export_another)
    assert exporting.export(_tiny_model(5), base) == f"{base}/2"
    assert paths == [f"{base}/1"]
    encoders = [exporting.load(f"{base}/{version}") for version in (1, 2)]
    assert [*map(exporting.num_features, encoders)] == [7, 5]
    assert sorted(os.listdir(base)) == ["1", "2"]


def test_exports_to_an_object_store_at_the_same_time_make_two_versions(
    tmp_path, monkeypatch
):
    base, makedirs, paths = f"ram://{tmp_path}", tf.io.gfile.makedirs, []

    def another_is_first(path):
        if path == f"{base}/1":
            monkeypatch.setattr(tf.io.gfile, "makedirs", makedirs)
            paths.append(exporting.export(_tiny_model(7), base))
        makedirs(path)

    monkeypatch.setattr(tf.io.gfile, "makedirs", another_is_first)
    paths.append(exporting.export(_tiny_model(5), base))
    assert paths == [f"{base}/1", f"{base}/2"]
    assert [exporting.num_features(exporting.load(x)) for x in paths] == [7, 5]


def test_object_stores_ignore_a_version_killed_while_copying(
    tmp_path, monkeypatch
):
    base = f"ram://{tmp_path}"
    assert exporting.export(_tiny_model(5), base) == f"{base}/1"
    copied, copy = [], tf.io.gfile.copy

    def killed(source, target, *args, **kwargs):
        if len(copied) == 4:
            raise SystemExit
        copied.append(target)
        copy(source, target, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(tf.io.gfile, "copy", killed)
        # A process that is killed cleans nothing up.
        patched.setattr(tf.io.gfile, "rmtree", lambda path: None)
        with pytest.raises(SystemExit):
            exporting.export(_tiny_model(7), base)
    assert all(path.startswith(f"{base}/2/") for path in copied)
    assert exporting.num_features(exporting.load(base)) == 5
    with pytest.raises(errors.UserError, match="neither a run"):
        exporting.load(f"{base}/2")
    assert exporting.export(_tiny_model(9), base) == f"{base}/3"
    assert exporting.num_features(exporting.load(base)) == 9
