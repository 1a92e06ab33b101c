"""Pretraining on each kind of derived dataset."""

import pytest
import small

from tf_contrastive import flags
from tf_contrastive.base import errors
from tf_contrastive.commands.pretrain import PretrainCommand
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain

_MULTI = "multidigits:count=2,canvas=32,digit=14"


def _pretrained(folder, data_dir, name, *others):
    """Trains two steps; returns the exit status."""
    words = small.words(
        **{"dataset": name, "data_dir": data_dir, "workdir": folder},
        **{"split": "train[:32]", "image_size": 32, "batch_size": 16},
        epochs=1,
    )
    with small.encoder():
        return small.command("pretrain", *words, *small.FLAGS, *others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "others"),
    [
        (_MULTI, ["--loss=cross_entropy"]),
        ("randbit:bits=6,of=cifar10", ["--data_options=extra_channels=2"]),
        ("subset:fraction=0.5,of=digits", ["--sampler=class_balanced"]),
    ],
)
def test_pretrain_takes_each_kind_of_dataset(name, others, data_dir, tmp_path):
    assert _pretrained(tmp_path / "run", data_dir, name, *others) == 0
    config = (tmp_path / "run" / "config.flags").read_text()
    # A probe needs one label per image.
    assert ("--probe=false" in config) == (name == _MULTI)
    if "randbit" in name:
        with small.encoder():
            words = ("--protocols=knn", "--nountrained")
            run = f"--workdir={tmp_path / 'run'}"
            assert small.command("evaluate", run, *words) == 0


@pytest.mark.parametrize(
    "option",
    [
        {"sampler": "class_balanced"},
        {"online_knn_size": 64},
        {"cutmix_alpha": 1},
    ],
)
def test_options_that_need_one_label_are_refused(option):
    run = fields.replace(Pretrain(), loss="cross_entropy", **option)
    with pytest.raises(errors.UserError, match=next(iter(option))):
        run.check_labels("several", has_labels=True, multi_label=True)


_STARTED = {
    "encoder": "resnet18",
    "width": 0.25,
    "stem": "imagenet",
    "pool_padding": "symmetric",
    "zero_init_residual": False,
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """The flag that starts from a run of these options."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / "before"
    folder.mkdir()
    run = fields.replace(Pretrain(), **_STARTED, standardize="none")
    (folder / "config.flags").write_text(flags.record(run))
    return f"--init_from={folder}"


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        (["--encoder=resnet18", "--width=0.25"], {}),
        (
            ["--encoder_options=zero_init_residual=false"],
            {"zero_init_residual": False},
        ),
        (["--standardize=dataset"], {"standardize": "dataset"}),
    ],
)
def test_a_run_starts_with_the_network_of_another(words, changes, start):
    taken = _STARTED | {"zero_init_residual": True, "standardize": None}
    for flag in (start, "--init_from=~/before"):
        parsed = flags.parse(PretrainCommand, [flag, "--workdir=w", *words])
        values = fields.values(parsed)
        assert {name: values[name] for name in taken} == taken | changes


@pytest.mark.parametrize(
    "word",
    [
        "--encoder=resnet34",
        "--stem=cifar",
        "--encoder_options=pool_padding=same",
    ],
)
def test_another_network_is_refused_by_name(word, start, capsys, tmp_path):
    assert small.command("pretrain", start, f"--workdir={tmp_path}", word) == 2
    message = capsys.readouterr().err
    assert word in message and start in message
    assert message.count("\n") == 1


def test_an_export_does_not_name_its_network(tmp_path):
    words = [f"--init_from={tmp_path}", "--workdir=w"]
    assert flags.parse(PretrainCommand, words).encoder.label == "resnet50"
