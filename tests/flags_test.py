"""Flags of the command line: definitions, help, values, flagfiles, errors."""

import dataclasses
import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tf_contrastive import __main__, errors, flags
from tf_contrastive.config import fields as config_fields
from tf_contrastive.config.data import (
    ChannelStatistics,
    channel_statistics,
    write_statistics,
)
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.config.linear import LinearStage
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import Schedule
from tf_contrastive.errors import arg

_ROOT = Path(__file__).resolve().parents[1]
_COMMANDS = list(__main__.COMMANDS.values())


def _parse(*arguments, command=Pretrain):
    parsed = flags.parse(command, list(arguments))
    parsed.validate()
    return parsed


def _required(command):
    return [
        f"--{field.name}={'loss' if field.name == 'benchmark' else 'w'}"
        for _, field, _ in config_fields.fields(command())
        if field.metadata["required"]
    ]


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_option_is_a_flag_with_default_and_help(command):
    values = flags.define(command)
    required = _required(command)
    for _, field, default in config_fields.fields(command()):
        assert values[field.name].value == default, field.name
        assert len(values[field.name].help) > 3, field.name
        if default is None or field.metadata["required"]:
            continue
        text = f"--{field.name}={default}"
        if isinstance(default, bool):
            text = f"--{field.name}" if default else f"--no{field.name}"
        parsed = flags.parse(command, [*required, text])
        values_by_name = {
            f.name: value for _, f, value in config_fields.fields(parsed)
        }
        assert values_by_name[field.name] == default, field.name


def test_flags_set_the_options_of_their_groups():
    parsed = _parse(
        "--loss=supcon",
        "--optimizer=sgd",
        "--nonesterov",
        "--epochs=3",
        "--linear_epochs=7",
        "--linear_nesterov",
        "--workdir=w",
    )
    assert parsed.loss.loss == "supcon"
    assert parsed.optimizer.nesterov is False
    assert parsed.schedule == Schedule(epochs=3)
    assert parsed.linear.schedule.epochs == 7
    assert parsed.linear.optimizer.nesterov is True


def test_a_group_occurs_twice_under_a_prefix():
    options = {f.name: (f, v) for _, f, v in config_fields.fields(Pretrain())}
    own = {name: v for name, (_, v) in options.items()}
    assert (own["optimizer"], own["linear_optimizer"]) == ("lars", "sgd")
    assert (own["epochs"], own["linear_epochs"]) == (100, 0)
    assert "linear_learning_rate_floor" not in own
    # The linear stage does not change the encoder, so it may differ later.
    assert options["momentum"][0].metadata["identity"]
    assert not options["linear_momentum"][0].metadata["identity"]
    assert options["linear_epochs"][0].metadata["help"].startswith("linear")
    changed = config_fields.replace(Pretrain(), linear_epochs=3, epochs=4)
    assert changed.linear.schedule.epochs == 3
    assert changed.schedule.epochs == 4
    assert LinearStage.schedule.batch_size == 256


def test_a_flagfile_repeats_the_run_and_later_flags_win(tmp_path):
    first = _parse(
        "--loss=supcon",
        "--temperature=0.07",
        "--noflip",
        "--linear_epochs=3",
        "--linear_schedule=piecewise",
        "--linear_boundaries=1,2",
        "--workdir=a",
        "--data_dir=/some where/epochs=3",
    )
    path = tmp_path / "config.flags"
    path.write_text(flags.write(first))
    assert "workdir" not in path.read_text()
    assert _parse(f"--flagfile={path}", "--workdir=a") == first
    changed = _parse(f"--flagfile={path}", "--workdir=b", "--temperature=0.5")
    assert changed.loss.temperature == 0.5
    assert flags.read(Pretrain, flags.record(first), "a") == first


