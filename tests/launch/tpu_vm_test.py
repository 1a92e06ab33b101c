"""TPU VMs: the calls of gcloud, and what runs on their hosts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import metadata

import launch_project
import pytest
from packaging import requirements, utils

_ROOT = launch_project.ROOT
# Flags of gcloud's commands, as its own parser has them (Google Cloud SDK 528):
# those with a value end in "=". "gcloud" has those of all commands.
_FLAGS = _ROOT / "tests" / "launch" / "testdata" / "gcloud.json"

# Refuses what gcloud does not parse, and finds command and flags.
_PARSE = f"""
import subprocess
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
# A fake gcloud that runs the commands here, in another home folder.
_VM = (
    _PARSE
    + """
home = os.environ["VM_HOME"]
if verb == "scp":
    source, target = words[words.index("scp") + 1 :][:2]
    target = target.partition(":")[2]
    sys.exit(subprocess.call(["cp", source, os.path.join(home, target)]))
environment = {**os.environ, "HOME": home}
sys.exit(subprocess.call(["bash", "-c", command], cwd=home, env=environment))
"""
)
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
_ZONE = "--zone=us-central1-a"


@pytest.fixture
def project(tmp_path):
    project = launch_project.Project(tmp_path)
    project.fake(project.bin / "gcloud", _PARSE)
    return project


# ---- The commands ------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "image"),
    [
        ("v3-8", "tpu-vm-tf-2.17.1-pjrt"),
        ("v4-32", "tpu-vm-tf-2.17.1-pod-pjrt"),
        ("v5litepod-16", "tpu-vm-tf-2.17.1-pod-pjrt"),
        ("v6e-8", "tpu-vm-tf-2.18.0-pjrt-v5e-and-v6"),
        ("v6e-16", "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6"),
    ],
)
def test_each_type_of_tpu_gets_its_image_and_interface(project, kind, image):
    words = ["a", _ZONE, f"--type={kind}", "--dry_run"]
    created = project.run("launch/tpu_vm", "create", *words)
    assert f"--version={image} " in created.stdout
    command = ["pretrain", "--workdir=gs://b/a"]
    run = project.run("launch/tpu_vm", "run", *words, *command).stdout
    # A pod is held by its servers, one host by the run itself.
    assert ("TPU_LOAD_LIBRARY=0" in run) == ("-pod" in image)
    assert ("NEXT_PLUGGABLE_DEVICE" in run) == ("-pod" not in image)
    without = [*words, "--version=tpu-vm-tf-2.16.1-se", *command]
    run = project.run("launch/tpu_vm", "run", *without).stdout
    assert "NEXT_PLUGGABLE_DEVICE" not in run


def test_types_are_googles_and_near_misses_get_a_suggestion(project):
    for given, answer in {
        "v5e-8": "v5litepod-8?",
        "v5lite-4": "v5litepod-4?",
        "v5litepod8": "v5litepod-8?",
        "v6-8": "v6e-8?",
        "v5p8": "v5p-8?",
        "V3-8": "v3-8?",
        "tpu-v4-16": "v4-16?",
        "v38": "v3-8?",
        "v5-16": "v5litepod-16 or v5p-16?",
        "v7x-8": "GKE",
        "tpu7x-16": "GKE",
        "v5litepod-2": "sizes of v5litepod",
        "v3-9": "sizes of v3",
        "v4-12": "multiple of 8",
        "v5p-0": "multiple of 8",
        "v8-8": "Google's name",
        "a100": "Google's name",
    }.items():
        words = ["create", "a", _ZONE, f"--type={given}", "--dry_run"]
        done = project.run("launch/tpu_vm", *words)
        assert done.returncode == 2, given
        assert answer in done.stderr and done.stderr.count("\n") == 1


