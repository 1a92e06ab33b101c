"""Flags as a user meets them: help, values, mistakes, flagfiles."""

import dataclasses
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import mistakes
import pytest

from tf_contrastive import __main__, errors, flags
from tf_contrastive.config import fields as config_fields
from tf_contrastive.config.benchmark import BENCHMARKS
from tf_contrastive.config.data import (
    ChannelStatistics,
    channel_statistics,
    write_statistics,
)
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.schedule import Schedule

_ROOT = Path(__file__).resolve().parents[1]


def _parse(*arguments, command=Pretrain):
    parsed = flags.parse(command, list(arguments))
    parsed.validate()
    return parsed


def test_flags_set_fields_of_their_groups():
    parsed = _parse(
        "--loss=supcon", "--nonesterov", "--epochs=3", "--workdir=w"
    )
    assert parsed.loss.loss == "supcon"
    assert parsed.optimizer.nesterov is False
    assert parsed.schedule.epochs == 3
    assert parsed.schedule.batch_size == Schedule.batch_size


def test_every_field_has_a_flag_whose_default_is_the_field_s():
    for command, _ in __main__.COMMANDS.values():
        values = flags.define(command)
        for _, field, default in config_fields.fields(command()):
            assert values[field.name].value == default, field.name
            assert values[field.name].help, field.name


def test_a_flagfile_repeats_the_run_and_later_flags_win(tmp_path):
    first = _parse(
        "--loss=supcon",
        "--temperature=0.07",
        "--noflip",
        "--workdir=a",
        "--data_dir=/some where",
    )
    path = tmp_path / "config.flags"
    path.write_text(flags.write(first))
    assert "workdir" not in path.read_text()
    again = _parse(f"--flagfile={path}", "--workdir=a")
    assert again == first
    changed = _parse(f"--flagfile={path}", "--workdir=b", "--temperature=0.5")
    assert changed.loss.temperature == 0.5
    assert flags.read(Pretrain, flags.write(first), "a") == first


