"""Exports under strain: another TensorFlow, 64 threads, SIGKILLs.

DRILL_KILLS sets the number of kills.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_contrastive import encoders, exporting, heads

_ROOT = Path(__file__).resolve().parents[2]
SIZE = 32
SECONDS = 20
KILLS = int(os.environ.get("DRILL_KILLS", "8"))


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


_NEWEST = """
import json, sys
import numpy as np, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
given = np.load(sys.argv[2], allow_pickle=True)
out = {}
for name, signature in model.signatures.items():
    if name == "serving_bytes":
        inputs = {"bytes": tf.constant(given["bytes"].tolist())}
    elif name == "serving_float":
        inputs = {"images": tf.constant(given["floats"])}
    else:
        inputs = {"images": tf.constant(given["images"])}
    for key, value in signature(**inputs).items():
        out[f"{name} {key}"] = value.numpy()
floats = tf.constant(given["floats"])
optimizer_steps, history = 5, []
for _ in range(optimizer_steps):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(floats, training=True) ** 2)
    gradients = tape.gradient(loss, list(model.trainable_variables))
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign_sub(0.01 * gradient)
    history.append(float(loss))
out["history"] = np.array(history)
np.savez(sys.argv[3], **out)
print(json.dumps({"tensorflow": tf.__version__}))
"""


def test_the_newest_tensorflow_reads_an_export(tmp_path):
    """Of the package index, in its own virtual environment."""
    path = _export(tmp_path / "export")
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    # The wheel without CUDA and tools for training is enough to load it.
    subprocess.run(
        [
            *(python, "-m", "pip", "install", "--quiet", "--no-input"),
            *("--disable-pip-version-check", "tensorflow-cpu"),
        ],
        check=True,
    )
    images = exporting.as_bytes(exporting.photographs(9, SIZE))
    files = exporting.as_jpeg(images / 255.0)
    files[4] = b"no image"
    given = {
        "images": images,
        "floats": (images / 255.0).astype(np.float32),
        "bytes": files,
    }
    np.savez(tmp_path / "given.npz", **given)
    done = subprocess.run(
        [
            *(python, "-I", "-c", _NEWEST, path),
            *(str(tmp_path / "given.npz"), str(tmp_path / "out.npz")),
        ],
        cwd=tmp_path,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    version = json.loads(done.stdout.splitlines()[-1])["tensorflow"]
    print(f"read by TensorFlow {version}")
    assert tuple(map(int, version.split(".")[:2])) > (2, 15)
    out = np.load(tmp_path / "out.npz")
    model = tf.saved_model.load(path)
    inputs = {"serving_bytes": "bytes", "serving_float": "floats"}
    for name, signature in model.signatures.items():
        key = "bytes" if name == "serving_bytes" else "images"
        value = given[inputs.get(name, "images")]
        value = value.tolist() if key == "bytes" else value
        for output, here in signature(**{key: tf.constant(value)}).items():
            there, here = out[f"{name} {output}"], here.numpy()
            if here.dtype != np.float32:
                np.testing.assert_array_equal(there, here)
            else:
                largest = np.abs(here).max()
                assert np.abs(there - here).max() <= 1e-5 * largest, name
    assert out["serving_bytes ok"].tolist() == [i != 4 for i in range(9)]
    history = out["history"]
    assert (np.diff(history) < 0).all(), history


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
    generator = random.Random(0)
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
            before = set(base.glob("partial-*"))
            while set(base.glob("partial-*")) <= before:
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
        partial += len(list(base.glob("partial-*")))
    versions = sorted(exporting.versions(str(base)))
    print(f"{len(versions)} versions, {partial} times something was left over")
    assert partial > 0  # Or else no kill came at the wrong moment.
    for version in versions[-3:]:
        served = tf.saved_model.load(str(base / str(version))).signatures
        images = tf.zeros([2, 9, 9, 3], tf.uint8)
        assert served["serving_default"](images=images)["embedding"].shape[1]
