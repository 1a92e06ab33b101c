"""The run in a folder: which runs may follow it, which versions read it."""

import json
import shutil

import pytest
import saved_run

from tf_contrastive import checkpoints, exporting, train
from tf_contrastive.base import errors
from tf_contrastive.config import fields


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    saved_run.make(folder, branches=True)
    return folder


def test_how_data_are_read_may_be_said_later(original):
    """Data that were read by default may now have to be told how."""
    run = checkpoints.check_run(str(original))
    assert run.reading.label_feature is None
    told = fields.replace(run, label_feature="none")
    checkpoints.check_workdir(told)
    changed = fields.replace(told, unlabelled="own_views")
    with pytest.raises(errors.UserError, match="unlabelled=own_views"):
        checkpoints.check_workdir(changed)


@pytest.mark.slow
def test_weights_of_another_pool_are_refused(tmp_path):
    options = {"width": 0.03125, "stem": "imagenet", "image_size": 32}
    path = str(tmp_path / "run")
    saved_run.make(path, branches=True, pool_padding="symmetric", **options)
    path = exporting.export(path, str(tmp_path / "export"))
    run = fields.replace(
        checkpoints.check_run(str(tmp_path / "run")),
        workdir=str(tmp_path / "new"),
        init_from=path,
        pool_padding="same",
    )
    with pytest.raises(errors.UserError, match="pool_padding=symmetric"):
        train.prepare(run).build()
    train.prepare(fields.replace(run, pool_padding="symmetric")).build()


def test_checkpoints_of_another_version_are_refused(original, tmp_path):
    run = shutil.copytree(original, tmp_path / "run")
    path = run / "checkpoints" / "metadata.json"
    metadata = json.loads(path.read_text())
    for version, changes in (
        ("0.2.0", {"format": None, "version": None}),
        ("9.1.2", {"format": 2, "version": "9.1.2"}),
    ):
        known = {k: v for k, v in (metadata | changes).items() if v is not None}
        path.write_text(json.dumps(known))
        with pytest.raises(errors.UserError, match=f"version {version}"):
            checkpoints.load_run(str(run))
