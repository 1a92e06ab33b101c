"""A host of a TPU pod: it runs the graph of the input, but none of our Python.

Stands in for it: a process of TensorFlow's server, which never imports this
package, and on whose CPU the dataset is made, as `TPUStrategy` makes it.
"""

import socket

import numpy as np
import processes
import pytest
import tensorflow as tf
from image_helpers import patches, write_records

_HOST = """
import sys
import tensorflow as tf
cluster = tf.train.ClusterSpec({"worker": [sys.argv[1]]})
tf.distribute.Server(cluster, job_name="worker", task_index=0).join()
"""

_COORDINATOR = """
import sys
import numpy as np, tensorflow as tf
from tf_contrastive import datasets, train, views
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
address, output, *names = sys.argv[1:]
if address:
    tf.config.experimental_connect_to_cluster(
        tf.train.ClusterSpec({"worker": [address]}), job_name="coordinator")
device = "/job:worker/task:0/device:CPU:0" if address else "CPU:0"
batches = {}
for name in names:
    run = fields.replace(
        Pretrain(), dataset=name, augmentation="autoaugment", image_size=8,
        batch_size=8, wire_dtype="uint8")
    source = datasets.source(name, "train")
    source = datasets.in_memory(source, "auto" if name == "digits" else "none")
    maker = views.RunViews(run.views)
    maker = datasets.ViewMaker(maker.geometric, maker.finish)
    made = {
        "training": lambda: datasets.training_batches(
            source, maker, datasets.Order(batch_size=8),
            tf.distribute.InputContext(2, 1, 4)),
        "evaluation": lambda: datasets.evaluation_part(
            source, views.evaluation(8), batch_size=4,
            context=tf.distribute.InputContext(2, 1))}
    for use, make in made.items():
        with tf.device(device):
            rows = iter(make())
            for step in range(3):
                for part, x in enumerate(next(rows)):
                    assert not address or "/job:worker" in x.device, x.device
                    batches[f"{name} {use} {step} {part}"] = x.numpy()
np.savez(output, **batches)
"""


@pytest.fixture
def host():
    """The address of the server's process."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    with processes.start(processes.python(_HOST, address)):
        yield address


@pytest.mark.slow
def test_a_host_without_our_python_makes_the_batches(host, tmp_path):
    records = []
    for number, pixels in enumerate(patches(24, 12)):
        contents = tf.io.encode_png(pixels[: 8 + number % 3]).numpy()
        folder = tmp_path / "images" / str(number % 3)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.png").write_bytes(contents)
        records.append({"image": contents, "label": number % 3})
    for file in range(4):
        write_records(tmp_path / f"{file}.tfrecord", records[file::4])
    files = f"tfrecord:{tmp_path}/*.tfrecord"
    names = "digits", f"folder:{tmp_path}/images", files
    paths = [str(tmp_path / f"{place}.npz") for place in ("here", "there")]
    for address, path in zip(("", host), paths, strict=True):
        processes.run(processes.python(_COORDINATOR, address, path, *names))
    here, there = map(np.load, paths)
    assert len(here.files) == len(names) * 2 * 3 * 2
    assert sorted(here.files) == sorted(there.files)
    for name in here.files:
        np.testing.assert_array_equal(there[name], here[name], err_msg=name)