def test_a_task_of_another_name_gets_a_suggestion(project):
    for given, meant in {
        **{"crate": "create", "isntall": "install", "lst": "list"},
        **{"del": "delete", "stats": "status", "log": "logs", "destroy": None},
    }.items():
        done = project.run("launch/tpu_vm", given, "a", _ZONE)
        assert done.returncode == 2
        assert (f"did you mean {meant}?" in done.stderr) == bool(meant), given


def test_tpus_are_asked_for_as_gcloud_wants_it(project):
    for line, parts in {
        "create a --spot": ["tpu-vm create a", "--spot"],
        "create a --queue --spot": [
            "queued-resources create a",
            "--node-id=a --accelerator-type=v3-8 --runtime-version=tpu-vm-",
        ],
        "create a --flex_start=4h": [
            "gcloud alpha compute tpus queued-resources create a",
            "--provisioning-model=flex-start --max-run-duration=4h",
        ],
        "create a --queue -- --reserved --network=n": [
            "--reserved --network=n"
        ],
        "install a -- --tunnel-through-iap": ["gcloud alpha", "tunnel-through"],
        "ssh a -- --worker=all --command=ls": ["ssh a --worker=all --comm"],
        "status a": ["tpu-vm list --filter=name~/a$", "queued-resources list"],
        "list -- --limit=3": ["tpu-vm list --limit=3"],
        "delete a -- --async": ["tpu-vm delete a --quiet --async"],
        "run a -- --internal-ip -- pretrain --workdir=w": ["--internal-ip"],
    }.items():
        task, *rest = line.split()
        words = [task, _ZONE, "--type=v3-8", *rest]
        done = project.run("launch/tpu_vm", *words)
        assert done.returncode == 0, (line, done.stderr)
        calls = "\n".join(" ".join(call) for call in project.calls())
        for part in parts:
            assert part in calls, (line, calls)
    # What gcloud does not parse fails: nothing is left out.
    for line in ("create a -- --worker=all", "install a -- --network=n"):
        task, *rest = line.split()
        words = [task, _ZONE, "--type=v3-8", *rest]
        done = project.run("launch/tpu_vm", *words)
        assert done.returncode == 1 and "unrecognized" in done.stderr, line


# ---- run --recreate ----------------------------------------------------------

_INSTALL = ["scp", "ssh", "ssh", "install"]
_NEW = ["create", *_INSTALL, "run"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "world", "calls", "status"),
    [
        # A missing TPU is created. A failed run ends all.
        ([], {"next": [1, [0, "READY"]]}, _NEW, 0),
        ([], {"next": [1, [2, "READY"]]}, [*_NEW, "outcome"], 2),
        # One that is there is used as it is.
        ([], {"tpu": "READY", "next": [[0, "READY"]]}, ["run"], 0),
        # Without capacity, it is tried again.
        ([], {"next": [0, 0, 1, [0, "READY"]]}, ["create"] * 2 + _NEW, 0),
        # Preempted in the run, which has saved or was killed.
        *(
            (
                [],
                {"tpu": "READY", "next": [[status, state], 1, [0, "READY"]]},
                ["run", "delete", *_NEW],
                0,
            )
            for status, state in ((42, "PREEMPTED"), (1, "TERMINATED"))
        ),
        # It vanished; the connection was lost; a notice without consequence.
        (
            [],
            {"tpu": "READY", "next": [[1, ""], 1, [0, "READY"]]},
            ["run", *_NEW],
            0,
        ),
        (
            [],
            {
                "tpu": "READY",
                "next": [
                    *([255, "READY", "running"], [1, "READY", "killed"]),
                    [1, "READY", 0],
                ],
            },
            ["run", "outcome"] * 3,
            0,
        ),
        (
            [],
            {"tpu": "READY", "next": [[42, "READY"], [0, "READY"]]},
            ["run", "outcome", "run"],
            0,
        ),
        # `stop` ends all.
        (
            [],
            {"tpu": "READY", "next": [[42, "READY", "stopped"]]},
            ["run", "outcome"],
            42,
        ),
        # A queued resource keeps its name until it is deleted, too.
        (
            ["--queue", "--spot"],
            {
                **{"queue": ["SUSPENDED"], "tpu": "PREEMPTED"},
                "next": [1, [42, "PREEMPTED"], 1, [0, "READY"]],
            },
            ["delete", *_NEW, "delete", *_NEW],
            0,
        ),
        # The limit.
        (
            ["--recreate=2"],
            {"tpu": "READY", "next": [[42, "READY"]] * 3},
            ["run", "outcome"] * 3,
            42,
        ),
        # Somebody has stopped the VM itself.
        ([], {"tpu": "STOPPED", "next": []}, [], 1),
    ],
)
def test_a_run_outlives_its_tpu(project, flags, world, calls, status):
    project.fake(project.bin / "gcloud", _WORLD)
    project.fake(project.bin / "sleep")
    file = project.folder / "world.json"
    file.write_text(json.dumps({"tpu": "", "queue": [], **world}))
    words = ["run", "a", _ZONE, "--type=v3-8", "--recreate", *flags]
    done = project.run(
        *("launch/tpu_vm", *words, "--", "--network=n", "--internal-ip", "--"),
        *("pretrain", "--workdir=w"),
        WORLD=str(file),
    )
    assert done.returncode == status, done.stderr
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
# A fake pip that only keeps the file of requirements.
_PIP = f"""
if sys.argv[1:3] == ["-m", "pip"]:
    for word, file in zip(sys.argv, sys.argv[1:]):
        if word in ("-r", "-c"):
            shutil = __import__("shutil")
            shutil.copy(file, os.environ["VM_HOME"])
    sys.exit(0)
os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])
"""


