"""Commands that read a run which goes on, and deletes its checkpoints."""

import shutil

import pytest
import saved_run

from tf_contrastive import checkpoints
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import loading


@pytest.fixture
def folder(tmp_path):
    """A run with one checkpoint, of step 1."""
    saved_run.make(tmp_path / "run")
    _delete(tmp_path / "run", 0)
    return tmp_path / "run"


def _delete(folder, step):
    for ending in ("index", "data-00000-of-00001"):
        (folder / "checkpoints" / f"ckpt-{step}.{ending}").unlink()


def _go_on(folder):
    """Saves the next step, as a run with `keep_checkpoints=1` does."""
    (path,) = checkpoints.saved(str(folder))
    step = checkpoints.step_of(path)
    for ending in ("data-00000-of-00001", "index"):
        new = folder / "checkpoints" / f"ckpt-{step + 1}.{ending}"
        shutil.copy(f"{path}.{ending}", new)
    _delete(folder, step)


@pytest.mark.slow
def test_one_that_is_deleted_before_it_is_read_is_an_error(folder):
    run = checkpoints.load_run(str(folder))
    _go_on(folder)
    with pytest.raises(checkpoints.DeletedCheckpointError, match="repeat"):
        checkpoints.load_encoder(run)
    with pytest.raises(errors.UserError, match=r"checkpoint=1: .* only of 2"):
        checkpoints.load_run(str(folder), 1)


@pytest.mark.slow
def test_one_deleted_while_its_damage_is_looked_for_is_not_damaged(
    folder, monkeypatch, capsys
):
    whole, left = loading.storage.damage_of, [3]

    def then_pruned(path):
        if left[0]:
            left[0] -= 1
            _go_on(folder)
        return whole(path)

    monkeypatch.setattr(loading.storage, "damage_of", then_pruned)
    assert checkpoints.load_run(str(folder)).step == 4
    assert "damaged" not in capsys.readouterr().err
