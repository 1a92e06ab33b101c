"""TFRecord files."""

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

from tf_contrastive import datasets, errors
from tf_contrastive.config.data import Reading


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
        message = refused("write it again", name=f"tfrecord:{path}")
        assert "{{" not in message
