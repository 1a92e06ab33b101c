"""Parts of other datasets: classes, and fractions of the labels."""

import numpy as np
import pytest
from dataset_helpers import class_folders, columns, refused

from tf_contrastive import datasets
from tf_contrastive.config.dataset import ImageNet100
from tf_contrastive.datasets.subsets import balanced_rows


@pytest.mark.slow
def test_cifar2_is_cats_and_dogs(opened):
    for split in ("train", "test"):
        source = opened("cifar2", split)
        whole = columns(opened("cifar10", split))
        found = columns(source)
        kept = np.isin(whole["label"], [3, 5])
        np.testing.assert_array_equal(found["image"], whole["image"][kept])
        expected = np.where(whole["label"][kept] == 3, 0, 1)
        np.testing.assert_array_equal(found["label"], expected)
        np.testing.assert_array_equal(source.labels(), expected)
        assert source.info.label_names == ("cat", "dog")
        assert source.info.num_examples == kept.sum()
    part = opened("cifar2", "train[5:50%]")
    assert part.info.num_examples == 5
    whole = columns(opened("cifar2"))["label"]
    np.testing.assert_array_equal(columns(part)["label"], whole[5:10])


def test_imagenet100_is_its_hundred_classes_in_order(data_dir, opened):
    assert len(set(ImageNet100.classes)) == 100
    source, whole = opened("imagenet100"), opened("imagenet2012")
    names = whole.info.label_names
    ids = [names[label] for label in whole.labels()]
    kept = [i for i, name in enumerate(ids) if name in ImageNet100.classes]
    found = columns(source)
    assert source.info.num_examples == len(kept) == 200
    expected = [ImageNet100.classes.index(ids[i]) for i in kept]
    assert found["label"].tolist() == expected
    assert source.info.label_names == ImageNet100.classes
    images = columns(whole)["image"]
    np.testing.assert_array_equal(found["image"], images[kept])


def test_slices_of_folders_have_every_class(tmp_path):
    class_folders(tmp_path, "abcd", per_class=10)
    name = f"subset:fraction=0.5,of=folder:{tmp_path}"
    assert datasets.source(name, "Training").info.num_examples == 20
    for part in ("train[:60%]", "train[60%:]"):
        assert {*datasets.source(name, part).labels()} == {*range(4)}


@pytest.mark.slow
def test_a_subset_has_as_many_labels_of_every_class(opened):
    whole = columns(opened("cifar10"))
    rows = {
        fraction: columns(opened(f"subset:fraction={fraction},of=cifar10"))
        for fraction in (0.1, 0.3)
    }
    for fraction, found in rows.items():
        expected = [round(10 * fraction)] * 10
        assert np.bincount(found["label"]).tolist() == expected
        # Those on which the protocol finetune trains.
        same = balanced_rows(whole["label"], fraction, seed=0)
        np.testing.assert_array_equal(found["image"], whole["image"][same])
    other = columns(opened("subset:fraction=0.3,seed=1,of=cifar10"))
    tenth, third, others = (
        {image.tobytes() for image in found["image"]}
        for found in (*rows.values(), other)
    )
    assert tenth < third != others
    # Labels of train alone are few.
    test = opened("subset:fraction=0.1,of=cifar10", "test")
    assert test.info.num_examples == 50
    part = columns(opened("subset:fraction=0.3,of=cifar10", "train[:4]"))
    np.testing.assert_array_equal(part["label"], rows[0.3]["label"][:4])
    refused("one label per image", name="subset:fraction=0.1,of=kbits")
