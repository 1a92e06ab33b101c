"""Options of every command: declarations, flags, flagfiles, errors, help."""

import dataclasses
import random
import re
import shlex
from pathlib import Path

import processes
import pytest

from tf_contrastive import __main__, flags
from tf_contrastive.base import errors
from tf_contrastive.base.errors import arg
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import checks, fields
from tf_contrastive.config.data import (
    ChannelStatistics,
    channel_statistics,
    write_statistics,
)
from tf_contrastive.config.pretrain import Pretrain

_ROOT = Path(__file__).resolve().parents[1]
_COMMANDS = __main__.COMMANDS
_OPTIONS = [
    pytest.param(command, option, id=f"{name} {option.name}")
    for name, command in _COMMANDS.items()
    for option in flags.declared(command).values()
]


def _parse(*arguments, command=Pretrain):
    parsed = flags.parse(command, list(arguments))
    parsed.validate()
    return parsed


def _read(text):
    return _parse(*flags.flags_in(text), "--workdir=w")


def _required(command):
    options = fields.options(command())
    return [f"--{o.name}=w" for o in options if o.field.metadata["required"]]


# ---- The contract of an option -----------------------------------------------


def _texts(field):
    """Returns texts of values that a declaration allows, and of others."""
    about, kind = field.metadata, fields.value_type(field)
    if about["choices"]:
        return list(about["choices"]), ["nothing"]
    if kind is bool:
        return ["true", "false", "0"], ["2", "yes"]
    if kind is str:
        return [], ["a b"] if fields.is_list(field) else ["a\n"]
    low, above, high = about["minimum"], about["above"], about["maximum"]
    is_float = kind is float
    step = 1e-9 if is_float else 1
    most = (2 - 2.0**-23) * 2.0**127 if is_float else 2**31 - 1
    beyond = most * 1.000001 if is_float else most + 1
    if high is not None:
        most, beyond = high, high + step * max(1, abs(high))
    if above is not None:
        inside, outside = [above + step], [above]
    else:
        low = low or 0
        inside, outside = [low], [low - step * max(1, abs(low))]
    texts = [[repr(kind(x)) for x in x] for x in ([*inside, most], outside)]
    wrong = ["1.5", repr(int(beyond))]
    if is_float:
        wrong = [repr(beyond), "nan", "inf", "1.1e-38"]
    if field.default != ():
        wrong.append("")
    # A list may need two entries.
    has_one = about["check"] in (None, checks.distinct)
    return texts[0] * has_one, [*texts[1], *wrong, "x"]


@pytest.mark.parametrize("command,option", _OPTIONS)
def test_an_option_takes_what_it_declares_and_nothing_else(command, option):
    assert len(flags.help_of(option)) > 3
    good, bad = _texts(option.field)
    for text in good:
        fields.read(option.name, option.field, text)
    flag = f"--{option.name}"
    if option.family:
        flag = f"--{option.family}={option.field.name}"
    words = _required(command)
    for text in bad:
        with pytest.raises(errors.UserError) as caught:
            flags.parse(command, [*words, f"{flag}={text}"])
        shown = flags.with_flags(command, caught.value.marked)
        assert f"--{option.name}" in shown or flag in shown, shown


@pytest.mark.parametrize("command", _COMMANDS.values())
def test_every_option_takes_its_own_default(command):
    options = list(fields.options(command()))
    required = _required(command)
    for option in options:
        if not option.field.metadata["required"]:
            text = fields.written(option.value)
            word = f"--{option.name}={text}"
            if option.family:
                word = f"--{option.family}={option.field.name}={text}"
            parsed = flags.parse(command, [*required, word])
            assert fields.values(parsed)[option.name] == option.value, word


def test_commands_have_few_flags():
    assert len(flags.names(Pretrain)) <= 90
    assert len(flags.declared(Pretrain)) <= 127
    assert len(flags.declared(Evaluate)) <= 70


# ---- Values ------------------------------------------------------------------


def test_options_share_a_flag_whose_last_value_counts():
    run = _parse(
        "--workdir=w",
        "--loss=supcon",
        "--loss_options=denominator=one_positive,positives_cap=2",
        "--loss_options=positives_cap=3,scale_by_temperature=true",
        "--loss_options=scale_by_temperature=auto",
        "--loss_options=",
        "--schedule=piecewise",
        "--schedule_options=decay_epochs=30, 60.5,decay_rate=0.5",
        *("--learning_rate=0.1", "--learning_rate=auto", "--momentum=auto"),
    )
    given = {"denominator": "one_positive", "positives_cap": 3}
    assert run.loss.given == given
    assert run.loss.arguments().items() >= given.items()
    assert run.schedule.decay.decay_epochs == (30.0, 60.5)
    assert run.schedule.learning_rate is None
    again = _read(flags.record(run))
    assert fields.values(again) == fields.values(run)


