"""What `doctor` says about the splits of a run."""

import shutil

import pytest
import saved_run
from dataset_helpers import class_folders

from tf_contrastive import datasets, train
from tf_contrastive.base import errors
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.config import fields
from tf_contrastive.doctor import data

_COPIES = "2 of the 20 images"


def _examined(root, **options):
    values = {"dataset": f"folder:{root}", "loss": "supcon", "batch_size": 4}
    run = fields.replace(Doctor(), **(values | options))
    return data.examine(train.prepare(run), 1.0)


@pytest.fixture
def splits(tmp_path):
    class_folders(tmp_path / "train", per_class=10)
    class_folders(tmp_path / "test", per_class=10, start=50)
    return tmp_path


def test_the_test_split_is_described_and_compared(splits):
    found = _examined(splits)
    text = "test: 20 images, 0 of them in train, 0 copies"
    assert found.rows["test_split"] == text and not found.warnings
    assert found.rows["class_sizes"] == ["cat: 10", "dog: 10"]
    assert found.rows["copies"] == "0"
    for i in range(2):
        old = splits / f"train/cat/{i}.png"
        shutil.copy(old, splits / f"test/cat/{i}.png")
    for stage in ({}, {"linear_epochs": 1}):
        found = _examined(splits, validation_fraction=0.2, **stage)
        assert "2 copies" in found.rows["test_split"]
        assert _COPIES in found.warnings["test_split"]
    shutil.copy(splits / "train/cat/0.png", splits / "train/dog/x.png")
    assert "dog/x.png" in _examined(splits).rows["copies"]
    shutil.copytree(splits / "train", splits / "test", dirs_exist_ok=True)
    assert "are copies" in _examined(splits).warnings["test_split"]
    with pytest.raises(errors.UserError, match="are copies"):
        _examined(splits, linear_epochs=1)
    (splits / "train/dog/x.png").unlink()
    with pytest.raises(errors.UserError, match=r"5 image.s. of split=train"):
        _examined(splits, test_split="train[75%:]")


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "refused"), [("supcon", 1), ("ntxent", 0)])
def test_what_a_run_starts_from_has_seen_is_told(loss, refused, splits):
    name, start = f"folder:{splits}", str(splits.parent / "start")
    trained = datasets.source(name, "test")
    saved_run.make(start, trained, dataset=name, split="test", loss=loss)
    told = "the encoder was trained on 20 of the 20 images to score"
    assert told in _examined(splits, init_from=start).warnings["init_from"]
    again = str(splits.parent / "again")
    saved_run.make(again, trained, dataset=name, loss=loss, init_from=start)
    if refused:
        with pytest.raises(errors.UserError, match=told):
            _examined(splits, init_from=again, linear_epochs=1)
    else:
        found = _examined(splits, init_from=again, linear_epochs=1)
        assert told in found.warnings["init_from"]


def test_a_test_split_that_is_not_there_or_unlike_is_told(splits):
    shutil.rmtree(splits / "test")
    found = _examined(splits)
    assert found.rows["test_split"] == "none"
    assert "test_fraction=0.2" in found.warnings["test_split"]
    # Without labels there is nothing to score by default.
    shutil.rmtree(splits / "train/dog")
    found = _examined(splits, loss="ntxent")
    assert found.rows["test_split"] == "none" and not found.warnings
    assert "class_sizes" not in found.rows
