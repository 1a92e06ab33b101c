"""Exports under strain: 64 threads, SIGKILLs.

--drill_seed and --drill_kills vary them.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders, exporting, heads

_ROOT = Path(__file__).resolve().parents[2]
SIZE = 32
SECONDS = 20
SEED = int(os.environ.get("DRILL_SEED", "0"))
KILLS = int(os.environ.get("DRILL_KILLS", "4"))


def _export(folder):
    """An untrained ResNet with all signatures, and embeddings of images."""
    tf.keras.utils.set_random_seed(0)
    encoder = encoders.build(
        "resnet10",
        width=0.25,
        stem="cifar",
        image_shape=(SIZE, SIZE, 3),
        synchronized=False,
        zero_init_residual=False,
    )
    images = exporting.photographs(32, SIZE)
    for _ in range(5):  # Statistics, of whose absence outputs would fade.
        encoder(images, training=True)
    projection = heads.build("mlp", synchronized=False)
    projection.build(tf.TensorShape([None, encoder.output_shape[-1]]))
    features = encoder(images, training=False).numpy()
    head = exporting.PrototypeHead(features, np.arange(32) % 4)
    parts = exporting.Parts(exporting.plain_encoder(encoder), projection)
    return exporting.export(parts, str(folder), head=head)


def _resident_mib():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def test_64_threads_get_right_results(tmp_path):
    """All results right, and no growth of memory once it runs."""
    model = tf.saved_model.load(_export(tmp_path))
    rng = np.random.default_rng(0)
    batches = [
        rng.integers(0, 256, [n, 24 + n, 40 - n, 3], np.uint8)
        for n in range(1, 9)
    ]
    asked = []
    for images in batches:
        files = [tf.io.encode_png(image).numpy() for image in images]
        asked.append(("serving_default", {"images": tf.constant(images)}))
        asked.append(
            ("serving_bytes", {"bytes": tf.constant([*files, b"no image"])})
        )
        asked.append(("classify", {"images": tf.constant(images)}))

    def answer(name, inputs):
        outputs = model.signatures[name](**inputs)
        return {key: value.numpy() for key, value in outputs.items()}

    expected = [answer(*one) for one in asked]
    end = time.monotonic() + SECONDS
    wrong, counts = [], [0] * 64

    def ask(thread):
        while time.monotonic() < end and not wrong:
            which = (thread + counts[thread]) % len(asked)
            for key, value in answer(*asked[which]).items():
                same = value.dtype == np.float32
                close = (
                    np.allclose(value, expected[which][key], atol=1e-5)
                    if same
                    else (value == expected[which][key]).all()
                )
                if not close:
                    wrong.append((asked[which][0], key))
            counts[thread] += 1

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    memory = []
    while time.monotonic() < end:
        time.sleep(SECONDS / 12)
        memory.append(_resident_mib())
    for thread in threads:
        thread.join()
    print(f"{sum(counts)} requests; resident MiB: {np.rint(memory)}")
    assert not wrong
    assert min(counts) > 0
    # A leak of 1 kB a request would show; noise of the allocator is less.
    assert memory[-1] - memory[3] < 50, memory


def test_killed_exports_leave_nothing_to_be_loaded(tmp_path):
    """SIGKILL at any moment; each time the same command again."""
    code = (
        "import sys, time, tensorflow as tf\n"
        "from tf_contrastive import exporting\n"
        "inputs = tf.keras.Input([8, 8, 3])\n"
        "x = tf.keras.layers.GlobalAveragePooling2D()(inputs)\n"
        "encoder = tf.keras.Model(inputs, tf.keras.layers.Dense(4)(x))\n"
        "began = time.monotonic()\n"
        "exporting.export(encoder, sys.argv[1])\n"
        "print(time.monotonic() - began, flush=True)\n"
        "while True: exporting.export(encoder, sys.argv[1])\n"
    )
    generator = random.Random(SEED)
    base = tmp_path / "export"
    partial = 0
    for kill in range(KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(base)],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        seconds = float(process.stdout.readline())  # That an export takes.
        if kill % 2:  # While files are being written.
            before = set(base.glob(".export.partial-*"))
            while set(base.glob(".export.partial-*")) <= before:
                time.sleep(0.001)
            time.sleep(kill % 4 // 2 * generator.uniform(0.0, 0.02))
        else:
            time.sleep(generator.uniform(0.0, 1.2) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        for version in exporting.versions(str(base)):
            path = base / str(version)
            names = {p.name for p in path.iterdir()}
            assert {"saved_model.pb", "README.md", "assets.extra"} <= names
            assert exporting.details(str(path))["embedding_size"] == 4
        partial += len(list(base.glob(".export.partial-*")))
    versions = sorted(exporting.versions(str(base)))
    print(f"{len(versions)} versions, {partial} times something was left over")
    assert partial > 0  # Or else no kill came at the wrong moment.
    for version in versions[-3:]:
        served = tf.saved_model.load(str(base / str(version))).signatures
        images = tf.zeros([2, 9, 9, 3], tf.uint8)
        assert served["serving_default"](images=images)["embedding"].shape[1]
