"""Images to score that an encoder, or a classifier, was trained on."""

import shutil

import pytest
import saved_run
from dataset_helpers import class_folders

from tf_contrastive import checkpoints, datasets, exporting
from tf_contrastive.base import errors
from tf_contrastive.commands import evaluate as command
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation import comparison, seen_images
from tf_contrastive.evaluation import report as reports

_LABELLED, _UNLABELLED = "supcon", "ntxent"


@pytest.mark.parametrize(
    ("loss", "trained", "scored", "protocol", "held_out", "expected"),
    [
        (_LABELLED, "train[:90%]", "train[90%:]", "knn", False, ""),
        (_LABELLED, "train", "test", "knn", False, ""),
        (_LABELLED, "train", "train[90%:]", "knn", False, "refused"),
        (_LABELLED, "train[:91%]", "train[90%:]", "head", False, "refused"),
        (_LABELLED, "train", "train[90%:]", "kmeans", False, "144 of the 144"),
        (_LABELLED, "train", "train[90%:]", "knn", True, "and on their labels"),
        (_UNLABELLED, "train", "train[90%:]", "knn", False, "144 of the 144"),
        (_UNLABELLED, "train[:91%]", "train[90%:]", "knn", False, "15 of the"),
    ],
)
def test_an_encoder_is_not_scored_on_labels_it_was_trained_on(
    loss, trained, scored, protocol, held_out, expected
):
    run = fields.replace(Pretrain(), loss=loss, split=trained)
    sources = (datasets.source("digits", split) for split in (trained, scored))

    def said():
        refuse = PROTOCOLS[protocol].needs_labels and not held_out
        return seen_images.check(run, *sources, refuse)

    if expected == "refused":
        with pytest.raises(errors.UserError) as caught:
            said()
        for words in ("test_split=train[90%:]", "repeat pretrain without"):
            assert words in str(caught.value)
    else:
        text = said()
        assert expected in text and bool(text) == bool(expected)
        assert not text or ("labels" in text) == (loss == _LABELLED)


def test_copies_in_other_files_are_seen_too(tmp_path):
    run = fields.replace(Pretrain(), loss=_LABELLED)
    class_folders(tmp_path / "a", per_class=10)
    class_folders(tmp_path / "b", per_class=10, start=50)
    shutil.copy(tmp_path / "a/cat/1.png", tmp_path / "b/cat/1.png")

    def said():
        names = (f"folder:{tmp_path}/{x}" for x in "ab")
        sources = map(datasets.source, names)
        return seen_images.check(run, *sources, True)

    assert "1 of the 20 images to score and on their labels" in said()
    shutil.copytree(tmp_path / "a/dog", tmp_path / "b/dog", dirs_exist_ok=True)
    with pytest.raises(errors.UserError, match="11 of the 20"):
        said()


def _evaluate(**values):
    options = Evaluate.of(
        scale="cpu", protocols="knn", untrained=False, **values
    )
    options.validate()
    assert command.run(options) == 0


@pytest.mark.slow
def test_the_results_say_what_the_encoder_has_seen(tmp_path, capsys):
    """Of a run of two networks, one of which has seen the images."""
    folders = [str(tmp_path / name) for name in ("all", "part")]
    for folder, split in zip(folders, ("train", "train[:90%]"), strict=True):
        source = datasets.source("digits", split)
        saved_run.make(folder, source, loss=_UNLABELLED, split=split)
        slices = {"train_split": "train[:90%]", "test_split": "train[90%:]"}
        _evaluate(workdir=folder, **slices)
    seen = "the encoder was trained on 144 of the 144 images to score"
    assert f"warning: {seen}" in capsys.readouterr().out
    assert [reports.read(folder)["seen"] for folder in folders] == [seen, ""]
    warnings = comparison.compare(*folders)["warnings"]
    assert warnings == [f"{folders[0]}: {seen}"]
    exporting.export(folders[0], str(tmp_path / "export"))
    card = next((tmp_path / "export").rglob("*.md")).read_text()
    assert f"Warning: {seen}" in card
    given = {"saved_model": str(tmp_path / "export"), "dataset": "digits"}
    _evaluate(**given, **slices, output_dir=str(tmp_path / "of_export"))
    assert reports.read(str(tmp_path / "of_export"))["seen"] == seen
    # What its encoder started from has seen more.
    saved_run.make(
        folders[1], source, loss=_UNLABELLED, split=split, init_from=folders[0]
    )
    _evaluate(workdir=folders[1], **slices)
    assert reports.read(folders[1])["seen"] == seen
    export = str(tmp_path / "export")
    saved_run.make(folders[1], source, split=split, init_from=export)
    makers = list(exporting.makers(checkpoints.check_run(folders[1])))
    assert [run.data.split for run in makers] == [split, "train"]
    # Whatever the encoder has seen, classifiers do not learn what is scored.
    for given in (
        {"workdir": folders[1]},
        {"saved_model": str(tmp_path / "export"), "dataset": "digits"},
    ):
        with pytest.raises(errors.UserError) as caught:
            _evaluate(**given, train_split="train", test_split="train[90%:]")
        for words in ("has 144 image(s) of", "such as train_split=train[:90%]"):
            assert words in str(caught.value)
