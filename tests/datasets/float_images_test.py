"""Images of any channels and type: every form against NumPy's own division."""

import io
import struct

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest
import tensorflow as tf
from dataset_helpers import encoded, read, refused, write
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.datasets import Reading

DEEP = np.random.default_rng(0).integers(0, 65536, (9, 11, 4), np.uint16)
FLOATS = DEEP / np.float32(65535)
FOUR = Reading(channels=4)


def numpy_file(array, save=np.save):
    file = io.BytesIO()
    save(file, array)
    return file.getvalue()


def pillow_file(planes, kind, **options):
    first, *others = map(PIL.Image.fromarray, planes)
    more = {"save_all": True, "append_images": others} if others else {}
    return encoded(first, kind, **more, **options)


def planes(array):
    return [np.ascontiguousarray(array[..., k]) for k in range(4)]


FORMS = {
    "u1.npy": (numpy_file((DEEP >> 8).astype(np.uint8)), DEEP >> 8, 255),
    "u2.npy": (numpy_file(DEEP), DEEP, 65535),
    "big.npy": (numpy_file(DEEP.astype(">u2")), DEEP, 65535),
    "f4.npy": (numpy_file(FLOATS), FLOATS, 1),
    "f8.npy": (numpy_file(DEEP / 65535), FLOATS, 1),
    "u2.npz": (numpy_file(DEEP, np.savez_compressed), DEEP, 65535),
    "rgba16.png": (tf.io.encode_png(DEEP).numpy(), DEEP, 65535),
    "rgba8.png": (
        tf.io.encode_png((DEEP >> 8).astype(np.uint8)).numpy(),
        DEEP >> 8,
        255,
    ),
    "pages.tif": (pillow_file(planes(DEEP), "TIFF"), DEEP, 65535),
}


@pytest.mark.parametrize("form", FORMS)
def test_four_channels_keep_their_whole_range(form, tmp_path):
    contents, values, largest = FORMS[form]
    expected = values.astype(np.float32) / np.float32(largest)
    write(tmp_path / "images" / f"a.{form}", contents)
    source = datasets.source(f"folder:{tmp_path}", reading=FOUR)
    assert source.info.image_shape == (9, 11, 4)
    np.testing.assert_array_equal(read(source)[0]["image"], expected)
    write_records(tmp_path / "a.tfrecord", [{"image": contents}])
    path = f"tfrecord:{tmp_path / 'a.tfrecord'}"
    record = read(datasets.source(path, reading=FOUR))[0]
    np.testing.assert_array_equal(record["image"], expected)


RAW = {
    "uint8": ((DEEP >> 8).astype(np.uint8).tobytes(), DEEP >> 8, 255),
    "uint16": (DEEP.tobytes(), DEEP, 65535),
    "float32": (FLOATS.tobytes(), FLOATS, 1),
}


@pytest.mark.parametrize("kind", RAW)
def test_records_of_values_without_a_format(kind, tmp_path):
    contents, values, largest = RAW[kind]
    path = tmp_path / "a.tfrecord"
    write_records(path, [{"image": contents, "label": 1}])

    def reading(sides="9x11", channels=4, **options):
        raw = f"{kind}:{sides}"
        return Reading(channels=channels, raw_images=raw, **options)

    source = datasets.source(f"tfrecord:{path}", reading=reading())
    assert source.info.image_shape == (9, 11, 4)
    expected = values.astype(np.float32) / np.float32(largest)
    np.testing.assert_array_equal(read(source)[0]["image"], expected)
    for words, other in (
        ("record 0", reading("9x12")),
        ("record 0", reading(channels=5)),
        ("raw_images=.*value_range", reading(channels=3)),
    ):
        with pytest.raises(errors.UserError, match=words):
            other.check()
            datasets.source(f"tfrecord:{path}", reading=other)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_of_16_bits_is_cut_only_without_channels(kind, tmp_path):
    write(tmp_path / f"a.{kind[:3]}", pillow_file([DEEP[..., 0]], kind))
    expected = DEEP[..., :1].astype(np.float32) / np.float32(65535)
    source = datasets.source(f"folder:{tmp_path}", reading=Reading(channels=1))
    np.testing.assert_array_equal(read(source)[0]["image"], expected)
    source = datasets.source(f"folder:{tmp_path}")
    cut = np.repeat(DEEP[..., :1] >> 8, 3, axis=-1)
    np.testing.assert_array_equal(read(source)[0]["image"], cut)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32, np.float32])
