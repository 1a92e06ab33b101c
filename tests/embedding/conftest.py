import pytest
import saved_run
from dataset_helpers import class_folders

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


@pytest.fixture
def images(tmp_path):
    """A folder of six images."""
    return class_folders(tmp_path, ["images"], per_class=6) / "images"


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """Paths of four of twelve images, damaged after the command's start."""
    root = class_folders(tmp_path / "damaged", "ab", per_class=6)
    source = datasets.source(f"folder:{root}", "train")
    monkeypatch.setattr(datasets, "source", lambda *_, **__: source)
    paths = [root / "a/1.png", *(root / f"b/{i}.png" for i in range(3))]
    for path in paths:
        path.write_bytes(b"no image")
    return [*map(str, paths)]
