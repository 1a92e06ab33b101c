"""The launch scripts: the commands they run, and runs on several workers."""

import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import launch_project
import pytest
import small

from tf_contrastive.distribution import cluster

_ROOT = Path(__file__).absolute().parents[2]
_SCRIPTS = sorted(
    str(path.relative_to(_ROOT))
    for path in (_ROOT / "launch").rglob("*")
    if path.suffix == ".sh"
    or (path.is_file() and path.read_bytes().startswith(b"#!/usr/bin"))
)


@pytest.fixture
def project(tmp_path):
    return launch_project.Project(tmp_path)


# ---- All of them -------------------------------------------------------------


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not installed"
)
def test_scripts_are_clean_by_shellcheck():
    done = subprocess.run(
        ["shellcheck", "-x", *_SCRIPTS, ".ci/run"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


_TPU = "--zone=z-1"
_AWKWARD = '--data_dir=gs://b/it\'s a $HOME; "x" *'
_RUNS = [
    f"tpu_vm create pod-1 {_TPU} --type=v3-32 --spot --project=p",
    f"tpu_vm install pod-1 {_TPU}",
    f"tpu_vm run pod-1 {_TPU} --type=v3-32 pretrain --workdir=gs://b/a AWKWARD",
    f"tpu_vm run a {_TPU} --type=v5p-8 pretrain --workdir=w AWKWARD",
    f"tpu_vm stop a {_TPU}",
    f"tpu_vm status a {_TPU}",
    "slurm --nodes=4 --tasks_per_node=2 --gpus_per_task=4 --cpus_per_task=8"
    " --time=1:00:00 --name=n --log=l --sbatch=--qos=high --sbatch=--mem=9G"
    " pretrain --workdir=w AWKWARD",
    "slurm --now --cpus_per_task=8 pretrain --workdir=w AWKWARD",
    "slurm --nodes=1 --requeue=3 pretrain --workdir=w AWKWARD",
    "tensorboard --port=6007 --all_hosts gs://b/runs",
]


def _words(line):
    script, *words = line.split()
    words = [_AWKWARD if word == "AWKWARD" else word for word in words]
    return [f"launch/{script}", *words]


def test_words_are_quoted_for_any_shell():
    generator = random.Random(0)
    characters = "ab '\"\\$`*?;&|<>(){}[]~#!\n\t\x01\x7f\u00e9"
    words = [
        "".join(generator.choices(characters, k=generator.randrange(9)))
        for _ in range(200)
    ]
    quote = ["bash", "-c", '. launch/commands.sh; quoted "$@"', "_", *words]
    line = subprocess.check_output(quote, cwd=_ROOT, text=True)
    # /bin/sh is dash on Debian, and runs what sbatch wraps.
    read = subprocess.check_output(["sh", "-c", f"printf '%s\\0' {line}"])
    assert read.decode().split("\0")[:-1] == words


@pytest.mark.slow
@pytest.mark.parametrize("line", _RUNS)
def test_dry_run_prints_the_commands_that_would_run(project, line):
    script, *words = _words(line)
    at = 2 if "tpu_vm" in script else 0
    dry = project.run(script, *words[:at], "--dry_run", *words[at:])
    assert dry.returncode == 0, dry.stderr
    assert project.calls() == []
    done = project.run(script, *words)
    assert done.returncode == 0, done.stderr
    calls = project.calls()
    assert calls
    # The printed lines do the same in a shell.
    pasted = project.run("bash", "-ec", dry.stdout)
    assert pasted.returncode == 0, pasted.stderr
    assert project.calls() == calls
    # A command that fails ends the script with its status.
    failed = project.run(script, *words, FAKE_STATUS="3")
    assert failed.returncode == 3
    assert len(project.calls()) == 1


_MISUSES = [
    ("tpu_vm", "no task"),
    ("tpu_vm launch a", "launch"),
    ("tpu_vm create a --zon=z", "--zon=z"),
    ("tpu_vm create A --zone=z --type=v3-8", "NAME=A"),
    ("tpu_vm create a --type=v3-8", "--zone"),
    ("tpu_vm create a --zone=z", "--type is missing"),
    ("tpu_vm delete a b --zone=z", "argument b"),
    ("tpu_vm create a --zone=z --type=v3-8 -- network", "network"),
    ("tpu_vm create a --zone=z --type=v3-8 --spot --flex_start=4h", "--spot"),
    ("tpu_vm create a --zone=z --type=v3-8 --recreate", "--recreate"),
    ("tpu_vm list", "--zone"),
    (
        "tpu_vm run a --zone=z --type=v3-32 pretrain --workdir=runs/a",
        "--workdir=runs/a",
    ),
    ("multiworker", "no command"),
    ("multiworker --worker=2 pretrain", "--worker=2"),
    ("multiworker --workers=two pretrain", "--workers=two"),
    ("multiworker --workers=2 --hosts=a,b", "--workers and --hosts"),
    ("multiworker --hosts=a,/b", "--hosts=a,/b"),
    ("multiworker --port=65535 pretrain", "--port=65535"),
    ("slurm", "no command"),
    ("slurm --requeue=3 --now pretrain", "--requeue"),
    ("kubernetes --image=i", "no command"),
    ("kubernetes pretrain", "--image"),
    ("kubernetes --image=i pretrain --workdir=runs/a", "--workdir=runs/a"),
    ("kubernetes --image=i pretrain --workdir=/data/a", "--claim"),
    ("kubernetes --image=i --tpu=v5litepod-16 pretrain", "v5litepod-16"),
    ("kubernetes --image=i --tpu=v4-8 --nodes=2 pretrain", "--nodes"),
    ("slurm --nodes=0 pretrain", "--nodes=0"),
    ("slurm --gpus_per_task=x pretrain", "--gpus_per_task=x"),
    ("slurm --gpus_per_task=1", "no command"),
    ("data_service --workers=0 --dispatcher=a:1", "--workers=0"),
    ("serve --grpc_port=8501 gs://b/a", "8501"),
    ("serve --image=-v=/:/host gs://b/a", "--image=-v=/:/host"),
    ("tpu_vm_host logs --folow", "--folow"),
    ("tpu_vm_host run", "run"),
    ("tensorboard --port=x", "--port=x"),
    ("tensorboard a b", "argument b"),
]


def test_a_misuse_gets_one_line_and_status_2(project):
    for line, argument in _MISUSES:
        done = project.run(*_words(line))
        assert done.returncode == 2, line
        (error,) = done.stderr.splitlines()
        assert argument in error
        assert f"{line.split()[0]} " in error
        assert done.stdout == ""
    assert project.calls() == []


# Every value: of flags, of other arguments and of variables, in a command that
# starts something with the value in braces. NUMBER: an integer; WORD: without
# syntax of a shell; LINE: any text of one line, such as a path.
_NUMBER, _WORD, _LINE = "number", "word", "line"
_VALUES = {
    "data_service --port={5051}": _NUMBER,
    "data_service --workers={1}": _NUMBER,
    "data_service --host={a}": _WORD,
    "data_service --dispatcher={a:1}": _WORD,
    "docs --output={site}": _LINE,
    "install --stack={current}": _WORD,
    "install --wheel={a.whl}": _LINE,
    "PYTHON={/no/python} install": _WORD,
    "kubernetes --dry_run --image={i} a": _WORD,
    **{
        f"kubernetes --dry_run --image=i --{flag} a": kind
        for flag, kind in {
            **{"name={a}": _WORD, "nodes={2}": _NUMBER, "tpu={v4-8}": _WORD},
            **{"gpus_per_node={1}": _NUMBER, "claim={a}": _WORD},
            **{"cpus={1}": _NUMBER, "memory={4Gi}": _WORD},
            **{"node_label={a/b=c}": _WORD, "service_account={a}": _WORD},
            **{"retries={1}": _NUMBER, "grace={1}": _NUMBER},
        }.items()
    },
    "multiworker --dry_run --workers={2} pretrain": _NUMBER,
    "multiworker --dry_run --port={2222} pretrain": _NUMBER,
    "multiworker --dry_run --patience={9} pretrain": _NUMBER,
    "multiworker --hosts={a,b:99}": _WORD,
    "serve --host={127.0.0.1} gs://b/a": _WORD,
    "serve --grpc_port={9000} gs://b/a": _NUMBER,
    "serve --rest_port={9000} gs://b/a": _NUMBER,
    "serve --memory={4g} gs://b/a": _WORD,
    "serve --cpus={2} gs://b/a": _WORD,
    "serve --image={other} gs://b/a": _WORD,
    "serve {gs://b/a}": _LINE,
    "slurm --nodes={4} pretrain": _NUMBER,
    "slurm --tasks_per_node={1} pretrain": _NUMBER,
    "slurm --gpus_per_task={1} pretrain": _NUMBER,
    "slurm --cpus_per_task={1} pretrain": _NUMBER,
    "slurm --requeue={3} pretrain": _NUMBER,
    "slurm --time={60} pretrain": _WORD,
    "slurm --name={a} pretrain": _WORD,
    "slurm --log={a} pretrain": _LINE,
    "slurm --sbatch={--qos=high} pretrain": _LINE,
    "tensorboard --port={6007} gs://b/a": _NUMBER,
    "tensorboard {gs://b/a}": _LINE,
    "tpu_vm create a --type=v3-8 --zone={z}": _WORD,
    "tpu_vm create a --zone=z --type={v3-8}": _WORD,
    "tpu_vm stop a --zone=z --type={v3-8}": _WORD,
    "tpu_vm stop a --zone=z --version={image}": _WORD,
    "tpu_vm stop a --zone=z --flex_start={4h}": _WORD,
    "tpu_vm run a --zone=z --type=v3-8 --dry_run --recreate={9} b": _NUMBER,
    "tpu_vm stop a --zone=z --pause={9}": _NUMBER,
    "tpu_vm stop a --zone=z --project={p}": _WORD,
    "tpu_vm stop {a} --zone=z": _WORD,
    "TPU_ZONE={z} tpu_vm stop a": _WORD,
    "TPU_TYPE={v3-8} tpu_vm stop a --zone=z": _WORD,
}
# In examples of the scripts' help.
_FLAGS_OF_COMMANDS = {"--batch_size", "--network", "--partition", "--workdir"}
# "@" is the value in braces.
_NEVER = ("", "@\n", "\n@", "@\ntouch canary", "@\r", "@\x1b[2J", "@\x7f")
# PATH is set: `set -u` refuses others before it runs what is in the brackets.
_SHELL = (
    "PATH[$(touch canary)]",
    "@[$(touch canary)]",
    "v3-PATH[$(touch canary)]",
    "a:PATH[$(touch canary)]",
    "1+PATH[`touch canary`]",
    "$(touch canary)",
    "@`touch canary`",
    "@;touch canary",
    "@|touch canary",
    "@&touch canary",
    "@'",
    "@*",
    " ",
    " @",
    "@ ",
    "1 2",
    "\u0661",
    "\uff11",
    "@\u00b2",
)
_NOT_INTEGERS = (
    "-1",
    "-0",
    "+1",
    "0x10",
    "2#1",
    "1+1",
    "1e3",
    "1.5",
    "1_0",
    "PATH",
    "99999999999999999999",
    "18446744073709551617",
    "4294967297",
)


def _script_of(line):
    return next(word for word in line.split() if word[0].islower())


def _with_value(line, value):
    """Returns the words and variables of a line of `_VALUES`."""
    given = re.search(r"\{(.*)\}", line)[1]
    words = [
        word.replace(f"{{{given}}}", value.replace("@", given))
        for word in line.split()
    ]
    variables = {}
    if "=" in line.split()[0]:
        name, _, variables[name] = words.pop(0).partition("=")
    return [f"launch/{words[0]}", *words[1:]], variables


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("slurm pretrain --workdir=w", "sbatch"),
        ("slurm --now pretrain --workdir=w", "srun"),
        ("kubernetes --image=a/b:c pretrain --workdir=gs://w", "kubectl"),
        ("tpu_vm list --zone=z --type=v5litepod-8", "gcloud"),
    ],
)
def test_a_program_is_missed_before_anything_is_installed(
    project, line, program
):
    project.fake(project.folder / "launch" / "install")
    (project.bin / program).unlink(missing_ok=True)
    for name in ("bash", "dirname", "env", "tr", "awk", "sed", "cat"):
        (project.bin / name).symlink_to(shutil.which(name))
    # A machine that has nothing else.
    done = project.run(*_words(line), PATH=str(project.bin))
    assert done.returncode == 2
    assert f"{program} was not found" in done.stderr
    assert done.stderr.count("\n") == 1
    assert project.calls() == []


