"""Images to score that a run learns from."""

import shutil

import pytest
import small
from dataset_helpers import class_folders

from tf_contrastive import train
from tf_contrastive.base import errors
from tf_contrastive.doctor import test_split


def _problems(root, **options):
    """What is wrong, by option; or what ends the run."""
    values = {"dataset": f"folder:{root}", "split": "train", "batch_size": 4}
    run = train.prepare(small.run(workdir="w", **(values | options)))
    try:
        found = test_split.find(run)
    except errors.UserError as error:
        with pytest.raises(errors.UserError):
            test_split.check(run)
        return str(error)
    test_split.check(run)
    return found


@pytest.fixture
def splits(tmp_path):
    class_folders(tmp_path / "train", per_class=10)
    class_folders(tmp_path / "test", per_class=10, start=50)
    return tmp_path


def test_images_of_both_splits_are_found(splits):
    assert not _problems(splits)
    for name in ("cat/0.png", "cat/1.png"):
        shutil.copy(splits / "train" / name, splits / "test" / name)
    for stage in ({}, {"linear_epochs": 1}):
        found = _problems(splits, validation_fraction=0.2, **stage)
        assert "2 of the 20 images" in found["test_split"]
    shutil.copytree(splits / "train", splits / "test", dirs_exist_ok=True)
    assert "test_split" in _problems(splits)
    assert isinstance(_problems(splits, linear_epochs=1), str)
    assert "5 image(s) of" in _problems(splits, test_split="train[75%:]")


def test_an_absent_test_split_is_named_where_there_are_labels(splits):
    shutil.rmtree(splits / "test")
    assert "test_fraction=0.2" in _problems(splits)["unscored"]
    # Without labels there is nothing to score by default.
    shutil.rmtree(splits / "train/dog")
    assert not _problems(splits, loss="ntxent")
