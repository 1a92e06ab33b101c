"""Flags of the command line: definitions, help, values, flagfiles, errors."""

import json
import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tf_contrastive import __main__, flags
from tf_contrastive.base import errors
from tf_contrastive.base.errors import arg
from tf_contrastive.commands.doctor import Doctor
from tf_contrastive.commands.evaluate import Evaluate
from tf_contrastive.config import fields
from tf_contrastive.config.data import (
    ChannelStatistics,
    channel_statistics,
    write_statistics,
)
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import Schedule
from tf_contrastive.flags import flagfiles

_ROOT = Path(__file__).resolve().parents[1]
_COMMANDS = list(__main__.COMMANDS.values())


def _parse(*arguments, command=Pretrain):
    parsed = flags.parse(command, list(arguments))
    parsed.validate()
    return parsed


@pytest.mark.parametrize("command", _COMMANDS)
def test_every_option_takes_its_own_default(command):
    options = list(fields.options(command()))
    required = [
        f"--{o.name}={'loss' if o.name == 'benchmark' else 'w'}"
        for o in options
        if o.field.metadata["required"]
    ]
    for option in options:
        assert len(option.field.metadata["help"]) > 3, option.name
        if not option.field.metadata["required"]:
            text = fields.written(option.value)
            word = f"--{option.name}={text}"
            if option.family:
                word = f"--{option.family}={option.key}={text}"
            parsed = flags.parse(command, [*required, word])
            assert fields.values(parsed)[option.name] == option.value, word


def test_flags_set_the_options_of_their_groups():
    parsed = _parse(
        "--loss=supcon",
        "--optimizer=sgd",
        "--optimizer_options=nesterov=false",
        "--epochs=3",
        "--linear_epochs=7",
        "--linear_optimizer_options=nesterov=true",
        "--workdir=w",
    )
    assert parsed.loss.label == "supcon"
    assert parsed.optimizer.nesterov is False
    assert parsed.schedule == Schedule(epochs=3)
    assert parsed.linear.schedule.epochs == 7
    assert parsed.linear.optimizer.nesterov is True
    # The linear stage does not change the encoder, so it may differ later.
    identity = {o.name: o.identity for o in fields.options(parsed)}
    assert identity["momentum"] and not identity["linear_momentum"]


# ---- Options that share a flag -----------------------------------------------


def test_pretrain_has_few_flags():
    assert len(flags.names(Pretrain)) <= 90
    shown = [
        option
        for option in flags.declared(Pretrain).values()
        if not option.field.metadata["rare"]
    ]
    assert len(shown) <= 120
    assert len(set(flags.names(Doctor)) - set(flags.names(Pretrain))) <= 3


def test_options_of_components_share_a_flag():
    run = _parse(
        "--workdir=w",
        "--loss=supcon",
        "--loss_options=contrast=one_view,positives_cap=3",
        "--loss_options=scale_by_temperature=true",
        "--loss_options=",
        "--optimizer=adam",
        "--optimizer_options=beta_1=0.8,epsilon=0.5",
        "--schedule=piecewise",
        "--schedule_options=boundaries=30, 60.5,decay_rate=0.5",
    )
    assert run.loss.given == {
        "contrast",
        "positives_cap",
        "scale_by_temperature",
    }
    assert (run.loss.contrast, run.loss.positives_cap) == ("one_view", 3)
    assert run.loss.scale_by_temperature is True
    assert (run.optimizer.epsilon, run.optimizer.beta_1) == (0.5, 0.8)
    assert run.schedule.decay.boundaries == (30.0, 60.5)
    text = flags.record(run)
    assert "beta_1=0.8,beta_2=0.999,epsilon=0.5\n" in text
    assert "--temperature=0.1\n" in text
    assert "linear_schedule_options" not in text
    again = flags.read(Pretrain, text, "w")
    assert fields.values(again) == fields.values(run)


