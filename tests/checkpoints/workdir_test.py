"""The options of a run: those that are cut off are no run."""

import shutil
from pathlib import Path

import pytest
import saved_run

from tf_contrastive import checkpoints, errors, flags
from tf_contrastive.config import fields

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    saved_run.make(folder, branches=True)
    return folder


def _refused(run):
    for read in (checkpoints.check_run, checkpoints.load_run):
        with pytest.raises(errors.UserError, match=r"config\.flags"):
            read(str(run))


def test_options_that_are_cut_off_are_refused(original, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(original, run)
    path = run / "config.flags"
    lines = path.read_text().splitlines(True)
    assert len(lines) > 80
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        _refused(run)
        if count > 1:
            with pytest.raises(errors.UserError, match="--flagfile"):
                flags.parse(
                    type(checkpoints.check_run(str(original))),
                    [f"--flagfile={path}", f"--workdir={tmp_path}/new"],
                )
    # An option less, in the middle.
    for count in (3, 40, len(lines) - 3):
        if lines[count].startswith("--"):
            path.write_text("".join(lines[:count] + lines[count + 1 :]))
            _refused(run)
    path.write_text("".join(lines))
    assert checkpoints.check_run(str(run)).data.dataset == "digits"


def test_a_flagfile_of_a_user_is_no_run(original, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(original, run)
    (run / "config.flags").write_text("--dataset=digits\n--nostandardize\n")
    _refused(run)
    (run / "config.flags").write_text("--dataset=digits\n--batch_size=100\n")
    _refused(run)


@pytest.mark.parametrize("stack", ["card", "current"])
def test_runs_of_version_0_2_0_are_read_whole_only(stack, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(_ROOT / "tests" / "testdata" / stack / "run", run)
    path = run / "config.flags"
    lines = path.read_text().splitlines(True)
    assert not lines[-1].startswith("#")  # Version 0.2.0 wrote no such line.
    assert checkpoints.check_run(str(run)).schedule.epochs > 0
    for count in range(len(lines)):
        path.write_text("".join(lines[:count]))
        _refused(run)


def test_how_data_are_read_may_be_said_later(original):
    """Data that were read by default may now have to be told how."""
    run = checkpoints.check_run(str(original))
    assert run.reading.first_label is None
    told = fields.replace(run, first_label=0, label_feature="none")
    checkpoints.check_workdir(told)
    changed = fields.replace(told, exif="ignore")
    with pytest.raises(errors.UserError, match="exif=ignore, there apply"):
        checkpoints.check_workdir(changed)
