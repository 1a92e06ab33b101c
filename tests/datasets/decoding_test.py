"""Formats of images: pixels as Pillow has them, orientation, sizes, headers."""

import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import class_folders, encoded, picture, read, write
from PIL import Image, ImageOps

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import image_headers
from tf_contrastive.doctor import memory


def test_every_image_format_becomes_rgb(tmp_path):
    big = (30, 20)
    rgba = picture(3, big, "RGBA")
    sixteen = Image.fromarray(
        np.arange(600, dtype=np.uint16).reshape(big) * 100
    )
    frames = [picture(i, big).convert("P") for i in (4, 5)]
    kinds = {
        "a_grey.jpg": encoded(picture(1, big, "L"), "JPEG"),
        "b_cmyk.JPEG": encoded(picture(2, big, "CMYK"), "JPEG"),
        "c_rgba.png": encoded(rgba),
        "d_16bit.png": encoded(sixteen),
        "e_moving.gif": encoded(
            frames[0], "GIF", save_all=True, append_images=frames[1:]
        ),
        "f_rgba.bmp": encoded(rgba, "BMP"),
        "g_palette.png": encoded(frames[0]),
    }
    for name, contents in kinds.items():
        write(tmp_path / name, contents)
    examples = read(datasets.source(f"folder:{tmp_path}"))
    assert [e["image"].shape for e in examples] == [(30, 20, 3)] * len(kinds)
    without_alpha = np.asarray(rgba)[..., :3]
    np.testing.assert_array_equal(examples[2]["image"], without_alpha)
    np.testing.assert_array_equal(examples[5]["image"], without_alpha)
    upper = np.asarray(sixteen) >> 8
    np.testing.assert_allclose(examples[3]["image"][..., 0], upper, atol=1)
    first_frame = np.asarray(frames[0].convert("RGB"))
    np.testing.assert_array_equal(examples[4]["image"], first_frame)
    np.testing.assert_array_equal(examples[6]["image"], first_frame)


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


@pytest.mark.parametrize("endian", ["<", ">"])
def test_exif_orientation_is_that_of_pillow(endian, tmp_path):
    picture(0, (30, 20)).save(tmp_path / "0.jpg", quality=95)
    for turn in range(1, 9):
        exif = Image.Exif()
        exif.endian = endian
        exif[0x010F] = "maker"  # Another entry, before the orientation.
        exif[0x0112] = turn
        contents = encoded(picture(turn, (30, 20)), "JPEG", exif=exif)
        write(tmp_path / f"{turn}.jpg", contents)
    # Without EXIF, and with what only looks like it.
    write(tmp_path / "9.png", encoded(picture(9)))
    write(tmp_path / "a.png", encoded(picture(9)) + b"Exif\0\0II*\0")
    name = f"folder:{tmp_path}"
    for exif in ("apply", "ignore"):
        source = datasets.source(name, reading=Reading(exif=exif))
        for path, example in zip(
            sorted(tmp_path.iterdir()), read(source), strict=True
        ):
            expected = Image.open(path)
            if exif == "apply":
                expected = ImageOps.exif_transpose(expected)
            pixels = np.asarray(expected, int)
            assert example["image"].shape == pixels.shape, path
            assert np.abs(example["image"] - pixels).mean() < 2, path


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


def test_pillow_decodes_what_tensorflow_cannot(tmp_path):
    pixels = np.asarray(picture(0, (30, 20)))
    sixteen = np.arange(600, dtype=np.uint16).reshape(30, 20) * 100
    write(
        tmp_path / "a.webp", encoded(picture(0, (30, 20)), "WEBP", lossless=1)
    )
    write(tmp_path / "b.tiff", encoded(picture(0, (30, 20)), "TIFF"))
    write(tmp_path / "c.tif", encoded(Image.fromarray(sixteen), "TIFF"))
    write(tmp_path / "d.ppm", encoded(picture(0, (30, 20)), "PPM"))
    write(tmp_path / "e.png", encoded(picture(0, (30, 20))))
    write(tmp_path / "f.webp", encoded(picture(1), "WEBP")[:-40])
    source = datasets.source(f"folder:{tmp_path}")
    assert source.info.bad_images == (str(tmp_path / "f.webp"),)
    images = [example["image"] for example in read(source)]
    for number in (0, 1, 3, 4):
        np.testing.assert_array_equal(images[number], pixels)
    np.testing.assert_array_equal(images[2][..., 0], sixteen >> 8)


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


def test_only_the_first_image_of_a_gif_is_decoded(tmp_path):
    first = np.zeros([1200, 1200], np.uint8)
    first[:600] = 1
    # Different images, or Pillow merges them; together 86 MB.
    others = [Image.fromarray(first[::-1]), Image.fromarray(first)] * 30
    image = Image.fromarray(first)
    image.save(tmp_path / "a.gif", save_all=True, append_images=others)
    Path("/proc/self/clear_refs").write_text("5")  # Forgets earlier peaks.
    before = memory.peak_resident()
    (example,) = read(datasets.source(f"folder:{tmp_path}"))
    assert memory.peak_resident() - before < 40e6
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