def test_the_last_of_several_values_counts_and_auto_is_the_default():
    run = _parse(
        *("--workdir=w", "--optimizer=adam", "--optimizer_options=beta_1=0.8"),
        *("--optimizer_options=beta_1=0.7,beta_2=0.5,beta_2=auto",),
        *("--learning_rate=0.1", "--learning_rate=auto", "--momentum=auto"),
    )
    assert (run.optimizer.beta_1, run.optimizer.beta_2) == (0.7, 0.999)
    assert run.optimizer.given == {"beta_1"}
    assert run.schedule.learning_rate is None


def test_an_option_has_its_value_once():
    with pytest.raises(errors.UserError, match="set one"):
        _parse(
            "--workdir=w", "--momentum=0.5", "--optimizer_options=momentum=0.4"
        )


def test_a_component_has_the_options_that_were_given_for_it():
    run = _parse("--workdir=w", "--projection=linear", "--projection_layers=3")
    assert run.projection.arguments().keys() == {"output", "batch_norm", "bias"}
    run = _parse("--workdir=w", "--augmentation=crop", "--noblur")
    assert not hasattr(run.views.policy, "blur")
    with pytest.raises(errors.UserError, match="npairs"):
        _parse("--workdir=w", "--loss=triplet", "--temperature=1")
    for words in (["--stem=cifar"], ["--nozero_init_residual"]):
        with pytest.raises(errors.UserError, match="only of resnet10"):
            _parse("--workdir=w", "--encoder=vit_s16", *words)


@pytest.mark.parametrize(
    ("first", "version"),
    [
        (
            "# All options of a run, in as many lines as the last one says.",
            "0.2",
        ),
        (
            "# All options of a run, format 9, tf_contrastive 7.1, in as many"
            " lines as the last one says.",
            "7.1",
        ),
    ],
)
def test_a_run_of_another_version_is_refused(first, version):
    text = flags.record(_parse("--workdir=w"))
    other = "\n".join([first, *text.splitlines()[1:]])
    with pytest.raises(ValueError, match=re.escape(version)):
        flags.read(Pretrain, other + "\n", "w")


# ---- Flagfiles ---------------------------------------------------------------


def test_a_flagfile_repeats_the_run_and_later_flags_win(tmp_path):
    first = _parse(
        "--loss=supcon",
        "--temperature=0.07",
        "--noflip",
        "--linear_epochs=3",
        "--linear_schedule=piecewise",
        "--linear_schedule_options=boundaries=1,2",
        "--workdir=a",
        "--data_dir=/some where/epochs=3",
    )
    path = tmp_path / "config.flags"
    path.write_text(flags.write(first))
    assert "workdir" not in path.read_text()
    again = _parse(f"--flagfile={path}", "--workdir=a")
    assert fields.values(again) == fields.values(first)
    changed = _parse(f"--flagfile={path}", "--workdir=b", "--temperature=0.5")
    assert changed.loss.temperature == 0.5


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


# What people write in a flagfile -> its flags.
_LINES = {
    "--workdir=runs/q": "--workdir=runs/q",
    '--workdir="runs/q"': "--workdir=runs/q",
    "--workdir='runs/q'": "--workdir=runs/q",
    "  --workdir=runs/q\t": "--workdir=runs/q",
    '-workdir="runs/q"  # it\'s mine': "-workdir=runs/q",
    '--workdir="runs/my run" # mine': "--workdir=runs/my run",
    "'--workdir=runs/my run'": "--workdir=runs/my run",
    '--workdir="runs/#1 # a" # b': "--workdir=runs/#1 # a",
    "--workdir=runs/a#b": "--workdir=runs/a#b",
    "--workdir=#fff": "--workdir=#fff",
    "--workdir=gs://a//b // mine": "--workdir=gs://a//b",
    """--workdir="it's" """: "--workdir=it's",
    """--workdir='5"'""": '--workdir=5"',
    r'--workdir="a\b"': r"--workdir=a\b",
    r"--workdir='a\b'": r"--workdir=a\b",
    r"--workdir=a\b": r"--workdir=a\b",
    '--workdir=""': "--workdir=",
    "--workdir=": "--workdir=",
    "--workdir= # none": "--workdir=",
    "--noprobe  # off": "--noprobe",
    "--workdir 'my run' # mine": "--workdir=my run",
    "--probe false": "--probe=false",
    "--loss_options=a=1,b=2 # c": "--loss_options=a=1,b=2",
    # One line can be understood in two ways, or in none.
    '--workdir="runs/q': None,
    '--workdir=runs/q"': None,
    "--workdir='runs/q": None,
    "--workdir='it's'": None,
    "--workdir=/O'Brien/a": None,
    "--workdir=runs/my run": None,
    "--workdir runs/my run": None,
    "--workdir = runs/q": None,
    "--epochs=3 \\": None,
    '--workdir="runs/q" #b': None,
    '--workdir="runs/q" x': None,
    "--workdir=/run #5/images": None,
    "--workdir=/run //5": None,
    "--workdir=runs/q --epochs=3": None,
    "--workdir --epochs=3": None,
    "workdir=runs/q": None,
    "pretrain --epochs=3": None,
}


