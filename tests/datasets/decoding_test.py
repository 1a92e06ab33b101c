"""Formats of images: pixels as Pillow has them, orientation, sizes, headers."""

import zlib
from pathlib import Path

import numpy as np
import odd_images
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    encoded,
    picture,
    read,
    refused,
    write,
)
from image_helpers import write_records
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.base import terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding, image_headers, verified_files
from tf_contrastive.doctor import memory

# What is refused, and the reason.
_REFUSED = {
    "BMP 2 bits": "damaged",
    "BMP 32 bits, other masks": "damaged",
    "GIF fewer colours than indices": "damaged",
    "JPEG2000 rgb, 16 bits": "Pillow reads other pixels",
    "PPM float": "floating-point",
    "TIFF 8 bits, signed": "signed",
    "TIFF 16 bits, signed": "signed",
    "TIFF 16 bits, white first": "Pillow reads other pixels",
    "TIFF 16 bits in planes": "Pillow reads other pixels",
    "TIFF 32 bits": "32-bit",
    "TIFF float": "floating-point",
    "TIFF YCbCr": "damaged",
}
# TensorFlow converts CMYK with other rounding.
_OF_JPEG = 1


def _equals_pillow(images, paths, names, upright):
    for path, image in zip(paths, images, strict=True):
        name = names[path]
        expected = odd_images.by_pillow(Path(path).read_bytes(), upright)
        assert image.shape == expected.shape, name
        error = np.abs(image.astype(int) - expected).max()
        assert error <= (_OF_JPEG if name.startswith("JPEG ") else 0), name


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Paths of images of every format and subtype -> their names."""
    folder = tmp_path_factory.mktemp("odd")
    paths = {}
    for i, (name, (ending, content)) in enumerate(odd_images.files().items()):
        path = write(folder / f"{i:03}.{ending}", content)
        paths[str(path)] = name
    return paths


@pytest.mark.parametrize("exif", ["apply", "ignore"])
def test_pixels_are_those_of_pillow(exif, odd):
    folder = Path(next(iter(odd))).parent
    reading = Reading(exif=exif, max_bad_images=len(_REFUSED))
    source = datasets.source(f"folder:{folder}", reading=reading)
    assert {odd[path] for path in source.info.bad_images} == set(_REFUSED)
    paths = [path for path in odd if path not in source.info.bad_images]
    upright = exif == "apply"
    images = [example["image"] for example in read(source)]
    _equals_pillow(images, paths, odd, upright)
    for row, image in zip(
        source.records.as_numpy_iterator(), images, strict=True
    ):
        assert row["size"].tolist() == list(image.shape[:2])


def test_each_refused_image_has_its_reason(odd, tmp_path):
    for path, name in odd.items():
        if name in _REFUSED:
            copy = write(tmp_path / name / "a", Path(path).read_bytes())
            copy = copy.rename(copy.with_suffix(Path(path).suffix))
            refused(_REFUSED[name], name=f"folder:{copy.parent}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "without content"),
        (b"<!DOCTYPE html><html>404</html>", "format or subtype"),
        (encoded(picture(0), "TGA"), "format or subtype"),
        (encoded(picture(0))[:-30], "damaged"),
    ],
)
def test_the_reason_says_whether_a_file_is_an_image(content, reason, tmp_path):
    write(tmp_path / "a.jpg", content)
    refused(reason, name=f"folder:{tmp_path}")


def test_hard_contrasts_of_a_jpeg_do_not_overflow(tmp_path):
    """By a faster transform, TensorFlow takes white for black in a QR code."""
    modules = np.random.default_rng(0).integers(0, 2, (60, 60), np.uint8)
    code = Image.fromarray(np.kron(modules, np.full((5, 5), 255, np.uint8)))
    for quality in (50, 75, 95, 100):
        content = encoded(code, "JPEG", quality=quality)
        path = write(tmp_path / str(quality) / "a.jpg", content)
        (example,) = read(datasets.source(f"folder:{path.parent}"))
        expected = odd_images.by_pillow(content)
        np.testing.assert_array_equal(example["image"], expected)


def test_a_damaged_gif_is_refused(tmp_path):
    """TensorFlow decodes it as far as it can, and Pillow fails."""
    _, content = odd_images.files()["GIF plain"]
    damaged = bytearray(content)
    damaged[-116] ^= 0xFF
    write(tmp_path / "a.gif", bytes(damaged))
    refused("damaged", name=f"folder:{tmp_path}")


def test_usual_files_need_no_pillow(odd, tmp_path):
    """The hosts of a TPU and of a data service have none."""
    usual = {}
    for path, name in odd.items():
        others = odd_images.OF_PILLOW | set(_REFUSED)
        if name.startswith(odd_images.NATIVE) and name not in others:
            copy = write(tmp_path / Path(path).name, Path(path).read_bytes())
            usual[str(copy)] = name
    source = datasets.source(f"folder:{tmp_path}")
    assert not source.info.by_pillow
    images = [example["image"] for example in read(source)]
    _equals_pillow(images, usual, usual, upright=True)
    for path, name in odd.items():
        if name in odd_images.OF_PILLOW:
            content = tf.constant(Path(path).read_bytes())
            assert not image_headers.is_native(content), name


def test_shortcuts_for_usual_files_change_nothing(odd):
    def value(function, contents):
        try:
            return bool(function(contents))
        except tf.errors.InvalidArgumentError:
            return "not read"

    turned = 0
    for path, name in odd.items():
        contents = Path(path).read_bytes()
        full = value(image_headers.is_native, contents)
        assert value(image_headers.is_native_file, contents) == full, name
        if full is True and image_headers.orientation(contents) != 1:
            assert image_headers.may_be_turned(contents), name
            turned += 1
    assert turned > 8


def test_files_that_are_turned_are_known(odd):
    found = verified_files.read_sizes(list(odd), 2**27, True, "odd", True)
    turned = dict(zip(odd, found.turned.tolist(), strict=True))
    for path in np.array(list(odd))[found.readable].tolist():
        content = Path(path).read_bytes()
        upright, lying = (
            odd_images.by_pillow(content, turn) for turn in (True, False)
        )
        differs = not np.array_equal(upright, lying)
        # Pillow turns those that it decodes.
        of_pillow = not image_headers.is_native_file(content)
        assert turned[path] == (differs or of_pillow), odd[path]
    ignored = verified_files.read_sizes(list(odd), 2**27, False, "odd", True)
    assert (ignored.turned <= ignored.pillow).all()


def test_images_in_records_are_never_turned(odd, tmp_path):
    names = {p: name for p, name in odd.items() if name not in _REFUSED}
    rows = [{"image": Path(path).read_bytes()} for path in names]
    write_records(tmp_path / "a.tfrecord", rows)
    source = datasets.source(f"tfrecord:{tmp_path}/a.tfrecord")
    images = [example["image"] for example in read(source)]
    _equals_pillow(images, names, names, upright=False)
    assert "JPEG" in dict(source.info.found)["images"]


def test_formats_are_counted(tmp_path):
    for i, kind in enumerate(("JPEG", "MPO", "PNG", "WEBP")):
        ending = kind.lower().replace("mpo", "jpg")
        write(tmp_path / f"{i}.{ending}", encoded(picture(i), kind))
    # By its content.
    write(tmp_path / "4.jpg", encoded(picture(4)))
    found = dict(datasets.source(f"folder:{tmp_path}").info.found)
    assert found["files"] == "2 JPEG, 2 PNG, 1 WEBP"


@pytest.mark.parametrize("kind,ending", [("PNG", "png"), ("TIFF", "tif")])
@pytest.mark.parametrize("bits", [10, 12, 14, 15, 16])
def test_few_bits_in_files_of_sixteen_are_noticed(
    kind, ending, bits, tmp_path, monkeypatch
):
    said = []
    monkeypatch.setattr(terminal, "warning", said.append)
    pixels = np.arange(1 << 14, dtype=np.uint16).reshape(128, 128) << 2
    pixels >>= 16 - bits
    for i in range(3):
        image = Image.fromarray(pixels)
        write(tmp_path / f"{i}.{ending}", encoded(image, kind))
    # Black, of 8 bits.
    write(tmp_path / "a.png", encoded(Image.new("L", (9, 9))))
    name = f"folder:{tmp_path}"
    datasets.source(name)
    assert len(said) == (bits < 15)
    if said:
        assert f"{name}: 3 images of 16 bits" in said[0]
        assert f"above {(1 << bits) - 1:,}" in said[0]


def test_images_of_extreme_sizes_are_read(tmp_path):
    sizes = {
        "a.jpg": (4_000, 5_000),
        "b.png": (1, 1),
        "c.jpg": (1, 5_000),
        "d.png": (5_000, 1),
    }
    for name, (height, width) in sizes.items():
        Image.new("L", (width, height), 77).save(tmp_path / name)
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.num_examples == 4 and not source.info.bad_images
    for example, size in zip(
        source.examples().as_numpy_iterator(), sizes.values(), strict=True
    ):
        assert example["image"].shape == (*size, 3)
        assert np.all(example["image"][:, -1] == 77)


@pytest.mark.parametrize("turn", [1, 6])
def test_images_of_one_turned_shape_have_it(turn, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = turn
    for i in range(3):
        contents = encoded(picture(i, (30, 20)), "JPEG", exif=exif)
        write(tmp_path / f"{i}.jpg", contents)
    source = datasets.source(f"folder:{tmp_path}")
    expected = (30, 20, 3) if turn == 1 else (20, 30, 3)
    assert source.info.image_shape == expected
    assert all(e["image"].shape == expected for e in read(source))


def test_an_image_of_too_many_pixels_is_left_out_by_its_header(tmp_path):
    class_folders(tmp_path)
    large = write(
        tmp_path / "cat" / "large.jpg", encoded(picture(0, (40, 50)), "JPEG")
    )
    name = f"folder:{tmp_path}"
    assert datasets.source(name).info.num_examples == 7
    for pixels, bad in (1999, (str(large),)), (2000, ()):
        reading = Reading(max_image_pixels=pixels)
        assert datasets.source(name, reading=reading).info.bad_images == bad
    # A header that declares 10 GB, which no decoder is asked to allocate.
    bomb = bytearray(encoded(picture(1)))
    bomb[16:24] = (60_000).to_bytes(4, "big") * 2
    bomb[29:33] = zlib.crc32(bomb[12:29]).to_bytes(4, "big")
    bomb = write(tmp_path / "dog" / "bomb.png", bytes(bomb))
    assert datasets.source(name).info.bad_images == (str(bomb),)


@pytest.mark.slow
def test_only_the_first_image_of_a_gif_is_decoded(tmp_path):
    first = np.zeros([1200, 1200], np.uint8)
    first[:600] = 1
    # Different images, or Pillow merges them; together 86 MB.
    others = [Image.fromarray(first[::-1]), Image.fromarray(first)] * 30
    image = Image.fromarray(first)
    write(tmp_path / "warm" / "a.gif", encoded(picture(0), "GIF"))
    read(datasets.source(f"folder:{tmp_path}/warm"))
    image.save(
        write(tmp_path / "b" / "a.gif", b""),
        save_all=True,
        append_images=others,
    )
    Path("/proc/self/clear_refs").write_text("5")  # Forgets earlier peaks.
    before = memory.peak_resident()
    (example,) = read(datasets.source(f"folder:{tmp_path}/b"))
    assert memory.peak_resident() - before < 60e6
    assert (example["image"] == first[..., np.newaxis]).all()


def test_gifs_are_cut_off_after_their_first_image():
    generator = np.random.default_rng(0)
    for side in (1, 9, 60):  # The last has several blocks of 255 bytes.
        frames = generator.integers(0, 256, [3, side, side, 3], np.uint8)
        first, *others = map(Image.fromarray, frames)
        whole = encoded(first, "GIF", save_all=True, append_images=others)
        cut = image_headers.check(tf.constant(whole), side * side).numpy()
        assert len(cut) < len(whole)
        np.testing.assert_array_equal(
            tf.io.decode_gif(cut)[0], tf.io.decode_gif(whole)[0]
        )
        with pytest.raises(tf.errors.InvalidArgumentError):
            image_headers.check(tf.constant(whole), side * side - 1)
        with pytest.raises(tf.errors.InvalidArgumentError):
            image_headers.check(tf.constant(cut[:-3]), side * side)


def test_files_are_read_on_the_host():
    """Also beside a GPU, of which another virtual device takes the place."""
    content = odd_images.files()["PNG EXIF 5"][1]
    with tf.device("CPU:1"):
        turn = image_headers.orientation(content)
        image = decoding.decode(content, upright=True)
    assert turn.device.endswith("CPU:0") and image.device.endswith("CPU:0")
    for function in (
        lambda x: decoding.decode(x, True, True, True),
        decoding.decode_native,
        lambda x: image_headers.check(x, 1000),
    ):
        traced = tf.function(function, autograph=False).get_concrete_function(
            tf.TensorSpec([], tf.string)
        )
        graph = traced.graph.as_graph_def()
        nodes = [*graph.node]
        for inner in graph.library.function:
            nodes += inner.node_def
        assert len(nodes) > 100
        # What the traced function itself adds: its input, output and order.
        others = {n.op for n in nodes if n.device != "/device:CPU:0"}
        assert others <= {"Placeholder", "Identity", "NoOp"}
