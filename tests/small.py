"""Small runs and networks, for tests that are not about them.

`encoder` makes "resnet10" smaller, `run` and `words` are the options and the
flags of a run of seconds, `command` runs a command in this process,
`convolutions` is a network for a model that a test builds, `cluster` has the
variables of workers, and `newest` and `weights` read a run's checkpoints.

`python -m tests.small COMMAND ...` is `python -m tf_contrastive` with that
encoder and, for `pretrain`, with the flags in `UNWATCHED`. The environment's
`WORKER_TIMEOUT`: seconds that workers wait for each other, instead of 300.
"""

import contextlib
import json
import os
import socket
import sys
from unittest import mock

from tf_contrastive import __main__
from tf_contrastive.config import fields
from tf_contrastive.config.encoder import ResNet
from tf_contrastive.config.pretrain import Pretrain

# Without histograms and projector, which take half of the time of a short run.
UNWATCHED = {"histograms_every_epochs": 0, "projector_examples": 0}
RUN = fields.replace(Pretrain(), **UNWATCHED)
FLAGS = tuple(f"--{name}={value}" for name, value in UNWATCHED.items())


# Options of a run of seconds on the digits.
DIGITS = {
    "dataset": "digits",
    "split": "train[:256]",
    "augmentation": "crop",
    "min_crop_area": 0.5,
    "flip": False,
    "encoder": "resnet10",
    "width": 0.125,
    "projection_output": 16,
    "loss": "supcon",
    "batch_size": 64,
    "epochs": 2,
    "learning_rate": 1.0,
}


def run(**options):
    """The options of a run of seconds, without histograms and projector."""
    return fields.replace(RUN, **{**DIGITS, **options})


def words(**options):
    """The same as flags of `pretrain`."""
    return [
        f"--{name}={value}" for name, value in {**DIGITS, **options}.items()
    ]


def command(*words):
    """Runs a command in this process; returns its exit status."""
    with mock.patch.object(sys, "argv", ["tf_contrastive", *map(str, words)]):
        return __main__.main()


def convolutions(side=8, filters=(8, 16), norm=None):
    """Convolutions with stride 2: images [N, side, side, 3] -> [N, filters].

    Args:
      side: height and width of the images.
      filters: of each convolution.
      norm: a class of layers that follow each one, which has no bias then: the
        gradient of a bias before a normalization would be noise.
    """
    import tensorflow as tf

    images = x = tf.keras.Input((side, side, 3))
    for number in filters:
        x = tf.keras.layers.Conv2D(number, 3, 2, use_bias=norm is None)(x)
        x = norm()(x) if norm else x
        x = tf.keras.layers.ReLU()(x)
    features = tf.keras.layers.GlobalAveragePooling2D(dtype="float32")(x)
    return tf.keras.Model(images, features)


def cluster(*addresses, count=2):
    """The variables of each worker; by default `count`, at free ports."""
    if not addresses:
        with contextlib.ExitStack() as stack:
            held = [
                stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                for _ in range(count)
            ]
            ports = [server.getsockname()[1] for server in held]
        addresses = [f"127.0.0.1:{port}" for port in ports]
    tasks = [{"type": "worker", "index": i} for i in range(len(addresses))]
    return [
        {
            "TF_CONFIG": json.dumps(
                {"cluster": {"worker": [*addresses]}, "task": task}
            )
        }
        for task in tasks
    ]


def newest(workdir):
    """The step of a run's newest finished checkpoint; 0: it has none."""
    from tf_contrastive import checkpoints

    path, _ = checkpoints.newest(f"{workdir}/checkpoints")
    return checkpoints.step_of(path) if path else 0


def weights(workdir, step=None):
    """All values of a checkpoint by name; of the newest one by default."""
    import tensorflow as tf

    step = newest(workdir) if step is None else step
    reader = tf.train.load_checkpoint(f"{workdir}/checkpoints/ckpt-{step}")
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "CHECKPOINTABLE" not in name and "save_counter" not in name
    }


def check_equal(expected, found):
    """Compares all values of two checkpoints, of `weights`, bit by bit."""
    assert expected.keys() == found.keys()
    assert not [name for name in found if (found[name] != expected[name]).any()]


@contextlib.contextmanager
def encoder():
    """Reduces "resnet10" to its stem and last block, with as many features."""
    networks = dict(ResNet.networks)
    blocks = networks["resnet10"]._replace(repeats=(0, 0, 0, 1))
    ResNet.networks = {**networks, "resnet10": blocks}
    try:
        yield
    finally:
        ResNet.networks = networks


if __name__ == "__main__":
    if sys.argv[1] == "pretrain":
        sys.argv[2:2] = FLAGS  # Flags of the test override them.
    if seconds := os.environ.get("WORKER_TIMEOUT"):
        from tf_contrastive import distribution

        distribution.strategy.__kwdefaults__["timeout"] = float(seconds)
    with encoder():
        raise SystemExit(__main__.main())