def test_a_component_has_the_options_that_were_given_for_it():
    run = _parse("--workdir=w", "--projection=linear", "--projection_layers=3")
    assert run.projection.arguments().keys() == {"output", "batch_norm", "bias"}
    run = _parse("--workdir=w", "--augmentation=crop", "--noblur")
    assert not hasattr(run.views.policy, "blur")
    # Another policy of the run, such as the linear stage's, has it.
    again = _read(flags.record(run))
    other = fields.replace(again.views, augmentation="simclr")
    assert other.policy.blur is False and "blur" in other.policy.given
    kept = fields.replace(run, loss="supcon", temperature="0.3")
    assert fields.replace(kept, loss="sincere").loss.temperature == 0.3


def test_a_path_may_start_with_the_folder_of_a_user(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert _parse("--workdir=~/a").runtime.workdir == "/home/me/a"
    with pytest.raises(errors.UserError, match="workdir=~nobody-here/a"):
        _parse("--workdir=~nobody-here/a")
    # Python's paths are not a shell's.
    runtime = dataclasses.replace(Pretrain().runtime, workdir="~/a")
    with pytest.raises(errors.UserError, match="workdir=~/a"):
        dataclasses.replace(Pretrain(), runtime=runtime).validate()


def test_what_only_python_sets_is_no_flag():
    for word in ("--loss_options=include_self=false", "--include_self=false"):
        with pytest.raises(errors.UserError):
            _parse("--workdir=w", "--loss=align_uniform", word)
    run = fields.replace(Pretrain(), shuffle_buffer=7)
    assert run.data.shuffle_buffer == 7
    assert "shuffle_buffer" not in flags.write(run)


def test_a_record_that_was_changed_or_is_of_another_version_is_refused(
    tmp_path,
):
    path = tmp_path / "config.flags"
    text = flags.record(_parse("--workdir=w"))
    first, _, rest = text.partition("\n")
    for changed in (
        rest,
        text[: len(text) // 2],
        text.replace("--epochs=100\n", ""),
    ):
        path.write_text(changed)
        with pytest.raises(errors.UserError, match=r"first|cut"):
            flags.read_file(Pretrain, str(path))
    other = re.sub(r"format \d+(.*) \S+", r"format 3\1 7.1", first)
    path.write_text(f"{other}\n{rest}")
    for read in (
        lambda: flags.read_file(Pretrain, str(path)),
        lambda: _parse("--workdir=w", f"--flagfile={path}"),
    ):
        # It is not called damaged.
        message = rf"{path}: its first line.*format 3.* 7\.1"
        with pytest.raises(errors.UserError, match=message):
            read()


# ---- Flagfiles ---------------------------------------------------------------


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
        words = [*given, "--workdir", "w"]
        words = flags.from_command_line(Pretrain, words)
        parsed = flags.parse(Pretrain, words)
        assert parsed.schedule.epochs == 3
        assert parsed.schedule.batch_size == 16
    # A recipe of the package is found from everywhere.
    own.write_text("--flagfile=configs/supcon_cifar10.flags\n")
    words = ["--flagfile=../configs/own.flags", "--workdir=w"]
    assert flags.parse(Pretrain, words).loss.label == "supcon"
    # A file of one's own comes first.
    recipe = tmp_path / "configs" / "configs" / "supcon_cifar10.flags"
    recipe.parent.mkdir()
    recipe.write_text("--loss=sincere\n")
    assert flags.parse(Pretrain, words).loss.label == "sincere"


# What people write in a flagfile -> its flags.
_LINES = {
    "--workdir=runs/q": "--workdir=runs/q",
    '--workdir="runs/q"': "--workdir=runs/q",
    "'--workdir=runs/my run'": "--workdir=runs/my run",
    '--workdir="runs/#1 # a"': "--workdir=runs/#1 # a",
    "--workdir=gs://a//b#c": "--workdir=gs://a//b#c",
    """--workdir="it's" """: "--workdir=it's",
    """--workdir='5"'""": '--workdir=5"',
    r"--workdir='a\b'": r"--workdir=a\b",
    "--workdir=": "--workdir=",
    "--noprobe": "--noprobe",
    "--workdir 'my run'": None,
    "--workdir=runs/q # mine": None,
    "--workdir=gs://a//b // mine": None,
    # One line can be understood in two ways, or in none.
    '--workdir="runs/q': None,
    "--workdir='runs/q": None,
    "--workdir='it's'": None,
    "--workdir=runs/my run": None,
    "--workdir = runs/q": None,
    "--epochs=3 \\": None,
    "--workdir=/run #5/images": None,
    "--workdir=runs/q --epochs=3": None,
    "pretrain --epochs=3": None,
}


def test_a_line_of_a_flagfile_means_what_people_write(tmp_path):
    path = tmp_path / "own.flags"
    for line, flag in _LINES.items():
        path.write_bytes(f"\ufeff# first\r\n{line}\r\n".encode())
        if flag:
            assert flags.inlined([f"--flagfile={path}"]) == [flag]
            continue
        with pytest.raises(errors.UserError) as caught:
            flags.inlined([f"--flagfile={path}"])
        assert f"{path} cannot be read ({line}: " in str(caught.value)


def test_a_flagfile_allows_no_modules(tmp_path):
    path = tmp_path / "own.flags"
    path.write_text("--own_modules=theirs\n")
    with pytest.raises(errors.UserError, match="own_modules in a flagfile"):
        flags.parse(Pretrain, [f"--flagfile={path}", "--workdir=w"])


# ---- The command line, where TensorFlow is absent ----------------------------


_MISTAKES = """
pretrian -> mean pretrain?
pretrain -> --workdir
pretrain --los=supcon -> mean --loss?
pretrain epochs=3
pretrain --epochs
pretrain --noprobe=3
pretrain --workdir --epochs=3 -> --workdir=
pretrain --flagfile=nowhere
pretrain --augmentation=ablation:bluur -> mean blur?
pretrain --standardize=0.5,0.5,0.5/0,1,1 -> --standardize=0.5
pretrain --workdir=w --dataset=folder:
pretrain --workdir=w --epochs=5 --warmup_epochs=9
pretrain --workdir=w --optimizer=adam --nesterov -> --optimizer_options=nesterov
pretrain --workdir=w --loss=ntxent --epsilon=1 -> only of eps_supinfonce
pretrain --momentum=0.5 --optimizer_options=momentum=0.4 -> momentum
pretrain --loss_options=denomnator=all -> mean denominator?
pretrain --workdir=w --schedule_options=decay_rate=0.5 -> --schedule=cosine
pretrain --workdir=w --epochs=50 --schedule=piecewise -> decay_epochs=30,60,90
pretrain --workdir=w --virtual_devices=4 --batch_size=30
pretrain --workdir=w --stem=imagenet --image_size=16 -> --image_size=32
pretrain --workdir=w --views=1
pretrain --workdir=w --loss=moco --queue_size=8
pretrain --workdir=w --loss=moco --encoder=keras_cv:csp_darknet_s
pretrain --workdir=w --loss=moco --nan_policy=skip:3
pretrain --workdir=w --grad_cache_chunks=7
pretrain --workdir=w --online_knn_size=128
pretrain --workdir=w --cutmix_alpha=1
pretrain --workdir=w --loss=cross_entropy --mixup_alpha=1 --batch_size=33
pretrain --workdir=w --linear_optimizer_options=nesterov=false -> _epochs=0
pretrain --workdir=w --linear_epochs=2 --linear_warmup_epochs=3
pretrain --workdir=w --channels=4 --augmentation=autoaugment
pretrain --workdir=w --channels=4 --augmentation=simclr+solarize
pretrain --workdir=w --channels=4 --standardize=0.5,0.5,0.5/1,1,1
pretrain --workdir=w --channels=4 --standardize=imagenet
pretrain --workdir=w --channels=4 --reading_options=color_channels=0,1,4
pretrain --workdir=w --reading_options=value_range=2,1 -> value_range=2.0,1.0
pretrain --workdir=runs/d*
evaluate --workdir=w --watch --strategy=multiworker
evaluate -> --saved_model=
evaluate --saved_model=x -> --dataset=
evaluate --compare a a -> --compare=a,a
evaluate --workdir=w --linear_learning_rate=1 --linear_learning_rates=1
evaluate --workdir=w --protocols=knn,linaer -> mean linear?
evaluate --workdir=w --finetune_epochs=3,4
evaluate --workdir=w --features=h,h
evaluate --workdir=w --transfer_methods=linear,linear
evaluate --workdir=w --logistic_options=lowest_penalty=1e6 -> highest_penalty
export --workdir=w -> cannot import a package
embed --output=o -> --workdir
embed --output=o --workdir=w --runner_options=--x -> --runner
embed --output=o --workdir=w --runner=spark -> --shard_size
"""


def test_invalid_flags_are_named_in_one_line():
    rows = [row.partition(" -> ") for row in _MISTAKES.strip().splitlines()]
    expected = {line: name or shlex.split(line)[-1] for line, _, name in rows}
    for line, (status, out, err) in processes.outcomes(list(expected)):
        assert (status, out) == (2, ""), line
        assert err.startswith("tf_contrastive: "), line
        assert err.count("\n") == 1 and "Traceback" not in err, line
        assert expected[line] in err, (line, err)


def test_help_shows_the_commands_flags():
    for full in ("--help", "--helpfull"):
        lines = [f"{command} {full}" for command in _COMMANDS]
        for command, (_, (status, out, _)) in zip(
            _COMMANDS.values(), processes.outcomes(lines), strict=True
        ):
            assert status == 0
            shown = set(re.findall(r"^  --(?:\[no\])?(\w+)", out, re.MULTILINE))
            names = {*flags.names(command), "flagfile", "own_modules"}
            assert shown == names if full == "--helpfull" else len(shown) <= 20
            assert shown <= names
            for text in out.splitlines():
                # A default that is a list has no place to break.
                assert len(text) <= 80 or " " not in text.strip()
            if full == "--helpfull":
                options = flags.declared(command).values()
                shared = [o.field.name for o in options if o.family]
                assert all(f"    - {key}=" in out for key in shared)


def test_any_allowed_value_is_read_back_from_a_flagfile():
    generator = random.Random(0)
    characters = [*"a1,.:/=-#'\"\\ \n\r\t\x0b\x85\u2028\u00e9\udc80"]
    characters += [" # ", " #", " // ", " \\", " --a=", '\\"', '"', "'"]
    checked = 0
    for option in fields.options(Pretrain()):
        for _ in range(400 * isinstance(option.value, str)):
            count = generator.randrange(9)
            value = "".join(generator.choices(characters, k=count))
            if option.name == "workdir" or fields.problem(option.field, value):
                continue
            run = fields.replace(Pretrain(), **{option.name: value})
            text = flags.record(run)
            assert flags.record(_read(text)) == text, value
            checked += 1
    assert checked > 300


_MESSAGES = {
    f"{arg('epochs', 3)}: must be": "--epochs=3: must be",
    f"({arg('batch_size', 2)}, [{arg('stem')}])": "(--batch_size=2, [--stem])",
    f"it had {arg('probe', False)}": "it had --probe=false",
    f"it had {arg('probe', 'True')}": "it had --probe=true",
    f"set {arg('width', '')}": "set --width=",
    f"had {arg('nesterov', False)}": "had --optimizer_options=nesterov=false",
    # Not an option of the command.
    f"{arg('thing')} and {arg('other', 3)}": "`thing` and other=3",
    # What a user has written.
    "`stem` probe=False /a/epochs=3": "`stem` probe=False /a/epochs=3",
    f"{arg('workdir', 'a (seed=3)')} `stem`": "--workdir=a (seed=3) `stem`",
    f"{arg('workdir', 'a=b')}\n\0": r"--workdir=a=b\n\x00",
}


def test_errors_name_flags_in_place_of_arguments():
    for message, expected in _MESSAGES.items():
        error = errors.UserError(message)
        assert flags.with_flags(Pretrain, error.marked) == expected
        # In another message, too.
        nested = errors.UserError(f"{error.marked}: {arg('seed')}")
        shown = flags.with_flags(Pretrain, nested.marked)
        assert shown == f"{expected}: --seed"


def test_channel_statistics_are_written_and_read():
    for name in ("imagenet", "none"):
        statistics = channel_statistics(name)
        assert channel_statistics(write_statistics(statistics)) == statistics
    tiny = ChannelStatistics((1e-7, 0.5, 1 / 3), (2e-5, 1.0, 0.25))
    written = write_statistics(tiny)
    assert write_statistics(channel_statistics(written)) == written
    with pytest.raises(errors.UserError, match="standardize=dataset"):
        channel_statistics("dataset")
