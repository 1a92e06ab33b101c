"""TFRecord files."""

import re

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import (
    encoded,
    labels,
    picture,
    read,
    refused,
    truncated_jpeg,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "label", "ending"),
    [
        ("image", "label", ""),
        ("image/encoded", "image/class/label", ".gz"),
        ("image_raw", None, ""),
    ],
)
def test_tfrecords_of_several_files(image, label, ending, tmp_path):
    for shard in range(2):
        rows = [
            {image: encoded(picture(10 * shard + i)), "height": 12}
            | ({label: i} if label else {})
            for i in range(4)
        ]
        rows[2][image] = truncated_jpeg() if shard else rows[2][image]
        write_records(
            tmp_path / f"train-{shard}.tfrecord{ending}",
            rows,
            "GZIP" if ending else None,
        )
    name = f"tfrecord:{tmp_path}/{{split}}-*"
    source = datasets.source(name)
    assert source.info.num_examples == 7
    assert len(source.info.bad_images) == 1
    assert source.info.num_classes == (4 if label else None)
    got = sorted(e["image"].tobytes() for e in read(source))
    good = [*range(4), 10, 11, 13]
    assert got == sorted(np.asarray(picture(i)).tobytes() for i in good)
    if label:
        assert sorted(labels(source)) == [0, 0, 1, 1, 2, 3, 3]
    halves = [datasets.source(name, f"train[{s}]") for s in (":50%", "50%:")]
    both = [e["image"].tobytes() for half in halves for e in read(half)]
    assert sorted(both) == got
    train, validation = source.split_validation(0.3, seed=0)
    parts = [e["image"].tobytes() for s in (train, validation) for e in read(s)]
    assert sorted(parts) == got


def test_labels_of_records_start_at_0_or_1(tmp_path):
    rows = [{"image": encoded(picture(i)), "label": i + 1} for i in range(3)]
    write_records(tmp_path / "a.tfrecord", rows)
    name = f"tfrecord:{tmp_path}"
    refused("start at 1", "first_label=1", name=name)
    for first, expected in (1, [0, 1, 2]), (0, [1, 2, 3]):
        source = datasets.source(name, reading=Reading(first_label=first))
        assert labels(source) == expected
        assert source.info.num_classes == expected[-1] + 1


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
    "none": (changed(_ALL, label=None), {}, None),
    "none wanted": (rows(), {"label_feature": "none"}, None),
    "boxes": (changed(_ALL, label=None, **{"object/label": 3}), {}, None),
    "a part": (
        changed([3, 5], label=None),
        {},
        "2 of 6 .* no feature 'label'.* record 3",
    ),
    "an empty one": (changed([4], label=[]), {}, "1 of 6 .* no .* record 4"),
    "not the first": (changed([0], label=None), {}, "5 of 6 .* record 1"),
    "-1 in a part": (changed([2], label=-1), {}, "1 of 6 .* record 2"),
    "text": (changed(_ALL, label=b"cat"), {}, "label .bytes"),
    "one text": (changed([1], label=b"1"), {}, "1 of 6 .* integer.* record 1"),
    "floats": (changed(_ALL, label=1.0), {}, "label .float"),
    "several": (changed(_ALL, label=[0, 1]), {}, "label .2 x int64"),
    "several once": (
        changed([5], label=[0, 1]),
        {},
        "single integer.* record 5",
    ),
    "a part, but none wanted": (
        changed([3], label=None),
        {"label_feature": "none"},
        None,
    ),
    "no such feature": (rows(), {"label_feature": "lable"}, "lable.* label "),
    "text of a class": (
        changed(_ALL, label=None, **{"class/text": b"cat"}),
        {},
        "label_feature=none.*class/text .bytes",
    ),
    "raw pixels": (
        changed(_ALL, image=bytes(12 * 10 * 3), width=10),
        {},
        "none of the 6 images can be read",
    ),
    "floats of pixels": (changed(_ALL, image=[0.5] * 4), {}, "4 x float"),
    "no image in a part": (changed([2], image=None), {}, "1 of 6 .* record 2"),
    "no image in the first": (changed([0], image=None), {}, "label .int64"),
    "two images in one": (changed([1], image=_IMAGES[:2]), {}, "record 1"),
    "image of another name": (rows("jpg"), {}, "jpg .bytes"),
    "image of a given name": (rows("jpg"), {"image_feature": "jpg"}, _LABELS),
    "files": (_IMAGES, {}, "are not tf.train.Example"),
    "one file": ([*rows(), _IMAGES[0]], {}, "1 of 7 .* record 6"),
}
for _name in ("class", "target", "fine_label", "y", "class_id", "cow"):
    _RECORDS[_name] = (
        rows(label=_name),
        {},
        f"label_feature={_name}.*{_name} .int64",
    )
    given = {"label_feature": _name}
    _RECORDS[f"{_name} given"] = (rows(label=_name), given, _LABELS)