@pytest.fixture
def vm(project):
    """The home folder of a fake TPU VM, which gcloud leads to."""
    home = project.folder / "home"
    home.mkdir()
    (project.folder / "tf_contrastive").rmdir()
    shutil.copytree(_ROOT / "tf_contrastive", project.folder / "tf_contrastive")
    project.fake(project.bin / "gcloud", _VM)
    project.fake(project.bin / "python3", _PIP)
    return home


def _on_vm(project, vm, *words):
    return project.run("launch/tpu_vm", *words, _ZONE, VM_HOME=str(vm))


def _dependencies(names):
    """Names of distributions and of all that they require."""
    names, queue = set(), list(names)
    while queue:
        name = utils.canonicalize_name(queue.pop())
        if name in names:
            continue
        names.add(name)
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(requirements.Requirement, needs):
            if not need.marker or need.marker.evaluate({"extra": ""}):
                queue.append(need.name)
    return names


# Distributions that TPU images have, as `importlib.metadata` shows them.
_IMAGE = """
import runpy, sys
from importlib import metadata
versions, requires = {versions!r}, {requires!r}
real = metadata.requires
def version(name):
    if name not in versions:
        raise metadata.PackageNotFoundError(name)
    return versions[name]
metadata.version = version
metadata.requires = lambda name: requires if "flow" in name else real(name)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


# What its TensorFlow requires: as ranges, since an image's setuptools and
# protobuf may be older than what else is installed needs.
_NEEDS = ["numpy<2", "absl-py>=1.0", "setuptools", "protobuf<6,>=3.20"]


def _image(project, folder, name, version, protobuf="4.25.9"):
    """Makes python3 that of an image with this TensorFlow."""
    fake = folder / "image.py"
    fake.write_text(
        _IMAGE.format(
            versions={
                **{name: version, "protobuf": protobuf},
                "numpy": "1.26.4" if protobuf[0] == "4" else "2.1.3",
            },
            requires=[*_NEEDS, 'nvidia-cublas-cu12==12; extra == "and-cuda"'],
        )
    )
    then = f"""
if sys.argv[1] == "launch/tpu_vm_packages.py":
    command = [{sys.executable!r}, {str(fake)!r}, *sys.argv[1:]]
    os.execv({sys.executable!r}, command)
