"""Packed images: what is written, resumed and read."""

import functools
import json

import numpy as np
import pytest
import tensorflow as tf
from image_helpers import photos
from PIL import Image

from tf_contrastive import __main__, datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading

_write = functools.partial(datasets.pack, file_images=2)
# Width and height; the shorter side becomes 40.
_SIZES = [(120, 90), (60, 300), (40, 70), (20, 30), (400, 500)]


@pytest.fixture
def folder(tmp_path):
    """Five photographs of two classes, packed two to a file."""
    for i, size in enumerate(_SIZES):
        path = tmp_path / "images" / "ab"[i % 2]
        path.mkdir(parents=True, exist_ok=True)
        photo = Image.fromarray(photos()[i % 2]).resize(size, Image.BICUBIC)
        photo.save(path / f"{i}.{'jpg' if i else 'png'}", quality=95)
    return tmp_path


def _pack(folder, name="packed", **options):
    source = datasets.source(f"folder:{folder}/images", **options)
    return _write(source, str(folder / name), 40)


def _read(folder, name="packed", split="train"):
    source = datasets.source(f"packed:{folder}/{name}", split)
    return source, list(source.examples().as_numpy_iterator())


def _contents(path):
    """The encoded images in a TFRecord file."""
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        features = tf.train.Example.FromString(record).features.feature
        yield features["image"].bytes_list.value[0]


@pytest.mark.slow
def test_images_are_shrunk_once_and_read_in_order(folder):
    _pack(folder)
    source, examples = _read(folder)
    original = datasets.source(f"folder:{folder}/images")
    assert source.info.label_names == original.info.label_names == ("a", "b")
    assert source.info.num_examples == len(_SIZES)
    for found, expected in zip(
        examples, original.examples().as_numpy_iterator(), strict=True
    ):
        assert found["label"] == expected["label"]
        height, width, _ = expected["image"].shape
        scale = min(40 / min(height, width), 1.0)
        size = round(width * scale), round(height * scale)
        assert found["image"].shape == (size[1], size[0], 3)
        image = Image.fromarray(expected["image"])
        shrunk = np.asarray(image.resize(size, Image.BICUBIC), float)
        # JPEG, twice; a wrong image differs by 60.
        assert np.abs(found["image"] - shrunk).mean() < 8
    # Other programs read the files, too.
    pattern = f"tfrecord:{folder}/packed/*.tfrecord"
    others = datasets.source(pattern).examples().as_numpy_iterator()
    for found, other in zip(examples, others, strict=True):
        np.testing.assert_array_equal(found["image"], other["image"])


@pytest.mark.slow
def test_slices_and_splits_are_read(folder):
    _pack(folder)
    _pack(folder, split="test", reading=_held_out())
    _, examples = _read(folder)
    source, part = _read(folder, split="train[1:4]")
    assert source.info.num_examples == 3
    for found, expected in zip(part, examples[1:4], strict=True):
        np.testing.assert_array_equal(found["image"], expected["image"])
    assert len(_read(folder, split="test")[1]) == 2


def _held_out():
    return Reading(test_fraction=0.4)


@pytest.mark.slow
def test_an_interrupted_pack_goes_on(folder):
    _pack(folder)
    first, *others = sorted((folder / "packed").glob("*.tfrecord"))
    before = {path: path.read_bytes() for path in others}
    written = first.stat().st_mtime_ns
    for path in others:  # As if the process had been killed.
        path.unlink()
    with pytest.raises(errors.UserError, match=r"2 of 3 files.*repeat"):
        _read(folder)
    _pack(folder)
    assert first.stat().st_mtime_ns == written
    assert {path: path.read_bytes() for path in others} == before


def test_failures_to_read_and_to_write_are_distinguished(folder):
    source = datasets.source(f"folder:{folder}/images")
    (folder / "file").write_text("")
    with pytest.raises(errors.UserError, match=r"cannot write .*file"):
        _write(source, str(folder / "file"), 40)
    (folder / "images" / "b" / "1.jpg").unlink()
    with pytest.raises(errors.UserError, match=r"read .*b/1\.jpg") as caught:
        _write(source, str(folder / "packed"), 40)
    assert "write" not in str(caught.value)


def test_other_and_damaged_packs_are_refused(folder):
    _pack(folder)
    with pytest.raises(errors.UserError, match="is of split=train, not train"):
        _pack(folder, split="train[:3]")
    with pytest.raises(errors.UserError, match="no split 'test'"):
        _read(folder, split="test")
    file = folder / "packed" / "train-00001.tfrecord"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(errors.UserError, match=r"00001\.tfrecord"):
        _read(folder)
    file.write_bytes(content)
    manifest = folder / "packed" / "train.json"
    for damaged in ("", "[]", json.dumps({"files": [1]})):
        manifest.write_text(damaged)
        with pytest.raises(errors.UserError, match=r"train\.json"):
            _read(folder)


@pytest.mark.slow
def test_the_command_packs_what_pretrain_reads(folder, monkeypatch, capsys):
    def main(*words):
        monkeypatch.setattr("sys.argv", ["tf_contrastive", *words])
        return __main__.main()

    data = f"--dataset=folder:{folder}/images"
    pack = f"--pack={folder}/packed"
    assert main("datasets", data, pack, "--pack_side=32") == 0
    said = capsys.readouterr().out
    assert f"--dataset=packed:{folder}/packed" in said
    assert "packed 5 images of train" in said
    run = [
        f"--dataset=packed:{folder}/packed",
        f"--workdir={folder}/run",
        "--encoder=resnet10",
        "--width=0.25",
        "--image_size=16",
        "--batch_size=4",
        "--epochs=1",
    ]
    assert main("pretrain", *run) == 0
    assert main("datasets", pack) != 0
    assert "set both" in capsys.readouterr().err
