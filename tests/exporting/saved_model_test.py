"""Exports: their signatures, also without the package; versions; loading."""

import io
import os
import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import PIL.Image
import psutil
import pytest
import saved_run
import scipy.special
import tensorflow as tf

import tf_contrastive
from tf_contrastive import (
    classifiers,
    embedding,
    errors,
    exporting,
    heads,
    losses,
    views,
)
from tf_contrastive.datasets import image_headers
from tf_contrastive.distribution import batch_normalization
from tf_contrastive.exporting import classifier_heads, model_card, versioning
from tf_contrastive.model import ContrastiveModel

SIZE = 16


def _conv_block(x, filters, **kwargs):
    x = tf.keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
    return tf.nn.relu(batch_normalization.BatchNormalization(**kwargs)(x))


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
def projection(encoder):
    head = heads.build("mlp", hidden=5, output=4)
    for _ in range(3):
        head(encoder(_images(8) / 255.0), training=True)
    return head


@pytest.fixture(scope="module")
def bank(encoder):
    """Embeddings of training images, and their labels; class 3 has none."""
    labels = np.arange(30) % 5
    labels[labels == 3] = 4
    return encoder(_images(30, seed=5) / 255.0).numpy(), labels


@pytest.fixture(scope="module")
def saved(encoder, projection, bank, tmp_path_factory):
    model = ContrastiveModel(encoder, projection, losses.build("ntxent"))
    return exporting.export(
        model,
        str(tmp_path_factory.mktemp("exports")),
        head=exporting.PrototypeHead(*bank),
        label_names=["ant", "bee", "cat", "dog", "\u00e9lan"],
        max_image_pixels=1 << 20,
        formats=["keras"],
    )


@pytest.fixture(scope="module")
def signatures(saved):
    """Of the loaded export; their first call prepares the graph."""
    model = tf.saved_model.load(saved)
    # Its variables live as long as it does.
    return {"model": model, **model.signatures}


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
    images = given[name]
    out[name] = default(images=tf.constant(images))["embedding"]
    floats = tf.constant(images / np.float32(255))
    served = model.signatures["serving_float"](images=floats)
    out[name + "_float"] = served["embedding"]
    served = model.signatures["project"](images=tf.constant(images))
    out[name + "_projection"] = served["projection"]
    served = model.signatures["classify"](images=tf.constant(images))
    out[name + "_labels"] = served["labels"]
    out[name + "_probabilities"] = served["probabilities"]
for name in ("mixed", "garbage", "none"):
    data = tf.constant(given[name].tolist(), tf.string, [len(given[name])])
    served = serve_bytes(bytes=data)
    out[name], out[name + "_ok"] = served["embedding"], served["ok"]
