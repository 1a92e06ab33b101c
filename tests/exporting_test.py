"""Exports: what is served, from where only TensorFlow is, and trained on."""

import io
import json
import subprocess
import sys

import numpy as np
import PIL.Image
import pytest
import tensorflow as tf

import tf_contrastive
from tf_contrastive import (
    config,
    embedding,
    encoders,
    exporting,
    heads,
    losses,
    normalization,
    views,
)
from tf_contrastive.model import ContrastiveModel

SIZE = 16


def _conv_block(x, filters, **kwargs):
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return tf.nn.relu(normalization.BatchNormalization(**kwargs)(x))


def _encoder(features=6):
    """Small, with a nested model, and statistics that training has moved."""
    tf.keras.utils.set_random_seed(0)
    inner = tf.keras.Input([SIZE, SIZE, 4])
    nested = tf.keras.Model(inner, _conv_block(inner, features))
    inputs = tf.keras.Input([SIZE, SIZE, 3])
    x = nested(_conv_block(inputs, 4))
    encoder = tf.keras.Model(
        inputs, tf.keras.layers.GlobalAveragePooling2D()(x)
    )
    for _ in range(3):
        encoder(_images(8) / 255.0, training=True)
    return encoder


def _images(n, height=SIZE, width=SIZE, seed=0):
    shape = [n, height, width, 3]
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def _expected(encoder, images):
    preprocess = views.evaluation(SIZE)
    pixels = tf.stack([preprocess(image) for image in images])
    return encoder(pixels, training=False).numpy()


@pytest.fixture(scope="module")
def encoder():
    return _encoder()


@pytest.fixture(scope="module")
def saved(encoder, tmp_path_factory):
    return exporting.export(encoder, str(tmp_path_factory.mktemp("exports")))


_READER = """
import sys
sys.modules["tf_contrastive"] = None
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2], allow_pickle=True)
default = model.signatures["serving_default"]
serve_bytes = model.signatures["serving_bytes"]
out = {}
for name in ("same", "wide", "large", "empty"):
    out[name] = default(images=tf.constant(given[name]))["embedding"]
for name in ("mixed", "garbage", "none"):
    data = tf.constant(given[name].tolist(), tf.string, [len(given[name])])
    served = serve_bytes(bytes=data)
    out[name], out[name + "_ok"] = served["embedding"], served["ok"]
assert not any(name.startswith("tf_contrastive.") for name in sys.modules)
np.savez(sys.argv[3], **{k: v.numpy() for k, v in out.items()})
"""


@pytest.fixture(scope="module")
def served(saved, tmp_path_factory):
    """What a process without the package gets from the export, and gave it."""
    small, wide = _images(2), _images(2, 20, 28)
    jpeg = tf.io.encode_jpeg(wide[0]).numpy()
    png = tf.io.encode_png(small[0]).numpy()
    given = {
        "same": _images(5),
        "wide": wide,
        "large": _images(1, 90, 70),
        "empty": np.zeros([0, 0, 0, 3], np.uint8),
        "mixed": np.array(
            [jpeg, b"", png, b"no image", jpeg[:-200], png], object
        ),
        "garbage": np.array([b"\xff\xd8\xff", b"\x89PNG"], object),
        "none": np.array([], object),
    }
    folder = tmp_path_factory.mktemp("served")
    np.savez(folder / "given.npz", **given)
    subprocess.run(
        [
            *(sys.executable, "-c", _READER, saved),
            *(str(folder / "given.npz"), str(folder / "out.npz")),
        ],
        check=True,
        cwd=folder,
    )
    return given, np.load(folder / "out.npz")


def test_images_of_any_size_are_served_as_the_encoder_sees_them(
    encoder, served
):
    given, out = served
    for name in ("same", "wide", "large"):
        np.testing.assert_allclose(
            out[name], _expected(encoder, given[name]), atol=1e-5
        )


