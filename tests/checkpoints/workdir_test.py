"""The options of a run: those that are cut off are no run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import saved_run
from image_helpers import noise

import tf_contrastive
from tf_contrastive import checkpoints, encoders, exporting, flags, train
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

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


@pytest.mark.slow
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


@pytest.fixture
def old_pool(tmp_path):
    """A run of version 0.2.0 with its ImageNet stem."""
    folder = tmp_path / "old"
    options = {"width": 0.03125, "stem": "imagenet", "image_size": 32}
    saved_run.make(folder, branches=True, pool_padding="symmetric", **options)
    text = _ROOT / "tests" / "testdata" / "config_0_2_0_imagenet.flags"
    shutil.copy(text, folder / "config.flags")
    return folder


# The command that it was trained by.
_COMMAND = """
    --dataset=digits --encoder=resnet10 --width=0.03125 --stem=imagenet
    --image_size=32 --nozero_init_residual --epochs=2 --batch_size=359
    --optimizer=sgd --learning_rate=0.1 --projection_output=16 --loss=supcon
    --temperature=0.1 --histograms_every_epochs=0 --projector_examples=0
    --checkpoint_every_steps=4
"""


@pytest.mark.slow
def test_a_run_of_0_2_0_keeps_its_pool(old_pool, tmp_path):
    images, features = noise(2, 32), {}
    for padding in ("same", "symmetric"):
        encoder = encoders.build(
            "resnet10",
            width=0.03125,
            stem="imagenet",
            image_shape=(32, 32, 3),
            pool_padding=padding,
        )
        encoder.set_weights(tf_contrastive.load(old_pool).get_weights())
        features[padding] = encoder(images).numpy()
    found = tf_contrastive.load(old_pool)(images)
    np.testing.assert_array_equal(found, features["symmetric"])
    assert np.abs(found - features["same"]).max() > 1e-2

    def pool(*words):
        return flags.parse(Pretrain, list(words)).encoder.pool_padding

    again = f"--flagfile={old_pool}/config.flags"
    assert pool(again, "--workdir=w") == "symmetric"
    assert pool(again, "--pool_padding=same", "--workdir=w") == "same"
    assert pool(*_COMMAND.split(), "--workdir=w") is None


@pytest.mark.slow
def test_a_run_of_0_2_0_is_continued_by_its_command(old_pool, tmp_path):
    command = flags.parse(
        Pretrain, [*_COMMAND.split(), f"--workdir={old_pool}"]
    )
    run = train.prepare(command).options
    assert run.encoder.pool_padding == "symmetric"
    checkpoints.check_workdir(run)
    run = train.prepare(fields.replace(command, pool_padding="same")).options
    with pytest.raises(
        errors.UserError, match=r"^\S+ holds.*pool_padding=same"
    ):
        checkpoints.check_workdir(run)
    elsewhere = fields.replace(command, workdir=str(tmp_path / "new"))
    run = train.prepare(elsewhere).options
    assert run.encoder.pool_padding == "same"
    # A stem without a pool.
    config = old_pool / "config.flags"
    text = config.read_text()
    config.write_text(text.replace("--stem=imagenet", "--stem=cifar"))
    run = train.prepare(fields.replace(command, stem="cifar")).options
    checkpoints.check_workdir(run)


@pytest.mark.slow
def test_a_loss_of_0_2_0_is_continued_by_its_command(old_pool, tmp_path):
    path = old_pool / "config.flags"
    text = path.read_text()
    assert "--loss=supcon\n--temperature=0.1\n" in text
    path.write_text(
        text.replace(
            "--loss=supcon\n--temperature=0.1\n", "--loss=decoupled_ntxent\n"
        )
    )

    def alignment(*words, workdir=old_pool):
        words = [*_COMMAND.split(), "--temperature=auto", *words]
        run = flags.parse(Pretrain, [*words, f"--workdir={workdir}"])
        return checkpoints.continued(run).loss.alignment

    loss = "--loss=decoupled_ntxent"
    assert alignment(loss) == "similarity"
    assert alignment(loss, "--loss_options=alignment=mean_square") != (
        "similarity"
    )
    assert alignment() is alignment(loss, workdir=tmp_path) is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["run", "export"])
def test_weights_of_another_pool_are_refused(kind, old_pool, tmp_path):
    path = str(old_pool)
    if kind == "export":
        path = exporting.export(path, str(tmp_path / "export"))
    command = flags.parse(
        Pretrain,
        [*_COMMAND.split(), f"--workdir={tmp_path}/new", f"--init_from={path}"],
    )
    with pytest.raises(errors.UserError, match="pool_padding=symmetric"):
        train.prepare(command).build()
    train.prepare(fields.replace(command, pool_padding="symmetric")).build()
