"""Signatures, also without the package; damaged and malicious files."""

import functools
import io
import random
import struct

import numpy as np
import odd_images
import PIL.Image
import processes
import psutil
import pytest
import scipy.special
import tensorflow as tf
from dataset_helpers import encoded
from export_helpers import SIZE, make_images
from odd_images import png

from tf_contrastive import classifiers, views
from tf_contrastive.config.data import Reading
from tf_contrastive.exporting import image_bytes, saved_model, serving_module
from tf_contrastive.views import preprocessing

pytestmark = pytest.mark.keras


def _expected(encoder, images):
    pixels = tf.stack([*map(views.evaluation(SIZE), images)])
    return encoder(pixels, training=False).numpy()


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
signatures, out = model.signatures, {}
for name in ("same", "wide", "large", "empty"):
    images = tf.constant(given[name])
    floats = tf.constant(given[name] / np.float32(255))
    out[name] = signatures["serving_default"](images=images)["embedding"]
    served = signatures["serving_float"](images=floats)
    out[name + "_float"] = served["embedding"]
    for kind in ("project", "classify"):
        served = signatures[kind](images=images)
        out |= {f"{name}_{key}": value for key, value in served.items()}
for name in ("mixed", "none"):
    data = tf.constant(given[name].tolist(), tf.string, [len(given[name])])
    served = signatures["serving_bytes"](bytes=data)
    out[name], out[name + "_ok"] = served["embedding"], served["ok"]
