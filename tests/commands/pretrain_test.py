"""Pretraining on each kind of derived dataset."""

import pytest
import small

from tf_contrastive import __main__

_MULTI = "multidigits:count=2,canvas=32,digit=14"


def run_command(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tf_contrastive", *arguments])
        return __main__.main()


def pretrained(folder, data_dir, name, *others):
    """Trains two steps; returns the exit status."""
    with small.encoder():
        return run_command(
            "pretrain",
            f"--dataset={name}",
            f"--data_dir={data_dir}",
            f"--workdir={folder}",
            "--split=train[:32]",
            "--batch_size=16",
            "--epochs=1",
            "--encoder=resnet10",
            "--width=0.25",
            "--image_size=32",
            "--augmentation=crop",
            "--projection_output=16",
            *small.FLAGS,
            *others,
        )


@pytest.mark.parametrize(
    ("name", "others"),
    [
        (_MULTI, ["--loss=cross_entropy"]),
        pytest.param(
            "digit_on_image:unique=4,of=digits",
            ["--loss=supcon"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "randbit:bits=6,of=cifar10",
            ["--extra_channels=2"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "subset:fraction=0.5,of=digits",
            ["--sampler=class_balanced"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_pretrain_takes_each_kind_of_dataset(name, others, data_dir, tmp_path):
    assert pretrained(tmp_path / "run", data_dir, name, *others) == 0
    config = (tmp_path / "run" / "config.flags").read_text()
    # A probe needs one label per image.
    assert ("--noprobe" in config) == (name == _MULTI)
    if "randbit" in name:
        with small.encoder():
            done = run_command(
                "evaluate",
                f"--workdir={tmp_path / 'run'}",
                "--protocols=knn",
                "--nountrained",
            )
        assert done == 0


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--sampler=class_balanced", "--sampler"),
        ("--online_knn_size=64", "--online_knn_size"),
        ("--cutmix_alpha=1", "--cutmix_alpha"),
        ("--linear_epochs=1", "labels"),
    ],
)
def test_options_that_need_one_label_are_refused(
    flag, words, data_dir, tmp_path, capsys
):
    others = (flag, "--loss=cross_entropy")
    assert pretrained(tmp_path / "run", data_dir, _MULTI, *others) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    assert not (tmp_path / "run").exists()
