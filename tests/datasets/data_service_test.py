"""Views made by the workers of a tf.data service: the set of a run without."""

import collections
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import small
import tensorflow as tf
from image_helpers import write_records

from tf_contrastive import checkpoints, datasets, flags, train
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.datasets import data_service
from tf_contrastive.tensorboard import scalars

pytestmark = pytest.mark.usefixtures("small_encoder")

_ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = 24
BATCH = 6
STEPS = EXAMPLES // BATCH


@pytest.fixture(scope="module")
def service():
    """The address of a dispatcher with two workers."""
    servers = tf.data.experimental.service
    dispatcher = servers.DispatchServer()
    address = dispatcher.target.removeprefix("grpc://")
    workers = [
        servers.WorkerServer(
            servers.WorkerConfig(address, heartbeat_interval_ms=100)
        )
        for _ in range(2)
    ]
    yield dispatcher.target
    # Iterators that outlive the service wait for it for ever.
    gc.collect()
    for server in (*workers, dispatcher):
        server._stop()


def _make_views(images, seeds):
    """One view: the example's number, and its seed."""
    number = tf.cast(images[:, 0, 0, :1], tf.int32)
    row = tf.cast(tf.concat([number, seeds], 1), tf.float64)
    return row[:, tf.newaxis, tf.newaxis, tf.newaxis, :]


def _image(number, side=4):
    return np.full([side, side, 3], number, np.uint8)


def _source(kind, folder, count=EXAMPLES):
    labels = np.arange(count) % 3
    if kind == "memory":
        images = np.stack([_image(i) for i in range(count)])
        return datasets.from_arrays(images, labels)
    encoded = [
        tf.io.encode_png(_image(i, 4 + (kind == "shapes" and i % 2))).numpy()
        for i in range(count)
    ]
    if kind == "shapes":
        for i, contents in enumerate(encoded):
            (folder / f"{i}.png").write_bytes(contents)
        lines = [f"{i}.png,{labels[i]}\n" for i in range(count)]
        text = "path,label\n" + "".join(lines)
        (folder / "list.csv").write_text(text)
        return datasets.source(f"csv:{folder}/list.csv")
    rows = [
        {"image": contents, "label": label}
        for contents, label in zip(encoded, labels, strict=True)
    ]
    for file in range(4):
        part = rows[file * count // 4 : (file + 1) * count // 4]
        write_records(f"{folder}/{file}.tfrecord", part)
    return datasets.source(f"tfrecord:{folder}/*.tfrecord")


def _batches(source, service=None, context=(1, 0, 1), **order):
    return datasets.training_batches(
        source,
        datasets.ViewMaker(_make_views),
        datasets.Order(**({"batch_size": BATCH, "seed": 3} | order)),
        tf.distribute.InputContext(*context),
        service and data_service.DataService(service),
    )


def _epochs(source, epochs, service=None, context=(1, 0, 1)):
    """Returns, per epoch, how often each (number, seed, label) came."""
    data = iter(_batches(source, service, context))
    pipelines, _, replicas = context
    return [_keys(data, STEPS * replicas // pipelines) for _ in range(epochs)]


def _keys(data, elements):
    keys = collections.Counter()
    for _ in range(elements):
        views, labels = next(data)
        rows = views.numpy()[:, 0, 0, 0].astype(int).tolist()
        keys.update(
            (*row, label)
            for row, label in zip(rows, labels.numpy(), strict=True)
        )
    return keys


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "shapes", "records"])
def test_epochs_have_the_views_of_a_run_without_service(
    kind, service, tmp_path
):
    source = _source(kind, tmp_path)
    ours = _epochs(source, 3, service)
    expected = _epochs(source, 3)
    assert ours == expected
    assert ours[0] != ours[1]
    assert all(sum(epoch.values()) == EXAMPLES for epoch in ours)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "records"])
def test_consumers_on_several_hosts_share_an_epoch(kind, service, tmp_path):
    source = _source(kind, tmp_path)
    hosts = [
        _epochs(source, 2, service, context=(2, host, BATCH))
        for host in range(2)
    ]
    joined = [one + other for one, other in zip(*hosts, strict=True)]
    assert joined == _epochs(source, 2)


def test_a_resumed_run_continues_with_the_remaining_epochs(service, tmp_path):
    source = _source("memory", tmp_path)
    start = STEPS + 1
    data = iter(_batches(source, service, start_step=start))
    first, second = _keys(data, STEPS - 1), _keys(data, STEPS)
    expected = _epochs(source, 3)
    assert first < expected[1] and sum(first.values()) == (STEPS - 1) * BATCH
    assert second == expected[2]


def _run(workdir, **options):
    return fields.replace(
        small.RUN,
        dataset="digits",
        split="train[:96]",
        augmentation="crop",
        image_size=8,
        encoder="resnet10",
        width=0.125,
        batch_size=32,
        log_every_steps=1,
        workdir=str(workdir),
        **options,
    )


@pytest.mark.slow
def test_a_strategy_trains_from_the_service(service, tmp_path, capsys):
    run = _run(
        tmp_path / "run",
        epochs=2,
        data_service=service,
        strategy="mirrored",
        virtual_devices=2,
    )
    result = train.pretrain(run)
    assert result.step == 6 and np.isfinite(result.metrics["loss"])
    said = capsys.readouterr().err
    assert "epoch 1: 96 of 96 examples came from the data service" in said
    curves = scalars.read(str(tmp_path / "run" / "events"))
    seen = curves["input/examples_of_epoch"]
    assert list(seen) == [1, 2, 3, 4, 5, 6]
    assert seen[3] == seen[6] == 96