keras = tf.keras.models.load_model(sys.argv[1] + "/" + sys.argv[4])
out["keras"] = tf.constant(keras.predict(given["same"] / 255.0, verbose=0))
assert not any(name.startswith("tf_contrastive.") for name in sys.modules)
np.savez(sys.argv[3], **{k: v.numpy() for k, v in out.items()})
"""


@pytest.fixture(scope="module")
def served(saved, tmp_path_factory):
    """Inputs, and outputs of the export in a process without the package."""
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
            sys.executable,
            "-c",
            _READER,
            saved,
            str(folder / "given.npz"),
            str(folder / "out.npz"),
            exporting.KERAS_FILE,
        ],
        check=True,
        cwd=folder,
    )
    return given, np.load(folder / "out.npz")


def _close(actual, expected):
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_every_signature_equals_the_model(encoder, projection, bank, served):
    given, out = served
    for name in ("same", "wide", "large"):
        h = _expected(encoder, given[name])
        _close(out[name], h)
        _close(out[f"{name}_float"], h)
        _close(out[f"{name}_projection"], projection(h, training=False).numpy())
        scores = classifiers.prototype(*bank, h)
        assert out[f"{name}_labels"].dtype == np.int64
        np.testing.assert_array_equal(
            out[f"{name}_labels"], scores.top(1)[:, 0]
        )
        logits = np.full([len(h), 5], -np.inf)
        logits[:, scores.classes] = scores.scores / 0.1
        np.testing.assert_allclose(
            out[f"{name}_probabilities"],
            scipy.special.softmax(logits, axis=1),
            atol=1e-4,
        )
    _close(out["keras"], _expected(encoder, given["same"]))
    for name, shape in (
        ("empty", (0, 6)),
        ("empty_float", (0, 6)),
        ("empty_projection", (0, 4)),
        ("empty_labels", (0,)),
        ("empty_probabilities", (0, 5)),
        ("none", (0, 6)),
        ("none_ok", (0,)),
    ):
        assert out[name].shape == shape


def test_invalid_classifiers_are_refused(bank, encoder, tmp_path):
    with pytest.raises(errors.UserError, match="num_classes=3"):
        exporting.PrototypeHead(*bank, num_classes=3)
    with pytest.raises(errors.UserError, match=r"embeddings: .* NaN"):
        exporting.PrototypeHead(bank[0] * np.nan, bank[1])
    head = exporting.PrototypeHead(*bank)
    names = ["a", "b"]
    with pytest.raises(errors.UserError, match="2 label names"):
        exporting.export(
            encoder, str(tmp_path / "a"), head=head, label_names=names
        )
    assert not (tmp_path / "a").exists()


def test_floats_out_of_range_are_refused(signatures):
    serve = signatures["serving_float"]
    images = _images(3) / np.float32(255)
    for value in (255.0, -0.5, np.nan, np.inf):
        images[1, 2, 3, 0] = value
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"float32 in \[0, 1\]"
        ):
            serve(images=tf.constant(images))
    # The rounding of a resize is not an error.
    images[1, 2, 3, 0] = 1.0005
    serve(images=tf.constant(images))


def test_a_damaged_image_does_not_fail_its_batch(encoder, served):
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


def test_gray_and_animated_images_are_decoded(encoder, signatures):
    gray = _images(1)[0, :, :, :1]
    frames = [_images(1)[0], _images(1, seed=1)[0]]
    data = [tf.io.encode_png(gray).numpy(), _gif(frames)]
    served = signatures["serving_bytes"](bytes=tf.constant(data))
    assert served["ok"].numpy().all()
    first = tf.io.decode_gif(data[1])[0]
    expected = _expected(encoder, [np.repeat(gray, 3, -1), first])
    np.testing.assert_allclose(served["embedding"], expected, atol=1e-5)


def _gif(frames):
    first, *others = (PIL.Image.fromarray(frame) for frame in frames)
    stream = io.BytesIO()
    first.save(stream, "GIF", save_all=True, append_images=others)
    return stream.getvalue()


# ---- Damaged and malicious files --------------------------------------------


def _png(width, height, data=b""):
    """A PNG of any declared size."""

    def chunk(kind, content):
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(data))
        + chunk(b"IEND", b"")
    )


def _resized(encoded, places, size=65_500):
    """Overwrites the size in a header, at `places` of 2 bytes."""
    encoded = bytearray(encoded)
    order = ">H" if encoded[:2] == b"\xff\xd8" else "<H"
    for place in places:
        struct.pack_into(order, encoded, place, size)
    return bytes(encoded)


def _bombs():
    image = _images(1)[0]
    jpeg = tf.io.encode_jpeg(image).numpy()
    frame = jpeg.index(b"\xff\xc0")  # Where a JPEG says its size.
    gif = _gif([image])
    first = 13 + 3 * 2 ** ((gif[10] & 7) + 1)
    while gif[first] == 0x21:  # What Pillow writes before it has one block.
        first += 4 + gif[first + 2]
    assert gif[first] == 0x2C
    bmp, progressive = io.BytesIO(), io.BytesIO()
    PIL.Image.fromarray(image).save(bmp, "BMP")
    PIL.Image.fromarray(image).save(progressive, "JPEG", progressive=True)
    scans = progressive.getvalue()
    scan = scans[scans.rindex(b"\xff\xda") : -2]
    return {
        "jpeg of 1,000 scans": scans[:-2] + 1000 * scan + scans[-2:],
        "png 100,000 x 100,000": _png(100_000, 100_000),
        "png 2^31 - 1": _png(2**31 - 1, 2**31 - 1),
        "png that is all there": _png(1200, 1200, bytes(1200 * 3601)),
        "jpeg 65,500 x 65,500": _resized(jpeg, [frame + 5, frame + 7]),
        "gif whose screen is large": _resized(gif, [6, 8]),
        "gif whose image is large": _resized(gif, [first + 5, first + 7]),
        "bmp 100,000 x 100,000": bmp.getvalue()[:18]
        + struct.pack("<ii", 100_000, 100_000)
        + bmp.getvalue()[26:],
        "bmp from the top down": bmp.getvalue()[:18]
        + struct.pack("<ii", 100_000, -100_000)
        + bmp.getvalue()[26:],
    }


def _malformed_files(count):
    """Returns (bytes, whether they are good): random, cut off, zip, bombs."""
    generator = random.Random(0)
    image = _images(1, 24, 30)[0]
    good = [
        tf.io.encode_jpeg(image).numpy(),
        tf.io.encode_png(image).numpy(),
        _gif([image, image]),
    ]
    files = [(bomb, False) for bomb in _bombs().values()]
    while len(files) < count:
        whole = generator.choice(good)
        files += [
            (generator.choice(good), True),
            (generator.randbytes(generator.randrange(300)), False),
            # The first bytes of an image, and then anything.
            (whole[:4] + generator.randbytes(200), False),
            (whole[: generator.randrange(8, len(whole) * 3 // 4)], False),
            (b"PK\x03\x04" + generator.randbytes(99), False),
            (b"", False),
        ]
    generator.shuffle(files)
    return files


def test_malformed_files_do_not_affect_others(signatures):
    serve = signatures["serving_bytes"]
    files = _malformed_files(300)
    ok = np.array([good for _, good in files])
    data = np.array([data for data, _ in files], object)
    alone = serve(bytes=tf.constant(data[ok].tolist()))["embedding"].numpy()
    memory = psutil.Process().memory_info
    before = memory().rss
    served = serve(bytes=tf.constant(data.tolist()))
    # A bomb would take gigabytes.
    assert memory().rss - before < 200 << 20
    np.testing.assert_array_equal(served["ok"], ok)
    embeddings = served["embedding"].numpy()
    assert not embeddings[~ok].any()
    np.testing.assert_allclose(embeddings[ok], alone, atol=1e-6)


def test_gifs_are_cut_off_after_their_first_image():
    generator = np.random.default_rng(0)
    for side in (1, 9, 60):  # The last has several blocks of 255 bytes.
        frames = generator.integers(0, 256, [3, side, side, 3], np.uint8)
        whole = _gif(list(frames))
        cut = image_headers.check(tf.constant(whole), side * side).numpy()
        assert len(cut) < len(whole)
        np.testing.assert_array_equal(
            tf.io.decode_gif(cut)[0], tf.io.decode_gif(whole)[0]
        )
        with pytest.raises(tf.errors.InvalidArgumentError):
            image_headers.check(tf.constant(whole), side * side - 1)
        with pytest.raises(tf.errors.InvalidArgumentError):
            image_headers.check(tf.constant(cut[:-3]), side * side)


# ---- Loaded again -----------------------------------------------------------


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
    assert exporting.image_shape(loaded) == (SIZE, SIZE, 3)
    assert embedding.checksum(loaded) == embedding.checksum(encoder)


@pytest.mark.parametrize("kind", ["run", "export"])
def test_a_loaded_encoder_takes_bytes_and_refuses_other_values(kind, tmp_path):
    saved_run.make(tmp_path / "run", branches=True)
    path = str(tmp_path / "run")
    if kind == "export":
        path = exporting.export(path, str(tmp_path / "export"))
    load = exporting.load(path)
    bytes = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3], np.uint8)
    expected = load(tf.constant(bytes / 255, tf.float32))
    np.testing.assert_allclose(load(tf.constant(bytes)), expected, atol=1e-5)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[0, 1\]"):
        load(tf.constant(bytes, tf.float32))
    with pytest.raises((TypeError, ValueError)):
        load(tf.constant(bytes, tf.int32))


def test_a_loaded_export_trains(encoder, projection, saved):
    loaded = exporting.load(saved)
    h = tf.random.stateless_normal([4, 6], [0, 0])
    np.testing.assert_allclose(
        loaded.projection(h), projection(h, training=False), atol=1e-5
    )
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
    with tf.GradientTape() as tape:
        z = loaded.projection(loaded(images, training=True))
    variables = loaded.projection_variables
    gradients = tape.gradient(z, variables)
    trainable = [v.trainable for v in variables]
    assert [g is not None for g in gradients] == trainable
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
    """A model with one signature, whose export takes a second."""
    inputs = tf.keras.Input([SIZE, SIZE, 5])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(features)(pooled))
    return encoder


def test_versions_count_up_and_the_newest_is_loaded(tmp_path):
    (tmp_path / "7").mkdir(parents=True)  # One that was never completed.
    (tmp_path / "notes").mkdir()
    base = str(tmp_path)
    model = _tiny_model(5)
    assert exporting.export(model, base) == f"{base}/8"
    assert exporting.export(_tiny_model(7), base) == f"{base}/9"
    images = np.random.default_rng(0).random([2, SIZE, SIZE, 5], np.float32)
    assert exporting.load(base)(images).shape == (2, 7)
    np.testing.assert_allclose(
        exporting.load(f"{base}/8")(images), model(images), atol=1e-6
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "7",
        "8",
        "9",
        "notes",
    ]


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
            assert exporting.versions(base) == []
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
        monkeypatch.setattr(versioning, "versions", outdated)
        return text(*args)

    def outdated(path):
        monkeypatch.setattr(versioning, "versions", exporting.versions)
        return []

    monkeypatch.setattr(model_card, "text", export_another)
    assert exporting.export(_tiny_model(5), base) == f"{base}/2"
    assert paths == [f"{base}/1"]
    images = np.zeros([2, SIZE, SIZE, 5], np.float32)
    assert exporting.load(f"{base}/1")(images).shape == (2, 7)
    assert exporting.load(f"{base}/2")(images).shape == (2, 5)
    assert sorted(os.listdir(base)) == ["1", "2"]


def test_object_stores_ignore_a_version_killed_while_copying(
    tmp_path, monkeypatch
):
    base, model = f"ram://{tmp_path}", _tiny_model(5)
    assert exporting.export(model, base) == f"{base}/1"
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
    assert exporting.find(base) == f"{base}/1"
    images = np.random.default_rng(0).random([2, SIZE, SIZE, 5], np.float32)
    np.testing.assert_allclose(
        exporting.load(base)(images), model(images), atol=1e-6
    )
    with pytest.raises(errors.UserError, match="neither a run"):
        exporting.load(f"{base}/2")
    assert exporting.export(_tiny_model(9), base) == f"{base}/3"
    assert exporting.load(base)(images).shape == (2, 9)


def test_invalid_exports_are_refused(encoder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.UserError, match="cannot write to"):
        exporting.export(encoder, str(tmp_path / "file" / "exports"))
    inputs = tf.keras.Input([None, None, 3])
    pooled = tf.keras.layers.GlobalAveragePooling2D()(inputs)
    with pytest.raises(errors.UserError, match=r"image_shape=\(S, S, 3\)"):
        exporting.export(tf.keras.Model(inputs, pooled), str(tmp_path / "a"))
    with pytest.raises(errors.UserError, match="no run in"):
        exporting.export(str(tmp_path), str(tmp_path / "a"))
    assert not (tmp_path / "a").exists()


def test_invalid_folders_are_refused(tmp_path):
    with pytest.raises(errors.UserError, match="not a folder"):
        exporting.load(str(tmp_path / "missing"))
    with pytest.raises(errors.UserError, match="neither a run"):
        exporting.load(str(tmp_path))
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(errors.UserError, match="not an export"):
        exporting.load(str(tmp_path))


def test_an_exported_probe_normalizes_as_the_runs_probe_does():
    generator = np.random.default_rng(0)
    kernel = generator.standard_normal((5, 3)).astype(np.float32)
    features = 9 * generator.standard_normal((4, 5)).astype(np.float32)
    probe = heads.LinearProbe(3, normalize_input=True)
    probe.build([None, 5])
    probe.set_weights([kernel, np.ones(3, np.float32)])
    head = classifier_heads.ProbeHead(kernel, np.ones(3), normalize=True)
    np.testing.assert_allclose(
        head(features), tf.nn.softmax(probe(features)), rtol=1e-6
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
