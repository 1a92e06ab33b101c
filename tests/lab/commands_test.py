"""The laboratory's command line, and its one-line errors."""

import json
import shlex

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

# Nothing may import TensorFlow.
_WITHOUT_TENSORFLOW = """
import contextlib, io, json, sys
import tf_contrastive  # It looks for TensorFlow, and does not import it.
sys.modules["tensorflow"] = None
from lab.__main__ import main
outcomes = []
for words in json.load(sys.stdin):
    sys.argv = ["lab", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main()
    outcomes.append([status, out.getvalue(), err.getvalue()])
json.dump(outcomes, sys.stdout)
"""


def _outcomes(lines):
    """(status, stdout, stderr) of command lines, where TensorFlow is absent."""
    done = processes.run(
        processes.python(_WITHOUT_TENSORFLOW),
        input=json.dumps([shlex.split(line) for line in lines]),
    )
    return dict(zip(lines, json.loads(done.stdout), strict=True))


def test_invalid_flags_are_named_in_one_line_without_tensorflow():
    for line, (status, out, err) in _outcomes(_MISTAKES).items():
        assert status == 2 and out == "", (line, err)
        assert err.count("\n") == 1, (line, err)
        assert _MISTAKES[line] in err, (line, err)


def test_help_and_the_list_need_no_tensorflow():
    helps = [f"{command} --helpfull" for command in COMMANDS]
    outcomes = _outcomes(["--help", "reproduce --list", *helps])
    for line, (status, out, _) in outcomes.items():
        assert status == 0 and out.count("\n") > 5, line
    for command, options in COMMANDS.items():
        text = outcomes[f"{command} --helpfull"][1]
        for option in fields.options(options()):
            assert f"{option.name}" in text