# What `test_every_flag_says_...` does not break: flags in pairs, suggestions,
# lists, words; and some of the rest, for their texts.
_MISTAKES = [
    (
        "evaluate --workdir=w --logistic_lowest_penalty=10"
        " --logistic_highest_penalty=1",
        "--logistic_lowest_penalty=10 is above --logistic_highest_penalty=1:",
    ),
    (
        "datasets --list --show=digits",
        "--list and --show=digits: give one of them",
    ),
    ("pretrain --epochs", "--epochs: must have a value, a whole number"),
    ("pretrain --workdir", "--workdir: must have a value, as in --workdir="),
    ("pretrain --loss", "--loss: must have a value, one of ntxent, supcon"),
    ("reproduce", "give one of --list, --claim=ID (such as SI-T1), and"),
    ("reproduce --claim=SI-T1 --list", "give one of --list, --claim=ID (such"),
    ("reproduce --claim=SI-T1", "--workdir is missing: give a folder"),
    ("reproduce --report", "--workdir is missing: give a folder, such as"),
    (
        "reproduce --claim=SI-T0 --workdir=w",
        "unknown claim 'SI-T0': known: SI-T1, SI-T4,",
    ),
    (
        "reproduce --claim=IP-F5 --workdir=w",
        "IP-F5 has no recipe: these have one, SI-T1,",
    ),
    ("reproduce --list --seeds=-1", "--seeds=-1: must be at least 0"),
    ("reproduce --list --scale=tpu", "--scale=tpu: must be one of cpu, paper"),
    ("pretrain --los=supcon", "unknown flag --los: did you mean --loss?"),
    ("pretrain --epochs=x", "--epochs=x: must be a whole number"),
    ("pretrain --epochs=0", "--epochs=0: must be at least 1"),
    ("pretrain --learning_rate=-1", "--learning_rate=-1: must be above 0"),
    ("pretrain --learning_rate=inf", "must be a finite number, above 0"),
    (
        "pretrain --min_crop_area=2",
        "--min_crop_area=2: must be above 0 and at most 1",
    ),
    (
        "doctor --loss=supcn",
        "--loss=supcn: must be one of ntxent, supcon, supcon_in, sincere,"
        " eps_supinfonce, npairs, triplet, margin, nt_logistic,"
        " decoupled_ntxent, align_uniform, swd_hypersphere, swd_normal,"
        " swd_hypercube, moco, cross_entropy (did you mean supcon?)",
    ),
    (
        "pretrain --augmentation=randaugmnt",
        "--augmentation=randaugmnt: must be one of simclr, simaugment,",
    ),
    (
        "pretrain --augmentation=ablation:bluur",
        "motion_blur (did you mean blur?)",
    ),
    ("pretrain --noprobe=3", "--noprobe=3 does not take an argument"),
    ("pretrain epochs=3", "stray word 'epochs=3': flags are written --name="),
    ("pretrain --flagfile=nowhere", "--flagfile: Unable to open flagfile"),
    ("pretrain --flagfile", "--flagfile with no argument"),
    ("pretrain --smoke=2", "--smoke=2: must be true or false"),
    ("pretrain", "--workdir: must be given"),
    (
        "pretrain --workdir=w --dataset=folder:",
        "--dataset=folder:: must be folder:PATH with a path after the colon",
    ),
    (
        "pretrain --workdir=w --dataset=multidigits:cuont=4",
        "--dataset=multidigits:cuont=4: must be multidigits with count, digit,"
        " sizes, placement, canvas, seed (did you mean count?)",
    ),
    (
        "doctor --dataset=multidigits:count=17,placement=grid",
        "must be multidigits with count at most 16, the cells of 28 pixels in a"
        " canvas of 112",
    ),
    (
        "embed --input=randbit:bits=3",
        "must be randbit with of given; it has no default",
    ),
    (
        "datasets --show=digit_on_image:of=cifar10,lable=digit",
        "(did you mean label?)",
    ),
    (
        "evaluate --dataset=multidigit:count=3",
        "imagenet100 (did you mean multidigits?)",
    ),
    (
        "pretrain --workdir=w --epochs=5 --warmup_epochs=9",
        "--warmup_epochs=9 is longer than --epochs=5: give at most",
    ),
    (
        "pretrain --optimizer=adma",
        "--optimizer=adma: must be one of lars, sgd, rmsprop, adam, adamw (did"
        " you mean adam?)",
    ),
    (
        "pretrain --workdir=w --optimizer=adam --nesterov",
        "--nesterov is no option of --optimizer=adam: it is one of lars, sgd",
    ),
    (
        "pretrain --workdir=w --optimizer=adam --momentum=0.9",
        "--momentum is no option of --optimizer=adam: it is one of lars, sgd,"
        " rmsprop",
    ),
    (
        "pretrain --workdir=w --optimizer=sgd --trust_coefficient=0.02",
        "--trust_coefficient is no option of --optimizer=sgd: it is one of",
    ),
    (
        "pretrain --workdir=w --optimizer_epsilon=1",
        "--optimizer_epsilon is no option of --optimizer=lars: it is one of"
        " rmsprop, adam, adamw",
    ),
    (
        "pretrain --schedule=exponental",
        "--schedule=exponental: must be one of cosine, linear, exponential,"
        " piecewise, constant (did you mean exponential?)",
    ),
    (
        "pretrain --workdir=w --decay_rate=0.5",
        "--decay_rate is no option of --schedule=cosine: it is one of"
        " exponential, piecewise",
    ),
    (
        "pretrain --workdir=w --schedule=piecewise --decay_epochs=2",
        "--decay_epochs is no option of --schedule=piecewise: it is one of"
        " exponential",
    ),
    (
        "pretrain --workdir=w --schedule=piecewise --nostaircase",
        "--staircase is no option of --schedule=piecewise: it is one of",
    ),
    (
        "pretrain --workdir=w --schedule=linear --boundaries=30",
        "--boundaries is no option of --schedule=linear: it is one of",
    ),
    (
        "pretrain --boundaries=60,30",
        "--boundaries=60,30: must be a comma-separated list of rising epochs"
        " above 0, such as 30,60,90",
    ),
    ("pretrain --boundaries=0,30", "must be a comma-separated list of rising"),
    ("pretrain --boundaries=x", "must be a comma-separated list of rising"),
    (
        "pretrain --workdir=w --schedule=piecewise --epochs=50",
        "--boundaries=30,60,90: give epochs that rise, from --warmup_epochs=5"
        " to less than --epochs=50",
    ),
    (
        "pretrain --workdir=w --schedule=piecewise --boundaries=4,60",
        "--boundaries=4,60: give epochs that rise, from --warmup_epochs=10 to",
    ),
    (
        "pretrain --workdir=w --batch_size=30 --virtual_devices=4",
        "--batch_size=30 is not divisible by the 4 replicas that share it:"
        " give --batch_size=28 or 32",
    ),
    (
        "pretrain --workdir=w --strategy=tpu --virtual_devices=4",
        "--virtual_devices=4 needs --strategy=mirrored, not tpu",
    ),
    (
        "pretrain --workdir=w --strategy=mirrored --cross_device_ops=ring",
        "--cross_device_ops=ring goes with --strategy=multiworker, not"
        " mirrored: give --cross_device_ops=auto or nccl or hierarchical_copy",
    ),
    (
        "pretrain --workdir=w --virtual_devices=4 --cross_device_ops=nccl",
        "--cross_device_ops=nccl needs GPUs, --virtual_devices=4 are none",
    ),
    (
        "pretrain --workdir=w --image_size=16 --stem=imagenet",
        "views of 16 pixels are too small for the imagenet stem, which takes"
        " 32 and more: give --image_size=32 or more or --stem=cifar",
    ),
    (
        "pretrain --workdir=w --views=1",
        "--views=1 leaves ntxent without positives: give --views=2",
    ),
    (
        "pretrain --workdir=w --loss=ntxent --epsilon=1",
        "--epsilon is no option of --loss=ntxent: it is one of eps_supinfonce",
    ),
    (
        "pretrain --workdir=w --loss=supcon --positives_cap=0",
        "--positives_cap=0: must be at least 1",
    ),
    (
        "pretrain --workdir=w --loss=margin --views=3",
        "--views=3: margin with --negatives=other_view compares two views:"
        " give --views=2",
    ),
    (
        "pretrain --workdir=w --loss=moco --queue_size=8",
        "--queue_size=8 holds less than one batch of 256: give at least",
    ),
    (
        "pretrain --workdir=w --grad_cache_chunks=7",
        "--grad_cache_chunks=7 does not divide the 256 images of a replica:"
        " give --grad_cache_chunks=8",
    ),
    (
        "pretrain --workdir=w --data_service=localhost:5050",
        "--data_service=localhost:5050: must be grpc://host:port, as"
        " launch/data_service prints it",
    ),
    (
        "pretrain --workdir=w --data_service=grpc://localhost:5050"
        " --sampler=class_balanced",
        "--data_service gives examples as they come, not in the order of"
        " --sampler=class_balanced: give --sampler=shuffle, or no",
    ),
    (
        "pretrain --cache=disk",
        "--cache=disk: must be one of auto, memory, none",
    ),
    (
        "pretrain --standardize=datset",
        "--standardize=datset: must be one of imagenet, dataset, none, or three"
        " means and three deviations above 0, M,M,M/S,S,S (did you mean",
    ),
    (
        "pretrain --standardize=0.5,0.5,0.5/0,1,1",
        "three deviations above 0, M,M,M/S,S,S",
    ),
    (
        "pretrain --workdir=w --loss=supcon --mixup_alpha=0.2",
        "--mixup_alpha=0.2 makes labels of several classes, of which"
        " --loss=supcon can make nothing: give --loss=cross_entropy, or"
        " --mixup_alpha=0",
    ),
    (
        "pretrain --workdir=w --cutmix_alpha=1",
        "--cutmix_alpha=1 makes labels of several classes, of which"
        " --loss=ntxent can make nothing",
    ),
    (
        "pretrain --workdir=w --loss=cross_entropy --cutmix_alpha=1"
        " --sampler=class_balanced",
        "--cutmix_alpha=1 mixes each image with its neighbour in the batch,"
        " which --sampler=class_balanced chooses by its class: give",
    ),
    (
        "pretrain --workdir=w --loss=cross_entropy --mixup_alpha=1"
        " --batch_size=36 --virtual_devices=4",
        "--batch_size=36 gives each of 4 replica(s) an odd number of images,"
        " which cannot be mixed in pairs: give a multiple of 8",
    ),
    (
        "pretrain --workdir=w --batch_size=256 --online_knn_size=128",
        "--online_knn_size=128 holds less than one batch of 256: give at least",
    ),
    ("pretrian", "unknown command 'pretrian': did you mean 'pretrain'?"),
    ("evaluate", "give one of --workdir=RUN and --saved_model="),
    (
        "evaluate --workdir=w --protocols=knn,linaer",
        "a comma-separated list of knn, prototype, head, linear,",
    ),
    (
        "evaluate --saved_model=x",
        "--saved_model=x needs --dataset=NAME: an export does not say on what",
    ),
    (
        "evaluate --workdir=w --linear_augmentation=randaugmnt",
        "--linear_augmentation=randaugmnt: must be one of simclr, simaugment,",
    ),
    (
        "evaluate --workdir=w --knn_k=1,0",
        "--knn_k=1,0: must be a comma-separated list of whole numbers from 1",
    ),
    (
        "evaluate --workdir=w --linear_learning_rates=0.1,0",
        "--linear_learning_rates=0.1,0: must be a comma-separated list of",
    ),
    (
        "evaluate --workdir=w --linear_learning_rates=0.1,1"
        " --linear_learning_rate=0.3",
        "--linear_learning_rate=0.3 and --linear_learning_rates=0.1,1: give one"
        " of them",
    ),
    ("evaluate --compare a", "--compare=a: must be two runs or files of"),
    (
        "evaluate --compare a b --workdir=w",
        "--compare=a,b reads results that are there, and takes no --workdir=w",
    ),
    (
        "evaluate --compare a b --watch",
        "--compare=a,b reads results that are there, and takes no --watch:",
    ),
    (
        "evaluate --saved_model=x --dataset=digits --watch",
        "--watch needs --workdir=RUN: an export gets no new checkpoint",
    ),
    (
        "pretrain --workdir=w --linear_label_smoothing=0.1",
        "--linear_label_smoothing=0.1 is of the linear stage, of which"
        " --linear_epochs=0 leaves nothing: give its epochs, such as"
        " --linear_epochs=90",
    ),
    (
        "pretrain --workdir=w --linear_epochs=9 --linear_optimizer=rmsprob",
        "--linear_optimizer=rmsprob: must be one of lars, sgd, rmsprop, adam,"
        " adamw (did you mean rmsprop?)",
    ),
    (
        "pretrain --workdir=w --linear_epochs=9 --linear_optimizer=adam"
        " --linear_momentum=0.5",
        "--linear_momentum is no option of --linear_optimizer=adam: it is one"
        " of lars, sgd, rmsprop",
    ),
    (
        "evaluate --workdir=w --linear_decay_rate=0.9",
        "--linear_decay_rate is no option of --linear_schedule=cosine: it is"
        " one of exponential, piecewise",
    ),
    (
        "evaluate --workdir=w --linear_epochs=50 --linear_schedule=piecewise",
        "--linear_boundaries=30,60,90: give epochs that rise, from"
        " --linear_warmup_epochs=0 to less than --linear_epochs=50",
    ),
    (
        "pretrain --workdir=w --linear_epochs=9 --linear_warmup_epochs=10",
        "--linear_warmup_epochs=10 is longer than --linear_epochs=9: give at"
        " most --linear_warmup_epochs=9",
    ),
    (
        "pretrain --test_split=test[:",
        "must be a split such as train, test, train[:1000]",
    ),
    (
        "pretrain --workdir=w --profile_steps=120,100",
        "--profile_steps=120,100: must be FIRST,LAST, two steps counted from 1",
    ),
    (
        "pretrain --workdir=w --nan_policy=skip",
        "--nan_policy=skip: must be stop, or skip:N for at most N steps",
    ),
    (
        "pretrain --workdir=w --loss=moco --nan_policy=skip:3",
        "would stay in moco's queue: give --nan_policy=stop",
    ),
    (
        "doctor --batch_size=30 --virtual_devices=4",
        "--batch_size=30 is not divisible by the 4 replicas that share it:",
    ),
    ("export", "--workdir: must be given"),
    ("embed --workdir=w", "--output: must be given"),
    (
        "export --workdir=w --format=tflite,onxx",
        "--format=tflite,onxx: must be a comma-separated list of savedmodel,"
        " tflite, onnx (did you mean onnx?)",
    ),
    (
        "export --workdir=w --head=probe --head_knn_k=3",
        "--head_knn_k=3 is no option of --head=probe: give --head=knn",
    ),
    (
        "export --workdir=w --head_temperature=0.2",
        "--head_temperature=0.2 is no option of --head=none: give"
        " --head=prototype",
    ),
    (
        "embed --saved_model=w --output=x",
        "--saved_model=w needs --input=DATASET: an export does not say what",
    ),
    (
        "embed --workdir=w --output=x --format=csv",
        "--format=csv: must be one of auto, npz, tfrecord, parquet",
    ),
    (
        "embed --workdir=w --output=x --shard_size=-1",
        "--shard_size=-1: must be at least",
    ),
    (
        "embed --workdir=w --output=x --runner=Direct-Runner",
        "--runner=Direct-Runner: must be the name of a runner of Apache Beam",
    ),
    (
        "embed --workdir=w --output=x --beam_options=--direct_num_workers=2",
        "--beam_options=--direct_num_workers=2 is for Apache Beam: give its"
        " --runner, such as --runner=DirectRunner",
    ),
    (
        "evaluate --workdir=w --kmeans_clusters=2,x",
        "--kmeans_clusters=2,x: must be a comma-separated list of whole",
    ),
    (
        "evaluate --workdir=w --test_split=test[:",
        "must be a split such as train, test, train[:1000]",
    ),
    (
        "benchmark",
        "--benchmark: must be one of loss, input, views, step, evaluation,"
        " serving, as in:",
    ),
    (
        "benchmark los",
        "must be one of loss, input, views, step, evaluation, serving (did",
    ),
    ("benchmark loss 64", "stray word '64': flags are written --name=value"),
    (
        "benchmark loss --sizes=64,65",
        "--sizes=64,65: must be a comma-separated list of even numbers",
    ),
    ("benchmark loss --sizes=2", "--sizes=2: must be a comma-separated list"),
    (
        "benchmark loss --losses=ntxnt",
        "--losses=ntxnt: must be a comma-separated list of ntxent, supcon,"
        " supcon_in, sincere (did you mean ntxent?)",
    ),
    (
        "benchmark input --policies=simclr,autoaugmnt",
        "a comma-separated list of simclr, simaugment, autoaugment,",
    ),
    (
        "benchmark input --image_sizes=224,x",
        "must be a comma-separated list of sides in pixels, such as 224,32",
    ),
    (
        "benchmark step --precisions=float32,bfloat16",
        "a comma-separated list of float32, mixed_bfloat16",
    ),
    (
        "benchmark step --replicas=1,0",
        "--replicas=1,0: must be a comma-separated list of numbers from 1 up",
    ),
    (
        "benchmark step --run_flags='--batch_size=9 --dataset=digits'",
        "--batch_size=9 is not divisible by the 2 replicas that share it:",
    ),
    (
        "benchmark step --run_flags=--encodr=resnet18",
        "unknown flag --encodr: did you mean --encoder?",
    ),
    (
        "evaluate --workdir=x --robustness_corruptions=fogg",
        "(did you mean fog?)",
    ),
    (
        "evaluate --workdir=x --finetune_fractions=0.1,2",
        "--finetune_fractions=0.1,2: must be a comma-separated list of shares",
    ),
    (
        "evaluate --workdir=x --finetune_epochs=0",
        "--finetune_epochs=0: must be a comma-separated list of whole numbers",
    ),
    (
        "evaluate --workdir=x --finetune_epochs=3,4",
        "--finetune_epochs=3,4 for --finetune_fractions=0.01,0.1,1: give one",
    ),
    (
        "evaluate --workdir=x --finetune_learning_rates=",
        "--finetune_learning_rates: must be a comma-separated list of numbers",
    ),
    (
        "evaluate --workdir=x --transfer_suite=simclrr",
        "--transfer_suite=simclrr: must be one of simclr, sincere (did you",
    ),
    (
        "evaluate --workdir=x --transfer_methods=linear,tune",
        "a comma-separated list of linear, finetune, scratch (did you mean",
    ),
    (
        "evaluate --workdir=x --transfer_weight_decays=-1",
        "--transfer_weight_decays=-1: must be a comma-separated list of",
    ),
    (
        "benchmark evaluation --tasks=kn",
        "--tasks=kn: must be a comma-separated list of knn, logistic (did you",
    ),
    (
        "benchmark serving --serving_batch_sizes=1,0",
        "--serving_batch_sizes=1,0: must be a comma-separated list of numbers",
    ),
]


