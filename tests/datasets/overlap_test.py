"""Images that two splits share, against sets of numbers; copies of files."""

import os
import shutil

import numpy as np
import pytest
from dataset_helpers import class_folders, csv, picture, read
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.datasets import overlap


def _pixels(source):
    """The image of each example, of which no two are equal."""
    return [example["image"].tobytes() for example in read(source)]


def test_images_are_the_same_at_one_place(tmp_path, opened):
    class_folders(tmp_path / "images", per_class=5)
    paths = sorted((tmp_path / "images").rglob("*.png"))
    lines = [f"{path},{path.parent.name}\n" for path in paths]
    table = csv(tmp_path / "list.csv", "".join(["path,label\n", *lines]))
    (tmp_path / "link").symlink_to(tmp_path / "images")
    for number, part in enumerate((paths[:6], paths[6:])):
        rows = [{"image": path.read_bytes(), "label": 0} for path in part]
        write_records(tmp_path / "records" / f"{number}.tfrecord", rows)
    for train, test in (
        (table, f"folder:{tmp_path}/link"),
        (f"tfrecord:{tmp_path}/records", f"tfrecord:{tmp_path}/records/*"),
        ("cifar10", "randbit:bits=2,of=cifar10"),
        ("digits", "subset:fraction=1,of=digits"),
    ):
        parts = opened(train, "train[:8]"), opened(test, "train[3:10]")
        known = {*_pixels(parts[0])}
        found = overlap.find_overlap(*parts)
        assert found.same.tolist() == [x in known for x in _pixels(parts[1])]
        assert found.same.any() and not found.copies.any()


def test_common_images_of_slices_are_refused():
    splits = (datasets.source("digits", x) for x in ("train", "train[90%:]"))
    said = r"test_split=train\[90%:\] has 144 image\(s\) of split=train "
    with pytest.raises(errors.UserError, match=said):
        datasets.check_disjoint(*splits)
    apart = (datasets.source("digits", f"train[{x}]") for x in (":500", "500:"))
    assert datasets.check_disjoint(*apart) is None


# ---- Copies of files --------------------------------------------------------


@pytest.fixture
def splits(tmp_path):
    """A folder of two splits of 12 images each."""
    class_folders(tmp_path / "train", per_class=6)
    class_folders(tmp_path / "test", per_class=6, start=1000)
    return tmp_path


def _both(name, **reading):
    options = Reading(**reading)
    return (
        datasets.source(name, split, reading=options)
        for split in ("train", "test")
    )


@pytest.mark.parametrize("how", [shutil.copy, os.symlink, os.link])
def test_a_few_copies_are_a_warning_and_most_are_refused(how, splits):
    name = f"folder:{splits}"
    assert datasets.check_disjoint(*_both(name)) is None
    for i in range(2):
        how(splits / f"train/cat/{i}.png", splits / f"test/dog/copy{i}.png")
    warning = datasets.check_disjoint(*_both(name))
    for words in ("2 of the 14", "test/dog/copy0.png", "test_split=test"):
        assert words in str(warning)
    shutil.copytree(splits / "train/dog", splits / "test/dog/again")
    for i in range(4):
        (splits / f"test/cat/{i}.png").unlink()
    with pytest.raises(errors.UserError, match="8 of the 16 images"):
        datasets.check_disjoint(*_both(name))


def test_half_of_the_images_may_not_be_copies():
    images = np.arange(60, dtype=np.uint8).reshape(60, 1, 1, 1)
    starts = 20, 31, 30
    train, nine, ten = (datasets.from_arrays(images[x:][:20]) for x in starts)
    assert "9 of the 20" in str(datasets.check_disjoint(train, nine))
    with pytest.raises(errors.UserError, match="10 of the 20"):
        datasets.check_disjoint(train, ten)


@pytest.mark.parametrize("kind", ["folder", "csv"])
def test_copies_are_held_out_together(kind, tmp_path):
    class_folders(tmp_path / "images", per_class=30)
    before = {}
    name = f"folder:{tmp_path}/images"
    reading = {"test_fraction": 0.2}
    if kind == "folder":
        before = [_pixels(source) for source in _both(name, **reading)]
    cats = tmp_path / "images/cat"
    for i in range(10):
        shutil.copy(cats / f"{i}.png", cats / f"x{i}.png")
    if kind == "csv":
        paths = sorted((tmp_path / "images").rglob("*.png"))
        lines = [f"{path},{path.parent.name}\n" for path in paths]
        text = "".join(["path,label\n", *lines, *lines[::2]])
        name = csv(tmp_path / "list.csv", text)
    train, test = _both(name, **reading)
    shared = {*_pixels(train)} & {*_pixels(test)}
    assert not shared and test.info.num_examples > 5
    assert {*_pixels(train), *_pixels(test)} == {
        picture(100 * c + i).tobytes() for c in range(2) for i in range(30)
    }
    # Without copies, what is held out is what it was.
    if before:
        for i in range(10):
            (cats / f"x{i}.png").unlink()
        assert [_pixels(source) for source in _both(name, **reading)] == before
