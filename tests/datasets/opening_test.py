"""Datasets by name: options, paths, and what is refused for all kinds."""

import dataclasses

import pytest
from dataset_helpers import class_folders, encoded, picture, refused
from image_helpers import write_records

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading, inherited
from tf_contrastive.config.dataset import Cifar2, MultiDigits
from tf_contrastive.config.dataset import read as read_name


def test_names_are_read_into_their_options():
    read = read_name("multidigits:count=4,placement=grid,canvas=56")
    expected = MultiDigits(count=4, placement="grid", canvas=56)
    assert read == expected and read.sides == (28,) * 4
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multidigits:cuont=4", "did you mean count"),
        ("multidigits:count=4,", "OPTION=VALUE"),
        ("multidigits:count=0", "count"),
        ("multidigits:count=17,placement=grid", "at most 16"),
        ("multidigits:sizes=20+113", "canvas=112"),
        ("multidigits:sizes=20,count=2", "either sizes"),
        ("randbit:bits=3", "of"),
        ("subset:fraction=nan,of=digits", "fraction"),
        ("randbit:bits=3,of=kbits:bit=1", "did you mean bits"),
    ],
)
def test_an_invalid_name_is_refused(name, words):
    must = f"dataset {name}: must be {name.split(':')[0]} with"
    refused(words, must, name=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["digits", "tfrecord:{}/a.tfrecord", "folder:{}/both"]
)
def test_a_fraction_that_cannot_be_held_out_is_refused(name, tmp_path):
    for split in ("train", "test"):
        class_folders(tmp_path / "both" / split)
    write_records(tmp_path / "a.tfrecord", [{"image": encoded(picture(0))}])
    name = name.format(tmp_path)
    datasets.source(name)
    reading = Reading(test_fraction=0.2)
    refused("test_fraction=0.2 has no effect", name=name, reading=reading)


def test_options_of_reading_that_are_set_replace_those_of_a_run():
    run = Reading(label_feature="a", image_feature="b", test_fraction=0.2)
    assert inherited(Reading(), run) == run
    given = Reading(label_feature="none", max_bad_images=7)
    expected = {"label_feature": "none", "max_bad_images": 7}
    assert inherited(given, run) == dataclasses.replace(run, **expected)
    with pytest.raises(errors.UserError, match="run has held out"):
        inherited(Reading(test_fraction=0.5), run)


def test_paths_need_a_scheme(tmp_path):
    class_folders(tmp_path)
    refused("folder:PATH", name=str(tmp_path))
    refused("is a file", name=f"folder:{tmp_path}/cat/0.png")