def test_bytes_are_served_and_bad_ones_harm_only_themselves(encoder, served):
    given, out = served
    assert out["mixed_ok"].tolist() == [True, False, True, False, False, True]
    assert not out["mixed"][~out["mixed_ok"]].any()
    good = given["mixed"][out["mixed_ok"]]
    images = [tf.io.decode_image(data, channels=3) for data in good]
    np.testing.assert_allclose(
        out["mixed"][out["mixed_ok"]], _expected(encoder, images), atol=1e-5
    )
    assert out["garbage_ok"].tolist() == [False, False]
    assert not out["garbage"].any()


def test_empty_batches_are_served_with_the_right_shape(served):
    _, out = served
    assert out["empty"].shape == (0, 6)
    assert out["none"].shape == (0, 6)
    assert out["none_ok"].shape == (0,)


def test_one_channel_and_animated_images_are_served(encoder, saved):
    gray = _images(1)[0, :, :, :1]
    frames = [_images(1)[0], _images(1, seed=1)[0]]
    model = tf.saved_model.load(saved).signatures["serving_bytes"]
    data = [tf.io.encode_png(gray).numpy(), _gif(frames)]
    served = model(bytes=tf.constant(data))
    assert served["ok"].numpy().all()
    first = tf.io.decode_gif(data[1])[0]
    expected = _expected(encoder, [np.repeat(gray, 3, -1), first])
    np.testing.assert_allclose(served["embedding"], expected, atol=1e-5)


def _gif(frames):
    first, *others = (PIL.Image.fromarray(frame) for frame in frames)
    stream = io.BytesIO()
    first.save(stream, "GIF", save_all=True, append_images=others)
    return stream.getvalue()


def test_a_loaded_export_is_the_encoder(encoder, saved):
    loaded = tf_contrastive.load(saved)
    images = _images(4) / np.float32(255)
    np.testing.assert_allclose(
        loaded(images), encoder(images, training=False), atol=1e-5
    )
    np.testing.assert_allclose(
        loaded(images, training=False), loaded(images), atol=0
    )
    assert loaded(images[:0]).shape == (0, 6)
    assert exporting.image_size(loaded) == SIZE
    assert embedding.checksum(loaded) == embedding.checksum(encoder)


def test_a_loaded_export_trains(encoder, saved):
    loaded = exporting.load(saved)
    names = [variable.shape for variable in encoder.trainable_variables]
    assert [v.shape for v in loaded.trainable_variables] == names
    statistics = [
        v
        for v in loaded.variables
        if v.name not in {t.name for t in loaded.trainable_variables}
    ]
    before = [v.numpy() for v in statistics]
    images = tf.constant(_images(16) / np.float32(255))
    targets = tf.random.stateless_normal([16, 6], [0, 0])
    optimizer = tf.keras.optimizers.Adam(0.02)
    history = []
    for _ in range(20):
        with tf.GradientTape() as tape:
            outputs = loaded(images, training=True)
            loss = tf.reduce_mean((outputs - targets) ** 2)
        gradients = tape.gradient(loss, loaded.trainable_variables)
        assert all(gradient is not None for gradient in gradients)
        optimizer.apply_gradients(
            zip(gradients, loaded.trainable_variables, strict=True)
        )
        history.append(float(loss))
    assert history[-1] < 0.9 * history[0]
    for old, variable in zip(before, statistics, strict=True):
        assert np.abs(old - variable.numpy()).max() > 0


def test_the_export_says_what_it_is(saved):
    assert exporting.details(saved) == {
        "image_size": SIZE,
        "channels": 3,
        "embedding_size": 6,
    }


def test_a_mixed_precision_encoder_is_cloned_to_plain_float32():
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        encoder = _encoder()
        half = encoder(_images(3) / 255.0)
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")
    assert half.dtype == tf.bfloat16
    plain = exporting.plain_encoder(encoder)
    layers = list(plain._flatten_layers())
    assert {layer.compute_dtype for layer in layers} == {"float32"}
    assert not any(getattr(layer, "synchronized", False) for layer in layers)
    reference = _encoder()
    reference.set_weights(encoder.get_weights())
    images = _images(3) / np.float32(255)
    np.testing.assert_allclose(plain(images), reference(images), atol=1e-5)