@pytest.fixture
def launched():
    """`launch/data_service` with two workers: its process and address."""
    process = subprocess.Popen(
        ["launch/data_service", "--port=0", "--workers=2"],
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHON": sys.executable},
    )
    yield process, process.stdout.readline().strip()
    gc.collect()  # As in `service`.
    process.terminate()
    process.wait()


def _servers(process):
    """(dispatcher, workers in the order of their ports), once all run.

    The launcher prints the address when the dispatcher answers; its shells,
    of which each keeps one worker, may take a moment longer.
    """
    while True:
        listed = subprocess.run(
            ["ps", "-ww", "-eo", "pid=,ppid=,args="],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line.split(None, 2) for line in listed.stdout.splitlines()]
        parents = {pid: parent for pid, parent, _ in lines}
        ours = str(process.pid)
        servers = [line for line in lines if "data_service_server" in line[2]]
        dispatchers = [int(p) for p, parent, _ in servers if parent == ours]
        workers = [
            int(p)
            for p, parent, line in servers
            if parents.get(parent) == ours and "--dispatcher=" in line
        ]
        if len(dispatchers) == 1 and len(workers) == 2:
            return dispatchers[0], workers
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)


@pytest.mark.slow
def test_a_killed_worker_loses_only_its_own_examples(launched):
    process, address = launched
    count = 600
    images = np.stack([_image(i % 256) for i in range(count)])
    service = data_service.DataService(address)
    data = datasets.training_batches(
        datasets.from_arrays(images, np.zeros([count], int)),
        datasets.ViewMaker(_make_views),
        datasets.Order(batch_size=BATCH),
        service=service,
    )
    iterator = iter(data)
    indices = []
    for step in range(2 * count // BATCH):
        views, _ = next(iterator)
        seeds = views.numpy()[:, 0, 0, 0, 1:]
        indices += [tuple(row) for row in seeds.astype(int)]
        if step == 2:
            os.kill(_servers(process)[1][-1], signal.SIGKILL)
    del iterator
    # Nothing comes twice, and only the first epoch can lack anything.
    assert len(set(indices)) == len(indices) == 2 * count
    keys = collections.Counter(key for key, _ in indices)
    assert len(keys) <= 3
    first, second = (service.examples(epoch) for epoch in (0, 1))
    assert 0 < first <= second == service.expected(1) == count
    assert service.expected(0) == count


# The command, of a smaller patience, in a process that can be stuck.
_SOON_LOST = """
import sys
from tf_contrastive import __main__
from tf_contrastive.datasets import data_service
data_service.LOST_AFTER = 1
sys.exit(__main__.main())
"""


@pytest.mark.slow
def test_a_lost_dispatcher_ends_the_run_after_a_checkpoint(launched, tmp_path):
    process, address = launched
    run = _run(tmp_path / "run", data_service=address, epochs=10_000)
    flagfile = tmp_path / "run.flags"
    flagfile.write_text(flags.write(run))
    training_it = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _SOON_LOST,
            "pretrain",
            f"--flagfile={flagfile}",
            f"--workdir={tmp_path / 'run'}",
        ],
        cwd=_ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not tf.train.latest_checkpoint(tmp_path / "run" / "checkpoints"):
        assert process.poll() is None, process.stderr.read()
        assert training_it.poll() is None, training_it.stderr.read()
        time.sleep(0.1)
    os.kill(_servers(process)[0], signal.SIGKILL)
    _, said = training_it.communicate(timeout=120)
    assert training_it.returncode == errors.EXIT_RESUME, said
    told = said.splitlines()[-1]
    assert told.startswith("tf_contrastive: ") and "no longer responds" in told
    saved = checkpoints.load_run(str(tmp_path / "run")).step
    assert f"saved at step {saved:,}" in told


def test_an_address_without_a_service_is_an_error(tmp_path):
    source = _source("memory", tmp_path)
    with pytest.raises(errors.UserError, match="data_service=grpc://localhost"):
        _epochs(source, 1, "grpc://localhost:1")


@pytest.mark.slow
@pytest.mark.parametrize("python", ["data", "views", None])
def test_python_that_the_workers_do_not_run_is_refused(python):
    def generate():
        for i in range(EXAMPLES):
            yield _image(i)

    signature = tf.TensorSpec([4, 4, 3], tf.uint8)
    data = tf.data.Dataset.from_generator(generate, output_signature=signature)
    if python != "data":
        data = tf.data.Dataset.from_tensor_slices([*generate()])

    def views(images, seeds):
        made = _make_views(images, seeds)
        if python == "views":
            made = tf.numpy_function(np.copy, [made], made.dtype)
            made.set_shape([None, 1, 1, 1, 3])
        return made

    # Nothing listens at port 9, which is asked after the check.
    text = "run Python, such as a generator" if python else "nothing answers"
    with pytest.raises(errors.UserError, match=text):
        datasets.training_batches(
            datasets.from_dataset(data),
            datasets.ViewMaker(views),
            datasets.Order(batch_size=BATCH, seed=0),
            service=datasets.DataService("grpc://localhost:9"),
        )