def test_flagfiles_include_others_relative_to_themselves(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "configs" / "base.flags").write_text(
        "# --epochs=9\n// --epochs=9\n\n--epochs=3\n--batch_size=8\n"
    )
    own = tmp_path / "configs" / "own.flags"
    own.write_text("--epochs=4\n--flagfile=base.flags\n--batch_size=16\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for given in (
        ["--flagfile=../configs/own.flags"],
        ["--flagfile", f"{tmp_path}/configs/own.flags"],
    ):
        parsed = flags.parse(Pretrain, [*given, "--workdir=w"])
        assert parsed.schedule.epochs == 3
        assert parsed.schedule.batch_size == 16
    # Or relative to the working directory.
    Path("here.flags").write_text("--epochs=7\n")
    own.write_text("--flagfile=here.flags\n")
    given = ["--flagfile=../configs/own.flags", "--workdir=w"]
    assert flags.parse(Pretrain, given).schedule.epochs == 7


# Line -> a flag, or another text, that the error must name.
_MISTAKES = {
    "": "usage",
    "pretrian": "'pretrain'",
    "pretrain --los=supcon": "--loss?",
    "pretrain epochs=3": "epochs=3",
    "pretrain --epochs": "--epochs",
    "pretrain --epochs=x": "--epochs=x",
    "pretrain --noprobe=3": "--noprobe=3",
    "pretrain --smoke=2": "--smoke=2",
    "pretrain": "--workdir",
    "pretrain --learning_rate=inf": "--learning_rate=inf",
    "pretrain --flagfile=nowhere": "--flagfile=nowhere",
    "pretrain --flagfile": "--flagfile",
    "doctor --loss=supcn": "mean supcon?",
    "pretrain --augmentation=ablation:bluur": "mean blur?",
    "pretrain --standardize=0.5,0.5,0.5/0,1,1": "--standardize=0.5",
    "pretrain --workdir=w --dataset=folder:": "--dataset=folder:",
    "pretrain --workdir=w --dataset=multidigits:cuont=4": "mean count?",
    "doctor --dataset=multidigits:count=17,placement=grid": "--dataset=multi",
    "embed --output=o --input=randbit:bits=3": "--input=randbit:bits=3",
    "pretrain --workdir=w --epochs=5 --warmup_epochs=9": "--warmup_epochs=9",
    "pretrain --workdir=w --warmup_epochs=-0.5": "--warmup_epochs=-0.5",
    "pretrain --workdir=w --linear_epochs=2 --linear_warmup_epochs=-0.5": (
        "--linear_warmup_epochs=-0.5"
    ),
    "pretrain --workdir=w --optimizer=adam --nesterov": "--nesterov",
    "pretrain --workdir=w --optimizer_epsilon=1": "--optimizer_epsilon",
    "pretrain --workdir=w --loss=ntxent --epsilon=1": "--epsilon",
    "pretrain --workdir=w --decay_rate=0.5": "--decay_rate",
    "pretrain --boundaries=60,30": "--boundaries=60,30",
    "pretrain --workdir=w --schedule=piecewise --epochs=50": "--boundaries=30",
    "pretrain --workdir=w --batch_size=30 --virtual_devices=4": "--batch_size",
    "pretrain --workdir=w --strategy=tpu --virtual_devices=4": "--strategy",
    "pretrain --workdir=w --strategy=mirrored --cross_device_ops=ring": (
        "--cross_device_ops=ring"
    ),
    "pretrain --workdir=w --virtual_devices=4 --cross_device_ops=nccl": (
        "--cross_device_ops=nccl"
    ),
    "pretrain --workdir=w --image_size=16 --stem=imagenet": "--image_size=32",
    "pretrain --workdir=w --encoder=keras:VGG16 --image_size=64 --width=2": (
        "--width=2"
    ),
    "pretrain --workdir=w --views=1": "--views=1",
    "pretrain --workdir=w --loss=margin --views=3": "--views=3",
    "pretrain --workdir=w --loss=moco --queue_size=8": "--queue_size=8",
    "pretrain --workdir=w --loss=moco --encoder=keras_cv:csp_darknet_s": (
        "--encoder=keras_cv:csp_darknet_s"
    ),
    "pretrain --workdir=w --loss=moco --nan_policy=skip:3": "--nan_policy",
    "pretrain --workdir=w --grad_cache_chunks=7": "--grad_cache_chunks=7",
    "pretrain --workdir=w --online_knn_size=128": "--online_knn_size=128",
    "pretrain --workdir=w --data_service=localhost:5050": "--data_service=",
    "pretrain --workdir=w --data_service=grpc://a:1 --sampler=class_balanced": (
        "--sampler=class_balanced"
    ),
    "pretrain --workdir=w --cutmix_alpha=1": "--cutmix_alpha=1",
    "pretrain --workdir=w --loss=cross_entropy --mixup_alpha=1"
    " --batch_size=36 --virtual_devices=4": "--batch_size=36",
    "pretrain --workdir=w --linear_momentum=0.9": "--linear_epochs=0",
    "evaluate --workdir=w --watch --strategy=multiworker": "--strategy=",
    "evaluate --workdir=w --virtual_devices=2 --strategy=tpu": (
        "--virtual_devices=2"
    ),
    "pretrain --workdir=w --linear_epochs=9 --linear_rho=0.9": (
        "--linear_optimizer=sgd"
    ),
    "pretrain --workdir=w --linear_epochs=2 --linear_warmup_epochs=3": (
        "--linear_warmup_epochs=3"
    ),
    "pretrain --workdir=runs/d*": "--workdir=runs/d*",
    "reproduce --claim=SI-T1 --workdir=a[1]": "--workdir=a[1]",
    "evaluate": "--saved_model=",
    "evaluate --saved_model=x": "--dataset=",
    "evaluate --saved_model=x --dataset=digits --watch": "--watch",
    "evaluate --workdir=w --compare a": "--compare=a",
    "evaluate --workdir=w --compare a b": "--workdir=w",
    "evaluate --workdir=w --linear_learning_rate=1 --linear_learning_rates=1": (
        "--linear_learning_rates=1"
    ),
    "evaluate --workdir=w --protocols=knn,linaer": "mean linear?",
    "evaluate --workdir=w --finetune_epochs=3,4": "--finetune_epochs=3,4",
    "evaluate --workdir=w --logistic_lowest_penalty=1e6": "--logistic_highest",
    "embed --output=o": "--workdir",
    "embed --output=o --workdir=w --beam_options=--x": "--runner",
    'embed --output=o --workdir=w --beam_options="\'"': "--beam_options='",
    "reproduce --claim=SI-T1 --list": "--claim",
    "reproduce --report": "--workdir",
    "benchmark lss": "--benchmark=lss",
    "benchmark loss --sizes=1023": "--sizes=1023",
}