@pytest.mark.parametrize(("line", "flag"), _LINES.items(), ids=list(_LINES))
def test_a_line_of_a_flagfile_means_what_people_write(line, flag, tmp_path):
    path = tmp_path / "own.flags"
    path.write_bytes(f"\ufeff# first\r\n{line}\r\n".encode())
    if flag:
        assert flagfiles.inlined([f"--flagfile={path}"]) == [flag]
        return
    with pytest.raises(errors.UserError) as caught:
        flagfiles.inlined([f"--flagfile={path}"])
    assert f"{path} cannot be read (line 2, {line}: " in str(caught.value)


def test_a_flagfile_allows_no_modules(tmp_path):
    path = tmp_path / "own.flags"
    path.write_text("--own_modules=theirs\n")
    with pytest.raises(errors.UserError, match="own_modules is in a flagfile"):
        flags.parse(Pretrain, [f"--flagfile={path}", "--workdir=w"])


def test_an_included_flagfile_may_be_in_quotes(tmp_path):
    (tmp_path / "base.flags").write_text("--epochs=7\n")
    own = tmp_path / "own.flags"
    for line in (
        '--flagfile="base.flags"  # common',
        "-flagfile='base.flags'",
    ):
        own.write_text(f"{line}\n")
        parsed = flags.parse(Pretrain, [f"--flagfile={own}", "--workdir=w"])
        assert parsed.schedule.epochs == 7


