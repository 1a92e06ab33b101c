"""The papers' datasets, and parts of datasets, against their definitions.

Oracles compose images in NumPy from the digits and images that they consist of;
where a random choice is tested, they find it by trying all possibilities.
"""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import small
import tensorflow as tf
from image_helpers import PREPARED, needs_prepared, write_prepared
from PIL import Image
from scipy import stats

from tf_contrastive import __main__, datasets, views
from tf_contrastive.commands import datasets as command
from tf_contrastive.config import fields
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import (
    DATASETS,
    EMBEDDED_NOTE,
    Cifar2,
    ImageNet100,
    MultiDigits,
    RandBit,
    WithOptions,
)
from tf_contrastive.config.dataset import read as read_name
from tf_contrastive.config.views import Views, resolve_views
from tf_contrastive.datasets import digit_canvases as digits_module
from tf_contrastive.datasets import opening
from tf_contrastive.datasets import random_bits as bits_module
from tf_contrastive.datasets.source import Access
from tf_contrastive.doctor import positives
from tf_contrastive.errors import UserError
from tf_contrastive.evaluation import finetune

_NAMES = "airplane automobile bird cat deer dog frog horse ship truck"


def store(root, name, images, labels, names, shape=None, **options):
    """Prepares a dataset; `images` and `labels` by split."""
    shape = shape or (None, None, next(iter(images.values()))[0].shape[-1])
    splits = {s: {"image": images[s], "label": labels[s]} for s in images}
    write_prepared(
        root,
        lambda f: {
            "image": f.Image(shape=shape),
            "label": f.ClassLabel(names=list(names)),
        },
        splits,
        name,
        **options,
    )


def pictures(count, side, channels, seed):
    random = np.random.RandomState(seed)
    return random.randint(0, 256, [count, side, side, channels], np.uint8)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A small mnist, cifar10, imagenet2012 and its 1 %, prepared."""
    root = tmp_path_factory.mktemp("prepared")
    sizes = {"train": 40, "test": 20}
    images = {s: pictures(n, 28, 1, n) for s, n in sizes.items()}
    labels = {s: np.arange(n) * 7 % 10 for s, n in sizes.items()}
    store(root, "mnist", images, labels, "0123456789", shape=(28, 28, 1))
    sizes = {"train": 100, "test": 50}
    images = {s: pictures(n, 32, 3, n) for s, n in sizes.items()}
    labels = {s: np.arange(n) * 3 % 10 for s, n in sizes.items()}
    store(root, "cifar10", images, labels, _NAMES.split(), shape=(32, 32, 3))
    names = sorted([*ImageNet100.classes, *(f"n9{i:07}" for i in range(20))])
    images = {"train": pictures(240, 8, 3, 1)}
    labels = {"train": np.arange(240) * 7 % 120}
    store(root, "imagenet2012", images, labels, names)
    images = {"train": images["train"][:120], "validation": images["train"]}
    labels = {"train": np.arange(120), "validation": labels["train"]}
    folder = {"config": "1pct"}
    store(root, "imagenet2012_subset", images, labels, names, **folder)
    return str(root)


@pytest.fixture(scope="module")
def opened(data_dir):
    """(name, split) -> source, of the prepared ones; each opened once."""

    @functools.cache
    def open_one(name, split="train"):
        return datasets.source(name, split, data_dir=data_dir)

    return open_one


@functools.cache
def columns(source):
    """All examples of a source, of one shape, as arrays."""
    batches = list(source.examples().batch(256).as_numpy_iterator())
    return {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}


def digits_of(opened, split):
    """The stand-in's digits [n, 28, 28] and their labels."""
    found = columns(opened("mnist", split))
    return found["image"][..., 0], found["label"]


def refused(name, *words, split="train", data_dir=None):
    with pytest.raises(UserError) as caught:
        datasets.source(name, split, data_dir=data_dir)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


