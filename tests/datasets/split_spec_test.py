"""Splits: slices, and validation splits."""

import hashlib

import numpy as np
import pytest
from dataset_helpers import class_folders, labels, read, refused

from tf_contrastive import datasets
from tf_contrastive.datasets import split_spec


@pytest.mark.parametrize(
    "slice_",
    ["", "[:7]", "[10%:]", "[:33%]", "[5:20]", "[-12:]", "[:-5%]", "[20%:41%]"],
)
def test_slices_are_those_of_tfds(slice_):
    import tensorflow_datasets as tfds

    sizes = {"shard_lengths": [1437], "num_bytes": 0}
    infos = {"train": tfds.core.SplitInfo(name="train", **sizes)}
    instruction = tfds.core.ReadInstruction.from_spec("train" + slice_)
    (theirs,) = instruction.to_absolute(infos)
    expected = (theirs.from_ or 0, 1437 if theirs.to is None else theirs.to)
    assert split_spec.bounds("train" + slice_, 1437) == expected


def test_the_random_order_needs_no_secure_hash(monkeypatch):
    names = ["a/0.png", "a/1.png", "b/0.png", "b/1.png"]
    md5 = hashlib.md5

    def fips(*words, usedforsecurity=True):
        if usedforsecurity:
            raise ValueError("disabled for FIPS")
        return md5(*words, usedforsecurity=False)

    monkeypatch.setattr(hashlib, "md5", fips)
    # Always the same: the test images of earlier runs depend on it.
    assert split_spec.random_order(names).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("trian", "did you mean train?"),
        ("train[0]", "train[:1000]"),
        ("train[:2000]", "1437"),
        ("train[9:9]", "is empty"),
    ],
)
def test_wrong_splits_are_refused(split, words):
    refused(words, name="digits", split=split)


@pytest.mark.parametrize("name", ["digits", "folder"])
def test_validation_splits_are_stratified_and_disjoint(name, tmp_path):
    if name == "folder":
        class_folders(tmp_path, per_class=10)
        name = f"folder:{tmp_path}"
    source = datasets.source(name)
    train, validation = source.split_validation(0.1, seed=3)
    again = source.split_validation(0.1, seed=3)[1]
    other = source.split_validation(0.1, seed=4)[1]
    classes = np.bincount(labels(source))
    cut = np.bincount(labels(validation))
    np.testing.assert_array_equal(cut, np.rint(0.1 * classes))
    whole, kept, cut, cut_again, cut_other = (
        sorted(e["image"].tobytes() for e in read(s))
        for s in (source, train, validation, again, other)
    )
    assert sorted(kept + cut) == whole
    assert cut == cut_again != cut_other
    assert len(kept) == train.info.num_examples
