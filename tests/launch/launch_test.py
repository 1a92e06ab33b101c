"""The launch scripts: the commands they run, and runs on several workers."""

import os
import random
import re
import shlex
import shutil
import signal
import sys

import processes
import pytest
from processes import ROOT

from tf_contrastive.distribution import cluster

_SCRIPTS = sorted(
    path.name
    for path in (ROOT / "launch").iterdir()
    if not path.suffix and path.read_bytes().startswith(b"#!/usr/bin")
)


# ---- All of them -------------------------------------------------------------


@pytest.mark.skipif(
    not shutil.which("shellcheck"), reason="shellcheck is not installed"
)
def test_scripts_are_clean_by_shellcheck():
    scripts = [f"launch/{name}" for name in (*_SCRIPTS, "commands.sh")]
    processes.run(["shellcheck", "-x", *scripts, ".ci/run"])


_AWKWARD = '--data_dir=gs://b/it\'s a $HOME; "x" *'
_RUNS = [
    "tpu_vm create pod-1 --zone=z-1 --type=v3-32 --spot --project=p",
    "tpu_vm install pod-1 --zone=z-1",
    "tpu_vm run a --zone=z-1 --type=v3-32 pretrain --workdir=gs://b AWKWARD",
    "tpu_vm stop a --zone=z-1",
    "slurm --nodes=4 --tasks_per_node=2 --name=n --log=l --sbatch=--qos=high"
    " --sbatch=--mem=9G pretrain --workdir=w AWKWARD",
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
    line = processes.run(quote).stdout
    # /bin/sh is dash on Debian, and runs what sbatch wraps.
    read = processes.run(["sh", "-c", f"printf '%s\\0' {line}"]).stdout
    assert read.split("\0")[:-1] == words


@pytest.mark.parametrize("line", _RUNS)
def test_dry_run_prints_the_commands_that_would_run(project, line):
    script, *words = _words(line)
    at = 2 if "tpu_vm" in script else 0
    dry = project.run(script, *words[:at], "--dry_run", *words[at:], status=0)
    assert project.calls() == []
    project.run(script, *words, status=0)
    calls = project.calls()
    assert calls
    # The printed lines do the same in a shell.
    project.run("bash", "-ec", dry.stdout, status=0)
    assert project.calls() == calls
    # A command that fails ends the script with its status.
    project.run(script, *words, status=3, FAKE_STATUS="3")
    assert len(project.calls()) == 1


_MISUSES = {
    "tpu_vm": "no task",
    "tpu_vm create a --zon=z": "--zon=z",
    "tpu_vm create a --type=v3-8": "--zone",
    "tpu_vm create a --zone=z --type=v3-8 --spot --flex_start=4h": "--spot",
    "tpu_vm run a --zone=z --type=v3-32 x --workdir=runs/a": "--workdir=runs/a",
    "tpu_vm run a --zone=z --type=v3-32 x --workdir a": "--workdir=a",
    "multiworker": "no command",
    "multiworker --worker=2 pretrain": "--worker=2",
    "multiworker --workers=2 --hosts=a,b": "--workers and --hosts",
    "multiworker --port=65535 pretrain": "--port=65535",
    "slurm --requeue=3 --now pretrain": "--requeue",
    "kubernetes --image=i pretrain --workdir=runs/a": "--workdir=runs/a",
    "kubernetes --image=i pretrain --workdir=/data/a": "--claim",
    "kubernetes --image=i pretrain --workdir runs/a": "--workdir=runs/a",
    "kubernetes --image=i --tpu=v5litepod-16 pretrain": "v5litepod-16",
    "kubernetes --image=i --tpu=v4-8 --nodes=2 pretrain": "--nodes",
    "serve": "no folder of an export",
    "serve --port=1 a": "--port=1",
    "serve --grpc_port=8501 gs://b/a": "8501",
    "tpu_vm_host logs --folow": "--folow",
    "tensorboard a b": "argument b",
}


def test_a_misuse_gets_one_line_and_status_2(project):
    for line, argument in _MISUSES.items():
        done = project.run(*_words(line), status=2)
        (error,) = done.stderr.splitlines()
        assert argument in error
        assert f"{line.split()[0]} " in error
        assert done.stdout == ""
    assert project.calls() == []


def test_a_program_is_missed_before_anything_is_installed(project):
    project.fake(project.folder / "launch" / "install")
    for name in ("bash", "dirname", "env", "tr", "awk", "sed", "cat"):
        (project.bin / name).symlink_to(shutil.which(name))
    (project.bin / "sbatch").unlink()
    # A machine that has nothing else.
    words = ("launch/slurm", "pretrain", "--workdir=w")
    done = project.run(*words, status=2, PATH=str(project.bin))
    assert "sbatch was not found" in done.stderr
    assert done.stderr.count("\n") == 1 and project.calls() == []


def test_flags_are_checked_before_a_job_is_queued(project):
    (project.folder / ".venv" / "installed").touch()
    for line in (
        "slurm",
        "slurm --now",
        "kubernetes --image=a/b:c",
        "tpu_vm run pod-1 --zone=z --type=v5litepod-8",
        "multiworker",
    ):
        words = _words(f"{line} pretrain --datset=x")
        project.run(*words, status=2, FAKE_STATUS="2")
        call = ["python", "launch/check_flags.py", "pretrain", "--datset=x"]
        assert project.calls() == [call], line


@pytest.mark.parametrize(
    ("flag", "status"),
    [
        # What is not here is not checked.
        ("--flagfile=/data/own.flags", 0),
        ("--loss=module:loss", 0),
        ("--loss module:loss", 0),
        ("--epochs=-1", 2),
        # Names of this package.
        ("--encoder=keras:ResNet50 --epochs=-1", 2),
        ("--augmentation=ablation:blur --dataset=folder:a --epochs=-1", 2),
        ("--init_from=pretrained:digits-supcon-resnet10 --epochs=-1", 2),
        ("--init_from=s3://b/r", 2),
    ],
)
def test_flags_are_checked_where_they_can_be(flag, status, tmp_path):
    check = [sys.executable, ROOT / "launch" / "check_flags.py", "pretrain"]
    done = processes.run(
        [*check, "--workdir=w", *flag.split()], status=status, cwd=tmp_path
    )
    assert done.stderr.count("\n") == (status != 0)
    assert not list(tmp_path.iterdir())


# ---- Values ------------------------------------------------------------------

# A complete command line of each script, except a flag in place of {}.
_LINES = {
    "install": "{}",
    "kubernetes": "--image=i {} --dry_run a",
    "multiworker": "--workers=1 {} --dry_run pretrain",
    "serve": "{} --dry_run gs://b/a",
    "slurm": "{} --dry_run pretrain",
    "tensorboard": "{} --dry_run gs://b/a",
    "tpu_vm": "run a --zone=z --type=v3-8 {} --dry_run b",
}
# Except another argument.
_ARGUMENTS = {
    "serve": "--dry_run {}",
    "tensorboard": "--dry_run {}",
    "tpu_vm": "stop {} --zone=z",
}
# Where bash expects a number, it runs the command in the brackets.
_SHELL = (
    *("PATH[$(touch canary)]", "a:PATH[$(touch canary)]"),
    *("a`touch canary`", "a;touch canary"),
)
_NEVER = ("a\ntouch canary", "a\x1b[2J")
# Any text of one line.
_TEXTS = {"--log", "--sbatch", "--wheel", "serve", "tensorboard"}


@pytest.mark.parametrize("script", _LINES)
def test_no_value_runs_a_command(project, script):
    source = (ROOT / "launch" / script).read_text()
    shutil.copy(ROOT / "launch" / script, project.folder / "launch")
    flags = re.findall(r"^ *(--[\w-]+)=\*\)", source, re.M)
    shown = project.run(f"launch/{script}", "-h").stdout
    assert flags and all(f"{flag}=" in shown for flag in flags)
    places = [(flag, _LINES[script], f"{flag}=") for flag in flags]
    if script in _ARGUMENTS:
        places.append((script, _ARGUMENTS[script], ""))
    for name, line, before in places:
        for value in (*_SHELL, *_NEVER):
            words = [before + value if x == "{}" else x for x in line.split()]
            done = project.run(f"launch/{script}", *words)
            assert not (project.folder / "canary").exists(), (name, value)
            if value in _NEVER or name not in _TEXTS:
                assert done.returncode == 2, (name, value)
                assert name in done.stderr and done.stderr.count("\n") == 1
    assert project.calls() == [] or script == "serve"  # Which asks for Docker.


# Command line -> value -> what is printed, or None if it is refused.
_FORMS = {
    "multiworker --hosts={}": {
        **{"a:1,b": '["a:1", "b:2222"]', "a:08,[::1]": '["a:8", "[::1]:2222"]'},
        **dict.fromkeys(("a:0", "a:65536", "a,a", "a,", "::1", "-a", "a:")),
        **dict.fromkeys(("1.2.3.256", "a..b", "[::1", "a,,b")),
    },
    "slurm --time={} --dry_run pretrain": {
        **{"90": "--time=90 ", "2-08:00:00": "--time=2-08:00:00 "},
        **dict.fromkeys(("1:1:1:1", "2-", "1h")),
    },
    "slurm --gpus_per_task={} --dry_run pretrain": {
        "0": "--cpus-per-task=4 ",
        "08": "--gpus-per-task=8 --cpus-per-task=64 ",  # Not octal.
        **dict.fromkeys(("", "-1", "0x10", "1+1", "1.5", "\u0661", "PATH")),
        str(2**64 + 1): None,
    },
    "kubernetes --image=i --name={} --dry_run a": {
        **{"a" * 40: "  name: a", "a" * 41: None, "A": None},
    },
    "serve --memory={} --dry_run gs://b/a": {
        **{"8g": "--memory=8g ", "0": None, "8t": None, "9999999999": None},
    },
    "serve --host={} --dry_run gs://b/a": {
        **{"[::]": "[::]:8500", "localhost": None, "1.2.3": None},
    },
    "tpu_vm create a --zone=z --type={} --dry_run": {
        "v3-8": "=v3-8 --version=tpu-vm-tf-2.17.1-pjrt ",
        "v4-32": "--version=tpu-vm-tf-2.17.1-pod-pjrt ",
        "v6e-8": "--version=tpu-vm-tf-2.18.0-pjrt-v5e-and-v6 ",
        "v6e-16": "--version=tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6 ",
        **dict.fromkeys(("v3-9", "v3-4096", "v5p-12", "v5e-8", "v7x-8", "v3")),
    },
}


@pytest.mark.parametrize("line", _FORMS)
def test_values_have_forms(project, line):
    for value, printed in _FORMS[line].items():
        status = 2 * (printed is None)
        done = project.run(*_words(line.replace("{}", value)), status=status)
        if printed is None:
            assert done.stderr.count("\n") == 1 and done.stdout == ""
        else:
            assert printed in done.stdout, value


# ---- TensorBoard -------------------------------------------------------------


def test_tensorboard_finds_runs(project):
    (project.folder / "runs/group/b/events").mkdir(parents=True)
    # A relative folder is relative to the caller.
    go = f"cd runs/group && {project.folder}/launch/tensorboard b"
    project.run("bash", "-c", go, status=0)
    (call,) = project.calls()
    assert f"--logdir={project.folder}/runs/group/b" in call
    assert "--host=localhost" in call
    done = project.run("launch/tensorboard", "nowhere", status=1)
    assert "no run under" in done.stderr and project.calls() == []


# ---- SLURM -------------------------------------------------------------------


def _batch(project, *flags):
    """Returns what `launch/slurm` lets sbatch run."""
    words = ["launch/slurm", "--nodes=1", *flags, "pretrain", _AWKWARD]
    project.calls()
    project.run(*words, status=0)
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
    variables["TASK"] = str(task)
    project.run("sh", "-c", script, status=status, **variables)
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
    script = _batch(project, "--requeue=1")
    task = shlex.split(script.split("\nsrun ")[1].rpartition("\nstatus=")[0])
    shell = task[task.index("sh") : task.index("task") + 1]
    with processes.start([*shell, *processes.python(processes.SAVES)]) as run:
        run.until("ready")
        # All processes of a task get the signal.
        os.killpg(run.pid, signal.SIGTERM)
        assert run.ended() == 42
        assert run.output == "ready\nsaved after SIGTERM\n"


# ---- Several workers ---------------------------------------------------------


def test_hosts_get_their_tf_config(project):
    words = ["--hosts=a,b:99", "pretrain", _AWKWARD]
    lines = project.run("launch/multiworker", *words).stdout.splitlines()
    assert lines[::2] == ["# on a:", "# on b:"]
    for index, line in enumerate(lines[1::2]):
        *go, tf_config, python, _, package = shlex.split(line)[:8]
        assert go == ["cd", str(project.folder), "&&", "env"]
        workers = cluster.from_environment(dict([tf_config.split("=", 1)]))
        assert workers.rank == index
        assert [x for _, x in workers.tasks] == ["a:2222", "b:99"]
        assert (python, package) == (".venv/bin/python", "tf_contrastive")
        assert shlex.split(line)[8:] == ["pretrain", _AWKWARD]
    assert project.calls() == []


_WORKER = """
import signal, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("arguments", sys.argv[-1], flush=True)
print("noise", file=sys.stderr, flush=True)
def ready(number, handler):
    signal.signal(number, handler)
    open(f"ready-{index}", "w").close()
def wait_for(*others):
    while not all(os.path.exists(f"ready-{i}") for i in others):
        time.sleep(0.01)
"""


def _workers(project, then):
    project.fake(project.folder / ".venv" / "bin" / "python", _WORKER + then)


def test_output_of_workers_is_labelled(project):
    _workers(project, "print(os.environ['TF_CONFIG'])")
    words = ["--workers=3", "--port=4000", "pretrain", _AWKWARD]
    done = project.run("launch/multiworker", *words, status=0)
    lines = sorted(done.stdout.splitlines())
    assert lines[::2] == [f"[{i}] arguments {_AWKWARD}" for i in range(3)]
    for index, line in enumerate(lines[1::2]):
        workers = cluster.from_environment({"TF_CONFIG": line[4:]})
        assert workers.rank == index
        addresses = [address for _, address in workers.tasks]
        assert addresses == [f"127.0.0.1:{4000 + i}" for i in range(3)]
    noise = [f"[{i}] noise" for i in range(3)]
    assert sorted(done.stderr.splitlines()) == noise


def test_a_worker_that_fails_stops_the_others_at_last_by_sigkill(project):
    _workers(
        project,
        """
def save(*_):
    os.write(1, b"saved\\n")
    os._exit(42)
if index == 1:
    wait_for(0, 2)
    sys.exit(5)
ready(signal.SIGTERM, save if index == 0 else signal.SIG_IGN)
signal.pause()
""",
    )
    words = ["launch/multiworker", "--workers=3", "--patience=5", "pretrain"]
    done = project.run(*words, status=5)
    assert "[0] saved" in done.stdout.splitlines()
    for index, status in enumerate((42, 5, 128 + signal.SIGKILL)):
        ended = f"worker {index} exited with status {status}\n"
        assert ended in done.stderr


def test_an_interrupt_stops_all_workers(project):
    _workers(project, 'print("pid", os.getpid(), flush=True)\nsignal.pause()\n')
    where = {"cwd": project.folder, "env": project.environment()}
    words = ("launch/multiworker", "pretrain")
    with processes.start(words, **where) as run:
        pids = [int(run.until("pid").split()[-1]) for _ in range(2)]
        # Ctrl-C sends the signal to all processes in the foreground.
        os.killpg(run.pid, signal.SIGINT)
        assert run.ended() == 128 + signal.SIGTERM
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("bin/docker", ["serve", "models"]),
        ("bin/srun", ["slurm", "--now", "pretrain", "--workdir=w"]),
        (".venv/bin/python", ["tensorboard", "runs"]),
    ],
)
def test_a_program_that_stays_takes_the_scripts_place(program, words, project):
    """So that it gets the signals of whoever started the script."""
    (project.folder / "models" / "1").mkdir(parents=True)
    (project.folder / "models" / "1" / "saved_model.pb").touch()
    (project.folder / "runs" / "events").mkdir(parents=True)
    project.fake(project.folder / program, "print(os.getpid())")
    done = project.run("bash", "-c", 'echo $$; exec "launch/$0" "$@"', *words)
    assert done.returncode == 0, done.stderr
    own, *_, last = done.stdout.splitlines()
    assert own == last