def _refused(words, monkeypatch, capsys):
    """The line that a mistake in flags gets."""
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", *words])
    assert __main__.main() != 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("tf_contrastive: ") and said.err.endswith("\n")
    assert said.err.count("\n") == 1
    return said.err.removeprefix("tf_contrastive: ").rstrip("\n")


@pytest.mark.parametrize(("line", "told"), _MISTAKES, ids=str)
def test_a_mistake_gets_one_clear_line(line, told, monkeypatch, capsys):
    assert told in _refused(shlex.split(line), monkeypatch, capsys)


def _fields(command):
    return {f.name: f for _, f, _ in config_fields.fields(command())}


def _is_open(field, flag):
    """Whether only what is there can tell that a value is wrong."""
    return flag.flag_type() == "string" and not field.metadata["check"]


def _wrong(field, flag):
    """Yields values that a flag cannot have, and what it is told to be."""
    about, kind = field.metadata, flag.flag_type()
    if kind == "bool":
        yield "maybe", "true or false"
    elif kind == "string enum":
        yield "?", f"one of {', '.join(about['choices'])}"
    elif kind == "string":
        check = about["check"] or (lambda value: None)
        value = next((v for v in ("?", "'") if check(v)), None)
        if value:
            yield value, check(value)
        if about["required"]:
            yield "", check("") or "given; it has no default"
    else:
        bounds = _bounds(about)
        yield "x", {"int": "a whole number", "float": "a number"}[kind]
        if kind == "float":
            yield "inf", ", ".join(filter(None, ("a finite number", bounds)))
        for bound, beyond in (("minimum", -1), ("above", 0), ("maximum", 1)):
            if about[bound] is not None:
                yield f"{about[bound] + beyond:.12g}", bounds