def test_a_residual_encoder_is_cloned():
    encoder = encoders.build(
        "resnet10", width=0.125, stem="cifar", image_shape=(SIZE, SIZE, 3)
    )
    images = _images(4) / np.float32(255)
    encoder(images, training=True)
    plain = exporting.plain_encoder(encoder)
    np.testing.assert_allclose(
        plain(images), encoder(images, training=False), atol=1e-5
    )
    assert embedding.checksum(plain) == embedding.checksum(encoder)


def test_an_encoder_of_several_replicas_is_cloned_to_one():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        inputs = tf.keras.Input([SIZE, SIZE, 3])
        encoder = tf.keras.Model(inputs, _conv_block(inputs, 4))
    images = tf.constant(_images(4) / np.float32(255))
    strategy.run(lambda: encoder(images, training=True))
    plain = exporting.plain_encoder(encoder)
    assert not any(hasattr(variable, "values") for variable in plain.variables)
    assert embedding.checksum(plain) == embedding.checksum(encoder)
    np.testing.assert_allclose(
        plain(images), encoder(images, training=False), atol=1e-5
    )


def _tiny_model(features):
    """A model whose export takes a second."""
    inputs = tf.keras.Input([SIZE, SIZE, 3])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(features)(pooled))
    head = heads.build("linear", output=4)
    return ContrastiveModel(encoder, head, losses.build("ntxent"))


def test_versions_count_up_and_the_newest_is_loaded(tmp_path):
    (tmp_path / "7").mkdir(parents=True)  # One that was never completed.
    (tmp_path / "notes").mkdir()
    base = str(tmp_path)
    model = _tiny_model(5)
    assert exporting.export(model, base) == f"{base}/8"
    assert exporting.export(_tiny_model(7), base) == f"{base}/9"
    images = np.random.default_rng(0).random([2, SIZE, SIZE, 3], np.float32)
    assert exporting.load(base)(images).shape == (2, 7)
    np.testing.assert_allclose(
        exporting.load(f"{base}/8")(images), model(images), atol=1e-6
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("7", "8", "9", "notes")
    ]


@pytest.mark.parametrize("scheme", ["", "ram://"])
def test_an_interrupted_export_leaves_no_version(
    encoder, scheme, tmp_path, monkeypatch
):
    base = f"{scheme}{tmp_path}"

    def interrupted(module, path, **kwargs):
        with tf.io.gfile.GFile(f"{path}/half", "w") as file:
            file.write("half")
        if not scheme:  # Where folders are renamed, none is numbered yet.
            assert not any(n.isdecimal() for n in tf.io.gfile.listdir(base))
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        exporting.export(encoder, base)
    assert exporting.find(base) is None
    assert tf.io.gfile.listdir(base) == []


def test_exports_to_filesystems_without_folder_renames(tmp_path):
    base, model = f"ram://{tmp_path}", _tiny_model(5)
    assert exporting.export(model, base) == f"{base}/1"
    assert exporting.export(model, base) == f"{base}/2"
    images = _images(2) / np.float32(255)
    np.testing.assert_allclose(
        exporting.load(base)(images), model(images), atol=1e-6
    )
    with tf.io.gfile.GFile(f"{base}/2/assets.extra/model.json") as file:
        assert json.load(file)["image_size"] == SIZE


def test_what_cannot_be_exported_is_refused(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(config.UserError, match="cannot write to"):
        exporting.export(encoder, str(tmp_path / "file" / "exports"))
    inputs = tf.keras.Input([None, None, 3])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    with pytest.raises(config.UserError, match=r"image_shape=\(S, S, 3\)"):
        exporting.export(tf.keras.Model(inputs, pooled), str(tmp_path / "a"))
    with pytest.raises(config.UserError, match="no run in"):
        exporting.export(str(tmp_path), str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_what_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(config.UserError, match="no folder"):
        exporting.load(str(tmp_path / "missing"))
    with pytest.raises(config.UserError, match="no run in"):
        exporting.load(str(tmp_path))
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(config.UserError, match="no export of tf_contrastive"):
        exporting.load(str(tmp_path))


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
