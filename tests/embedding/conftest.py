import numpy as np
import PIL.Image
import pytest
import saved_run

from tf_contrastive import datasets
from tf_contrastive.commands import embed as command
from tf_contrastive.commands.embed import Embed
from tf_contrastive.config import fields


@pytest.fixture(scope="session")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    saved_run.make(folder)
    return str(folder)


@pytest.fixture(scope="session")
def embed():
    """Runs the command, by default on a run."""

    def run(workdir="", output="", **values):
        values |= {"workdir": str(workdir), "output": str(output)}
        options = fields.replace(Embed(), **values)
        options.validate()
        assert command.run(options) == 0

    return run


def write_images(folder, count):
    """Writes images 00.png, 01.png, ..."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for i in range(count):
        pixels = generator.integers(0, 256, [20, 30, 3], np.uint8)
        PIL.Image.fromarray(pixels).save(folder / f"{i:02}.png")
    return folder


@pytest.fixture
def images(tmp_path):
    """A folder of six images."""
    return write_images(tmp_path / "images", 6)


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """Paths of four of twelve images, damaged after the command's start."""
    a, b = (write_images(tmp_path / "damaged" / x, 6) for x in "ab")
    source = datasets.source(f"folder:{tmp_path}/damaged", "train")
    monkeypatch.setattr(datasets, "source", lambda *_, **__: source)
    paths = [a / "01.png", *(b / f"{i:02}.png" for i in range(3))]
    for path in paths:
        path.write_bytes(b"no image")
    return [*map(str, paths)]