"""
    project.fake(project.bin / "python3", then + _PIP)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "version", "protobuf", "keras"),
    [
        ("tensorflow", "2.15.0", "4.25.9", []),
        ("tensorflow", "2.17.1", "4.25.9", ["tf-keras==2.17.*"]),
        ("tensorflow-tpu", "2.20.1", "5.29.6", ["tf-keras==2.20.*"]),
    ],
)
def test_install_on_a_tpu_vm_cannot_touch_its_tensorflow(
    name, version, protobuf, keras, project, vm, tmp_path
):
    _image(project, tmp_path, name, version, protobuf)
    done = _on_vm(project, vm, "install", "pod-1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"{name} {version} is unchanged" in done.stdout
    calls = project.calls()
    pip = [c for c in calls if c[:3] == ["python3", "-m", "pip"]]
    own, _, *rest = pip
    assert "--no-deps" in own
    assert own[own.index("-e") :] == ["-e", "."]
    assert [c[c.index("--no-deps") + 1 :] for c in rest] == (
        [keras] if keras else []
    )
    # What TensorFlow requires stays so, and nothing requires it.
    constraints = (vm / "constraints-tpu.txt").read_text().splitlines()
    assert constraints == _NEEDS
    asked = [
        requirements.Requirement(line)
        for line in (vm / "requirements-tpu.txt").read_text().splitlines()
    ]
    # They import what protobuf 4 and NumPy 1 do not have.
    new = {"tensorflow-metadata": "1.21", "pyarrow": "26.0.1"}
    for each in (r for r in asked if r.name in new):
        assert each.specifier.contains(new[each.name]) == (protobuf[0] == "5")
    addons = [r for r in asked if r.name == "tensorflow-addons"]
    assert bool(addons) == (version == "2.15.0")
    wheels = {"tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"}
    assert not wheels & _dependencies(
        r.name for r in asked if not r.marker or r.marker.evaluate()
    )


def test_an_image_without_tensorflow_is_refused(project, vm, tmp_path):
    _image(project, tmp_path, "jax", "0.5")
    done = _on_vm(project, vm, "install", "pod-1")
    assert done.returncode == 1
    assert "no tensorflow" in done.stderr


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


def test_a_run_on_a_tpu_vm_survives_a_lost_connection(tmp_path):
    program = [sys.executable, "-c", _PROGRAM]
    run = _host(tmp_path, "run", *program, "0.5", "a b")
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 7
    outcome = _host(tmp_path, "outcome").communicate(timeout=60)[0]
    assert outcome == "7\n"
    assert out.splitlines() == ["it's ['0.5', 'a b']", "over"]

    run = _host(
        tmp_path,
        "run",
        *program,
        "99",
        start_new_session=True,
        # The tests may run under nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    assert run.stdout.readline() == "it's ['99']\n"
    # gcloud repeats the command if the connection is lost, and finds the run.
    repeated = _host(tmp_path, "run", *program, "99")
    assert repeated.stdout.readline() == "it's ['99']\n"
    again = _host(tmp_path, "run", "true")
    assert "in progress" in again.communicate(timeout=60)[1]
    assert again.returncode == 1
    # The connection is lost.
    os.killpg(run.pid, signal.SIGHUP)
    run.communicate(timeout=60)
    logs = _host(tmp_path, "logs")
    assert logs.communicate(timeout=60)[0] == "it's ['99']\n"
    following = _host(tmp_path, "logs", "--follow")
    stop = _host(tmp_path, "stop")
    assert "status 42" in stop.communicate(timeout=60)[0]
    for each in (following, repeated):
        each.communicate(timeout=60)
        assert each.returncode == 42
    outcome = _host(tmp_path, "outcome").communicate(timeout=60)[0]
    assert outcome == "stopped\n"
    again = _host(tmp_path, "stop")
    assert "no run" in again.communicate(timeout=60)[1]
