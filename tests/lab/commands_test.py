"""The laboratory's command line, and its one-line errors."""

import processes

from lab.__main__ import COMMANDS
from tf_contrastive.config import fields

# Command line -> what its error must name.
_MISTAKES = {
    "reproduce --claim=SI-T1 --workdir=a[1]": "--workdir=a[1]",
    "reproduce --claim=SI-T1 --list": "--claim",
    "reproduce --report": "--workdir",
    "reproduce --list --claims=nowhere.json": "--claims=nowhere.json",
    "reproduce --claim=SI-T0 --workdir=new": "'SI-T0'",
    "benchmark": "--benchmark",
    "benchmark lss": "--benchmark=lss",
    "benchmark loss --sizes=1023": "--sizes=1023",
    "benchmark loss --seconds=2": "--seconds",
    "benchmark loss --losses=supcon,triplet": "triplet",
    "benchmark evaluation --tasks=svm": "svm",
    "benchmark peer --peer_steps=resnet10:32:4": "--peer_steps=resnet10:32:4",
    "benchmark step --run_flags=--encodr=resnet18": "--encodr",
}


def test_invalid_flags_are_named_in_one_line_without_tensorflow():
    for line, (status, out, err) in processes.outcomes(_MISTAKES, "lab"):
        assert status == 2 and out == "", (line, err)
        assert err.count("\n") == 1, (line, err)
        assert _MISTAKES[line] in err, (line, err)


def test_help_and_the_list_need_no_tensorflow():
    helps = [f"{command} --helpfull" for command in COMMANDS]
    lines = ["--help", "reproduce --list", *helps]
    outcomes = dict(processes.outcomes(lines, "lab"))
    for line, (status, out, _) in outcomes.items():
        assert status == 0 and out.count("\n") > 5, line
    for command, options in COMMANDS.items():
        text = outcomes[f"{command} --helpfull"][1]
        for option in fields.options(options()):
            assert f"{option.name}" in text
