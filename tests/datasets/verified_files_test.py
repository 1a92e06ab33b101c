"""Files are verified once; unreadable images are left out."""

import pytest
from dataset_helpers import (
    class_folders,
    encoded,
    labels,
    picture,
    refused,
    truncated_jpeg,
    write,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import decoding


def add_bad_images(root):
    return {
        str(write(root / "cat" / "bad1.jpg", truncated_jpeg())),
        str(write(root / "dog" / "bad2.png", encoded(picture(1))[:-40])),
        str(write(root / "dog" / "bad3.jpg", b"")),
        str(write(root / "dog" / "bad4.gif", b"<html>not found</html>")),
    }


def test_unreadable_images_are_left_out_and_named(tmp_path):
    class_folders(tmp_path)
    bad = add_bad_images(tmp_path)
    source = datasets.source(f"folder:{tmp_path}")
    assert set(source.info.bad_images) == bad
    assert source.info.num_examples == 6
    assert labels(source) == [0, 0, 0, 1, 1, 1]
    name = f"folder:{tmp_path}"
    refused(
        "4 of 10 images",
        "max_bad_images=3",
        "bad1.jpg",
        "max_bad_images=4",
        name=name,
        reading=Reading(max_bad_images=3),
    )


def verified(monkeypatch):
    """Returns the list of the images that are verified from now on."""
    verify, seen = decoding.verify, []

    def counted(contents, *options):
        seen.append(contents)
        return verify(contents, *options)

    monkeypatch.setattr(decoding, "verify", counted)
    return seen


def test_only_new_and_changed_files_are_verified_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "images"
    class_folders(root)
    seen = verified(monkeypatch)

    def opened(expected, **options):
        seen.clear()
        info = datasets.source(f"folder:{root}", **options).info
        assert len(seen) == expected
        return info

    first = opened(6)
    assert opened(0) == first
    opened(0, split="train[:50%]")
    monkeypatch.chdir(tmp_path)
    assert datasets.source("folder:images").info.image_shape
    assert len(seen) == 0
    # A changed file, a new one, a damaged one, which is tried at each start.
    (changed, *_) = sorted((root / "cat").iterdir())
    changed.write_bytes(encoded(picture(3, (20, 30))))
    write(root / "dog" / "new.png", encoded(picture(4)))
    bad = write(root / "dog" / "new.jpg", truncated_jpeg())
    info = opened(3)
    assert info.image_shape is None and info.bad_images == (str(bad),)
    assert opened(1) == info
    # A damaged store is as none.
    (store,) = (tmp_path / "cache" / "tf_contrastive" / "images").iterdir()
    store.write_bytes(store.read_bytes()[:100])
    assert opened(8) == info


@pytest.mark.slow
def test_only_changed_files_of_records_are_verified_again(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def write_file(file, count, label=0):
        rows = [
            {"image": encoded(picture(10 * file + i)), "label": label + i}
            for i in range(count)
        ]
        write_records(tmp_path / f"{file}.tfrecord", rows)

    for file, count in enumerate((3, 0, 5)):
        write_file(file, count)
    seen = verified(monkeypatch)
    name = f"tfrecord:{tmp_path}/*.tfrecord"

    def opened(expected, **options):
        seen.clear()
        source = datasets.source(name, **options)
        assert len(seen) == expected
        assert labels(source) == [int(x) for x in source.labels()]
        return source

    first = opened(8)
    assert labels(first) == [0, 1, 2, 0, 1, 2, 3, 4]
    again = opened(0)
    assert again.info == first.info and labels(again) == labels(first)
    assert labels(opened(0, split="train[2:5]")) == [2, 0, 1]
    write_file(1, 2, label=7)
    changed = opened(2)
    assert changed.info.num_classes == 9
    assert labels(changed) == [0, 1, 2, 7, 8, 0, 1, 2, 3, 4]
    # A file with an unreadable image is tried at each start.
    bad = {"image": truncated_jpeg(), "label": 0}
    write_records(tmp_path / "3.tfrecord", [bad])
    for _ in range(2):
        (named,) = opened(1).info.bad_images
        assert named == f"record 0 (from 0) of {tmp_path}/3.tfrecord"
