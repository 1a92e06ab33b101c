"""What is held in memory for each image of a dataset."""

import tracemalloc
import zlib

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import csv, encoded, picture, write

from tf_contrastive import datasets
from tf_contrastive.datasets import decoding, image_lists, verified_files

_IMAGES = 20_000


@pytest.fixture
def fake_files(monkeypatch, tmp_path):
    """Files that do not exist are images of 10 x 20 pixels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    verified = []

    def check(read, max_pixels, upright, path):
        verified.append(None)
        return *decoding.Verified(10, 20, 0, 0, 0, -1), zlib.crc32(
            path.encode()
        )

    monkeypatch.setattr(verified_files, "_check", check)
    monkeypatch.setattr(verified_files, "_stat", lambda path, time_of: (1, 2))
    return verified


def _traced(function):
    """The result, and the bytes that Python and NumPy held at most."""
    tracemalloc.start()
    try:
        result = function()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _held(source):
    """Bytes of the tensors and arrays that a source in memory consists of."""
    tensors = [*(source.arrays or {}).values(), tf.constant(source.digests)]
    paths = source.paths
    texts = sum(map(len, paths)) + 8 * (len(paths) + 1)
    return sum(tensor.numpy().nbytes for tensor in tensors) + texts


@pytest.mark.slow
def test_a_list_of_images_takes_100_bytes_each(fake_files, tmp_path):
    rows = (
        f"images/{i // 1000:05}/{i:09}.jpg,c{i * 7 % 1000:03}\n"
        for i in range(_IMAGES)
    )
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(rows))
    name = f"csv:{tmp_path}/list.csv"
    write(tmp_path / "one" / "1.png", b"")
    datasets.source(csv(tmp_path / "one.csv", "one/1.png,c0\n"))
    source, peak = _traced(lambda: datasets.source(name))
    assert source.info.num_examples == _IMAGES
    assert source.info.num_classes == 1000
    assert (source.labels() == np.arange(_IMAGES) * 7 % 1000).all()
    assert source.paths[12345] == f"{tmp_path}/images/00012/000012345.jpg"
    folder = len(str(tmp_path)) + 1
    assert _held(source) / _IMAGES - folder < 100 - 40
    # While it is opened, once: with a list of texts it was 1,400.
    assert peak / _IMAGES < 600 + 2 * folder
    # The next start remembers them.
    again = datasets.source(name)
    assert len(fake_files) == 1 + _IMAGES and again.info == source.info
    assert (again.digests == source.digests).all()


def test_what_is_known_of_a_million_images(tmp_path):
    count, random = 1_000_000, np.random.default_rng(0)
    keys = random.permutation(count)
    rows = np.zeros([2 * count], verified_files._ROW)
    rows["height"], rows["digest"] = 1 + np.arange(2 * count), -7
    counts = np.tile([3, 1], count // 2)
    stats = np.stack([keys, keys + 1], axis=1)
    known = verified_files._Known(keys, stats, counts, rows)
    store = str(tmp_path / "store.npy")
    verified_files._save(store, known)
    loaded, peak = _traced(
        lambda: verified_files._load(store, verified_files._ROW)
    )
    assert peak < 2 * (2 * rows.nbytes)
    firsts = np.cumsum(counts) - counts
    for key in (0, 1, 777_777):
        place = np.flatnonzero(keys == key)[0]
        own = loaded.select(np.flatnonzero(loaded.keys == key))
        expected = rows[firsts[place] :][: counts[place]]
        assert own.keys == [key] and own.stats.tolist() == [[key, key + 1]]
        assert (own.rows == expected).all()


def test_equal_hashes_of_paths_are_no_repeated_files(
    tmp_path, monkeypatch, capsys
):
    for name in ("a.png", "b.png"):
        write(tmp_path / name, encoded(picture(ord(name[0]))))
    monkeypatch.setattr(image_lists, "hash", lambda path: 1, raising=False)
    csv(tmp_path / "one.csv", "a.png,x\nb.png,y\n")
    source = datasets.source(f"csv:{tmp_path}/one.csv")
    assert source.info.num_examples == 2
    assert "repeat" not in capsys.readouterr().err
    csv(tmp_path / "two.csv", "a.png,x\nb.png,y\n./a.png,x\n")
    assert datasets.source(f"csv:{tmp_path}/two.csv").info.num_examples == 3
    assert "1 of 3 lines repeat" in capsys.readouterr().err
