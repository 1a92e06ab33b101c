"""TFRecord files: their features, splits and lengths, and what is refused."""

import re

import numpy as np
import pytest
from dataset_helpers import encoded, labels, picture, read, refused
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading

# ---- Features ----------------------------------------------------------------

_IMAGES = [encoded(picture(i)) for i in range(6)]


def rows(image="image", label="label", **more):
    """Six records with labels 0, 1, 2, 0, 1, 2."""
    named = enumerate(_IMAGES)
    return [{image: x, label: i % 3, "height": 12} | more for i, x in named]


def changed(indices, **features):
    """Six records; `indices` have other features, or lack those of None."""
    return [
        {k: v for k, v in (row | features).items() if v is not None}
        if i in indices
        else row
        for i, row in enumerate(rows())
    ]


_ALL = range(6)
_LABELS = [0, 1, 2, 0, 1, 2]
# Records, options -> their labels, None without labels, or what an error says.
_RECORDS = {
    "usual": (rows(), {}, _LABELS),
    "slim": (rows("image/encoded", "image/class/label"), {}, _LABELS),
    "raw": (rows("image_raw"), {}, _LABELS),
    "none": (changed(_ALL, label=None, height=None), {}, None),
    "a part": (changed([3, 5], label=None), {}, "record 3"),
    "-1 in a part": (changed([2], label=-1), {}, "labels are from -1"),
    "text": (changed(_ALL, label=b"cat"), {}, "label .bytes"),
    "several once": (changed([5], label=[0, 1]), {}, "record 5"),
    "no such feature": (rows(), {"label_feature": "lable"}, "lable.* label "),
    "another name": (rows(label="cow"), {}, "label_feature=cow.*cow .int64"),
    "a given name": (rows(label="cow"), {"label_feature": "cow"}, _LABELS),
    "two labels": (rows(**{"image/label": 5}), {}, "label_feature=image/label"),
    "two images": (rows(encoded=_IMAGES[0]), {}, "image_feature=encoded"),
    "raw pixels": (
        changed(_ALL, image=bytes(360), width=10),
        {},
        "record 0.*PNG or JPEG.*raw_images.*module:name",
    ),
    "two images in one": (changed([1], image=_IMAGES[:2]), {}, "record 1"),
    "image of another name": (rows("jpg"), {}, "jpg .bytes"),
    "files": (_IMAGES, {}, "are not tf.train.Example"),
}


@pytest.mark.parametrize("about", _RECORDS)
def test_labels_are_read_or_their_absence_is_named(about, tmp_path):
    records, options, expected = _RECORDS[about]

    def place(match):
        number = int(match[1])
        file, number = (0, number) if number < 2 else (1, number - 2)
        return f"record {number} .from 0. of {tmp_path}/{file}.tfrecord"

    write_records(tmp_path / "0.tfrecord", records[:2])
    write_records(tmp_path / "1.tfrecord", records[2:])
    reading = Reading(**options)
    name = f"tfrecord:{tmp_path}/*.tfrecord"
    if isinstance(expected, str):
        for _ in range(2):  # The second start remembers what it found.
            message = refused(name=name, reading=reading)
            assert re.search(re.sub(r"record (\d)", place, expected), message)
        return
    source = datasets.source(name, reading=reading)
    got = [e["image"].tobytes() for e in read(source)]
    assert got == [np.asarray(picture(i)).tobytes() for i in range(6)]
    assert source.info.has_labels == (expected is not None)
    if expected:
        assert labels(source) == expected


def test_parts_have_each_record_once(tmp_path):
    write_records(tmp_path / "0.tfrecord", rows()[:2])
    write_records(tmp_path / "1.tfrecord", rows()[2:])

    def images(*sources):
        return [e["image"].tobytes() for s in sources for e in read(s)]

    whole, *halves = (
        datasets.source(f"tfrecord:{tmp_path}", f"train{part}")
        for part in ("", "[:50%]", "[50%:]")
    )
    assert images(*halves) == images(whole)
    parts = whole.split_validation(0.3, seed=0)
    assert sorted(images(*parts)) == sorted(images(whole))


# ---- Files -------------------------------------------------------------------


def test_files_without_records_are_named(tmp_path):
    path = tmp_path / "b.tfrecord"
    write_records(tmp_path / "a.tfrecord", rows())
    for content in (b"PAR1" + bytes(40), b"a.png,cat\n", _IMAGES[0], bytes(40)):
        path.write_bytes(content)
        refused("b.tfrecord", name=f"tfrecord:{tmp_path}")
    write_records(path, rows(), "GZIP")
    refused("compressed", name=f"tfrecord:{path}")


def test_other_files_beside_records_are_left_out(tmp_path):
    write_records(tmp_path / "a.tfrecord", rows())
    write_records(tmp_path / "0.tfrecord", [])
    for name in ("labels.txt", "README", ".a.tfrecord.crc", "_SUCCESS"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "folder").mkdir()
    for name in ("", "/*"):
        source = datasets.source(f"tfrecord:{tmp_path}{name}")
        assert labels(source) == _LABELS
    refused("tfrecord:PATH", name=f"folder:{tmp_path}")


# Files, what is opened -> how many files are read, or what an error says.
_TREES = {
    "a folder": ("a.tfrecord b.tfrecord", "", 2),
    "shards": ("a-00000-of-00002 a-00001-of-00002", "a-*", 2),
    "a split": ("train-0.tfrecord test-0.tfrecord", "{split}-*", 1),
    "twice": ("train/train-0 test/test-0", "{split}/{split}-*", 1),
    "another word": ("training/0 testing/0", "{split}", 1),
    "one split twice": ("train-0 training-0", "{split}-0", "both mean"),
    "both": ("train-0-of-1 test-0-of-2 test-1-of-2", "", "several splits"),
    "both in folders": ("train/0 validation/0", "*/*", "several splits"),
    "only folders": ("train/0 test/0", "", "no file matches"),
    "no such": ("val-0 test-0", "{split}-0", "no split 'train'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("about", _TREES)
def test_files_of_one_split_are_read(about, tmp_path):
    files, path, expected = _TREES[about]
    for file in files.split():
        write_records(tmp_path / file, rows())
    name = f"tfrecord:{tmp_path}/{path}"
    if isinstance(expected, str):
        refused(expected, name=name)
    else:
        assert labels(datasets.source(name)) == _LABELS * expected
