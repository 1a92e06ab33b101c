"""Random bits: their information, and that views leave them."""

import numpy as np
import pytest
import small
from dataset_helpers import columns, refused
from scipy import stats

from tf_contrastive import datasets, views
from tf_contrastive.config import fields


def integers(extra):
    """The integers whose bits are the columns, the lowest first."""
    return (extra.astype(np.int64) << np.arange(extra.shape[1])).sum(axis=1)


def test_bits_have_as_much_information():
    found = columns(datasets.source("randbit:bits=4,of=digits"))
    extra = found["extra"]
    assert extra.shape == (1437, 4) and set(extra.ravel()) == {0, 1}
    counts = np.bincount(integers(extra), minlength=16)
    # Few images for many integers: the plug-in estimate of the entropy is lower
    # by what Miller and Madow found, (2^n - 1) / 2N nats.
    missing = 15 / (2 * 1437 * np.log(2))
    assert abs(stats.entropy(counts, base=2) - (4 - missing)) < 0.03
    assert stats.chisquare(counts).pvalue > 1e-3
    # The integer says nothing of the class.
    table = np.zeros([2, 10])
    np.add.at(table, (extra[:, 0].astype(int), found["label"]), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.slow
def test_bits_depend_on_the_image_and_the_seed(opened):
    name = "randbit:bits=12,of=cifar10"
    whole = columns(opened(name))
    part = columns(opened(name, "train[20:30]"))
    np.testing.assert_array_equal(part["extra"], whole["extra"][20:30])
    plain = columns(opened("cifar10"))["image"]
    np.testing.assert_array_equal(whole["image"], plain)
    other = columns(opened("randbit:bits=12,seed=1,of=cifar10"))["extra"]
    agreeing = (other == whole["extra"]).mean()
    assert 0.4 < agreeing < 0.6
    # Fewer bits are the first ones of more: --extra_channels=5 of 12 is 5.
    five = columns(opened("randbit:bits=5,of=cifar10"))["extra"]
    np.testing.assert_array_equal(five, whole["extra"][:, :5])
    nested = opened(f"randbit:bits=3,seed=2,of={name}")
    assert nested.info.extra_channels == 15
    found = columns(nested)["extra"][:, :12]
    np.testing.assert_array_equal(found, whole["extra"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("augmentation", "augment_on"),
    [
        ("autoaugment", "device"),
        ("simclr", "host"),
        ("none", "host"),
        ("ablation:noise+solarize", "host"),
    ],
)
def test_no_augmentation_changes_extra_channels(augmentation, augment_on):
    # The label is the index of the image.
    images = columns(datasets.source("digits", "train[:24]"))["image"]
    bits = np.random.default_rng(0).integers(0, 2, [24, 6])
    source = datasets.from_arrays(images, np.arange(24), extra=bits)
    options = {"augmentation": augmentation, "augment_on": augment_on}
    options |= {"image_size": 8, "extra_channels": 6}
    maker = views.RunViews(fields.replace(small.RUN, **options).views)
    made = maker.geometric, maker.finish
    batches = datasets.training_batches(
        source,
        datasets.ViewMaker(*made, extra_channels=6),
        datasets.Order(batch_size=24, seed=3),
    )
    step = maker.on_device()
    for given, which in batches.take(2):
        pixels = step(*given) if step else given
        expected = bits[which][:, None, None, None] + np.zeros([2, 8, 8, 6])
        np.testing.assert_array_equal(pixels[..., 3:], expected)
        same = np.all(pixels[:, 0, ..., :3] == pixels[:, 1, ..., :3])
        assert same == (augmentation == "none")


def test_kbits_are_bits_and_nothing_else():
    name = "kbits:bits=3,side=16,examples=4000"
    train, test = (datasets.source(name, x) for x in ("train", "test"))
    assert train.info.image_shape == (16, 16, 3) and not train.info.has_labels
    assert train.info.extra_channels == 3
    found, other = columns(train), columns(test)
    assert found["image"].max() == 0
    counts = np.bincount(integers(found["extra"]))
    assert len(counts) == 8 and stats.chisquare(counts).pvalue > 1e-3
    assert (found["extra"] != other["extra"]).any()
    part = datasets.source(name, "train[7:9]")
    np.testing.assert_array_equal(columns(part)["extra"], found["extra"][7:9])
    refused("split of kbits", name="kbits", split="validation")
    pixel = datasets.source("kbits:bits=3,side=1,examples=5", "train").info
    assert pixel.image_shape == (1, 1, 3)
