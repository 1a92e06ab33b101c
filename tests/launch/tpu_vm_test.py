"""TPU VMs: the calls of gcloud, and what runs on their hosts."""

import json
import os
import re
import signal

import processes
import pytest
from packaging import requirements
from processes import ROOT

# Flags of gcloud's commands, as its own parser has them (Google Cloud SDK 528):
# those with a value end in "=". "gcloud" has those of all commands.
_FLAGS = ROOT / "tests" / "launch" / "testdata" / "gcloud.json"

# Refuses what gcloud does not parse, and finds command and flags.
_PARSE = f"""
words = sys.argv[1:]
flags = json.load(open({str(_FLAGS)!r}))
(path,) = [p for p in flags if words[:len(p.split())] == p.split()]
verb = path.split()[-1]
for word in words:
    name, equals, value = word.partition("=")
    known = flags[path] + flags["gcloud"]
    if name.startswith("--") and name + equals not in known:
        sys.exit(f"ERROR: (gcloud) unrecognized arguments: {{word}}")
(command,) = [w[10:] for w in words if w.startswith("--command=")] or [""]
"""
# One with a TPU that comes and goes. The file $WORLD has the state of the TPU
# ("": there is none), the states of its queued resource, and what comes next:
# for each `create`, whether it can; for each run, its status, the new state of
# the TPU and, if it differs from the status, the outcome on the host.
_WORLD = (
    _PARSE
    + """
world = json.load(open(os.environ["WORLD"]))
status = 0
if path.endswith("queued-resources list"):
    print(world["queue"][0] if world["queue"] else "")
    world["queue"] = world["queue"][1:] or world["queue"]
elif verb == "list":
    print(world["tpu"])
elif verb == "delete":
    world |= {"tpu": "", "queue": []}
elif verb == "create":
    status = not world["next"].pop(0)
    if not status:
        queued = "queued-resources" in path
        world["queue"] = ["WAITING_FOR_RESOURCES", "ACTIVE"] if queued else []
        world["tpu"] = "READY"
elif "tpu_vm_host run" in command:
    status, world["tpu"], *outcome = world["next"].pop(0)
    world["outcome"] = outcome[0] if outcome else status
elif "tpu_vm_host outcome" in command:
    print(world["outcome"])
json.dump(world, open(os.environ["WORLD"], "w"))
sys.exit(status)
"""
)
_PLACE = ("--zone=us-central1-a", "--type=v3-8")


# ---- The commands ------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (
            "create a --queue --spot",
            "queued-resources create a --node-id=a --accelerator-type=v3-8"
            " --runtime-version=tpu-vm-tf-2.17.1-pjrt --spot",
        ),
        (
            "create a --flex_start=4h",
            "--provisioning-model=flex-start --max-run-duration=4h",
        ),
        ("create a -- --reserved --network=n", "--reserved --network=n"),
        ("install a -- --tunnel-through-iap", "gcloud alpha compute tpus"),
        ("delete a -- --async", "tpu-vm delete a --quiet --async"),
        ("status a", "queued-resources list"),
        ("run a -- --internal-ip -- pretrain --workdir=w", "--internal-ip"),
        # A pod is held by its servers, one host by the run itself.
        ("run a --type=v4-32 pretrain", "env TPU_LOAD_LIBRARY=0 python3"),
        ("run a pretrain", "env NEXT_PLUGGABLE_DEVICE_USE_C_API=true "),
        ("run a --version=tpu-vm-tf-2.16.1-se pretrain", "run env python3 -m "),
    ],
)
def test_tpus_are_asked_for_as_gcloud_wants_it(project, line, part):
    task, *rest = line.split()
    project.fake(project.bin / "gcloud", _PARSE)
    project.run("launch/tpu_vm", task, *_PLACE, *rest, status=0)
    assert part in "\n".join(" ".join(call) for call in project.calls())


# ---- run --recreate ----------------------------------------------------------

_NEW = ["create", "scp", "ssh", "ssh", "install", "run"]
_AGAIN = ["run", "outcome"]


@pytest.mark.parametrize(
    ("flags", "tpu", "following", "calls", "status"),
    [
        # A missing TPU is created. A failed run ends all.
        ([], "", [1, [2, "READY"]], [*_NEW, "outcome"], 2),
        # Without capacity, it is tried again.
        ([], "", [0, 0, 1, [0, "READY"]], ["create"] * 2 + _NEW, 0),
        # Preempted in the run, which has saved; and then it has vanished.
        (
            [],
            "READY",
            [[42, "PREEMPTED"], 1, [1, ""], 1, [0, "READY"]],
            ["run", "delete", *_NEW, *_NEW],
            0,
        ),
        # The connection was lost; the run was killed; it ends.
        (
            [],
            "READY",
            [
                [255, "READY", "running"],
                *([1, "READY", "killed"], [42, "READY"], [1, "READY", 0]),
            ],
            _AGAIN * 4,
            0,
        ),
        # `stop` ends all.
        ([], "READY", [[42, "READY", "stopped"]], _AGAIN, 42),
        # A queued resource keeps its name until it is deleted, too.
        (
            ["--queue", "--spot"],
            "SUSPENDED",
            [1, [42, "PREEMPTED"], 1, [0, "READY"]],
            ["delete", *_NEW, "delete", *_NEW],
            0,
        ),
        # The limit.
        (["--recreate=2"], "READY", [[42, "READY"]] * 3, _AGAIN * 3, 42),
        # Somebody has stopped the VM itself.
        ([], "STOPPED", [], [], 1),
    ],
)
def test_a_run_outlives_its_tpu(project, flags, tpu, following, calls, status):
    project.fake(project.bin / "gcloud", _WORLD)
    project.fake(project.bin / "sleep")
    file = project.folder / "world.json"
    queue = [tpu] if "--queue" in flags else []
    file.write_text(json.dumps({"tpu": tpu, "queue": queue, "next": following}))
    project.run(
        *("launch/tpu_vm", "run", "a", *_PLACE, "--recreate", *flags),
        *("--", "--network=n", "--internal-ip", "--", "pretrain"),
        status=status,
        WORLD=str(file),
    )
    assert json.loads(file.read_text())["next"] == []
    seen = []
    for _, *words in project.calls():
        (verb,) = {"create", "delete", "scp", "ssh"} & set(words) or {""}
        assert ("--network=n" in words) == (verb == "create")
        assert ("--internal-ip" in words) == (verb in ("scp", "ssh"))
        # The tasks of the host have their own names.
        task = re.search(r"tpu_vm_host (\w+)", " ".join(words))
        seen.append(task[1] if task else verb)
    assert [name for name in seen if name] == calls