@pytest.mark.parametrize(
    "line",
    [
        "slurm pretrain --datset=x",
        "slurm --now pretrain --datset=x",
        "kubernetes --image=a/b:c pretrain --datset=x",
        "tpu_vm run pod-1 --zone=z --type=v5litepod-8 pretrain --datset=x",
        "multiworker pretrain --datset=x",
    ],
)
def test_flags_are_checked_before_a_job_is_queued(project, line):
    project.fake(project.bin / "kubectl")
    (project.folder / ".venv" / "installed").touch()
    done = project.run(*_words(line), FAKE_STATUS="2")
    assert done.returncode == 2
    assert project.calls() == [
        ["python", "launch/check_flags.py", "pretrain", "--datset=x"]
    ]


def test_flags_are_checked_where_they_can_be(tmp_path):
    for words, status in (
        (["pretrain", "--workdir=w"], 0),
        (["pretrain", "--workdir=w", "--flagfile=/data/own.flags"], 0),
        (["pretrain", "--workdir=w", "--loss=module:loss"], 0),
        (["pretrain", "--workdir=w", "--flagfile=configs/quickstart.flags"], 0),
        (["pretrain", "--workdir=w", "--datset=x"], 2),
        (["pretrain", "--workdir=w", "--epochs=-1"], 2),
    ):
        done = subprocess.run(
            [sys.executable, _ROOT / "launch" / "check_flags.py", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, (words, done.stderr)
        assert done.stderr.count("\n") == (status != 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", [s.removeprefix("launch/") for s in _SCRIPTS if "." not in s]
)
def test_no_value_runs_a_command(project, script):
    if script == "install":
        shutil.copy(_ROOT / "launch" / script, project.folder / "launch")
    canary = project.folder / "canary"
    lines = [line for line in _VALUES if _script_of(line) == script]
    # No flag is missing here or in the help.
    text = (_ROOT / "launch" / script).read_text()
    known = set(re.findall(r"^ *(--[\w-]+)=\??\*\)", text, re.M))
    shown = re.findall(
        r"--[\w-]+(?==)", project.run(*_words(f"{script} -h")).stdout
    )
    assert known == set(shown) - _FLAGS_OF_COMMANDS
    assert known == set(re.findall(r"(--[\w-]+)=\{", "\n".join(lines)))
    for line in lines:
        kind = _VALUES[line]
        name = re.search(r"([^ ]*)\{", line)[1]
        refused = list(_NEVER if name.startswith("-") else _NEVER[1:])
        refused += _SHELL if kind != _LINE else ()
        refused += _NOT_INTEGERS if kind == _NUMBER else ()
        for value in refused:
            words, variables = _with_value(line, value)
            done = project.run(*words, **variables)
            assert done.returncode == 2, (words, variables, done.stderr)
            assert done.stderr.count("\n") == 1, (words, done.stderr)
            assert name in done.stderr and done.stdout == ""
            assert not canary.exists(), words
        assert project.calls() == []
        for value in _SHELL if kind == _LINE else ("@",):
            if script in ("install", "release_check"):
                continue  # They would start; their own tests do this.
            words, variables = _with_value(line, value)
            done = project.run(*words, **variables)
            assert not canary.exists(), words
            assert done.returncode != 2 or kind == _LINE, done.stderr
        project.calls()


# A value on each side of each limit: what is printed, or None if it is refused.
_LIMITS = {
    "multiworker --workers=1 --port={} --dry_run pretrain": {
        **{"0": None, "1": '127.0.0.1:1"', "08": ':8"', "0009": ':9"'},
        **{"65535": ':65535"', "65536": None},
    },
    "multiworker --workers={} --port=65534 --dry_run pretrain": {
        **{"0": None, "2": ':65535"', "02": ':65535"', "3": None},
    },
    "multiworker --hosts={}": {
        # Two workers of a host, at their own ports.
        **{"a:1,a:65535": '["a:1", "a:65535"]', "a:0": None, "a:65536": None},
        **{"a:08,b": '["a:8", "b:2222"]', "[::1],[::2]:9": '"[::1]:2222", "['},
        **{"1.2.3.4,255.0.0.0": "255.0.0.0:2222", "1.2.3.256,b": None},
        **{"A.b-C,d.": '["A.b-C:2222", "d.:2222"]', "[Ab::]": '"[Ab::]:2222"'},
        **{"a,a": None, "a,b,A": None, "a,a.": None, "a,a:2222": None},
        **{"a,A.:02222": None, "[::1],[0:0::0:01]": None},
        **{"[FE80::A],[fe80:0::00a]:2222": None, "[1:2:3:4:5:6:7::],a": "7::"},
        **{"[1:2:3:4:5:6:7::8]": None, "[1::2::3]": None, "[::12345]": None},
        **{"a,": None, ",a": None, "a,,b": None, "::1": None, "1.2.3": None},
        **{
            "01.2.3.4": None,
            "a:": None,
            "-a": None,
            "a..b": None,
            "[::1": None,
        },
    },
    "slurm --nodes={} --dry_run pretrain": {
        **{"0": None, "1": "--nodes=1 ", "010": "--nodes=10 "},
        **{"65535": "--nodes=65535 ", "65536": None},
    },
    "slurm --requeue={} --dry_run pretrain": {
        **{"0": None, "1": "-ge 1 ", "999999": "-ge 999999 ", "1000000": None},
    },
    **{
        f"kubernetes --image=i --{name}={{}} --dry_run a": {
            **{below: None, low: f"{shown}{low}", high: f"{shown}{high}"},
            above: None,
        }
        for name, shown, below, low, high, above in (
            ("nodes", "completions: ", "0", "1", "999", "65536"),
            ("gpus_per_node", "nvidia.com/gpu: ", "-1", "1", "64", "65"),
            ("cpus", "cpu: ", "0", "1", "65535", "65536"),
            ("memory", "memory: ", "0Gi", "1Mi", "999999999Ti", "64GB"),
            ("retries", "backoffLimit: ", "-1", "0", "999999", "1000000"),
            ("grace", "Seconds: ", "0", "1", "86400", "86401"),
            ("name", "  name: ", "A", "a", "a" * 40, "a" * 41),
            ("claim", 'claimName: "', "-", "a", "a" * 252, "a" * 253),
        )
    },
    **{
        f"slurm --{name}_per_{of}={{}} --dry_run pretrain": {
            **{"0": None, "1": "", "65535": "=65535 ", "65536": None},
        }
        for name, of in (("tasks", "node"), ("cpus", "task"))
    },
    "multiworker --patience={} --dry_run pretrain": {
        **{"0": None, "1": "", "999999999": "", "1000000000": None},
    },
    "tensorboard --port={} --dry_run gs://b/a": {
        **{"0": None, "1": "=1 ", "65535": "=65535 ", "65536": None},
    },
    "serve --grpc_port={} --dry_run gs://b/a": {
        **{"0": None, "1": ":1:8500", "65535": ":65535:8500", "65536": None},
    },
    "tpu_vm run a --zone=z --type=v3-8 --recreate={} --dry_run b": {
        **{"0": None, "1": "most 1 times", "999999": "999999", "1000000": None},
    },
    "tpu_vm list --zone=z --pause={} --dry_run": {
        **{"0": None, "1": "list", "86400": "list", "86401": None},
    },
    "tpu_vm create a --zone=z --type=v3-8 --flex_start={} --dry_run": {
        **{"0h": None, "4h": "=4h ", "999999s": "=999999s ", "1000000s": None},
        **{"4": None},
    },
    "slurm --gpus_per_task={} --dry_run pretrain": {
        **{"00": "srun", "08": "--gpus-per-task=8 ", "65536": None},
    },
    "slurm --time={} --dry_run pretrain": {
        **{"90": "--time=90 ", "8:00:00": "8:00:00 ", "2-08:00:00": "2-08:00:"},
        **{"999999": "--time=999999 ", "1000000": None, "1:1:1:1": None},
        **{"2-": None, "1h": None},
    },
    "serve --rest_port={} --dry_run gs://b/a": {
        **{"0": None, "1": ":1:8501", "08501": ":8501:", "65536": None},
        **{"65535": ":65535:8501", "8500": None},
    },
    "serve --host={} --dry_run gs://b/a": {
        **{"255.255.255.255": "=255.255.255.255:", "255.255.255.256": None},
        **{"[::]": "[::]:8500", "[:]": None, "localhost": None, "1.2.3": None},
    },
    "serve --memory={} --dry_run gs://b/a": {
        **{"8g": "=8g ", "08g": "8g ", "999999999": "=999999999 ", "0": None},
        **{"9999999999": None, "99999999999999999999g": None, "8t": None},
        **{"g": None, "8g8": None},
    },
    "serve --cpus={} --dry_run gs://b/a": {
        **{"0": None, "0.001": None, "0.01": "=0.01 ", "1.5": "=1.5 "},
        **{"999999": "=999999 ", "1000000": None, "1.": None, ".5": None},
    },
    "tpu_vm create a --zone=z --type={} --dry_run": {
        **{"v3-8": "=v3-8 ", "v3-08": "=v3-8 ", "v3-32": "-pod-"},
        **{"v3-0": None, "v3-2048": "=v3-2048 ", "v3-4096": None},
        **{"v5p-8": "=v5p-8 ", "v5p-16": "-pod-", "v5p-999999999": None},
        **{"v3-99999999999999999999": None, "v3": None, "3-8": None},
    },
}


@pytest.mark.parametrize("line", _LIMITS)
def test_limits_of_values(project, line):
    for value, printed in _LIMITS[line].items():
        done = project.run(*_words(line.replace("{}", value)))
        if printed is None:
            assert done.returncode == 2, (value, done.stdout)
            assert done.stderr.count("\n") == 1 and done.stdout == ""
        else:
            assert done.returncode == 0, (value, done.stderr)
            assert printed in done.stdout, value
    # It asks which server there is, and starts none.
    assert {*map(tuple, project.calls())} <= {("docker", "info")}


def test_dry_run_of_the_data_service_prints_its_servers(project):
    words = ["launch/data_service", "--port=7000", "--workers=1", "--host=a"]
    dry = project.run(*words, "--dry_run")
    assert dry.returncode == 0 and project.calls() == []
    # The dispatcher prints its address and waits; the worker exits at once.
    project.fake(
        project.folder / ".venv" / "bin" / "python",
        'if "--port=7000" in sys.argv:'
        ' print("grpc://a:7000", flush=True); __import__("time").sleep(3)',
    )
    assert project.run(*words).returncode == 1
    calls = sorted(project.calls())
    assert [call[-1] for call in calls] == ["--port=7001", "--port=7000"]
    assert project.run("bash", "-ec", dry.stdout).returncode == 0
    assert sorted(project.calls()) == calls
    free = project.run("launch/data_service", "--port=0", "--dry_run").stdout
    assert free.count("--dispatcher=localhost:PORT") == 2


def test_limits_of_the_data_services_ports(project):
    for words, status in {
        # The fake servers exit at once.
        "--port=65533": 1,
        "--port=65534": 2,
        "--port=065534 --workers=1": 1,
        "--port=0 --workers=0": 1,
        "--dispatcher=a:0": 2,
        "--dispatcher=a:65535": 1,
        "--dispatcher=a:65536": 2,
        "--dispatcher=a": 2,
        "--port=65536 --workers=0": 2,
        "--workers=65536 --port=0": 2,
    }.items():
        done = project.run("launch/data_service", *words.split())
        assert done.returncode == status, (words, done.stderr)
        assert bool(project.calls()) == (status == 1)


@pytest.mark.parametrize("script", ["data_service", "quickstart", "test"])
def test_help_installs_and_runs_nothing(project, script):
    launch_project.executable(
        project.folder / "launch" / "install", "#!/bin/sh\nexit 1\n"
    )
    done = project.run(f"launch/{script}", "--help")
    assert done.returncode == 0, done.stderr
    assert f"Use: launch/{script} " in done.stdout
    assert project.calls() == []


def test_help_of_install_installs_nothing(tmp_path):
    shutil.copytree(_ROOT / "launch", tmp_path / "launch")
    done = subprocess.run(
        [tmp_path / "launch" / "install", "--help"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Use: launch/install " in done.stdout
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(
    ("quick", "slow", "status"),
    [(0, 5, 0), (5, 0, 0), (1, 0, 1), (0, 1, 1), (1, 5, 1), (5, 5, 5)],
)
def test_all_tests_fail_if_none_was_selected(project, quick, slow, status):
    project.fake(
        project.folder / ".venv" / "bin" / "python",
        'if "pytest" in sys.argv:'
        f' sys.exit({quick} if "not slow" in sys.argv else {slow})',
    )
    done = project.run("launch/test", "--all", "-k", "name")
    assert done.returncode == status, done.stderr


def test_each_part_of_the_tests_has_a_report_of_its_own(project):
    assert project.run("launch/test", "--all", "--junit-xml=a.xml").stderr == ""
    calls = [call for call in project.calls() if "pytest" in call]
    selected = [call[call.index("-m", 2) + 1] for call in calls]
    assert selected == ["not slow", "slow and half1", "slow and half2"]
    reports = [call[-1] for call in calls]
    assert reports == [f"--junit-xml=a.{part}.xml" for part in (1, 2, 3)]


def test_every_test_is_in_one_half():
    import conftest

    class Item:
        def __init__(self, name):
            self.path = _ROOT / "tests" / name
            self.marks = set()

        def add_marker(self, mark):
            self.marks.add(mark)

        def get_closest_marker(self, mark):
            return mark if mark in self.marks else None

    names = ["flags_test.py", "drills/serve_test.py", "drills/export_test.py"]
    items = [Item(name) for name in names + names]
    conftest.pytest_collection_modifyitems(items)
    assert [item.path.name for item in items[-2:]] == ["flags_test.py"] * 2
    halves = [item.marks & {"half1", "half2"} for item in items]
    assert all(len(half) == 1 for half in halves)
    assert {frozenset(half) for half in halves} == {
        frozenset({"half1"}),
        frozenset({"half2"}),
    }
    of_files = {
        (item.path, *half) for item, half in zip(items, halves, strict=True)
    }
    assert len(of_files) == len(names)


# ---- SLURM -------------------------------------------------------------------


def _batch(project, *flags):
    """Returns what `launch/slurm` lets sbatch run."""
    words = ["launch/slurm", "--nodes=1", *flags, "pretrain", _AWKWARD]
    project.calls()
    assert project.run(*words).returncode == 0
    ((*_, wrapped),) = project.calls()
    return wrapped.removeprefix("--wrap=")


@pytest.mark.parametrize(
    ("task", "restarts", "status", "requeued"),
    [
        (0, "", 0, False),
        (42, "", 42, True),
        (137, "1", 137, True),
        # The limit of 3.
        (42, "2", 42, True),
        (42, "3", 42, False),
        # A worker that failed by itself, and others that end for lack of it.
        (2, "", 2, False),
        (1, "", 1, False),
        (134, "", 134, False),
    ],
)
def test_a_job_is_queued_again_if_its_run_was_saved(
    project, task, restarts, status, requeued
):
    # A fake srun of two tasks, whose status is the larger one. The first ends
    # with 42, unless both succeed.
    project.fake(
        project.bin / "srun",
        """
import subprocess
words = sys.argv[1:]
shell = words[words.index("sh") : words.index("task") + 1]
second = int(os.environ["TASK"])
statuses = [
    subprocess.call([*shell, "sh", "-c", f"exit {each}"])
    for each in (42 if second else 0, second)
]
sys.exit(max(statuses))
""",
    )
    project.fake(project.bin / "scontrol")
    script = _batch(project, "--requeue=3")
    variables = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c"}
    if restarts:
        variables["SLURM_RESTART_COUNT"] = restarts
    done = project.run("sh", "-c", script, TASK=str(task), **variables)
    assert done.returncode == status, done.stderr
    calls = [c for c in project.calls() if c[0] == "scontrol"]
    assert calls == [["scontrol", "requeue", "7"]] * requeued


def test_the_attempts_of_a_job_differ(project):
    project.fake(
        project.bin / "srun", 'print(os.environ["TF_CONTRASTIVE_ATTEMPT"])'
    )
    for flags in ((), ("--requeue=1",)):
        script = _batch(project, *flags)
        jobs = {}
        for job, count in (("7", None), ("7", "1"), ("8", None)):
            variables = {"SLURM_JOB_ID": job, "SLURM_CLUSTER_NAME": "c"}
            if count:
                variables["SLURM_RESTART_COUNT"] = count
            out = project.run("sh", "-c", script, **variables).stdout.strip()
            jobs.setdefault(out.rpartition("/")[0], set()).add(out)
        assert sorted(map(len, jobs.values())) == [1, 2]


def test_a_task_of_slurm_saves_after_the_signal(project):
    # All processes of a task get the signal.
    script = _batch(project, "--requeue=1")
    task = shlex.split(script.split("\nsrun ")[1].rpartition("\nstatus=")[0])
    shell = task[task.index("sh") : task.index("task") + 1]
    run = subprocess.Popen(
        [*shell, sys.executable, "-c", _SAVES],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert run.stdout.readline() == b"ready\n"
    os.killpg(run.pid, signal.SIGTERM)
    assert run.communicate(timeout=60)[0] == b"saved\n"
    assert run.returncode == 42


_SAVES = """
import os, signal, time
def save(*_):
    time.sleep(0.3)
    # print is not reentrant, and the signal may have interrupted one.
    os.write(1, b"saved\\n")
    os._exit(42)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(60)
"""

# ---- Modules -----------------------------------------------------------------


@pytest.mark.slow
def test_a_module_runs_without_the_lines_of_tensorflows_start(tmp_path):
    (tmp_path / "module.py").write_text(
        "import sys, tensorflow\nprint(__name__, sys.argv[1:])\nsys.exit(3)\n"
    )
    path = (str(tmp_path), str(_ROOT), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "launch/run_module.py", "module", "a b", "--c"],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "__main__ ['a b', '--c']\n"


# ---- TensorBoard -------------------------------------------------------------


def test_tensorboard_finds_runs(project):
    for run in ("runs/a", "runs/group/b"):
        (project.folder / run / "events").mkdir(parents=True)
    done = project.run("launch/tensorboard")
    assert "2 run(s)" in done.stderr and done.stderr.endswith("a group/b\n")
    (call,) = project.calls()
    assert call[1:] == [
        "launch/run_module.py",
        "tensorboard.main",
        f"--logdir={project.folder}/runs",
        "--port=6006",
        "--host=localhost",
    ]
    # A relative folder is relative to the caller.
    done = subprocess.run(
        [project.folder / "launch" / "tensorboard", "b"],
        cwd=project.folder / "runs" / "group",
        env=project.environment(),
    )
    assert done.returncode == 0
    (call,) = project.calls()
    assert f"--logdir={project.folder}/runs/group/b" in call
    done = project.run("launch/tensorboard", "nowhere")
    assert done.returncode == 1
    assert "no run under" in done.stderr and project.calls() == []


# ---- Several workers ---------------------------------------------------------


def test_hosts_get_their_tf_config(project):
    done = project.run(
        "launch/multiworker", "--hosts=a,b:99", "pretrain", _AWKWARD
    )
    lines = done.stdout.splitlines()
    assert lines[::2] == ["# on a:", "# on b:"]
    for index, line in enumerate(lines[1::2]):
        cd, folder, also, env, tf_config, *command = shlex.split(line)
        assert (cd, folder, also) == ("cd", str(project.folder), "&&")
        assert env == "env"
        name, _, value = tf_config.partition("=")
        workers = cluster.from_environment({name: value})
        assert workers.rank == index
        assert [x for _, x in workers.tasks] == ["a:2222", "b:99"]
        assert command == [
            ".venv/bin/python",
            "-m",
            "tf_contrastive",
            "pretrain",
            _AWKWARD,
        ]
    assert project.calls() == []
    lines = project.run("launch/multiworker", "--hosts=a,b:99").stdout
    exported = project.run("bash", "-c", f"{lines}\nprintenv TF_CONFIG")
    assert exported.stdout.strip() == value


_WORKER = """
import signal, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("arguments", sys.argv[-1], flush=True)
print("noise", file=sys.stderr, flush=True)
"""


def _workers(project, then):
    project.fake(project.folder / ".venv" / "bin" / "python", _WORKER + then)


def test_output_of_workers_is_labelled(project):
    _workers(
        project,
        """
with open(os.environ["CONFIGS"], "a") as file:
    file.write(os.environ["TF_CONFIG"] + "\\n")
""",
    )
    words = ["--workers=3", "--port=4000", "pretrain", _AWKWARD]
    dry = project.run("launch/multiworker", "--dry_run", *words)
    assert project.calls() == []
    runs = []
    configs = project.folder / "configs.txt"
    done = project.run("launch/multiworker", *words, CONFIGS=str(configs))
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        tf_configs = configs.read_text().splitlines()
        configs.unlink()
        runs.append((sorted(tf_configs), project.calls()))
        project.run("bash", "-ec", dry.stdout, CONFIGS=str(configs))
    assert runs[0] == runs[1]
    lines = [f"[{i}] arguments {_AWKWARD}" for i in range(3)]
    assert sorted(done.stdout.splitlines()) == lines
    noise = [f"[{i}] noise" for i in range(3)]
    assert sorted(done.stderr.splitlines()) == noise


def test_a_worker_that_fails_stops_the_others(project):
    _workers(
        project,
        """
if index == 1:
    time.sleep(0.5)
    sys.exit(5)
def save(*_):
    print("saved", flush=True)
    sys.exit(42)
signal.signal(signal.SIGTERM, save)
time.sleep(90)
""",
    )
    done = project.run("launch/multiworker", "--workers=3", "pretrain")
    assert done.returncode == 5
    assert "worker 1 exited with status 5" in done.stderr
    assert {"[0] saved", "[2] saved"} <= set(done.stdout.splitlines())


def test_a_worker_that_does_not_stop_is_killed(project):
    _workers(
        project,
        """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(0.5)
if index == 0:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(90)
""",
    )
    done = project.run("launch/multiworker", "--patience=1", "pretrain")
    assert done.returncode == 128 + signal.SIGKILL
    assert "worker 0 exited with status 137" in done.stderr
    assert "worker 1 exited with status 137" in done.stderr


def test_an_interrupt_stops_all_workers(project):
    _workers(
        project,
        """
print("pid", os.getpid(), flush=True)
time.sleep(90)
""",
    )
    process = subprocess.Popen(
        ["launch/multiworker", "pretrain"],
        cwd=project.folder,
        env=project.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = []
    while len(pids) < 2:
        words = process.stdout.readline().split()
        if words[1] == "pid":
            pids.append(int(words[2]))
    # Ctrl-C sends the signal to all processes in the foreground.
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return port - 1 if port == 65535 else port


@pytest.mark.slow
def test_two_workers_train_one_run(tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    flags = {
        "dataset": "digits",
        "split": "train[:192]",
        "image_size": 8,
        "augmentation": "crop",
        "encoder": "resnet10",
        "width": 0.0625,
        "projection_output": 16,
        "loss": "supcon",
        "batch_size": 64,
        "epochs": 1,
        "warmup_epochs": 0,
        "workdir": tmp_path / "run",
        **small.UNWATCHED,
    }
    done = subprocess.run(
        [
            "launch/multiworker",
            f"--port={_free_port()}",
            "pretrain",
            *(f"--{name}={value}" for name, value in flags.items()),
        ],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "on 2 replica(s)" in done.stderr
    # Only the first worker reports and keeps its files.
    lines = done.stdout.splitlines()
    assert not [line for line in lines if line.startswith("[1]")]
    assert "[0] steps" in done.stdout
    names = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert "ckpt-3.index" in names
    assert not [name for name in names if "worker" in name or "temp" in name]
    # The other one's temporary files are gone. (A drill compares the weights.)
    assert not list(folder.glob("tf_contrastive_worker_*"))
