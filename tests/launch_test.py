"""What the launch scripts run, and how a run on several workers ends."""

import ast
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import small
from packaging import requirements, utils

from tf_contrastive.distribution import cluster

_ROOT = Path(__file__).absolute().parents[1]
_SCRIPTS = sorted(
    path.name
    for path in (_ROOT / "launch").iterdir()
    if path.suffix == ".sh" or path.read_text("utf-8").startswith("#!/usr/bin")
)

# Stands in for a program: writes its arguments down, as it was called.
_RECORD = """#!{python}
import json, os, sys
with open({calls!r}, "a") as file:
    name = os.path.basename(sys.argv[0])
    file.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
{then}
sys.exit(int(os.environ.get("STUB_STATUS", 0)))
"""


def _executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


class _Project:
    """A copy of the project in which gcloud, sbatch and srun are recorded."""

    def __init__(self, folder):
        self.folder = folder
        self.calls_file = folder / "calls"
        self.bin = folder / "bin"
        for name in ("setup.py", "pyproject.toml", "README.md"):
            shutil.copy(_ROOT / name, folder)
        shutil.copy(_ROOT / "constraints-tpu.txt", folder)
        for name in ("launch", "configs", "tf_contrastive"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
        _executable(folder / "launch" / "install", "#!/bin/sh\n")
        for name in ("gcloud", "sbatch", "srun"):
            self.stub(self.bin / name)
        self.stub(folder / ".venv" / "bin" / "python")

    def stub(self, path, then=""):
        _executable(
            path,
            _RECORD.format(
                python=sys.executable, calls=str(self.calls_file), then=then
            ),
        )

    def environment(self, **variables):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SLURM_", "TPU_", "TF_CONFIG"))
        }
        path = f"{self.bin}:{os.environ['PATH']}"
        return {**kept, "PATH": path, **variables}

    def run(self, *words, **variables):
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=100,
        )

    def calls(self):
        """What the stand-ins were called with since the last time."""
        if not self.calls_file.exists():
            return []
        lines = self.calls_file.read_text().splitlines()
        self.calls_file.unlink()
        return [json.loads(line) for line in lines]


@pytest.fixture
def project(tmp_path):
    return _Project(tmp_path)


