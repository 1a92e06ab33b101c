"""`embed` on a Spark cluster of three hosts, parts of which are killed.

Each host has its own network, host name and processes: the head, with Spark's
master and the command, and two workers. Whatever is killed, the files equal
those of one process, byte for byte. --drill_seed varies what has been written
by then. Needs root, for the namespaces, Java and the extra [spark].
"""

import contextlib
import filecmp
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import PIL.Image
import psutil
import pytest
import saved_run
from image_helpers import patches

from tf_contrastive.commands import embed
from tf_contrastive.commands.embed import Embed
from tf_contrastive.config import fields

_ROOT = Path(__file__).resolve().parents[2]
_PYSPARK = importlib.util.find_spec("pyspark")
_SEED = int(os.environ.get("DRILL_SEED", "0"))
_HEAD = "10.38.0.1"
_WORKERS = {"spark-w1": "10.38.0.2", "spark-w2": "10.38.0.3"}
_MASTER = f"spark://{_HEAD}:7077"
_IMAGES, _SHARD = 480, 20
_SHARDS = _IMAGES // _SHARD
# A host that is cut off is given up after this time.
_TIMEOUT = "20s"
_WITH_THIS_PROCESS = "setpriv", "--pdeathsig=KILL"

pytestmark = pytest.mark.skipif(
    _PYSPARK is None
    or "DRILL_SEED" not in os.environ
    or os.geteuid() != 0
    or not all(map(shutil.which, ("java", "ip", "unshare", "nsenter"))),
    reason="needs --drill_seed, pyspark, Java, root, iproute2 and util-linux",
)