# ---- Names -------------------------------------------------------------------


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
    assert set(opening.OPENERS) == set(DATASETS.values())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("multidigits:cuont=4", "did you mean count?"),
        ("multidigits:count=4,", "OPTION=VALUE"),
        ("multidigits:count=1,count=2", "OPTION=VALUE"),
        ("multidigits:count=0", "count"),
        ("multidigits:count=four", "count"),
        ("multidigits:count=17,placement=grid", "at most 16"),
        ("multidigits:sizes=20+x", "sizes"),
        ("multidigits:sizes=20+113", "canvas=112"),
        ("multidigits:sizes=20,count=2", "either sizes"),
        ("randbit:bits=3", "of"),
        ("randbit:bits=33,of=digits", "bits"),
        ("subset:fraction=nan,of=digits", "fraction"),
        ("randbit:bits=3,of=kbits:bit=1", "did you mean bits?"),
    ],
)
def test_an_invalid_name_is_refused(name, words):
    refused(name, words, f"dataset {name}: must be {name.split(':')[0]} with")


def test_digits_are_not_flipped():
    for name, flip in (
        ("multidigits:count=3", False),
        ("multidigits:count=3" + EMBEDDED_NOTE, False),
        ("randbit:bits=3,of=mnist:3.0.1", False),
        ("digit_on_image:of=digits" + EMBEDDED_NOTE, False),
        ("randbit:bits=3,of=cifar10", True),
    ):
        assert resolve_views(Views(), name, 32).flip is flip


# ---- Digits on a canvas ------------------------------------------------------


def composed(rows, digits, sides, canvas):
    """Images from a source's rows: the larger pixel where digits overlap."""
    made = []
    for which, places in zip(rows["digits"], rows["places"], strict=True):
        image = np.zeros([canvas, canvas], np.uint8)
        for digit, (top, left), side in zip(which, places, sides, strict=True):
            part = image[top : top + side, left : left + side]
            assert part.shape == (side, side), "a digit leaves the canvas"
            part[:] = np.maximum(part, scaled(digits[digit], side))
        made.append(image)
    return np.array(made)


def scaled(digit, side):
    """Another library's bilinear, antialiased resize."""
    grey = Image.fromarray(digit.astype(np.float32))
    grey = grey.resize([side, side], Image.Resampling.BILINEAR)
    return np.rint(np.asarray(grey)).clip(0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("name", "split", "sides"),
    [
        ("multidigits:count=5", "train", [28] * 5),
        ("multidigits:sizes=20+80", "train", [20, 80]),
        ("multidigits", "test", [28]),
        ("multidigits:sizes=20", "test", [20]),
    ],
)
def test_multidigits_show_whole_digits_by_the_larger_pixel(
    name, split, sides, opened
):
    digits, classes_ = digits_of(opened, split)
    source = opened(name, split)
    rows = {k: v.numpy() for k, v in source.arrays.items()}
    found = columns(source)
    expected = composed(rows, digits, sides, 112)[..., None]
    # Two libraries round resized digits differently.
    tolerance = 0 if set(sides) == {28} else 1
    assert np.abs(found["image"].astype(int) - expected).max() <= tolerance
    # Image i has digit i, and every digit's class is among its labels.
    assert rows["digits"][:, 0].tolist() == list(range(len(digits)))
    multi = len(sides) > 1
    assert source.info.multi_label == multi != source.info.has_labels
    assert source.info.num_classes == 10
    for row, label in zip(rows["digits"], found["label"], strict=True):
        hot = label if multi else np.eye(10)[label]
        assert set(np.flatnonzero(hot)) == set(classes_[row])
        assert set(hot) <= {0, 1}


def test_small_digits_cover_the_papers_share_of_an_image():
    """Nine digits of 4 in 32 pixels are nine of 28 in 224."""
    ink = tf.fill([28, 28], tf.constant(255, tf.uint8))
    shares = [
        np.mean(
            digits_module._nine_times(ink, tf.constant([side, side]), digit) > 0
        )
        for side, digit in ((32, 4), (224, 28), (32, 0))
    ]
    assert shares[0] == shares[1] == 9 / 64
    assert shares[2] == 4 * shares[0]  # Legible ones, without the option.


