"""Images of four channels and 16 bits, from pretraining to embeddings."""

import json

import numpy as np
import pytest
import small
import tensorflow as tf
from image_helpers import PREPARED, needs_prepared

from tf_contrastive import checkpoints, datasets, exporting

pytestmark = [needs_prepared, pytest.mark.usefixtures("small_encoder")]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """CIFAR-10 with noise in the lower 8 bits, and a fourth channel."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        data, _ = datasets.load("cifar10", f"{split}[:128]", str(PREPARED))
        for i, example in enumerate(data.as_numpy_iterator()):
            grey = example["image"].mean(-1, keepdims=True).astype(np.uint8)
            levels = np.concatenate([example["image"], 255 - grey], axis=-1)
            low = random.integers(0, 256, levels.shape, np.uint16)
            folder = root / split / f"class{example['label']}"
            folder.mkdir(parents=True, exist_ok=True)
            np.save(folder / f"{i:03}.npy", levels * np.uint16(256) + low)
    return root


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("run")
    words = small.words(
        dataset=f"folder:{images}",
        split="train",
        channels=4,
        reading_options="color_channels=0,1,2",
        augmentation="simclr",
        epochs=1,
        projector_examples=8,
        workdir=workdir,
    )
    assert small.command("pretrain", *words) == 0
    return workdir


@pytest.fixture(scope="module")
def expected(images, run):
    """Names, and the encoder's embeddings of value / 65535, of the test."""
    paths = sorted((images / "test").glob("*/*.npy"))
    pixels = np.stack([np.load(path) for path in paths]) / np.float32(65535)
    encoder = checkpoints.load_encoder(checkpoints.load_run(str(run)))
    embeddings = encoder(pixels, training=False).numpy()
    return paths, pixels, dict(zip(map(str, paths), embeddings, strict=True))


def test_embeddings_are_of_all_bits(run, expected, tmp_path):
    output = tmp_path / "h.npz"
    words = f"--workdir={run}", f"--output={output}"
    assert small.command("embed", *words) == 0
    found = np.load(output)
    for path, embedding in zip(
        found["paths"], found["embeddings"], strict=True
    ):
        np.testing.assert_allclose(
            embedding, expected[2][str(path)], 1e-5, 1e-5
        )


@pytest.mark.slow
def test_signatures_agree_with_the_encoder(run, expected, tmp_path):
    path = exporting.export(str(run), str(tmp_path))
    model = tf.saved_model.load(path)
    paths, pixels, embeddings = expected
    served = model.signatures["serving_default"](images=pixels[:4])
    found = served["embedding"].numpy()
    wanted = [embeddings[str(path)] for path in paths[:4]]
    np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)
    values = [np.load(path) for path in paths[:4]]
    files = [tf.io.encode_png(x).numpy() for x in values]
    files[1] = tf.io.encode_png(values[1][..., :3]).numpy()
    files[2] = paths[2].read_bytes()
    served = model.signatures["serving_bytes"](bytes=tf.constant(files))
    assert served["ok"].numpy().tolist() == [True, False, True, True]
    rows = [0, 2, 3]
    found = served["embedding"].numpy()[rows]
    np.testing.assert_allclose(found, np.array(wanted)[rows], 1e-5, 1e-5)
    large = model.signatures["serving_default"](images=np.ones([1, 50, 70, 4]))
    assert large["embedding"].shape == (1, wanted[0].size)


@pytest.mark.slow
def test_commands_take_the_run(images, run, tmp_path):
    protocols = f"--workdir={run}", "--protocols=knn,kmeans", "--scale=cpu"
    assert small.command("evaluate", *protocols) == 0
    report = json.loads((run / "evaluation.json").read_text())
    assert {x["protocol"] for x in report["results"]} == {"knn", "kmeans"}
    output = tmp_path / "page"
    words = f"--output={output}", f"--query={images / 'test' / 'class3'}"
    assert small.command("explore", f"--workdir={run}", *words) == 0
    assert (output / "explore.html").exists()