@pytest.mark.parametrize(
    ("records", "options", "expected"), _RECORDS.values(), ids=list(_RECORDS)
)
def test_labels_are_read_or_their_absence_is_named(
    records, options, expected, tmp_path, monkeypatch
):
    def place(match):
        number = int(match[1])
        file, number = (0, number) if number < 2 else (1, number - 2)
        return f"record {number} .from 0. of {tmp_path}/{file}.tfrecord"

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_records(tmp_path / "0.tfrecord", records[:2])
    write_records(tmp_path / "1.tfrecord", records[2:])
    reading = Reading(**options)
    name = f"tfrecord:{tmp_path}/*.tfrecord"
    if isinstance(expected, str):
        for _ in range(2):  # The second start remembers what it found.
            with pytest.raises(errors.UserError) as caught:
                datasets.source(name, reading=reading)
            message = str(caught.value)
            assert re.search(re.sub(r"record (\d)", place, expected), message)
        return
    source = datasets.source(name, reading=reading)
    got = [e["image"].tobytes() for e in read(source)]
    assert got == [np.asarray(picture(i)).tobytes() for i in range(6)]
    assert source.info.has_labels == (expected is not None)
    if expected:
        assert labels(source) == expected


@pytest.mark.parametrize("more", ["image/label", "image/encoded"])
def test_two_labels_or_images_are_refused(more, tmp_path):
    write_records(
        tmp_path / "a.tfrecord",
        rows(**{more: 5 if more == "image/label" else _IMAGES[0]}),
    )
    refused("which of", more, name=f"tfrecord:{tmp_path}")
    option = {"image/label": "label_feature", "image/encoded": "image_feature"}
    reading = Reading(**{option[more]: option[more].split("_")[0]})
    source = datasets.source(f"tfrecord:{tmp_path}", reading=reading)
    assert labels(source) == _LABELS


def test_doctor_is_told_how_records_were_understood(tmp_path):
    write_records(tmp_path / "a.tfrecord", rows())
    write_records(tmp_path / "b.tfrecord", rows(), "GZIP")
    (tmp_path / "c.tfrecord").touch()
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert datasets.source(f"tfrecord:{tmp_path}").info.found == (
        ("files", "3 TFRecord"),
        ("left out", "labels.txt"),
        ("records", "12"),
        ("images", "12 PNG, feature 'image'"),
        ("labels", "feature 'label' (int64), from 0 to 2"),
        ("other features", "height"),
    )