# ---- All of them -------------------------------------------------------------


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="no shellcheck here")
@pytest.mark.parametrize("script", _SCRIPTS)
def test_script_is_clean_by_shellcheck(script):
    done = subprocess.run(
        ["shellcheck", "-x", f"launch/{script}"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


_TPU = "--zone=z-1"
_AWKWARD = '--data_dir=gs://b/it\'s a $HOME; "x" *'
_RUNS = [
    f"tpu_vm create pod-1 {_TPU} --type=v3-32 --spot --project=p",
    f"tpu_vm create a {_TPU} --type=v5litepod-4 --version=tpu-vm-tf-2.15.1",
    f"tpu_vm install pod-1 {_TPU}",
    f"tpu_vm run pod-1 {_TPU} --type=v3-32 pretrain --workdir=gs://b/a AWKWARD",
    f"tpu_vm run a {_TPU} --type=v5p-8 pretrain --workdir=w AWKWARD",
    f"tpu_vm run a {_TPU} --type=v2-8 evaluate --workdir=w",
    f"tpu_vm logs a {_TPU} --follow",
    f"tpu_vm stop a {_TPU}",
    f"tpu_vm delete a {_TPU}",
    "slurm pretrain --workdir=w AWKWARD",
    "slurm --nodes=4 --tasks_per_node=2 --gpus_per_task=4 --cpus_per_task=8"
    " --time=1:00:00 --name=n --log=l --sbatch=--qos=high --sbatch=--mem=9G"
    " pretrain --workdir=w",
    "slurm --now --cpus_per_task=8 pretrain --workdir=w AWKWARD",
    "tensorboard --port=6007 --all_hosts gs://b/runs",
]


def _words(line):
    script, *words = line.split()
    words = [_AWKWARD if word == "AWKWARD" else word for word in words]
    return [f"launch/{script}", *words]


@pytest.mark.parametrize("line", _RUNS)
def test_dry_run_prints_what_would_run(project, line):
    script, *words = _words(line)
    at = 2 if "tpu_vm" in script else 0
    dry = project.run(script, *words[:at], "--dry_run", *words[at:])
    assert dry.returncode == 0, dry.stderr
    assert project.calls() == []
    done = project.run(script, *words)
    assert done.returncode == 0, done.stderr
    calls = project.calls()
    assert calls
    # Pasted into a shell, it does the same.
    pasted = project.run("bash", "-ec", dry.stdout)
    assert pasted.returncode == 0, pasted.stderr
    assert project.calls() == calls
    words = [shlex.split(line) for line in dry.stdout.splitlines()]
    recorded = [[Path(w[0]).name, *w[1:]] for w in words]
    assert [w for w in recorded if w[0] not in ("mkdir", "tar")] == calls


@pytest.mark.parametrize("line", _RUNS)
def test_a_failure_s_status_is_passed_on_at_once(project, line):
    done = project.run(*_words(line), STUB_STATUS="3")
    assert done.returncode == 3
    assert len(project.calls()) == 1


_MISUSES = [
    ("tpu_vm", "nothing to do is given"),
    ("tpu_vm launch a", "unknown argument launch"),
    ("tpu_vm create a --zon=z", "unknown argument --zon=z"),
    ("tpu_vm create A --zone=z --type=v3-8", "'A' is no name of a TPU"),
    ("tpu_vm create a --type=v3-8", "--zone is not given"),
    ("tpu_vm create a --zone=z", "--type='' is no type of a TPU"),
    ("tpu_vm delete a b --zone=z", "unknown argument b"),
    ("tpu_vm run a --zone=z --type=v3-8", "no command is given"),
    (
        "tpu_vm run a --zone=z --type=v3-32 pretrain --workdir=runs/a",
        "--workdir=runs/a: the hosts of a pod share no disk",
    ),
    ("multiworker", "no command is given"),
    ("multiworker --worker=2 pretrain", "unknown argument --worker=2"),
    ("multiworker --workers=two pretrain", "--workers=two is no number"),
    ("multiworker --workers=2 --hosts=a,b", "exclude each other"),
    ("multiworker --hosts=a,/b", "is no list of HOST or HOST:PORT"),
    ("multiworker --port=65535 pretrain", "--port=65535 leaves no ports"),
    ("slurm", "no command is given"),
    ("slurm --node=2 pretrain", "unknown argument --node=2"),
    ("slurm --nodes=0 pretrain", "--nodes=0 is no number above 0"),
    ("slurm --gpus_per_task=x pretrain", "--gpus_per_task=x is no number"),
    ("tensorboard --port=x", "--port=x is no number"),
    ("tensorboard a b", "unknown argument b"),
    ("tensorboard --logdir=a", "unknown argument --logdir=a"),
]


@pytest.mark.parametrize(("line", "told"), _MISUSES)
def test_a_misuse_gets_one_line_and_status_2(project, line, told):
    done = project.run(*_words(line))
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert told in said
    assert f"launch/{line.split()[0]} " in said
    assert done.stdout == "" and project.calls() == []


@pytest.mark.parametrize(
    "script", ["tpu_vm", "multiworker", "slurm", "tensorboard"]
)
def test_help_tells_every_option(project, script):
    done = project.run(f"launch/{script}", "--help")
    assert done.returncode == 0
    text = (_ROOT / "launch" / script).read_text()
    options = set(re.findall(r"^ *(--\w+)(?:=\*)?\)", text, re.M))
    assert options and all(option in done.stdout for option in options)


# ---- TPU VMs -----------------------------------------------------------------

# Does on this machine, in a home of its own, what a TPU VM would do.
_VM = """
import subprocess
home = os.environ["VM_HOME"]
words = sys.argv[1:]
if "scp" in words:
    source, target = words[words.index("scp") + 1 :][:2]
    target = target.partition(":")[2]
    sys.exit(subprocess.call(["cp", source, os.path.join(home, target)]))
(command,) = [w[10:] for w in words if w.startswith("--command=")]
environment = {**os.environ, "HOME": home}
sys.exit(subprocess.call(["bash", "-c", command], cwd=home, env=environment))
"""
# pip installs nothing, but is asked.
_PIP = f"""
if sys.argv[1:3] == ["-m", "pip"]:
    for word, file in zip(sys.argv, sys.argv[1:]):
        if word == "-r":
            shutil = __import__("shutil")
            shutil.copy(file, os.environ["VM_HOME"])
    sys.exit(0)
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""


@pytest.fixture
def vm(project):
    """A project whose gcloud leads to a stand-in for a TPU VM: its home."""
    home = project.folder / "home"
    home.mkdir()
    project.stub(project.bin / "gcloud", _VM)
    project.stub(project.bin / "python3", _PIP)
    return home


def _on_vm(project, vm, *words):
    return project.run("launch/tpu_vm", *words, _TPU, VM_HOME=str(vm))


def _dependencies(names):
    """The distributions that need what is named, and what those need ..."""
    found, left = set(), list(names)
    while left:
        name = utils.canonicalize_name(left.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(requirements.Requirement, needs):
            if not need.marker or need.marker.evaluate({"extra": ""}):
                left.append(need.name)
    return found


def test_install_on_a_tpu_vm_cannot_touch_its_tensorflow(project, vm):
    done = _on_vm(project, vm, "install", "pod-1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "installed beside tensorflow 2.15" in done.stdout
    calls = project.calls()
    pip = [c for c in calls if c[:3] == ["python3", "-m", "pip"]]
    assert len(pip) == 2
    alone, beside = pip
    # Of this project by itself, nothing that it needs.
    assert "--no-deps" in alone
    assert alone[alone.index("-e") :] == ["-e", "."]
    # Of the rest, no one needs TensorFlow, and no pin names it.
    assert beside[beside.index("-c") :] == [
        *("-c", "constraints-tpu.txt", "-r", "requirements-tpu.txt")
    ]
    asked = [
        requirements.Requirement(line)
        for line in (vm / "requirements-tpu.txt").read_text().splitlines()
    ]
    (needed,) = [
        ast.literal_eval(node.value)
        for node in ast.parse((_ROOT / "setup.py").read_text()).body
        if isinstance(node, ast.Assign)
        and node.targets[0].id == "INSTALL_REQUIRES"
    ]
    assert {r.name for r in asked} | {"tensorflow"} == {
        requirements.Requirement(line).name for line in needed
    }
    wheels = {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"}
    assert not wheels & _dependencies(
        r.name for r in asked if not r.marker or r.marker.evaluate()
    )
    # No other of the commands installs anything.
    remote = [w for c in calls if c[0] == "gcloud" for w in c if "comm" in w]
    assert not [w for w in remote if re.search(r"\bpip\b|apt|conda", w)]


def test_install_on_an_image_of_another_tensorflow_is_refused(project, vm):
    then = """
if sys.argv[1] == "-c":
    print("2.16.1")
"""
    project.stub(project.bin / "python3", then)
    done = _on_vm(project, vm, "install", "pod-1")
    assert done.returncode == 1
    assert "this image has tensorflow 2.16.1, not 2.15" in done.stderr
    assert not [c for c in project.calls() if "pip" in c]


def _host(vm, *words, **options):
    return subprocess.Popen(
        ["bash", str(_ROOT / "launch" / "tpu_vm_host"), *words],
        env={**os.environ, "HOME": str(vm)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


_PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
print("it's", sys.argv[1:], flush=True)
time.sleep(float(sys.argv[1]))
print("over", file=sys.stderr)
sys.exit(7)
"""


def test_a_run_on_a_tpu_vm_outlives_its_connection(tmp_path):
    program = [sys.executable, "-c", _PROGRAM]
    run = _host(tmp_path, "run", *program, "0.5", "a b")
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 7
    assert out.splitlines() == ["it's ['0.5', 'a b']", "over"]

    run = _host(tmp_path, "run", *program, "99", start_new_session=True)
    assert run.stdout.readline() == "it's ['99']\n"
    again = _host(tmp_path, "run", "true")
    assert "a run is under way" in again.communicate(timeout=60)[1]
    assert again.returncode == 1
    # The connection is lost.
    os.killpg(run.pid, signal.SIGHUP)
    run.communicate(timeout=60)
    logs = _host(tmp_path, "logs")
    assert logs.communicate(timeout=60)[0] == "it's ['99']\n"
    following = _host(tmp_path, "logs", "--follow")
    stop = _host(tmp_path, "stop")
    assert "ended with status 42" in stop.communicate(timeout=60)[0]
    following.communicate(timeout=60)
    assert following.returncode == 42
    again = _host(tmp_path, "stop")
    assert "no run is under way" in again.communicate(timeout=60)[1]


# ---- TensorBoard -------------------------------------------------------------


def test_tensorboard_finds_runs(project):
    for run in ("runs/a", "runs/group/b"):
        (project.folder / run / "events").mkdir(parents=True)
    done = project.run("launch/tensorboard")
    assert "2 run(s)" in done.stderr and done.stderr.endswith("a group/b\n")
    (call,) = project.calls()
    assert call[1:] == [
        *("-m", "tensorboard.main", f"--logdir={project.folder}/runs"),
        *("--port=6006", "--host=localhost"),
    ]
    # One run by itself; a folder is that of the caller.
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
        env, tf_config, *command = shlex.split(line)
        assert env == "env"
        name, _, value = tf_config.partition("=")
        found = cluster.from_environment({name: value})
        assert found.rank == index
        assert [x for _, x in found.tasks] == ["a:2222", "b:99"]
        assert command == [
            *(".venv/bin/python", "-m", "tf_contrastive", "pretrain", _AWKWARD)
        ]
    assert project.calls() == []
    alone = project.run("launch/multiworker", "--hosts=a,b:99").stdout
    exported = project.run("bash", "-c", f"{alone}\nprintenv TF_CONFIG")
    assert exported.stdout.strip() == value


_WORKER = """
import signal, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("told", sys.argv[-1], flush=True)
print("noise", file=sys.stderr, flush=True)
"""


def _workers(project, then):
    project.stub(project.folder / ".venv" / "bin" / "python", _WORKER + then)


def test_workers_run_as_dry_run_says_and_their_output_is_told_apart(project):
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
    seen = []
    configs = project.folder / "configs.txt"
    done = project.run("launch/multiworker", *words, CONFIGS=str(configs))
    assert done.returncode == 0, done.stderr
    for _ in range(2):
        tf_configs = configs.read_text().splitlines()
        configs.unlink()
        seen.append((sorted(tf_configs), project.calls()))
        project.run("bash", "-ec", dry.stdout, CONFIGS=str(configs))
    assert seen[0] == seen[1]
    told = [f"[{i}] told {_AWKWARD}" for i in range(3)]
    assert sorted(done.stdout.splitlines()) == told
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
    assert "worker 1 ended with status 5" in done.stderr
    assert "stopping the others" in done.stderr
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
    assert "worker 0 ended with status 137" in done.stderr
    assert "worker 1 ended with status 137" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_all_workers(project, number):
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
    # As a terminal does it: to all that stand in its foreground.
    os.killpg(process.pid, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopping the workers" in told
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return port - 1 if port == 65535 else port


def _pretrain(workdir, folder, **changes):
    """A small run on two workers: three epochs of three steps."""
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
        "epochs": 3,
        "warmup_epochs": 1,
        "workdir": workdir,
        **small.UNWATCHED,
    } | changes
    return subprocess.Popen(
        [
            *("launch/multiworker", f"--port={_free_port()}", "pretrain"),
            *(f"--{name}={value}" for name, value in flags.items()),
        ],
        cwd=_ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_workers_train_one_run(tmp_path):
    folder = tmp_path / "temporary"
    process = _pretrain(tmp_path / "run", folder)
    out, told = process.communicate(timeout=400)
    assert process.returncode == 0, told
    assert "on 2 replica(s)" in told
    # The first worker alone reports and keeps what it wrote.
    assert not [line for line in out.splitlines() if line.startswith("[1]")]
    assert "[0] steps" in out
    names = {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()}
    assert "ckpt-9.index" in names
    assert not [name for name in names if "worker" in name or "temp" in name]
    # What the other one wrote beside is gone. (That it holds the same weights,
    # a drill tells.)
    assert not list(folder.glob("tf_contrastive_worker_*"))


@pytest.mark.slow
def test_when_a_worker_is_killed_all_end(tmp_path):
    process = _pretrain(tmp_path / "run", tmp_path / "temporary", epochs=9999)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith("[0] epoch 2"):
            break
    else:
        raise AssertionError("".join(lines))
    children = subprocess.run(
        ["pgrep", "-P", str(process.pid), "-f", "tf_contrastive"],
        capture_output=True,
        text=True,
        check=True,
    )
    pids = [int(pid) for pid in children.stdout.split()]
    assert len(pids) == 2
    os.kill(pids[1], signal.SIGKILL)
    killed = time.monotonic()
    _, told = process.communicate(timeout=200)
    # TensorFlow's heartbeat, or else the launcher's patience.
    assert time.monotonic() - killed < 120
    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 1 ended with status 137" in told
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