def _lines_of_invalid_values():
    """For every flag with a check, a line with a value that is not allowed."""
    for command, config_class in __main__.COMMANDS.items():
        required = " ".join(_required(config_class))
        for _, field, _ in config_fields.fields(config_class()):
            about, flag = field.metadata, flags.define(config_class)[field.name]
            values = {
                "bool": ["maybe"],
                "int": ["x", "1.5"],
                "float": ["x", "inf"],
            }.get(flag.flag_type(), [])
            if about["choices"]:
                values.append("?")
            if about["above"] is None and flag.flag_type() in ("int", "float"):
                values.append(f"{(about['minimum'] or 0) - 1:g}")
            if about["above"] is not None:
                values.append(f"{about['above']:g}")
            if about["maximum"] is not None:
                values.append(f"{about['maximum'] + 1:.10g}")
            for value in values:
                line = f"{command} {required} --{field.name}={value}"
                yield line, f"--{field.name}={value}"


# A finder that fails: nothing may import TensorFlow.
_WITHOUT_TENSORFLOW = """
import contextlib, io, json, sys
sys.modules["tensorflow"] = None
from tf_contrastive import __main__
outcomes = []
for words in json.load(sys.stdin):
    sys.argv = ["tf_contrastive", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = __main__.main()
        except ImportError as error:
            status = str(error)
    outcomes.append([status, out.getvalue(), err.getvalue()])
json.dump(outcomes, sys.stdout)
"""


def _outcomes(lines):
    """(status, stdout, stderr) of command lines, where TensorFlow is absent."""
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW],
        cwd=_ROOT,
        capture_output=True,
        input=json.dumps([shlex.split(line) for line in lines]),
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return zip(lines, json.loads(done.stdout), strict=True)


