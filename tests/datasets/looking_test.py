"""The look at each image: pixels as Pillow has them, reasons, what is kept."""

import os
import time
import zlib
from pathlib import Path
from unittest import mock

import numpy as np
import odd_images
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    csv,
    encoded,
    picture,
    read,
    refused,
    truncated_jpeg,
    write,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import looking
from tf_contrastive.doctor import memory

# What is refused, and the reason.
_REFUSED = {
    "BMP 2 bits": "damaged",
    "PPM float": "floating-point",
    "TIFF 8 bits, signed": "signed",
    "TIFF 16 bits, signed": "signed",
    "TIFF 16 bits, white first": "unusual 16-bit",
    "TIFF 16 bits in planes": "unusual 16-bit",
    "TIFF 32 bits": "32-bit",
    "TIFF float": "floating-point",
    "TIFF YCbCr": "damaged",
}


# ---- Pixels ------------------------------------------------------------------


def _equal_pillow(images, paths, names, upright):
    for path, image in zip(paths, images, strict=True):
        expected = odd_images.by_pillow(Path(path).read_bytes(), upright)
        np.testing.assert_array_equal(image, expected, names[path])


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Paths of images of every format and subtype -> their names."""
    folder = tmp_path_factory.mktemp("odd")
    paths = {}
    for i, (name, (ending, content)) in enumerate(odd_images.files().items()):
        path = write(folder / f"{i:03}.{ending}", content)
        paths[str(path)] = name
    return paths


def test_pixels_are_those_of_pillow(odd):
    folder = Path(next(iter(odd))).parent
    reading = Reading(max_bad_images=len(_REFUSED))
    source = datasets.source(f"folder:{folder}", reading=reading)
    bad = {odd[path] for path in source.info.bad_images}
    assert bad == {*odd.values()}.intersection(_REFUSED)
    paths = [path for path in odd if path not in source.info.bad_images]
    images = [example["image"] for example in read(source)]
    _equal_pillow(images, paths, odd, upright=True)
    records = source.records.as_numpy_iterator()
    for row, image in zip(records, images, strict=True):
        assert row["size"].tolist() == list(image.shape[:2])


def test_each_refused_image_has_its_reason(odd, tmp_path):
    for path, name in odd.items():
        if name in _REFUSED:
            file = Path(path)
            copy = write(tmp_path / name / file.name, file.read_bytes())
            refused(_REFUSED[name], name=f"folder:{copy.parent}")


def test_images_in_records_are_never_turned(odd, tmp_path):
    names = {p: name for p, name in odd.items() if name not in _REFUSED}
    rows = [{"image": Path(path).read_bytes()} for path in names]
    write_records(tmp_path / "a.tfrecord", rows)
    source = datasets.source(f"tfrecord:{tmp_path}/a.tfrecord")
    images = [example["image"] for example in read(source)]
    _equal_pillow(images, names, names, upright=False)
    with datasets.without_python():
        examples = source.examples()
    with pytest.raises(tf.errors.InvalidArgumentError, match="only Pillow"):
        list(examples)


# ---- Limits ------------------------------------------------------------------


def test_headers_that_declare_much_are_not_decoded(tmp_path):
    write(tmp_path / "a.png", odd_images.png((60_000, 60_000)))
    refused("134,217,728 pixels", name=f"folder:{tmp_path}")
    image = {"image": (tmp_path / "a.png").read_bytes()}
    write_records(tmp_path / "a.tfrecord", [image])
    refused("more than 134217728", name=f"tfrecord:{tmp_path}/a.tfrecord")


def _png_bomb(where):
    """A PNG of 12 x 10 pixels and about 1 MB that holds 512 MiB of zeros."""
    zeros = bytes(1 << 29)
    if where == "pixels":
        rows = [b"\0" + row.tobytes() for row in np.asarray(picture(2))]
        return odd_images.png((10, 12), b"".join(rows) + zeros)
    content = encoded(picture(2))
    text = b"a\0\0" + zlib.compress(zeros, 9)[:8000]
    text = odd_images.chunk(b"zTXt", text)
    return content[:33] + 90 * text + content[33:]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["pixels", "texts"])
def test_what_a_png_holds_beyond_its_pixels_is_not_inflated(where, tmp_path):
    write(tmp_path / "ok.png", encoded(picture(3)))
    write(tmp_path / "bomb.png", _png_bomb(where))
    datasets.source(f"folder:{tmp_path}")  # What is imported late.
    os.utime(tmp_path / "bomb.png", (1, 1))
    start = time.process_time()
    source = datasets.source(f"folder:{tmp_path}")
    images = [example["image"].tobytes() for example in read(source)]
    assert time.process_time() - start < 1.5
    assert {*images} <= {np.asarray(picture(i)).tobytes() for i in (2, 3)}


def _tile_bomb(side):
    """A TIFF of 16 x 16 pixels in one tile of side x side."""
    data = zlib.compress(bytes(side * side), 9)
    tags = {256: 16, 257: 16, 258: 8, 259: 8, 262: 1, 277: 1}
    tags |= {322: side, 323: side, 324: 8, 325: len(data)}
    return odd_images.tiff(data, [(tag, 4, 1, x) for tag, x in tags.items()])


def test_a_small_tiff_of_a_large_tile_takes_little_memory(tmp_path):
    write(tmp_path / "a.tif", _tile_bomb(128))
    (example,) = read(datasets.source(f"folder:{tmp_path}"))
    assert example["image"].shape == (16, 16, 3)
    write(tmp_path / "b.tif", _tile_bomb(20_000))
    Path("/proc/self/clear_refs").write_text("5")  # Forgets earlier peaks.
    before = memory.peak_resident()
    source = datasets.source(f"folder:{tmp_path}")
    assert memory.peak_resident() - before < 100e6
    assert source.info.bad_images == (str(tmp_path / "b.tif"),)


def test_scans_of_a_jpeg_are_limited(tmp_path):
    content = encoded(picture(0), "JPEG")
    scan = b"\xff\xfe\0\4\xff\xda"  # A comment with the mark of a scan.
    for scans in (19, 20):
        more = content[:2] + scan * scans + content[2:]
        write(tmp_path / str(scans) / "a.jpg", more)
    assert len(read(datasets.source(f"folder:{tmp_path}/19"))) == 1
    refused("more scans", name=f"folder:{tmp_path}/20")


# ---- What is remembered ------------------------------------------------------


@pytest.fixture
def looks(monkeypatch, tmp_path):
    """Counts the images that are looked at from now on."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    look_at = mock.Mock(wraps=looking.look_at)
    monkeypatch.setattr(looking, "look_at", look_at)
    return look_at