def _bounds(about):
    words = {"minimum": "at least", "above": "above", "maximum": "at most"}
    return " and ".join(
        f"{word} {about[bound]:.12g}"
        for bound, word in words.items()
        if about[bound] is not None
    )


_EVERY_FLAG = [
    (command, name)
    for command, (config_class, _) in __main__.COMMANDS.items()
    for name in _fields(config_class)
]


@pytest.mark.parametrize(("command", "name"), _EVERY_FLAG)
def test_every_flag_says_what_was_given_and_what_is_allowed(
    command, name, monkeypatch, capsys
):
    config_class = __main__.COMMANDS[command][0]
    fields, flag = _fields(config_class), flags.define(config_class)[name]
    needed = [
        f"--{n}={BENCHMARKS[0] if n == 'benchmark' else 'w'}"
        for n, field in fields.items()
        if field.metadata["required"] and n != name
    ]
    cases = list(_wrong(fields[name], flag))
    for value, allowed in cases:
        words = [command, *needed, f"--{name}={value}"]
        given = f"--{name}={value}" if value else f"--{name}"
        told = _refused(words, monkeypatch, capsys)
        assert told.startswith(f"{given}: must be {allowed}"), told
    if not _is_open(fields[name], flag):
        assert cases
    else:
        assert _breaks(command, name), "put a case into tests/mistakes.py"


