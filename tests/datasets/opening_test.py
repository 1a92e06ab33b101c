"""Datasets by name: options, paths, and what is refused for all kinds."""

import dataclasses
import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import (
    class_folders,
    columns,
    csv,
    encoded,
    picture,
    refused,
)
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.config.data import Reading, inherited
from tf_contrastive.config.dataset import DATASETS, Cifar2, MultiDigits
from tf_contrastive.config.dataset import read as read_name

_ROOT = Path(__file__).resolve().parents[2]


def test_names_are_read_into_their_options():
    read = read_name("multidigits:count=4,placement=grid,canvas=56")
    expected = MultiDigits(count=4, placement="grid", canvas=56)
    assert read == expected and read.sides == (28,) * 4 and read.cells == 4
    read = read_name("multidigits:sizes=20+80")
    assert read.sides == (20, 80)
    read = read_name("digit_on_image:of=cifar10,unique=3,label=digit")
    assert (read.of, read.unique, read.label) == ("cifar10", 3, "digit")
    # What follows a name with a colon is that dataset's own.
    inner = "randbit:bits=2,of=folder:/a,b=c"
    assert read_name(f"randbit:bits=3,of={inner}").of == inner
    read = read_name("subset:fraction=0.01,of=cifar10")
    assert read.fraction == 0.01
    assert read_name("cifar2") == Cifar2()
    for declared in DATASETS.values():
        module, _, function = declared.opener.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multidigits:cuont=4", "did you mean count?"),
        ("multidigits:count=4,", "OPTION=VALUE"),
        ("multidigits:count=0", "count"),
        ("multidigits:count=17,placement=grid", "at most 16"),
        ("multidigits:sizes=20+113", "canvas=112"),
        ("multidigits:sizes=20,count=2", "either sizes"),
        ("randbit:bits=3", "of"),
        ("subset:fraction=nan,of=digits", "fraction"),
        ("randbit:bits=3,of=kbits:bit=1", "did you mean bits?"),
    ],
)
def test_an_invalid_name_is_refused(name, words):
    must = f"dataset {name}: must be {name.split(':')[0]} with"
    refused(words, must, name=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["multidigits:count=3,canvas=64", "randbit:bits=7,of=cifar10"]
)
def test_the_same_stream_on_any_number_of_threads(opened, name):
    runs = []
    for threads in (1, 7):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        batches = opened(name).examples().with_options(options).batch(64)
        runs.append(list(batches.as_numpy_iterator()))
    for one, many in zip(*runs, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], many[key])
    cached = columns(opened(name).cached())
    for key, rows in columns(opened(name)).items():
        np.testing.assert_array_equal(rows, cached[key])


def run_python(code, *words):
    """Runs code in a process of its own; returns what it prints."""
    path = os.pathsep.join([str(_ROOT), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "digits",
        "subset:fraction=0.5,of=digits",
        "tfrecord:{}/a.tfrecord",
        "packed:{}/packed",
        "folder:{}/both",
        "csv:{}/{{split}}.csv",
    ],
)
def test_a_fraction_that_cannot_be_held_out_is_refused(name, tmp_path):
    for split in ("train", "test"):
        class_folders(tmp_path / "both" / split)
    datasets.pack(
        datasets.source(f"folder:{tmp_path}/both"), f"{tmp_path}/packed", 8
    )
    for split in ("train", "test"):
        text = f"path,label\nboth/{split}/cat/0.png,a"
        csv(tmp_path / f"{split}.csv", text)
    write_records(tmp_path / "a.tfrecord", [{"image": encoded(picture(0))}])
    name = name.format(tmp_path)
    datasets.source(name)
    reading = Reading(test_fraction=0.2)
    refused("test_fraction=0.2 has no effect", name=name, reading=reading)


def test_options_of_reading_that_are_set_replace_those_of_a_run():
    run = Reading(label_feature="a", max_classes=9, test_fraction=0.2)
    assert inherited(Reading(), run) == run
    given = Reading(label_feature="none", max_bad_images=7, test_fraction=0.5)
    expected = {"label_feature": "none", "max_bad_images": 7}
    assert inherited(given, run) == dataclasses.replace(run, **expected)


def test_paths_without_a_scheme_get_one(tmp_path):
    class_folders(tmp_path)
    refused(f"folder:{tmp_path}", name=str(tmp_path))
    refused("is a file", name=f"folder:{tmp_path}/cat/0.png")


# Root may read everything.
_WITHOUT_PERMISSION = """
import os, sys
from tf_contrastive import datasets
from tf_contrastive.base import errors
folder = sys.argv[1]
if os.getuid() == 0:
    # First what TensorFlow imports late, which another user may not read.
    datasets.source(f"folder:{folder}/images")
    datasets.source(f"tfrecord:{folder}/a.tfrecord")
    os.setuid(65534)
source = datasets.source(f"folder:{folder}/images")
print(source.info.label_names, source.info.num_examples)
for name in ("folder:{}/locked", "csv:{}/list.csv", "tfrecord:{}/a.tfrecord"):
    try:
        datasets.source(name.format(folder))
    except errors.UserError as error:
        print(error)
"""


@pytest.mark.slow
def test_files_without_permission_are_an_error_of_one_line():
    # Not in tmp_path, which only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        class_folders(path / "images")
        (path / "images" / "lost+found").mkdir()
        (path / "locked").mkdir()
        csv(path / "list.csv", "path,label\nimages/cat/0.png,a")
        write_records(path / "a.tfrecord", [{"image": encoded(picture(0))}])
        for name in ("images/lost+found", "locked", "list.csv", "a.tfrecord"):
            (path / name).chmod(0)
        printed = run_python(_WITHOUT_PERMISSION, folder)
    first, *others = printed.splitlines()
    assert first == "('cat', 'dog') 6"
    assert len(others) == 3
    for line, name in zip(
        others, ("locked", "list.csv", "a.tfrecord"), strict=True
    ):
        assert name in line and "ermission denied" in line