# ---- Files -------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("ending", ["tfrecord", "tfrecord.gz", "gz", "0-of-2"])
def test_compression_is_recognized_by_the_bytes(compression, ending, tmp_path):
    write_records(tmp_path / f"a.{ending}", rows(), compression)
    write_records(tmp_path / f"b.{ending}", [], compression)
    for scheme in ("", "file://"):  # As of an object store.
        assert (
            labels(datasets.source(f"tfrecord:{scheme}{tmp_path}")) == _LABELS
        )
    content = (tmp_path / f"a.{ending}").read_bytes()
    for size in (-2, -20, len(content) // 2 - 1, 9):
        (tmp_path / f"a.{ending}").write_bytes(content[:size])
        refused(f"{tmp_path}/a.{ending}", name=f"tfrecord:{tmp_path}")


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("more", [b"text" * 8, bytes(64), None], ids=str)
def test_what_follows_the_records_is_read_or_named(compression, more, tmp_path):
    path = tmp_path / "a.tfrecord"
    write_records(path, rows(), compression)
    content = path.read_bytes()
    path.write_bytes(content + (content if more is None else more))
    name = f"tfrecord:{tmp_path}"
    if more is None:
        assert labels(datasets.source(name)) == _LABELS * 2
    else:
        refused(str(path), name=name)


@pytest.mark.parametrize(
    "content", [b"PAR1" + bytes(40), b"a.png,cat\n", _IMAGES[0], bytes(40)]
)
def test_files_without_records_are_named(content, tmp_path):
    write_records(tmp_path / "a.tfrecord", rows())
    (tmp_path / "b.tfrecord").write_bytes(content)
    refused("1 of 2 files", "b.tfrecord", name=f"tfrecord:{tmp_path}")
    refused("1 of 1 files", name=f"tfrecord:{tmp_path}/b.tfrecord")


def test_other_files_beside_records_are_left_out(tmp_path):
    write_records(tmp_path / "a.tfrecord", rows())
    others = ["labels.txt", "about.json", "README"]
    for name in (*others, ".a.tfrecord.crc", "_SUCCESS"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "._a.tfrecord").write_bytes(bytes(40))  # Of macOS.
    (tmp_path / "folder").mkdir()
    for name in ("", "/*"):
        source = datasets.source(f"tfrecord:{tmp_path}{name}")
        assert labels(source) == _LABELS
        left_out = dict(source.info.found)["left out"]
        assert all(other in left_out for other in others)


def test_a_folder_of_records_is_named_as_such(tmp_path):
    write_records(tmp_path / "0.tfrecord-00000-of-00001", rows())
    refused(f"use tfrecord:{tmp_path}", name=f"folder:{tmp_path}")
    refused(
        f"mean tfrecord:{tmp_path}/0",
        name=f"{tmp_path}/0.tfrecord-00000-of-00001",
    )


# Files, what is opened -> how many files are read, or what an error says.
_TREES = {
    "a folder": ("a.tfrecord b.tfrecord", "", 2),
    "brackets": ("run[1]/a.tfrecord run[1]/b.tfrecord", "run[1]", 2),
    "shards": ("a-00000-of-00002 a-00001-of-00002", "a-*", 2),
    "a split": ("train-0.tfrecord test-0.tfrecord", "{split}-*", 1),
    "folders": ("train/0.tfrecord test/0.tfrecord", "{split}", 1),
    "twice": ("train/train-0 test/test-0", "{split}/{split}-*", 1),
    "other spelling": ("Training/0 testing/0", "{split}", 1),
    "both": ("train-0-of-1 test-0-of-2 test-1-of-2", "", "several splits"),
    "both in folders": ("train/0 validation/0", "*/*", "several splits"),
    "only folders": ("train/0 test/0", "", "{split}"),
    "no such": ("val-0 test-0", "{split}-0", "splits are test, val"),
    "words of words": ("train-0 val-0", "{split}*", 1),
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


def test_shards_that_are_empty_or_absent_are_a_warning(tmp_path, caplog):
    for number in (0, 2, 3):
        file = tmp_path / f"a-0000{number}-of-00005"
        write_records(file, rows() if number else [])
    name = f"tfrecord:{tmp_path}/a-*"
    assert labels(datasets.source(name)) == _LABELS * 2
    assert f"1 of 3 files are empty, such as {tmp_path}/a-00000" in caplog.text
    assert (
        f"2 of 5 shards are absent, such as {tmp_path}/a-00001" in caplog.text
    )
    caplog.clear()
    datasets.source(f"{name[:-1]}00002-of-00005")  # It was meant alone.
    assert not caplog.text
