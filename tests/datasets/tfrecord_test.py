"""TFRecord files: their features, splits and lengths, and what is refused."""

import re

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import encoded, labels, picture, read, refused
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "label"),
    [
        ("image", "label"),
        ("image/encoded", "image/class/label"),
        ("image_raw", None),
    ],
)
def test_tfrecords_of_several_files(image, label, tmp_path):
    for shard in range(2):
        rows = [
            {image: encoded(picture(10 * shard + i)), "name": b"x"}
            | ({label: i} if label else {})
            for i in range(4)
        ]
        write_records(tmp_path / f"train-{shard}.tfrecord", rows)
    name = f"tfrecord:{tmp_path}/{{split}}-*"
    source = datasets.source(name)
    assert source.info.num_examples == 8
    assert source.info.num_classes == (4 if label else None)
    got = [e["image"].tobytes() for e in read(source)]
    good = [*range(4), *range(10, 14)]
    assert got == [np.asarray(picture(i)).tobytes() for i in good]
    if label:
        assert labels(source) == [0, 1, 2, 3] * 2
    halves = [datasets.source(name, f"train[{s}]") for s in (":50%", "50%:")]
    assert [e["image"].tobytes() for half in halves for e in read(half)] == got
    train, validation = source.split_validation(0.3, seed=0)
    parts = [e["image"].tobytes() for s in (train, validation) for e in read(s)]
    assert sorted(parts) == sorted(got)


def test_a_part_of_records_may_lack_the_last_classes(tmp_path):
    image = encoded(picture(0))
    for split, classes in ("train", 6), ("test", 5), ("val", 7):
        rows = [{"image": image, "label": i} for i in range(classes)]
        write_records(tmp_path / f"{split}.tfrecord", rows)
    name = f"tfrecord:{tmp_path}/{{split}}.tfrecord"
    assert datasets.source(name, "train[:50%]").info.num_classes == 6
    train, test, other = (
        datasets.source(name, split).info for split in ("train", "test", "val")
    )
    assert datasets.check_scorable(train, test).num_classes == 6
    with pytest.raises(errors.UserError, match=r"train has 6 .* val 7"):
        datasets.check_scorable(train, other)


def test_a_record_that_is_no_example_is_refused(tmp_path):
    path = str(tmp_path / "a.tfrecord")
    write_records(path, [{"image": encoded(picture(0)), "label": 0}])
    good = next(tf.data.TFRecordDataset(path).as_numpy_iterator())
    for record in (b"", b"\xff\xfe text", good[:-3], good[::-1]):
        with tf.io.TFRecordWriter(path) as writer:
            writer.write(good)
            writer.write(record)
        refused(f"record 1 (from 0) of {path}", name=f"tfrecord:{path}")


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
    "none": (changed(_ALL, label=None, height=None), {}, None),
    "a part": (changed([3, 5], label=None), {}, "record 3"),
    "an empty one": (changed([4], label=[]), {}, "record 4"),
    "-1 in a part": (changed([2], label=-1), {}, "labels are from -1"),
    "text": (changed(_ALL, label=b"cat"), {}, "label .bytes"),
    "one text": (changed([1], label=b"1"), {}, "record 1"),
    "several once": (changed([5], label=[0, 1]), {}, "record 5"),
    "no such feature": (rows(), {"label_feature": "lable"}, "lable.* label "),
    "label of another name": (
        rows(label="cow"),
        {},
        "label_feature=cow.*cow .int64",
    ),
    "label of a given name": (
        rows(label="cow"),
        {"label_feature": "cow"},
        _LABELS,
    ),
    "two labels": (rows(**{"image/label": 5}), {}, "label_feature=image/label"),
    "two images": (
        rows(**{"image/encoded": _IMAGES[0]}),
        {},
        "image_feature=image/encoded",
    ),
    "raw pixels": (
        changed(_ALL, image=bytes(12 * 10 * 3), width=10),
        {},
        "record 0",
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


# ---- Files -------------------------------------------------------------------


@pytest.mark.parametrize("more", [b"text" * 8, bytes(64), None], ids=str)
def test_what_follows_the_records_is_read_or_named(more, tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, rows())
    content = path.read_bytes()
    path.write_bytes(content + (content if more is None else more))
    name = f"tfrecord:{tmp_path}"
    if more is None:
        assert labels(datasets.source(name)) == _LABELS * 2
    else:
        refused(str(path), name=name)
    for size in (-2, -20, len(content) // 2 - 1, 9):
        path.write_bytes(content[:size])
        refused(str(path), name=name)


@pytest.mark.parametrize(
    "content", [b"PAR1" + bytes(40), b"a.png,cat\n", _IMAGES[0], bytes(40)]
)
def test_files_without_records_are_named(content, tmp_path):
    write_records(tmp_path / "a.tfrecord", rows())
    (tmp_path / "b.tfrecord").write_bytes(content)
    refused("1 of 2 files", "b.tfrecord", name=f"tfrecord:{tmp_path}")
    write_records(tmp_path / "b.tfrecord", rows(), "GZIP")
    refused("compressed", name=f"tfrecord:{tmp_path}/b.tfrecord")


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
    "brackets": ("run[1]/a.tfrecord run[1]/b.tfrecord", "run[1]", 2),
    "shards": ("a-00000-of-00002 a-00001-of-00002", "a-*", 2),
    "a split": ("train-0.tfrecord test-0.tfrecord", "{split}-*", 1),
    "folders": ("train/0.tfrecord test/0.tfrecord", "{split}", 1),
    "twice": ("train/train-0 test/test-0", "{split}/{split}-*", 1),
    "other spelling": ("Training/0 testing/0", "{split}", 1),
    "one split twice": ("train-0 training-0", "{split}-0", "both mean"),
    "both": ("train-0-of-1 test-0-of-2 test-1-of-2", "", "several splits"),
    "both in folders": ("train/0 validation/0", "*/*", "several splits"),
    "only folders": ("train/0 test/0", "", "no file matches"),
    "no such": ("val-0 test-0", "{split}-0", "no split 'train'"),
    "nothing": ("a-0", "b-*", "no file matches"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "path", "expected"), _TREES.values(), ids=list(_TREES)
)
def test_files_of_one_split_are_read(files, path, expected, tmp_path):
    for file in files.split():
        write_records(tmp_path / file, rows())
    name = f"tfrecord:{tmp_path}/{path}"
    if isinstance(expected, str):
        refused(expected, name=name)
    else:
        assert labels(datasets.source(name)) == _LABELS * expected