_MISTAKES = """
pretrian -> 'pretrain'
pretrain -> --workdir
pretrain --los=supcon -> --loss?
pretrain epochs=3
pretrain --epochs
pretrain --epochs=x
pretrain --noprobe=3
pretrain --smoke=2
pretrain --learning_rate=inf
pretrain --workdir --epochs=3 -> --workdir=
pretrain --flagfile=nowhere
pretrain --flagfile
doctor --loss=supcn -> mean supcon?
pretrain --augmentation=ablation:bluur -> mean blur?
pretrain --standardize=0.5,0.5,0.5/0,1,1 -> --standardize=0.5
pretrain --workdir=w --dataset=folder:
pretrain --workdir=w --dataset=multidigits:cuont=4 -> mean count?
doctor --dataset=multidigits:count=17,placement=grid
embed --output=o --input=randbit:bits=3
pretrain --workdir=w --epochs=5 --warmup_epochs=9
pretrain --workdir=w --warmup_epochs=-0.5
pretrain --workdir=w --optimizer=adam --nesterov -> --optimizer_options=nesterov
pretrain --workdir=w --optimizer_epsilon=1 -> --optimizer_options=epsilon
pretrain --workdir=w --loss=ntxent --epsilon=1 -> only of eps_supinfonce
pretrain --loss_options
pretrain --loss_options=contrast -> --loss_options=contrast=auto
pretrain --loss_options=contrst=one_view -> mean 'contrast'?
pretrain --loss=supcon --loss_options=contrast=one_veiw -> mean one_view?
pretrain --optimizer=adam --optimizer_options=beta_1=x
pretrain --linear_optimizer_options=momentum=2
pretrain --workdir=w --schedule_options=decay_rate=0.5 -> --schedule=cosine
pretrain --schedule=piecewise --schedule_options=boundaries=60,30
pretrain --workdir=w --epochs=50 --schedule=piecewise -> boundaries=30,60,90
pretrain --workdir=w --virtual_devices=4 --batch_size=30
pretrain --workdir=w --strategy=tpu --virtual_devices=4
pretrain --workdir=w --stem=imagenet --image_size=16 -> --image_size=32
pretrain --workdir=w --encoder=keras:VGG16 --width=2 -> --width is not an option
pretrain --workdir=w --views=1
pretrain --workdir=w --loss=margin --views=3
pretrain --workdir=w --loss=moco --queue_size=8
pretrain --workdir=w --loss=moco --encoder=keras_cv:csp_darknet_s
pretrain --workdir=w --loss=moco --nan_policy=skip:3
pretrain --workdir=w --grad_cache_chunks=7
pretrain --workdir=w --online_knn_size=128
pretrain --workdir=w --data_service=localhost:5050
pretrain --workdir=w --data_service=grpc://a:1 --sampler=class_balanced
pretrain --workdir=w --cutmix_alpha=1
pretrain --workdir=w --loss=cross_entropy --mixup_alpha=1 --batch_size=33
pretrain --workdir=w --linear_optimizer_options=momentum=0.8 -> _epochs=0
doctor --linear_epochs=9 --linear_optimizer_options=rho=0.9 -> =sgd,
pretrain --workdir=w --linear_epochs=2 --linear_warmup_epochs=3
pretrain --workdir=runs/d*
evaluate --workdir=w --watch --strategy=multiworker
evaluate --workdir=w --strategy=tpu --virtual_devices=2
evaluate -> --saved_model=
evaluate --saved_model=x -> --dataset=
evaluate --saved_model=x --dataset=digits --watch
evaluate --workdir=w --compare a -> --compare=a
evaluate --workdir=w --compare a b -> --workdir=w
evaluate --workdir=w --compare a b c -> --workdir=w
evaluate --compare a a -> --compare=a,a
evaluate --workdir=w --linear_learning_rate=1 --linear_learning_rates=1
evaluate --workdir=w --protocols=knn,linaer -> mean linear?
evaluate --workdir=w --knn_weights=rank
evaluate --workdir=w --knn_weights=exp --knn_temperature=0
evaluate --workdir=w --transfer_datasets=aircraftt=folder:x -> mean aircraft?
evaluate --workdir=w --transfer_datasets=cars=folder:x,plane=csv:y -> pets
evaluate --workdir=w --transfer_datasets=aircraft -> =folder:
evaluate --workdir=w --transfer_datasets=aircraft=tfrecord:x -> csv:PATH
evaluate --workdir=w --transfer_datasets=voc2007=folder:x -> voc2007=NAME
evaluate --workdir=w --transfer_datasets=cifar10=csv:x --transfer_suite=sincere
evaluate --workdir=w --finetune_epochs=3,4
evaluate --workdir=w --logistic_options=lowest_penalty=1e6 -> highest_penalty
embed --output=o -> --workdir
embed --output=o --workdir=w --beam_options=--x -> --runner
embed --output=o --workdir=w --beam_options=--x --runner=spark -> --beam_options
embed --output=o --workdir=w --spark_options=spark.x=1 -> --runner=spark
embed --output=o --workdir=w --spark_options="'"
embed --output=o --workdir=w --spark_options=x=1 --runner=SparkRunner -> spark
embed --output=o --workdir=w --beam_options="'"
embed --output=o --workdir=w --runner=spark -> --shard_size
"""