# ---- On the hosts ------------------------------------------------------------

# What an image's TensorFlow requires: as ranges, since its setuptools and
# protobuf may be older than what else is installed needs.
_NEEDS = ["numpy<2", "absl-py>=1.0", "setuptools", "protobuf<6,>=3.20"]
# Distributions that TPU images have, as `importlib.metadata` shows them.
_IMAGE = """
import runpy, sys
from importlib import metadata
real = metadata.requires
def version(name):
    if name not in {versions!r}:
        raise metadata.PackageNotFoundError(name)
    return {versions!r}[name]
metadata.version = version
metadata.requires = lambda name: {needs!r} if "flow" in name else real(name)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("name", "version", "protobuf", "numpy", "keras"),
    [
        ("tensorflow", "2.15.0", "4.25.9", "1.26.4", ""),
        ("tensorflow", "2.17.1", "4.25.9", "1.26.4", "tf-keras==2.17.*"),
        ("tensorflow-tpu", "2.20.1", "5.29.6", "2.1.3", "tf-keras==2.20.*"),
        ("jax", "0.5", "5.29.6", "2.1.3", None),
    ],
)
def test_what_is_installed_on_a_tpu_vm_leaves_its_tensorflow(
    name, version, protobuf, numpy, keras, tmp_path
):
    versions = {name: version, "protobuf": protobuf, "numpy": numpy}
    needs = [*_NEEDS, 'nvidia-cublas-cu12==12; extra == "and-cuda"']
    code = _IMAGE.format(versions=versions, needs=needs)
    script = ROOT / "launch" / "tpu_vm_packages.py"
    words = processes.python(code, script)
    if keras is None:  # There is no TensorFlow.
        processes.run(words, status=1, cwd=tmp_path)
        return
    done = processes.run(words, cwd=tmp_path)
    assert done.stdout == f"{name} {version} {keras}\n"
    # What TensorFlow requires stays so, and nothing requires it.
    constraints = (tmp_path / "constraints-tpu.txt").read_text().splitlines()
    assert constraints == _NEEDS
    asked = [
        requirements.Requirement(line)
        for line in (tmp_path / "requirements-tpu.txt").read_text().splitlines()
    ]
    # They import what protobuf 4 and NumPy 1 do not have.
    new = {"tensorflow-metadata": "1.21", "pyarrow": "26.0.1"}
    for each in (r for r in asked if r.name in new):
        assert each.specifier.contains(new[each.name]) == (protobuf[0] == "5")
    names = {each.name for each in asked}
    assert ("tensorflow-addons" in names) == (version == "2.15.0")
    assert not {"tensorflow", "tensorflow-cpu", "tf-keras"} & names


_PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os._exit(42))
print("it's", sys.argv[1:], flush=True)
if sys.argv[1] == "waits":
    signal.pause()
print("over", file=sys.stderr)
sys.exit(7)
"""


def test_a_run_on_a_tpu_vm_survives_a_lost_connection(tmp_path):
    script = ("bash", ROOT / "launch" / "tpu_vm_host")
    home = {"variables": {"HOME": str(tmp_path)}}

    def ask(*words):
        return processes.run([*script, *words], status=None, **home)

    program = processes.python(_PROGRAM)
    done = ask("run", *program, "ends", "a b")
    assert done.returncode == 7 and ask("outcome").stdout == "7\n"
    assert done.stdout.splitlines() == ["it's ['ends', 'a b']", "over"]

    waiting = [*script, "run", *program, "waits"]
    # The tests may run under nohup.
    usual = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)}
    with processes.start(waiting, **usual, **home) as run:
        run.until("it's ['waits']")
        # gcloud repeats the command if the connection is lost.
        with processes.start(waiting, **home) as repeated:
            repeated.until("it's ['waits']")
            again = ask("run", "true")
            assert again.returncode == 1 and "in progress" in again.stderr
            os.killpg(run.pid, signal.SIGHUP)  # The connection is lost.
            run.ended()
            assert ask("logs").stdout == "it's ['waits']\n"
            assert ask("outcome").stdout == "running\n"
            assert "status 42" in ask("stop").stdout
            assert repeated.ended() == 42
    assert ask("outcome").stdout == "stopped\n"
    assert "no run" in ask("stop").stderr