class _Cluster:
    """Hosts of namespaces, which end with their first process."""

    def __init__(self, folder):
        self.folder = folder
        (package,) = _PYSPARK.submodule_search_locations
        self.spark = f"{package}/bin/spark-class"
        self.hosts = {}
        names = {"spark-head": _HEAD, **_WORKERS}
        lines = [f"{address} {name}" for name, address in names.items()]
        (folder / "hosts").write_text(
            "\n".join(["127.0.0.1 localhost", *lines])
        )
        self.hosts["spark-head"] = self._host(
            "spark-head",
            (),
            f"ip link add br0 type bridge && ip addr add {_HEAD}/24 dev br0"
            " && ip link set br0 up && exec sleep infinity",
        )
        self._until(
            lambda: self.on_head("ip", "addr", "show", "br0").wait() == 0
        )
        self.master = self.on_head(
            self.spark,
            "org.apache.spark.deploy.master.Master",
            "--host",
            _HEAD,
            log="master",
        )
        for name in _WORKERS:
            self.start(name)
        self._until(
            lambda: self._log("master").count("Registering worker") == 2
        )

    def _host(self, name, namespaces, commands):
        host = subprocess.Popen(
            [
                *_WITH_THIS_PROCESS,
                *("unshare", "--net", "--uts", "--mount", *namespaces),
                *("sh", "-c"),
                f"mount --bind {self.folder}/hosts /etc/hosts"
                f" && hostname {name} && ip link set lo up && {commands}",
            ],
            env={**self._variables(), "SPARK_LOCAL_DIRS": str(self.folder)},
            stdout=(self.folder / f"{name}.log").open("a"),
            stderr=subprocess.STDOUT,
        )
        own = os.readlink("/proc/self/ns/net")
        self._until(lambda: os.readlink(f"/proc/{host.pid}/ns/net") != own)
        return host

    def _variables(self):
        # The same code for the workers.
        return {**os.environ, "PYTHONPATH": str(_ROOT)}

    def _log(self, name):
        return (self.folder / f"{name}.log").read_text()

    @staticmethod
    def _until(true, seconds=600):
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end
            time.sleep(0.05)

    def on_head(self, *words, log="head", **options):
        """Starts a command on the head."""
        host = self.hosts["spark-head"].pid
        return subprocess.Popen(
            [
                *_WITH_THIS_PROCESS,
                "nsenter",
                f"--target={host}",
                "--net",
                "--uts",
                "--mount",
                *words,
            ],
            env=self._variables(),
            stdout=(self.folder / f"{log}.log").open("a"),
            stderr=subprocess.STDOUT,
            **options,
        )

    def start(self, name):
        """Starts a worker's host, with a cable to the head."""
        separate = ("--pid", "--fork", "--kill-child", "--mount-proc")
        self.hosts[name] = host = self._host(
            name,
            separate,
            "until ip link show eth0 2>/dev/null; do sleep 0.1; done;"
            f" ip addr add {_WORKERS[name]}/24 dev eth0 && ip link set eth0 up"
            f" && exec {self.spark} org.apache.spark.deploy.worker.Worker"
            f" --host {_WORKERS[name]} --cores 1 --memory 1g"
            f" --work-dir {self.folder}/{name} {_MASTER}",
        )
        cable = f"to-{name}"
        for words in (
            f"add {cable} type veth peer name eth0 netns {host.pid}",
            f"set {cable} master br0",
            f"set {cable} up",
        ):
            words = ("ip", "link", *words.split())
            assert self.on_head(*words).wait() == 0, self._log("head")

    def link(self, name, state):
        """Sets a worker's cable up or down."""
        words = ("ip", "link", "set", f"to-{name}", state)
        assert self.on_head(*words).wait() == 0

    def processes(self, name, word):
        """Those of a worker's host with a word in their command lines."""
        processes = []
        for process in psutil.Process(self.hosts[name].pid).children(True):
            with contextlib.suppress(psutil.Error):  # It has ended.
                if word in " ".join(process.cmdline()):
                    processes.append(process)
        return processes

    def kill(self, name):
        """Ends a worker's host with all of its processes."""
        self.hosts[name].kill()
        self.hosts[name].wait()

    def close(self):
        self.master.kill()
        self.master.wait()
        for host in self.hosts.values():
            host.kill()
            host.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = _Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A run, a folder of images, and their embeddings by one process."""
    folder = tmp_path_factory.mktemp("data")
    saved_run.make(folder / "run", branches=True)
    (folder / "images").mkdir()
    for number, image in enumerate(patches(_IMAGES, 64)):
        path = folder / "images" / f"{number:04}.png"
        PIL.Image.fromarray(image).save(path)
    for format in ("npz", "tfrecord", "parquet"):
        options = fields.replace(
            Embed(),
            workdir=f"{folder}/run",
            input=f"folder:{folder}/images",
            split="train",
            shard_size=_SHARD,
            embedding_batch_size=_SHARD,
            output=f"{folder}/one-{format}/e.{format}",
        )
        assert embed.run(options) == 0
    return folder


def _embed(cluster, data, output, *flags):
    """Starts the command on the head."""
    return cluster.on_head(
        *(sys.executable, "-m", "tf_contrastive", "embed"),
        f"--workdir={data}/run",
        f"--input=folder:{data}/images",
        "--split=train",
        f"--shard_size={_SHARD}",
        f"--embedding_batch_size={_SHARD}",
        f"--output={data}/{output}",
        *flags,
        log="embed",
        cwd=_ROOT,
    )


def _spark(*properties):
    """The flags of `embed` for the cluster."""
    options = (
        f"spark.master={_MASTER}",
        f"spark.driver.host={_HEAD}",
        "spark.executor.memory=512m",
        f"spark.network.timeout={_TIMEOUT}",
        "spark.network.timeoutInterval=2s",
        "spark.executor.heartbeatInterval=2s",
        *properties,
    )
    return "--runner=spark", f"--spark_options={' '.join(options)}"


def _finished(folder):
    return list(folder.glob("e-*-of-*"))


def _kill_host(cluster, process):
    cluster.kill("spark-w1")
    return lambda: cluster.start("spark-w1")


def _kill_driver(cluster, process):
    process.kill()


def _cut_cable(cluster, process):
    cluster.link("spark-w2", "down")
    return lambda: cluster.link("spark-w2", "up")


def _freeze_python(cluster, process):
    """Its tasks are repeated elsewhere, and then go on in two places."""
    frozen = cluster.processes("spark-w1", "pyspark.daemon")
    for python in frozen:
        python.suspend()
    end = time.monotonic() + 15
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
    for python in frozen:
        with contextlib.suppress(psutil.NoSuchProcess):
            python.resume()


_SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.multiplier=2",
    "spark.speculation.quantile=0.1",
)


@pytest.mark.parametrize(
    ("happens", "format", "properties", "status"),
    [
        (_kill_host, "npz", (), 0),
        (_cut_cable, "parquet", (), 0),
        (_freeze_python, "npz", _SPECULATION, 0),
        (_kill_driver, "tfrecord", (), -signal.SIGKILL),
    ],
)
def test_files_equal_those_of_one_process(
    happens, format, properties, status, cluster, data
):
    folder = data / happens.__name__
    generator = random.Random(f"{_SEED} {happens.__name__}")
    command = f"{folder.name}/e.{format}", *_spark(*properties)
    process = _embed(cluster, data, *command)
    kill_at = generator.randint(1, _SHARDS // 2)
    while len(_finished(folder)) < kill_at:
        assert process.poll() is None, cluster._log("embed")
        time.sleep(0.01)
    first = time.monotonic()
    done = len(_finished(folder))
    undo = happens(cluster, process)
    assert process.wait(timeout=400) == status, cluster._log("embed")
    seconds = time.monotonic() - first
    if status:
        assert len(_finished(folder)) < _SHARDS
        before = {p: p.stat().st_mtime_ns for p in _finished(folder)}
        process = _embed(cluster, data, *command)
        assert process.wait(timeout=400) == 0, cluster._log("embed")
        assert all(p.stat().st_mtime_ns == t for p, t in before.items())
        print(f"{len(before)} files were kept", end="; ")
    print(
        f"{happens.__name__} when {done} of {_SHARDS} files were there:"
        f" {seconds:.0f} s to the end"
    )
    if undo:
        undo()
    one = data / f"one-{format}"
    names = sorted(os.listdir(one))
    assert len(names) == _SHARDS + 1
    assert sorted(os.listdir(folder)) == names
    for name in names:
        assert filecmp.cmp(one / name, folder / name, shallow=False), name