def test_places_are_uniform_over_the_canvas_and_overlap(opened):
    source = datasets.source("multidigits:count=4", data_dir="nowhere")
    places = source.arrays["places"].numpy()  # [1437, 4, 2]
    assert places.min() == 0 and places.max() == 112 - 28
    counts = np.bincount(places.ravel(), minlength=85)
    assert stats.chisquare(counts).pvalue > 1e-3
    near = np.abs(places[:, 0] - places[:, 1]).max(axis=1) < 28
    # A pair overlaps on each axis with the share of |a - b| < 28 of 0..84.
    a, b = np.mgrid[:85, :85]
    assert abs(near.mean() - (np.abs(a - b) < 28).mean() ** 2) < 0.05
    which = source.arrays["digits"].numpy()[:, 1:]
    halves = np.bincount(which.ravel() * 10 // 1437)
    assert stats.chisquare(halves).pvalue > 1e-3


@pytest.mark.parametrize(
    ("count", "canvas", "digit"), [(1, 112, 28), (5, 50, 14)]
)
def test_in_grid_digits_are_in_cells_of_their_own(opened, count, canvas, digit):
    name = f"multidigits:count={count},placement=grid,canvas={canvas}"
    source = opened(f"{name},digit={digit}")
    places = source.arrays["places"].numpy()
    assert not (places % digit).any()
    assert places.min() >= 0 and places.max() <= canvas - digit
    cells = places // digit
    numbers = cells[..., 0] * (canvas // digit) + cells[..., 1]
    assert all(len(set(row)) == count for row in numbers)
    # Without overlap no ink is lost.
    digits, _ = digits_of(opened, "train")
    inks = np.array([scaled(d, digit).astype(int).sum() for d in digits])
    expected = inks[source.arrays["digits"].numpy()].sum(axis=1)
    found = columns(source)["image"][..., 0].astype(int).sum(axis=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=2e-3)
    if count == 1:
        everywhere = set(numbers.ravel())
        assert len(everywhere) > 12 and source.info.has_labels


def test_a_slice_shows_the_same_images_and_a_seed_others(opened):
    name = "multidigits:count=3"
    whole = columns(opened(name))
    part = opened(name, "train[10:20]")
    for key, rows in columns(part).items():
        np.testing.assert_array_equal(rows, whole[key][10:20])
    other = columns(opened(f"{name},seed=1"))
    assert (other["image"] != whole["image"]).any(axis=(1, 2, 3)).all()
    # Places of the test split are not those of train.
    places = [
        opened(name, s).arrays["places"].numpy() for s in ("train", "test")
    ]
    assert (places[0][:20] != places[1]).any(axis=(1, 2)).mean() > 0.9


def test_embedded_digits_replace_a_missing_mnist(tmp_path, capsys):
    digits_module._warn_embedded.cache_clear()
    for split, count in (("train", 1437), ("test", 360)):
        source = datasets.source("multidigits", split, data_dir=str(tmp_path))
        assert source.info.num_examples == count
        assert source.info.name == "multidigits" + EMBEDDED_NOTE
    said = capsys.readouterr().err
    assert said.count("MNIST") == said.count("\n") == 1
    embedded = columns(datasets.source("digits", "test[:5]"))
    part = source.select(np.arange(5))
    found = columns(part)
    assert found["label"].tolist() == embedded["label"].tolist()
    rows = {k: v.numpy() for k, v in part.arrays.items()}
    expected = composed(rows, embedded["image"][..., 0], [28], 112)[..., None]
    assert np.abs(found["image"].astype(int) - expected).max() <= 1
    name = "randbit:bits=2,of=multidigits:count=2"
    outer = datasets.source(name, data_dir=str(tmp_path))
    assert outer.info.name == name + EMBEDDED_NOTE
    refused("multidigits", "split of digits", split="validation")


# ---- Digits on images --------------------------------------------------------


def nine(digit, size, side):
    """Nine digits of `side` pixels on black, by the definition."""
    layer = np.zeros(size, int)
    for y, x in itertools.product((0.15, 0.45, 0.75), repeat=2):
        top, left = int(size[0] * y), int(size[1] * x)
        layer[top : top + side, left : left + side] = scaled(digit, side)
    return layer


def digits_upon(found, images, digits, side, blend):
    """Which digit each image has, found by trying all; -1 where none fits."""
    size = images[0].shape[:2]
    layers = np.array([nine(d, size, side) for d in digits])[..., None]
    which = []
    for image, plain in zip(found, images, strict=True):
        if blend == "max":
            expected = np.maximum(plain, layers)
        else:
            expected = np.minimum(plain + layers, 255)
        errors = np.abs(image - expected).max(axis=(1, 2, 3))
        which.append(errors.argmin() if errors.min() <= 1 else -1)
    return np.array(which)


def test_each_image_has_one_digit_at_nine_places(opened):
    name = "digit_on_image:unique=6,blend=max,of=cifar10"
    digits, labels = digits_of(opened, "train")
    images = columns(opened("cifar10"))
    found = columns(opened(name))
    which = digits_upon(found["image"], images["image"], digits, 8, "max")
    # All of the first six, and none of the others.
    assert set(which) == set(range(6))
    assert found["label"].tolist() == images["label"].tolist()
    # The same digits, told by their own class.
    of_digits = opened(name.replace("unique=6", "unique=6,label=digit"))
    assert of_digits.info.label_names == tuple("0123456789")
    rows = columns(of_digits)
    np.testing.assert_array_equal(rows["image"], found["image"])
    np.testing.assert_array_equal(rows["label"], labels[which])
    np.testing.assert_array_equal(of_digits.labels(), labels[which])


def test_the_map_from_images_to_digits_is_fixed_by_the_seed(opened):
    digits, _ = digits_of(opened, "train")
    images = columns(opened("cifar10"))["image"]

    def which(name, split="train", plain=images):
        found = columns(opened(name, split))["image"]
        return digits_upon(found, plain, digits, 8, "add")

    name = "digit_on_image:of=cifar10"
    first = which(name)
    assert first.tolist() == which(name).tolist()
    part = which(name, "train[30:60]", images[30:60])
    assert part.tolist() == first[30:60].tolist()
    other = which("digit_on_image:seed=1,of=cifar10")
    assert (other == first).mean() < 0.2 and (other >= 0).all()
    # Of 40 digits, 100 images have about 40 (1 - (39/40)^100) = 37.
    assert len(set(first)) > 30


def test_validation_has_all_digits_of_the_test_split(opened):
    found = columns(opened("digit_on_image:unique=2,of=cifar10", "test"))
    digits, _ = digits_of(opened, "test")
    images = columns(opened("cifar10", "test"))["image"]
    which = digits_upon(found["image"], images, digits, 8, "add")
    assert (which >= 0).all() and len(set(which)) > 12


def test_digits_on_images_of_many_sizes(tmp_path, data_dir, opened):
    """At 224 pixels the paper's own places: 33, 100, 168, and 28 pixels."""
    random = np.random.RandomState(0)
    sizes = [(224, 224), (64, 96), (32, 32), (300, 448), (10, 12)]
    expected_sides = [28, 8, 8, 38, 3]
    images = []
    for number, size in enumerate(sizes):
        images.append(random.randint(0, 120, [*size, 3], np.uint8))
        Image.fromarray(images[-1]).save(tmp_path / f"{number}.png")
    digits, _ = digits_of(opened, "train")
    name = f"digit_on_image:unique=5,of=folder:{tmp_path}"
    found = opened(name).examples().as_numpy_iterator()
    for example, plain, side in zip(found, images, expected_sides, strict=True):
        upon = [example["image"]], [plain], digits[:5], side, "add"
        assert digits_upon(*upon)[0] >= 0, plain.shape
    image = opened(name).examples().as_numpy_iterator().next()["image"]
    changed = (image != images[0]).any(axis=(1, 2))
    assert changed.nonzero()[0].min() in range(33, 36)
    outside = np.ones([224], bool)
    for place in (33, 100, 168):
        outside[place : place + 28] = False
    assert not changed[outside].any()
    for option in ("digit=9", "unique=41"):
        refused(
            f"digit_on_image:{option},of=cifar10",
            option[:-1],
            data_dir=data_dir,
        )


# ---- Bits --------------------------------------------------------------------


def integers(extra):
    """The integers whose bits are the columns, the lowest first."""
    return (extra.astype(np.int64) << np.arange(extra.shape[1])).sum(axis=1)


def entropy(values):
    """The plug-in estimate, in bits."""
    _, counts = np.unique(values, return_counts=True)
    return stats.entropy(counts, base=2)


@pytest.mark.parametrize("bits", [0, 4])
def test_bits_have_as_much_information(bits):
    found = columns(datasets.source(f"randbit:bits={bits},of=digits"))
    extra = found["extra"]
    assert extra.shape == (1437, bits) and set(extra.ravel()) <= {0, 1}
    numbers = integers(extra)
    # Few images for many integers: the estimate is lower by what Miller and
    # Madow found, (2^n - 1) / 2N nats.
    missing = (2**bits - 1) / (2 * 1437 * np.log(2))
    assert abs(entropy(numbers) - (bits - missing)) < 0.03
    if bits:
        counts = np.bincount(numbers, minlength=2**bits)
        assert stats.chisquare(counts).pvalue > 1e-3
        # The integer says nothing of the class.
        table = np.zeros([2, 10])
        np.add.at(table, (extra[:, 0].astype(int), found["label"]), 1)
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_many_bits_identify_images_except_for_collisions():
    pixels = columns(datasets.source("digits"))["image"]
    images = len(np.unique(pixels.reshape(len(pixels), -1), axis=0))
    for bits in (10, 32):
        found = columns(datasets.source(f"randbit:bits={bits},of=digits"))
        numbers = integers(found["extra"])
        expected = 2**bits * -np.expm1(images * np.log1p(-(2.0**-bits)))
        assert abs(len(np.unique(numbers)) - expected) < 4 * np.sqrt(
            max(images - expected, 1)
        )
    # At most what tells one image from another.
    assert abs(entropy(numbers) - np.log2(images)) < 0.05


def test_bits_depend_on_the_image_and_the_seed(opened):
    name = "randbit:bits=12,of=cifar10"
    whole = columns(opened(name))
    part = columns(opened(name, "train[20:30]"))
    np.testing.assert_array_equal(part["extra"], whole["extra"][20:30])
    np.testing.assert_array_equal(
        whole["image"], columns(opened("cifar10"))["image"]
    )
    other = columns(opened("randbit:bits=12,seed=1,of=cifar10"))["extra"]
    agreeing = (other == whole["extra"]).mean()
    assert 0.4 < agreeing < 0.6
    # Fewer bits are the first ones of more: --extra_channels=5 of 12 is 5.
    five = columns(opened("randbit:bits=5,of=cifar10"))["extra"]
    np.testing.assert_array_equal(five, whole["extra"][:, :5])
    nested = opened(f"randbit:bits=3,seed=2,of={name}")
    assert nested.info.extra_channels == 15
    np.testing.assert_array_equal(
        columns(nested)["extra"][:, :12], whole["extra"]
    )


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
def test_no_augmentation_changes_the_bits(augmentation, augment_on):
    # The label is the index of the image.
    images = columns(datasets.source("digits", "train[:24]"))["image"]
    inner = datasets.from_arrays(images, np.arange(24))
    options = RandBit(bits=6, of="images")
    source = bits_module.randbit(
        "randbit", options, "train", Access(None, Reading(), lambda *_: inner)
    )
    expected = columns(source)["extra"]
    assert len(set(integers(expected))) > 12
    run = fields.replace(
        small.RUN,
        augmentation=augmentation,
        augment_on=augment_on,
        image_size=8,
        extra_channels=6,
        randaugment_layers=1,
    )
    maker = views.RunViews(run.views)
    batches = datasets.training_batches(
        source,
        datasets.ViewMaker(maker.geometric, maker.finish, extra_channels=6),
        datasets.Order(batch_size=24, seed=3),
    )
    step = maker.on_device()
    for given, which in batches.take(2):
        which = which.numpy()
        pixels = step(*given) if step else given
        assert pixels.shape == (24, 2, 8, 8, 9)
        bits = np.broadcast_to(
            expected[which][:, None, None, None], [24, 2, 8, 8, 6]
        )
        np.testing.assert_array_equal(pixels[..., 3:], bits)
        same = np.all(pixels[:, 0, ..., :3] == pixels[:, 1, ..., :3])
        assert same == (augmentation == "none")
    # Evaluation appends them to the image.
    scored = datasets.evaluation_batches(
        source, views.evaluation(8), batch_size=24
    )
    images, which = next(iter(scored))
    bits = expected[which.numpy()][:, None, None]
    bits = np.broadcast_to(bits, [24, 8, 8, 6])
    np.testing.assert_array_equal(images[..., 3:], bits)


def test_kbits_are_bits_and_nothing_else():
    train, test = (
        datasets.source("kbits:bits=3,side=16,examples=4000", split)
        for split in ("train", "test")
    )
    assert train.info.image_shape == (16, 16, 3) and not train.info.has_labels
    assert train.info.extra_channels == 3
    found, other = columns(train), columns(test)
    assert found["image"].max() == 0
    counts = np.bincount(integers(found["extra"]))
    assert len(counts) == 8 and stats.chisquare(counts).pvalue > 1e-3
    assert (found["extra"] != other["extra"]).any()
    part = datasets.source("kbits:bits=3,side=16,examples=4000", "train[7:9]")
    np.testing.assert_array_equal(columns(part)["extra"], found["extra"][7:9])
    refused("kbits", "split of kbits", split="validation")
    pixel = datasets.source("kbits:bits=3,side=1,examples=5", "train").info
    assert pixel.image_shape == (1, 1, 3)


# ---- Parts of other datasets -------------------------------------------------


def test_cifar2_is_cats_and_dogs(opened):
    for split in ("train", "test"):
        source, whole = (
            opened("cifar2", split),
            columns(opened("cifar10", split)),
        )
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


@needs_prepared
def test_the_real_cifar2_has_1000_test_images_per_class():
    source = datasets.source("cifar2", "test", data_dir=str(PREPARED))
    assert np.bincount(source.labels()).tolist() == [1000, 1000]


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


def test_a_dataset_of_other_classes_is_refused(tmp_path):
    images, labels = {"train": pictures(4, 8, 3, 0)}, {"train": [0, 1, 2, 0]}
    store(tmp_path, "imagenet2012", images, labels, ["a", "b", "c"])
    refused("imagenet100", "n02869837", data_dir=str(tmp_path))
    refused("cifar2", "cifar10 is not found", data_dir=str(tmp_path))


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
        same = finetune.balanced_rows(whole["label"], fraction, seed=0)
        np.testing.assert_array_equal(found["image"], whole["image"][same])
    tenth, third = (
        {image.tobytes() for image in found["image"]} for found in rows.values()
    )
    assert tenth < third
    other = columns(opened("subset:fraction=0.3,seed=1,of=cifar10"))
    assert {image.tobytes() for image in other["image"]} != third
    # Labels of train alone are few.
    test = opened("subset:fraction=0.1,of=cifar10", "test")
    assert test.info.num_examples == 50
    part = opened("subset:fraction=0.3,of=cifar10", "train[:4]")
    np.testing.assert_array_equal(
        columns(part)["label"], rows[0.3]["label"][:4]
    )
    refused("subset:fraction=0.1,of=kbits", "one label per image")
    refused("subset:fraction=0.1,of=multidigits:count=2", "one label per image")


def test_published_subsets_of_imagenet_are_used_where_they_are(opened):
    source = opened("subset:fraction=0.01,of=imagenet2012")
    assert source.info.num_examples == 120
    assert "imagenet2012_subset/1pct" in source.info.name
    held = opened("subset:fraction=0.01,of=imagenet2012", "validation")
    assert held.info.num_examples == 240
    # 10 % is not prepared here: drawn from the whole, one of each class.
    source = opened("subset:fraction=0.1,of=imagenet2012")
    assert source.info.num_examples == 120
    assert "imagenet2012_subset" not in source.info.name
    assert sorted(source.labels()) == list(range(120))


# ---- The stream --------------------------------------------------------------


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


def test_multi_labels_go_through_batches(opened):
    source = opened("multidigits:count=3,canvas=32,digit=14")
    policy = views.build("none", image_size=32)
    maker = datasets.ViewMaker(views.Views(policy, 2))
    order = datasets.Order(batch_size=20)
    shown = datasets.training_batches(source, maker, order)
    _, labels = next(iter(shown))
    assert labels.dtype == tf.int32 and labels.shape == (20, 10)
    assert labels.numpy().sum(axis=1).max() == 3
    preprocess = views.evaluation(32)
    scored = datasets.evaluation_batches(source, preprocess, batch_size=20)
    assert set(next(iter(scored))[1].numpy()) == {-1}
    both = datasets.view_batches(source, maker, batch_size=20, seed=0)
    assert set(next(iter(both))[1].numpy()) == {-1}
    with pytest.raises(UserError, match="class_balanced"):
        order = dataclasses.replace(order, sampler="class_balanced")
        datasets.training_batches(source, maker, order)


# ---- The commands ------------------------------------------------------------

_MULTI = "multidigits:count=2,canvas=32,digit=14"


def run_command(*arguments):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["tf_contrastive", *arguments])
        return __main__.main()


def pretrained(folder, data_dir, name, *others):
    """Trains two steps; returns the exit status."""
    with small.encoder():
        return run_command(
            "pretrain",
            f"--dataset={name}",
            f"--data_dir={data_dir}",
            f"--workdir={folder}",
            "--split=train[:32]",
            "--batch_size=16",
            "--epochs=1",
            "--encoder=resnet10",
            "--width=0.25",
            "--image_size=32",
            "--augmentation=crop",
            "--projection_output=16",
            *small.FLAGS,
            *others,
        )


@pytest.mark.parametrize(
    ("name", "others"),
    [
        (_MULTI, ["--loss=cross_entropy"]),
        pytest.param(
            "digit_on_image:unique=4,of=digits",
            ["--loss=supcon"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "randbit:bits=6,of=cifar10",
            ["--extra_channels=2"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "subset:fraction=0.5,of=digits",
            ["--sampler=class_balanced"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_pretrain_takes_each_kind_of_dataset(name, others, data_dir, tmp_path):
    assert pretrained(tmp_path / "run", data_dir, name, *others) == 0
    config = (tmp_path / "run" / "config.flags").read_text()
    # A probe needs one label per image.
    assert ("--noprobe" in config) == (name == _MULTI)
    if "randbit" in name:
        with small.encoder():
            done = run_command(
                "evaluate",
                f"--workdir={tmp_path / 'run'}",
                "--protocols=knn",
                "--nountrained",
            )
        assert done == 0


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--sampler=class_balanced", "--sampler"),
        ("--online_knn_size=64", "--online_knn_size"),
        ("--cutmix_alpha=1", "--cutmix_alpha"),
        ("--linear_epochs=1", "labels"),
    ],
)
def test_options_that_need_one_label_are_refused(
    flag, words, data_dir, tmp_path, capsys
):
    others = (flag, "--loss=cross_entropy")
    assert pretrained(tmp_path / "run", data_dir, _MULTI, *others) == 2
    message = capsys.readouterr().err
    assert words in message and message.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_doctor_counts_images_that_share_a_label(opened):
    source = opened("multidigits:count=3")
    run = fields.replace(small.RUN, loss="supcon", batch_size=16)
    counts, alike = positives.count_label_sets(source)
    expected = positives.expect(run, counts, 40, alike)
    labels = columns(source)["label"]
    sharing = (labels @ labels.T > 0).sum(axis=1) - 1
    others = 15 * sharing.mean() / 39
    np.testing.assert_allclose(expected.other_images, others)
    np.testing.assert_allclose(expected.positives, 2 * others + 1)
    # Of the labels of single digits, what is said of classes.
    run = fields.replace(run, views=1)
    one = np.array([3, 20, 17])
    assert positives.expect(run, one, 40) == positives.expect(run, one, 40, one)


@pytest.mark.parametrize(
    ("name", "split", "words", "tiles"),
    [
        ("digits", "train[:5]", "5 images, 10 classes", (2, 3)),
        ("multidigits:count=3", "train[:4]", "10 classes", (2, 2)),
        ("kbits:bits=3", "train[:4]", "3 extra channels", (2, 2)),
    ],
)
def test_contact_sheets(name, split, words, tiles, data_dir, tmp_path, capsys):
    path = tmp_path / "sheet.png"
    options = {"show": name, "split": split, "data_dir": data_dir}
    options = fields.replace(command.Datasets(), **options, output=str(path))
    assert command.run(options) == 0
    assert words in capsys.readouterr().out
    sheet = np.asarray(Image.open(path))
    assert sheet.shape == (96 * tiles[0], 96 * tiles[1], 3)
    if name == "digits":
        assert sheet[:, :96].std() > 30  # Digits are seen,
        assert sheet[96:, 192:].max() == 0  # and nothing where none is left.
    if not name.startswith("kbits"):
        return
    # A third of the last rows for each bit, and black above.
    bits = columns(datasets.source("kbits:bits=3", "train[:1]"))["extra"][0]
    stripes = sheet[88:96, :96, 0].reshape(8, 3, 32)
    assert [(s > 200).all() for s in stripes.swapaxes(0, 1)] == [*bits]
    assert sheet[:88].max() == 0


def test_the_command_lists_every_dataset_with_its_options(capsys):
    assert command.run(command.Datasets()) == 0
    listed = capsys.readouterr().out
    for declared in DATASETS.values():
        assert declared.form in listed
        if issubclass(declared, WithOptions):
            for field in dataclasses.fields(declared):
                assert f"{field.name}:" in listed