def test_invalid_flags_are_named_in_one_line_without_tensorflow():
    expected = _MISTAKES | dict(_lines_of_invalid_values())
    for line, (status, out, err) in _outcomes(list(expected)):
        if not line:
            assert status == 2 and expected[line] in out
            continue
        assert isinstance(status, int) and status != 0, (line, status)
        assert out == "", line
        assert err.startswith("tf_contrastive: "), line
        assert err.count("\n") == 1 and "Traceback" not in err, line
        assert expected[line] in err, (line, err)


def test_help_shows_the_commands_flags_without_tensorflow():
    for full in ("--help", "--helpfull"):
        lines = [f"{command} {full}" for command in __main__.COMMANDS]
        outcomes = _outcomes(lines)
        for config_class, (_, (status, out, _)) in zip(
            _COMMANDS, outcomes, strict=True
        ):
            assert status == 0
            shown = set(re.findall(r"^  --(?:\[no\])?(\w+)", out, re.MULTILINE))
            options = list(config_fields.fields(config_class()))
            names = {f.name for _, f, _ in options} | {"flagfile"}
            needed = {f.name for _, f, _ in options if f.metadata["required"]}
            assert needed <= shown <= names
            assert shown == names if full == "--helpfull" else len(shown) <= 20
            for text in out.splitlines():
                # A default that is a list has no place to break.
                assert len(text) <= 80 or " " not in text.strip()


def test_any_allowed_value_is_read_back_from_a_flagfile():
    generator = random.Random(0)
    characters = "a1,.:/=-#'\"\\ \n\r\t\x0b\x85\u2028\u00e9\udc80"
    checked = 0
    for _, field, default in config_fields.fields(Pretrain()):
        for _ in range(8):
            value = default
            if isinstance(default, str):
                count = generator.randrange(9)
                value = "".join(generator.choices(characters, k=count))
            elif isinstance(default, bool):
                value = not default
            elif isinstance(default, int | float):
                value = type(default)(generator.uniform(-1e6, 1e6))
            if field.name == "workdir" or config_fields.problem(field, value):
                continue
            run = config_fields.replace(
                Pretrain(), workdir="w", **{field.name: value}
            )
            assert flags.read(Pretrain, flags.record(run), "w") == run, value
            checked += 1
    assert checked > 200


def test_listings_need_no_tensorflow():
    for line, (status, out, _) in _outcomes(["datasets", "reproduce --list"]):
        assert status == 0 and out.count("\n") > 5, line


_MESSAGES = [
    (f"{arg('epochs', 3)}: must be", "--epochs=3: must be"),
    (
        f"{arg('loss', 'a')} ({arg('batch_size', 2)}, [{arg('seed', 3)}])",
        "--loss=a (--batch_size=2, [--seed=3])",
    ),
    (f"it had {arg('probe', False)}", "it had --noprobe"),
    (f"it had {arg('probe', 'True')}", "it had --probe"),
    (f"remove {arg('stem')}, or use it", "remove --stem, or use it"),
    (f"set {arg('width', '')}", "set --width="),
    # Not an option of the command.
    (f"{arg('thing')} and {arg('other', 3)}", "`thing` and other=3"),
    # What a user has written.
    ("no run in /a/epochs=3 (seed=4)", "no run in /a/epochs=3 (seed=4)"),
    ("`stem` probe=False --probe", "`stem` probe=False --probe"),
    (
        f"{arg('workdir', 'runs/a (seed=3)')} `stem`",
        "--workdir=runs/a (seed=3) `stem`",
    ),
    (
        f"{arg('dataset', 'randbit:seed=3,views=2')} is",
        "--dataset=randbit:seed=3,views=2 is",
    ),
    (f"{arg('workdir', 'a=b')}\n\0", r"--workdir=a=b\n\x00"),
]


@pytest.mark.parametrize(
    ("message", "expected"), _MESSAGES, ids=[m[1] for m in _MESSAGES]
)
def test_errors_name_flags_in_place_of_arguments(message, expected):
    error = errors.UserError(message)
    assert flags.with_flags(Pretrain, error.marked) == expected
    # In another message, too.
    nested = errors.UserError(f"{error.marked}: {arg('seed')}")
    shown = flags.with_flags(Pretrain, nested.marked)
    assert shown == f"{expected}: --seed"