def test_only_new_and_changed_files_are_looked_at(tmp_path, monkeypatch, looks):
    root = tmp_path / "images"
    class_folders(root)

    def opened(expected, **options):
        looks.reset_mock()
        info = datasets.source(f"folder:{root}", **options).info
        assert looks.call_count == expected
        return info

    first = opened(6)
    assert opened(0) == first
    opened(0, split="train[:50%]")
    monkeypatch.chdir(tmp_path)
    assert datasets.source("folder:images").info.image_shape
    assert looks.call_count == 0
    # A changed file, of the same length or time; a new one; a damaged one,
    # which is tried at each start.
    changed, other, *_ = sorted((root / "cat").iterdir())
    times = changed.stat().st_atime_ns, changed.stat().st_mtime_ns
    changed.write_bytes(encoded(picture(3, (20, 30))))
    os.utime(changed, ns=times)
    os.utime(other, (1, 1))
    write(root / "dog" / "new.png", encoded(picture(4)))
    bad = write(root / "dog" / "new.jpg", truncated_jpeg())
    info = opened(4)
    assert info.image_shape is None and info.bad_images == (str(bad),)
    assert opened(1) == info
    # A damaged store is as none.
    (store,) = (tmp_path / "cache" / "tf_contrastive" / "images").iterdir()
    store.write_bytes(store.read_bytes()[:100])
    assert opened(8) == info


def test_a_file_of_several_lines_is_looked_at_once(tmp_path, looks):
    for i in range(2):
        write(tmp_path / f"{i}.png", encoded(picture(i)))
    write(tmp_path / "2.jpg", truncated_jpeg())
    lines = "".join(f"{i}.png,{i}\n" for i in range(2)) + "2.jpg,1\n"
    name = csv(tmp_path / "list.csv", "path,label\n" + 5 * lines)
    source = datasets.source(name)
    assert looks.call_count == 3 and source.info.num_examples == 10


def _bytes_held(source):
    """Returns the bytes of all arrays of a source, and of its graphs."""
    arrays = [*source.arrays.values(), source.digests]
    arrays += [x for x in vars(source.paths).values() if hasattr(x, "dtype")]
    graphs = [f.function.graph for f in source.records._functions()]
    held = sum(graph.as_graph_def().ByteSize() for graph in graphs)
    return held + sum(memoryview(array).nbytes for array in arrays)


def test_an_image_takes_30_bytes_and_its_path(tmp_path):
    count, image = 5000, encoded(picture(0))
    first = write(tmp_path / "images" / "0.png", image)
    rows = ["path,label"]
    for i in range(count):
        path = f"images/{i // 1000:05}/{i:09}.png"
        (tmp_path / path).parent.mkdir(exist_ok=True)
        os.link(first, tmp_path / path)
        rows.append(f"{path},c{i * 7 % 1000:03}")
    source = datasets.source(csv(tmp_path / "list.csv", "\n".join(rows)))
    assert (source.labels() == np.arange(count) * 7 % 1000).all()
    whole = f"{tmp_path}/images/00002/000002345.png"
    assert source.paths[2345] == whole
    record = next(iter(source.records.skip(2345)))
    assert record["path"].numpy().decode() == whole
    # Height, width, way, turn, label, digest, the place of the path's bytes.
    expected = count * (4 + 4 + 1 + 1 + 4 + 8 + 8 + len(whole))
    assert expected < _bytes_held(source) < expected + count