def _breaks(command, name):
    """The cases of a flag whose value is wrong by what is there alone."""
    return [
        line
        for line, told in (*_MISTAKES, *mistakes.INPUTS)
        if command in line.split()
        for word in shlex.split(line)
        if word.startswith(f"--{name}=")
        and (f"--{name}" in told or word.partition("=")[2] in told)
    ]


def _help(command, word, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tf_contrastive", command, word])
    assert __main__.main() == 0
    return capsys.readouterr().out


def _shown(text):
    return set(re.findall(r"^  --(?:\[no\])?(\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_helpfull_shows_the_command_s_own_flags(command, monkeypatch, capsys):
    shown = _help(command, "--helpfull", monkeypatch, capsys)
    options = config_fields.fields(__main__.COMMANDS[command][0]())
    assert _shown(shown) == {f.name for _, f, _ in options} | {"flagfile"}
    # A list that is a default has no place to break.
    long = [line for line in shown.splitlines() if len(line) > 80]
    assert not [line for line in long if " " in line.strip()]


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_help_is_short_and_counts_the_rest(command, monkeypatch, capsys):
    short = _help(command, "--help", monkeypatch, capsys)
    everything = _help(command, "--helpfull", monkeypatch, capsys)
    assert _shown(short) <= _shown(everything)
    assert len(_shown(short)) <= 20
    if rest := len(_shown(everything)) - len(_shown(short)):
        assert f"{rest} more flags, of " in short
        assert len(short.splitlines()) < 0.75 * len(everything.splitlines())
    for _, field, _ in config_fields.fields(__main__.COMMANDS[command][0]()):
        if field.metadata["required"]:
            assert field.name in _shown(short)


# A module that shadows TensorFlow and fails: nothing may import it. Prints the
# seconds of the processor that the slowest line takes, with what comes before.
_ALONE = """
import contextlib, io, json, sys, time
sys.modules["tensorflow"] = None
from tf_contrastive import __main__
slowest, before = 0.0, time.process_time()
for words, succeeds in json.load(sys.stdin):
    sys.argv = ["tf_contrastive", *words]
    said = io.StringIO()
    started = time.process_time()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = __main__.main()
    slowest = max(slowest, time.process_time() - started)
    assert (status == 0) == succeeds, (words, said.getvalue())
print(before + slowest)
"""


def test_help_and_mistakes_answer_at_once_without_tensorflow():
    lines = [(shlex.split(line), False) for line, _ in _MISTAKES]
    lines += [
        ([command, word], True)
        for command in __main__.COMMANDS
        for word in ("--help", "--helpfull")
    ]
    lines += [(["datasets", "--list"], True), (["reproduce", "--list"], True)]
    done = subprocess.run(
        [sys.executable, "-c", _ALONE],
        cwd=_ROOT,
        capture_output=True,
        input=json.dumps(lines),
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1


def test_only_what_was_given_is_an_option_of_the_loss():
    given = _parse("--workdir=a", "--loss=supcon", "--positives_cap=3")
    assert given.loss.options() == {"positives_cap": 3}
    text = flags.write(given)
    assert "--positives_cap=3" in text
    assert "--temperature" not in text
    assert flags.read(Pretrain, text, "a") == given


def test_only_what_was_given_is_an_option_of_optimizer_and_schedule():
    given = _parse(
        "--workdir=a",
        "--optimizer=rmsprop",
        "--optimizer_epsilon=0.5",
        "--schedule=piecewise",
        "--boundaries=30, 60.5",
    )
    assert given.optimizer.options() == {"epsilon": 0.5}
    assert given.schedule.options() == {"boundaries": (30.0, 60.5)}
    text = flags.write(given)
    assert "--momentum" not in text
    assert flags.read(Pretrain, text, "a") == given
    nothing = _parse("--workdir=a")
    assert nothing.optimizer.options() == nothing.schedule.options() == {}


@pytest.mark.parametrize("standardize", ["imagenet", "none"])
def test_statistics_of_colours_survive_their_writing(standardize):
    found = channel_statistics(standardize)
    assert channel_statistics(write_statistics(found)) == found
    tiny = ChannelStatistics((1e-7, 0.5, 1 / 3), (2e-5, 1.0, 0.25))
    written = write_statistics(tiny)
    again = channel_statistics(written)
    assert write_statistics(again) == written
    with pytest.raises(errors.UserError, match="standardize=dataset: must be"):
        channel_statistics("dataset")


def test_replace_names_what_it_does_not_know():
    with pytest.raises(errors.UserError, match="did you mean 'epochs'"):
        config_fields.replace(Pretrain(), epoch=3)


def test_configs_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Pretrain().loss.loss = "supcon"


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