@pytest.mark.parametrize(
    "words",
    [
        ["evaluate", "--workdir={tmp}/a (seed=3) `knn_k`"],
        ["pretrain", "--workdir={tmp}/x", "--dataset=folder:{tmp}/b (views=2)"],
        ["export", "--workdir={tmp}/probe=False [epochs=2]"],
    ],
)
def test_a_path_is_shown_as_it_was_typed(words, tmp_path, capsys):
    words = [word.format(tmp=tmp_path) for word in words]
    path = words[-1].partition("=")[2].removeprefix("folder:")
    assert __main__._run(words) == 2
    assert path in capsys.readouterr().err


def test_presets_set_what_was_not_given():
    sincere = _parse(
        "--workdir=w", "--linear_recipe=sincere", command=Evaluate
    ).linear
    assert (sincere.schedule.epochs, sincere.schedule.batch_size) == (100, 128)
    assert sincere.optimizer.nesterov is False
    given = _parse(
        "--workdir=w",
        "--linear_recipe=sincere",
        "--linear_epochs=5",
        "--linear_learning_rate=0.2",
        "--scale=cpu",
        command=Evaluate,
    )
    assert given.linear.schedule.epochs == 5
    assert given.linear.learning_rates == ""
    assert given.linear.augmentation == "none"
    assert given.transfer.methods == "linear"


def test_a_recipe_that_repeats_its_own_optimizer_keeps_its_numbers():
    def decay(*words):
        parsed = _parse("--workdir=w", *words, command=Evaluate)
        return parsed.linear.optimizer_options()["weight_decay"]

    recipe = "--linear_recipe=supcon"
    assert decay(recipe) == decay(recipe, "--linear_optimizer=rmsprop") == 1e-6
    assert decay("--linear_recipe=sincere", "--linear_optimizer=sgd") == 1e-4
    # Another optimizer has its own.
    assert decay("--linear_recipe=sincere", "--linear_optimizer=adam") == 0.0


def test_rmsprop_has_an_epsilon_for_each_stage_of_supcon():
    words = ["--workdir=w", "--linear_epochs=1", "--linear_optimizer=rmsprop"]
    run = _parse(*words)
    assert run.linear.optimizer_options()["epsilon"] == 0.001
    run = _parse(*words, "--linear_optimizer_epsilon=0.5")
    assert run.linear.optimizer_options()["epsilon"] == 0.5


def test_only_options_that_were_set_reach_a_component():
    given = _parse(
        "--workdir=a",
        "--loss=supcon",
        "--positives_cap=3",
        "--optimizer=rmsprop",
        "--optimizer_epsilon=0.5",
        "--schedule=piecewise",
        "--boundaries=30, 60.5",
    )
    assert given.loss.options() == {"positives_cap": 3}
    assert given.optimizer.options() == {"epsilon": 0.5}
    assert given.schedule.options() == {"boundaries": (30.0, 60.5)}
    text = flags.record(given)
    assert "--positives_cap=3" in text
    assert "--temperature" not in text and "--momentum" not in text
    assert flags.read(Pretrain, text, "a") == given
    plain = _parse("--workdir=a")
    assert plain.optimizer.options() == plain.schedule.options() == {}


def test_channel_statistics_are_written_and_read():
    for name in ("imagenet", "none"):
        statistics = channel_statistics(name)
        assert channel_statistics(write_statistics(statistics)) == statistics
    tiny = ChannelStatistics((1e-7, 0.5, 1 / 3), (2e-5, 1.0, 0.25))
    written = write_statistics(tiny)
    assert write_statistics(channel_statistics(written)) == written
    with pytest.raises(errors.UserError, match="standardize=dataset"):
        channel_statistics("dataset")


def test_replace_names_unknown_options():
    with pytest.raises(errors.UserError, match="epochs"):
        config_fields.replace(Pretrain(), epoch=3)


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pretrain().loss.loss = "supcon"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
