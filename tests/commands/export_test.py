"""`export`: checkpoints, classifiers, formats and the model card."""

import contextlib
import errno
import io
import os
import re

import numpy as np
import pytest
import saved_run
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting, flags
from tf_contrastive.base import errors
from tf_contrastive.commands import export as command
from tf_contrastive.commands.export import Export
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.exporting import tflite_onnx

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder, branches=True, loss="supcon", temperature=0.07)
    return str(folder)


@pytest.fixture(scope="module")
def exported(workdir, tmp_path_factory):
    """An export with the probe, in all formats, and its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        path = _export(
            workdir,
            tmp_path_factory.mktemp("my probe"),
            head="probe",
            format="savedmodel,tflite,onnx",
        )
    return path, out.getvalue()


def _export(workdir, tmp_path, **values):
    options = fields.replace(
        Export(), workdir=workdir, output_dir=str(tmp_path / "export"), **values
    )
    options.validate()
    assert command.run(options) == 0
    return exporting.find(str(tmp_path / "export"))


@pytest.fixture(scope="module")
def images():
    """Images of test digits, uint8."""
    source = datasets.source("digits", "test[:60]")
    return np.stack([example["image"] for example in source.examples()])


def test_the_probe_of_the_run_classifies(workdir, exported, images):
    path, out = exported
    model = tf.saved_model.load(path)
    served = model.signatures["classify"](images=tf.constant(images))
    run = checkpoints.load_run(workdir)
    reader = tf.train.load_checkpoint(run.checkpoint)
    kernel, bias = (
        reader.get_tensor(f"probe/{name}/.ATTRIBUTES/VARIABLE_VALUE")
        for name in ("kernel", "bias")
    )
    assert np.abs(kernel).max() > 0
    features = exporting.load(workdir)(images / np.float32(255))
    expected = tf.nn.softmax(features @ kernel + bias).numpy()
    np.testing.assert_allclose(served["probabilities"], expected, atol=1e-4)
    np.testing.assert_array_equal(served["labels"], expected.argmax(axis=1))
    assert "classify" in out
    with open(f"{path}/assets/label_names.txt") as file:
        assert file.read().split() == [str(digit) for digit in range(10)]


def test_an_older_checkpoint(workdir, tmp_path, images):
    path = _export(workdir, tmp_path, checkpoint=0)
    assert path.endswith("/1")
    assert exporting.details(path)["step"] == 0
    images = images / np.float32(255)
    features = exporting.load(path)(images).numpy()
    run = checkpoints.load_run(workdir)
    assert run.step == 1
    encoder = checkpoints.load_encoder(run.at(checkpoints.saved(workdir)[0]))
    np.testing.assert_allclose(features, encoder(images), atol=1e-5)
    newest = checkpoints.load_encoder(run)(images).numpy()
    assert np.abs(features - newest).max() > 0.01


# ---- Other formats ----------------------------------------------------------


@pytest.fixture(scope="module")
def held_out(exported, images):
    """Images of the data, and the SavedModel's embeddings."""
    images = images / np.float32(255)
    return images, exporting.load(exported[0])(images).numpy()


def _tflite(file, images):
    interpreter = tf.lite.Interpreter(model_path=file)
    (source,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(source["index"], images.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(source["index"], images)
    interpreter.invoke()
    (target,) = interpreter.get_output_details()
    return interpreter.get_tensor(target["index"])


def _onnx(file, images):
    import onnxruntime

    session = onnxruntime.InferenceSession(
        file, providers=["CPUExecutionProvider"]
    )
    (source,), (target,) = session.get_inputs(), session.get_outputs()
    assert (source.name, target.name) == ("images", "embedding")
    return session.run(["embedding"], {"images": images})[0]


@pytest.mark.keras
@pytest.mark.parametrize(
    ("file", "run"), [("encoder.tflite", _tflite), ("encoder.onnx", _onnx)]
)
def test_other_runtimes_equal_the_saved_model(exported, held_out, file, run):
    images, expected = held_out
    for part in (slice(0, 1), slice(0, 60)):
        embeddings = run(f"{exported[0]}/{file}", images[part])
        difference = np.abs(embeddings - expected[part]).max()
        assert difference <= 1e-5 * np.abs(expected).max()


@pytest.mark.keras
def test_eight_bits_keep_the_direction(exported, held_out):
    images, expected = held_out
    embeddings = _tflite(f"{exported[0]}/encoder_dynamic_int8.tflite", images)
    difference, cosine = tflite_onnx.compare(embeddings, expected)
    assert difference > 1e-5  # It is another model.
    assert cosine >= 0.999


@pytest.mark.keras
def test_the_differences_are_reported(exported):
    path, out = exported
    assert f" --saved_model='{os.path.dirname(path)}'\n" in out
    formats = exporting.details(path)["formats"]
    assert [one["file"] for one in formats] == [
        "encoder.tflite",
        "encoder_dynamic_int8.tflite",
        "encoder.onnx",
    ]
    for one in formats:
        size = os.path.getsize(f"{path}/{one['file']}")
        assert one["bytes"] == size
        assert re.search(rf"{one['file']} .*{size:,} ", out)


def _tiny():
    inputs = tf.keras.Input([8, 8, 5])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(3)(pooled))


def _converter(error=None):
    def convert(*_):
        yield "tflite", b"content", lambda images: images[:, 0, 0, :3]
        if error:
            raise error

    return convert


@pytest.mark.parametrize(
    ("replaced", "reason"),
    [
        ({"to_tflite": _converter(), "MAX_DIFFERENCE": -1.0}, "differs"),
        ({"to_tflite": _converter(AttributeError("no float4"))}, "no float4"),
        (
            {"to_tflite": _converter(OSError(errno.ENOSPC, "is full"))},
            "free some space",
        ),
    ],
)
def test_what_is_finished_is_kept_when_a_format_fails(
    replaced, reason, tmp_path, monkeypatch
):
    """On a full disk nothing is."""
    for name, value in replaced.items():
        monkeypatch.setattr(tflite_onnx, name, value)
    monkeypatch.setattr(tflite_onnx, "compare", lambda *_: (0.0, 1.0))
    with pytest.raises(errors.UserError, match=reason) as caught:
        formats = ["savedmodel", "tflite"]
        exporting.export(_tiny(), str(tmp_path), formats=formats)
    if reason == "free some space":
        assert list(tmp_path.iterdir()) == []
        return
    path = exporting.find(str(tmp_path))
    assert path in str(caught.value) and "tflite" in str(caught.value)
    written = [one["file"] for one in exporting.details(path)["formats"]]
    assert written == ([] if reason == "differs" else ["encoder.tflite"])
    assert os.listdir(path).count("encoder.tflite") == len(written)


# ---- The card ---------------------------------------------------------------


def test_the_recipe_of_the_card_repeats_the_run(workdir, exported, tmp_path):
    with open(f"{exported[0]}/README.md") as file:
        card = file.read()
    recipe = tmp_path / "recipe.flags"
    recipe.write_text(card.split("```\n")[1])
    words = [f"--flagfile={recipe}", f"--workdir={workdir}"]
    options = flags.parse(Pretrain, words)
    assert options == checkpoints.load_run(workdir).config
    assert not re.search(r"\{\w+\}", card)
