"""Commands that read a run which goes on, and deletes its checkpoints."""

import shutil

import pytest
import saved_run

from tf_contrastive import checkpoints, exporting
from tf_contrastive.base import errors
from tf_contrastive.checkpoints import loading
from tf_contrastive.commands import export as export_command
from tf_contrastive.commands.export import Export
from tf_contrastive.config import fields


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    saved_run.make(folder)
    _delete(folder, 0)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A run with one checkpoint, of step 1."""
    return shutil.copytree(saved, tmp_path / "run")


def _delete(folder, step):
    for ending in ("index", "data-00000-of-00001"):
        (folder / "checkpoints" / f"ckpt-{step}.{ending}").unlink()


def _go_on(folder):
    """What a run does with `keep_checkpoints=1`; returns its newest step."""
    (path,) = checkpoints.saved(str(folder))
    step = checkpoints.step_of(path)
    for ending in ("data-00000-of-00001", "index"):
        new = folder / "checkpoints" / f"ckpt-{step + 1}.{ending}"
        shutil.copy(f"{path}.{ending}", new)
    _delete(folder, step)
    return step + 1


@pytest.fixture
def pruned(folder, monkeypatch):
    """A function that has the run go on twice, each time during a read."""

    def during(name):
        whole, left = getattr(loading, name), [2]

        def then_pruned(*args, **options):
            result = whole(*args, **options)
            if left[0] and options.get("trained", True):
                left[0] -= 1
                _go_on(folder)
            return result

        monkeypatch.setattr(loading, name, then_pruned)
        monkeypatch.setattr(checkpoints, name, then_pruned)
        return folder

    return during


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["load_run", "load_encoder"])
def test_the_newest_that_is_there_is_read(moment, pruned):
    parts = exporting.Parts.load(str(pruned(moment)))
    assert parts.run.step == 3


@pytest.mark.slow
def test_export_and_load_take_it(pruned, monkeypatch):
    folder = str(pruned("load_encoder"))
    exported = []

    def export(parts, output_dir, head, **_):
        exported.append((parts.run.step, type(head)))
        raise StopIteration

    monkeypatch.setattr(exporting, "export", export)
    with pytest.raises(StopIteration):
        export_command.run(
            fields.replace(Export(), workdir=folder, head="probe")
        )
    assert exported == [(3, exporting.ProbeHead)]
    pruned("load_run")
    assert exporting.load(folder).output_shape[-1]


def test_a_chosen_step_that_is_deleted_is_an_error(folder, monkeypatch):
    whole = loading.load_run

    def then_pruned(*args):
        run = whole(*args)
        _go_on(folder)
        return run

    monkeypatch.setattr(loading, "load_run", then_pruned)
    with pytest.raises(errors.UserError, match=r"checkpoint=1: .* only of 2"):
        exporting.Parts.load(str(folder), 1)
    # One that is always deleted does not loop forever.
    monkeypatch.setattr(loading, "_ATTEMPTS", 2)
    with pytest.raises(checkpoints.DeletedCheckpointError):
        exporting.Parts.load(str(folder))


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