# A finder that fails: nothing may import TensorFlow.
_WITHOUT_TENSORFLOW = """
import contextlib, io, json, sys
import tf_contrastive  # It looks for TensorFlow, and does not import it.
assert "tensorflow" not in sys.modules
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
    rows = [row.partition(" -> ") for row in _MISTAKES.strip().splitlines()]
    expected = {line: name or shlex.split(line)[-1] for line, _, name in rows}
    for line, (status, out, err) in _outcomes(list(expected)):
        assert isinstance(status, int) and status != 0, (line, status)
        assert out == "", line
        assert err.startswith("tf_contrastive: "), line
        assert err.count("\n") == 1 and "Traceback" not in err, line
        assert expected[line] in err, (line, err)


def test_help_shows_the_commands_flags_without_tensorflow():
    for full in ("--help", "--helpfull"):
        lines = [f"{command} {full}" for command in __main__.COMMANDS]
        outcomes = _outcomes(lines)
        for command, (_, (status, out, _)) in zip(
            _COMMANDS, outcomes, strict=True
        ):
            assert status == 0
            shown = set(re.findall(r"^  --(?:\[no\])?(\w+)", out, re.MULTILINE))
            options = [
                o
                for o in flags.declared(command).values()
                if not o.field.metadata["rare"]
            ]
            names = {*flags.names(command), "flagfile", "own_modules"}
            needed = {o.name for o in options if o.field.metadata["required"]}
            needed.discard(command.OTHERS)
            assert needed <= shown <= names
            assert shown == names if full == "--helpfull" else len(shown) <= 20
            for text in out.splitlines():
                # A default that is a list has no place to break.
                assert len(text) <= 80 or " " not in text.strip()
            if full == "--helpfull":
                shared = [o.key for o in options if o.family]
                assert all(f"    - {key}=" in out for key in shared)


def test_any_allowed_value_is_read_back_from_a_flagfile():
    generator = random.Random(0)
    characters = [*"a1,.:/=-#'\"\\ \n\r\t\x0b\x85\u2028\u00e9\udc80"]
    characters += [" # ", " #", " // ", " \\", " --a=", '\\"', '"', "'"]
    checked = 0
    for option in fields.options(Pretrain()):
        for _ in range(200 if isinstance(option.value, str) else 8):
            value = option.value
            if isinstance(value, str):
                count = generator.randrange(9)
                value = "".join(generator.choices(characters, k=count))
            elif isinstance(value, bool):
                value = not value
            else:
                kind = fields.value_type(option.field)
                value = kind(generator.uniform(-1e6, 1e6))
            if option.name != "workdir" and not fields.problem(
                option.field, value
            ):
                values = {"workdir": "w", option.name: value}
                run = fields.replace(Pretrain(), **values)
                again = flags.read(Pretrain, flags.record(run), "w")
                assert fields.values(again) == fields.values(run), value
                checked += 1
    assert checked > 500


def test_listings_need_no_tensorflow():
    for line, (status, out, _) in _outcomes(["datasets"]):
        assert status == 0 and out.count("\n") > 5, line


_MESSAGES = [
    (f"{arg('epochs', 3)}: must be", "--epochs=3: must be"),
    (
        f"({arg('batch_size', 2)}, [{arg('stem')}])",
        "(--batch_size=2, [--stem])",
    ),
    (f"it had {arg('probe', False)}", "it had --noprobe"),
    (f"it had {arg('probe', 'True')}", "it had --probe"),
    (f"set {arg('width', '')}", "set --width="),
    (
        f"it had {arg('nesterov', False)}",
        "it had --optimizer_options=nesterov=false",
    ),
    # Not an option of the command.
    (f"{arg('thing')} and {arg('other', 3)}", "`thing` and other=3"),
    # What a user has written.
    ("`stem` probe=False /a/epochs=3", "`stem` probe=False /a/epochs=3"),
    (
        f"{arg('workdir', 'runs/a (seed=3)')} `stem`",
        "--workdir=runs/a (seed=3) `stem`",
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
    assert __main__._run(words, "tf_contrastive", __main__.COMMANDS) == 2
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
        return parsed.linear.optimizer.weight_decay

    recipe = "--linear_recipe=supcon"
    assert decay(recipe) == decay(recipe, "--linear_optimizer=rmsprop") == 1e-6
    assert decay("--linear_recipe=sincere", "--linear_optimizer=sgd") == 1e-4
    # Another optimizer has its own.
    assert decay("--linear_recipe=sincere", "--linear_optimizer=adam") == 0.0


def test_rmsprop_has_an_epsilon_for_each_stage_of_supcon():
    words = ["--workdir=w", "--linear_epochs=1", "--linear_optimizer=rmsprop"]
    run = _parse(*words)
    assert run.linear.optimizer.epsilon == 0.001
    run = _parse(*words, "--linear_optimizer_options=epsilon=0.5")
    assert run.linear.optimizer.epsilon == 0.5


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
        fields.replace(Pretrain(), epoch=3)