keras = tf.keras.models.load_model(sys.argv[1] + "/" + sys.argv[4])
out["keras"] = tf.constant(keras.predict(given["same"] / 255.0, verbose=0))
assert not any(name.startswith("tf_contrastive.") for name in sys.modules)
np.savez(sys.argv[3], **{k: v.numpy() for k, v in out.items()})
"""


@pytest.fixture(scope="module")
def served(saved, tmp_path_factory):
    """Inputs, and outputs of the export in a process without the package."""
    small, wide = make_images(2), make_images(2, 20, 28)
    jpeg = tf.io.encode_jpeg(wide[0]).numpy()
    png = tf.io.encode_png(small[0]).numpy()
    given = {
        "same": make_images(5),
        "wide": wide,
        "large": make_images(1, 90, 70),
        "empty": np.zeros([0, 0, 0, 3], np.uint8),
        "mixed": np.array([jpeg, b"", png, b"x", jpeg[:-200], png], object),
        "none": np.array([], object),
    }
    folder = tmp_path_factory.mktemp("served")
    np.savez(folder / "given.npz", **given)
    words = saved, "given.npz", "out.npz", saved_model.KERAS_FILE
    processes.run(processes.python(_READER, *words), cwd=folder)
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
        labels = out[f"{name}_labels"]
        assert labels.dtype == np.int64
        np.testing.assert_array_equal(labels, scores.top(1)[:, 0])
        logits = np.full([len(h), 5], -np.inf)
        logits[:, scores.classes] = scores.scores / 0.1
        expected = scipy.special.softmax(logits, axis=1)
        found = out[f"{name}_probabilities"]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    _close(out["keras"], _expected(encoder, given["same"]))
    shapes = {"": (6,), "_float": (6,), "_projection": (4,), "_labels": ()}
    for name, shape in (shapes | {"_probabilities": (5,)}).items():
        assert out[f"empty{name}"].shape == (0, *shape)
    assert (out["none"].shape, out["none_ok"].shape) == ((0, 6), (0,))


def test_bytes_are_decoded_as_by_pillow_or_refused(encoder):
    files = odd_images.files()
    module = serving_module.ServingModule(encoder)
    contents = tf.constant([content for _, content in files.values()])
    images, oks = tf.function(module.decode_files)(contents)
    for name, image, ok in zip(files, images, oks, strict=True):
        is_text = "EXIF in a" in name and "text" in name
        assert ok == (odd_images.is_native(name) and not is_text), name
        if ok:
            pixels = odd_images.by_pillow(files[name][1])
            scaled = preprocessing.resize_and_crop(pixels[np.newaxis], SIZE)
            assert np.abs(image - scaled[0]).max() < 1e-5, name


_EXIF = b"Exif\0\0" + odd_images.exif_of(6)
_WITHOUT = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 0)
_XMP = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="6"/>'
# Bytes that start a scan, and marks, as thumbnails and texts may have.
_CONFUSING = b"\xff\xd8\xff\xda\xff\xe1" + _WITHOUT + _XMP[:29]


@pytest.mark.parametrize(
    "segments",
    [
        [(0xED, b"Photoshop 3.0\0" + _CONFUSING), (0xE1, _EXIF)],
        [(0xE2, b"ICC_PROFILE\0\1\1" + _CONFUSING), (0xE1, _EXIF)],
        [(0xE1, _WITHOUT + _CONFUSING), (0xE1, _XMP)],
        [(0xFE, _EXIF), (0xE1, _WITHOUT)],
        [(0xFE, _CONFUSING), (0xE0, _EXIF), (0xE1, _XMP)],
        [(0xE1, _EXIF), (0xE1, _WITHOUT)],
    ],
)
def test_metadata_may_hold_the_bytes_of_other_segments(segments):
    plain = _encoded(make_images(1)[0], "JPEG")
    between = b"".join(odd_images.segment(*x) for x in segments)
    data = plain[:2] + between + plain[2:]
    with PIL.Image.open(io.BytesIO(data)) as image:
        expected = image.getexif().get(0x0112, 1)
    assert image_bytes.orientation(tf.constant(data)) == expected


def test_a_damaged_image_does_not_fail_its_batch(encoder, served):
    given, out = served
    found, ok = out["mixed"], out["mixed_ok"]
    assert ok.tolist() == [True, False, True, False, False, True]
    assert not found[~ok].any()
    images = [odd_images.by_pillow(data) for data in given["mixed"][ok]]
    expected = _expected(encoder, images)
    np.testing.assert_allclose(found[ok], expected, atol=1e-5)


# ---- Damaged and malicious files --------------------------------------------


def _encoded(image, kind, **options):
    return encoded(PIL.Image.fromarray(image), kind, **options)


def _bombs():
    image = make_images(1)[0]
    jpeg = tf.io.encode_jpeg(image).numpy()
    frame = jpeg.index(b"\xff\xc0") + 5  # Where a JPEG says its size.
    large = jpeg[:frame] + b"\xff\xdc" * 2 + jpeg[frame + 4 :]
    scans = _encoded(image, "JPEG", progressive=True)
    scan = scans[scans.rindex(b"\xff\xda") : -2]
    return {
        "jpeg of 1,000 scans": scans[:-2] + 1000 * scan + scans[-2:],
        "png 100,000 x 100,000": png((100_000, 100_000)),
        "png 2^31 - 1": png((2**31 - 1, 2**31 - 1)),
        "png that is all there": png((1200, 1200), bytes(1200 * 3601)),
        "jpeg 65,500 x 65,500": large,
        "png of 512 MiB more": png((8, 8), bytes(8 * 25 + (1 << 29))),
        "gif": _encoded(image, "GIF"),
    }


def _malformed_files(count):
    """Returns (bytes, whether they are good): random, cut off, zip, bombs."""
    generator = random.Random(0)
    image = make_images(1, 24, 30)[0]
    odd = odd_images.files()
    good = [
        tf.io.encode_jpeg(image).numpy(),
        tf.io.encode_png(image).numpy(),
        odd["JPEG EXIF 6, big endian"][1],
        odd["PNG EXIF 6"][1],
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


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("limits", [(), (100.0, 20000.0)])
@pytest.mark.parametrize("channels", [1, 3, 5, 16])
def test_numpy_files_are_decoded_or_refused(channels, limits):
    decode = functools.partial(
        image_bytes.decode_whole,
        max_pixels=120,
        reading=Reading(channels=channels, value_range=limits),
    )
    rng = np.random.default_rng(channels)
    deep = rng.integers(0, 65536, (9, 11, channels), np.uint16)
    eight, unit = (deep >> 8).astype(np.uint8), deep / np.float32(65535)
    low, high = limits or (0, None)
    for values, largest in ((eight, 255), (deep, 65535), (unit, 1)):
        wanted = (values.astype(np.float64) - low) / ((high or largest) - low)
        found = tf.function(decode)(tf.constant(_npy(values)))
        np.testing.assert_allclose(found, np.clip(wanted, 0, 1), rtol=1e-7)
    if channels == 1:
        found = decode(tf.constant(_npy(deep[..., 0])))
        np.testing.assert_array_equal(found, decode(tf.constant(_npy(deep))))
    refused = [
        _npy(deep)[:-1],
        _npy(deep) + b"00",
        _npy(deep).replace(b"(9, 11", b"(-9,-11"),
        _npy(deep[:, :, [*range(channels), 0]]),
        _npy(np.asfortranarray(deep)),
        _npy(np.zeros([0, 11, channels], np.uint8)),
        _npy(np.zeros([11, 11, channels], np.uint8)),
        _npy(np.full_like(unit, np.nan)),
        *[_npy(deep.astype(kind)) for kind in (">u2", "<i2", "<f8", "<i4")],
    ]
    for contents in refused if limits else [*refused, _npy(unit * 2)]:
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode(tf.constant(contents))


@pytest.mark.slow
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


def test_images_of_other_channels_are_named(saved):
    served = tf.saved_model.load(saved)
    refused = tf.errors.InvalidArgumentError
    for name, dtype in (("default", tf.uint8), ("float", tf.float32)):
        for channels in (1, 4):
            images = tf.zeros([2, 9, 7, channels], dtype)
            text = rf"must have 3 channels, not\] \[{channels}\]"
            with pytest.raises(refused, match=text):
                served.signatures[f"serving_{name}"](images=images)