def test_arrays_are_scaled_by_given_limits(dtype):
    values = (DEEP // 2).astype(dtype)[np.newaxis]
    expected = np.clip((values.astype(np.float64) - 100) / 19900, 0, 1)
    options = {"channels": 4, "value_range": (100.0, 20000.0)}
    for source in (
        datasets.from_arrays(values, [0], **options),
        datasets.from_dataset(
            tf.data.Dataset.from_tensor_slices((values, [0])), **options
        ),
    ):
        np.testing.assert_array_equal(
            read(source)[0]["image"], expected[0].astype(np.float32)
        )


def portable(kind, largest, values):
    head = f"{kind} 11 9 {largest}\n".encode()
    return head + values.astype(">u2" if largest > 255 else "u1").tobytes()


def retagged(contents, tag, old, new):
    """A TIFF whose tag has another value."""
    entry = struct.Struct("<HHIHH")
    before, after = (entry.pack(tag, 3, 1, value, 0) for value in (old, new))
    assert before in contents
    return contents.replace(before, after)


GREY, BYTES = DEEP[..., 0], (DEEP >> 8).astype(np.uint8)
DEEP_GREY = pillow_file([GREY.astype(np.int32)], "TIFF")
RGBA = pillow_file([BYTES], "TIFF")
# Tags of TIFF: what the fourth sample is, and what numbers the samples are.
ALPHA, NUMBERS_OF = 338, 339


@pytest.mark.parametrize(
    ("contents", "channels", "values"),
    [
        (portable("P5", 255, GREY >> 8), 1, BYTES),
        (portable("P5", 65535, GREY), 1, DEEP),
        (DEEP_GREY, 1, DEEP),
        (RGBA, 4, BYTES),
        (portable("P5", 4095, GREY >> 4), 1, None),
        (portable("P5", 15, GREY >> 12), 1, None),
        (portable("P6", 65535, DEEP[..., :3]), 3, None),
        (retagged(DEEP_GREY, NUMBERS_OF, 2, 1), 1, None),
        (
            pillow_file([BYTES[..., 0]], "TIFF", tiffinfo={NUMBERS_OF: 2}),
            *(1, None),
        ),
        (retagged(RGBA, ALPHA, 2, 1), 4, None),
    ],
)
def test_what_pillow_would_change_is_refused(
    contents, channels, values, tmp_path
):
    write(tmp_path / "a.tif", contents)
    largest = 255 if values is BYTES else 65535
    reading = Reading(channels=channels, value_range=(0.0, float(largest)))
    options = {"name": f"folder:{tmp_path}", "reading": reading}
    if values is None:
        refused("Pillow", **options)
        return
    found = read(datasets.source(**options))[0]["image"]
    expected = (values[..., :channels] / largest).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_whole_images_are_turned_as_others_are(orientation, tmp_path):
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    PIL.Image.fromarray(BYTES).save(tmp_path / "a.png", exif=exif)
    with PIL.Image.open(tmp_path / "a.png") as image:
        expected = np.asarray(PIL.ImageOps.exif_transpose(image))
    source = datasets.source(f"folder:{tmp_path}", reading=FOUR)
    found = read(source)[0]["image"]
    np.testing.assert_array_equal(found, expected / np.float32(255))


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (numpy_file(DEEP[..., :3]), "[9, 11, 3]"),
        (numpy_file(DEEP.astype(np.int16)), "int16"),
        (numpy_file(FLOATS * 2), "[0, 1]"),
        (numpy_file(np.full_like(FLOATS, np.nan)), "not finite"),
        (tf.io.encode_png(DEEP[..., :3]).numpy(), "[9, 11, 3]"),
        (pillow_file(planes(DEEP)[:2], "TIFF"), "[9, 11, 2]"),
    ],
)
def test_other_forms_are_refused_by_the_file(contents, words, tmp_path):
    write(tmp_path / "a" / "good.npy", numpy_file(DEEP))
    name = "bad.png" if contents.startswith(b"\x89PNG") else "bad.npy"
    write(tmp_path / "b" / name, contents)
    refused(name, words, name=f"folder:{tmp_path}", reading=FOUR)


def test_data_of_other_channels_are_refused():
    refused("[8, 8, 1]", name="digits", reading=FOUR)


def test_statistics_are_those_of_each_channel():
    images = np.random.default_rng(1).random((20, 6, 6, 4)) / [1, 2, 4, 80]
    source = datasets.from_arrays(images, channels=4)
    found = datasets.channel_statistics(source)
    np.testing.assert_allclose(found.mean, images.mean((0, 1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found.std, images.std((0, 1, 2)), rtol=1e-6)
