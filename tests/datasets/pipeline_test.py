"""Training and evaluation batches: order, seeds, pipelines, caches."""

import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import csv, encoded
from image_helpers import photos, write_records
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive import views as policies
from tf_contrastive.base import errors
from tf_contrastive.config.data import SAMPLERS
from tf_contrastive.datasets import pipeline

# Kinds of sources, which are read in different ways: pixels in memory, paths of
# images of several shapes, and a stream of encoded records of one shape. (Paths
# of images of one shape are compared with pixels in memory, below.)
KINDS = ("memory", "shapes", "stream")
EXAMPLES = 23
CLASSES = 3


def pixels(index, side=4):
    return np.full([side, side, 3], index, np.uint8)


def png(image):
    return encoded(Image.fromarray(image))


def make_views(images, seeds):
    """Two views: the example's number, and its seed, in every pixel."""
    number = tf.cast(images[:, :1, :1, :1], tf.float32)
    seed = tf.cast(tf.bitwise.bitwise_and(seeds, 0xFFFF), tf.float32)
    rest = tf.pad(seed, [[0, 0], [0, 1]])[:, tf.newaxis, tf.newaxis, :]
    ones = tf.ones([1, 4, 4, 3])
    return tf.stack([number * ones, rest * ones], axis=1)


@pytest.fixture(params=KINDS)
def source(request, tmp_path, monkeypatch):
    return build(request.param, tmp_path, monkeypatch)


def build(kind, folder, monkeypatch):
    """23 examples whose pixels all are their number; label = number % 3."""
    numbers = np.arange(EXAMPLES)
    if kind == "memory":
        images = np.stack([pixels(i) for i in numbers])
        return datasets.from_arrays(images, numbers % CLASSES)
    monkeypatch.setattr(pipeline, "CACHE_BYTES", 0)
    sides = [5 if kind == "shapes" and i % 2 else 4 for i in numbers]
    files = [png(pixels(i, side)) for i, side in enumerate(sides)]
    if kind == "stream":
        write(folder / "all.tfrecord", files)
        return datasets.source(f"tfrecord:{folder}/all.tfrecord")
    lines = ["path,label\n"]
    for i, contents in enumerate(files):
        (folder / f"{i}.png").write_bytes(contents)
        lines.append(f"{i}.png,{i % CLASSES}\n")
    return datasets.source(csv(folder / "list.csv", "".join(lines)))


def write(path, files, first=0):
    """Writes encoded images as records, with the labels of their numbers."""
    named = enumerate(files, first)
    rows = [{"image": x, "label": i % CLASSES} for i, x in named]
    write_records(path, rows)


def batches(source, count, context=(), **options):
    data = training_batches(source, context, **options)
    return list(data.take(count).as_numpy_iterator())


def training_batches(source, context=(), extra_channels=None, **options):
    options = {"batch_size": 6, "seed": 1, "shuffle_buffer": 50} | options
    maker = datasets.ViewMaker(make_views, extra_channels=extra_channels)
    order = datasets.Order(**options)
    shared = tf.distribute.InputContext(*context)
    return datasets.training_batches(source, maker, order, shared)


def numbers(batch):
    return batch[0][:, 0, 0, 0, 0].astype(int).tolist()


def all_numbers(batches):
    return [number for batch in batches for number in numbers(batch)]


def seeds(batch):
    """Returns [(lower half of the seed's key, its index)]."""
    return [tuple(row) for row in batch[0][:, 1, 0, 0, :2].astype(int)]


def assert_same(one, other):
    assert len(one) > 0
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])
        np.testing.assert_array_equal(ours[1], theirs[1])


# ---- What is drawn ---


def test_epochs_are_different_shuffles_of_all_examples(source):
    got = batches(source, 6)  # 3 steps of 6 out of 23 per epoch.
    epochs = [all_numbers(got[e : e + 3]) for e in (0, 3)]
    for epoch in epochs:
        assert len(set(epoch)) == 18 and set(epoch) < set(range(EXAMPLES))
        assert epoch != sorted(epoch)
    assert epochs[0] != epochs[1]
    # What one epoch drops comes in another.
    many = all_numbers(batches(source, 15))
    assert set(many) == set(range(EXAMPLES))


def test_seeds_depend_on_epoch_and_example(source):
    got = batches(source, 6)
    keys = []
    for epoch in (got[:3], got[3:]):
        rows = [row for batch in epoch for row in seeds(batch)]
        assert [index for _, index in rows] == all_numbers(epoch)
        keys += {key for key, _ in rows}
    assert len(keys) == 2 and keys[0] != keys[1]
    assert keys[0] != seeds(batches(source, 1, seed=2)[0])[0][0]


@pytest.mark.slow
def test_streams_repeat_whatever_the_global_seed(source):
    tf.random.set_seed(1)
    first = batches(source, 5)
    tf.random.set_seed(2)
    assert_same(first, batches(source, 5))
    drawn = tf.random.uniform([]).numpy()
    tf.random.set_seed(2)
    assert drawn == tf.random.uniform([]).numpy()
    assert numbers(first[0]) != numbers(batches(source, 1, seed=9)[0])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_stream_equals_the_rest_of_the_whole_one(source, sampler):
    whole = batches(source, 8, sampler=sampler)
    # At the beginning of an epoch, and within one.
    for start in (3, 5):
        rest = batches(source, 8 - start, sampler=sampler, start_step=start)
        assert_same(whole[start:], rest)


# ---- Pipelines and replicas ---


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_pipelines_share_each_global_batch(source, sampler):
    options = {"sampler": sampler, "start_step": 2}
    whole = batches(source, 4, **options)
    parts = [batches(source, 4, (2, p, 2), **options) for p in range(2)]
    joined = [
        [np.concatenate(arrays) for arrays in zip(*step, strict=True)]
        for step in zip(*parts, strict=True)
    ]
    assert_same(whole, joined)


@pytest.mark.slow
def test_each_pipeline_reads_its_own_files(tmp_path):
    # Files differ in length: one of 2, others of 1.
    owner = [0, 0, *range(1, 16)]
    files = [png(pixels(n)) for n in range(17)]
    write(tmp_path / "00.tfrecord", files[:2])
    for n in range(2, 17):
        write(tmp_path / f"{n - 1:02}.tfrecord", files[n : n + 1], n)
    source = datasets.source(f"tfrecord:{tmp_path}/*.tfrecord")
    read = []
    for number in (0, 1):
        # 2 steps of 3 images an epoch.
        got = batches(source, 8, (2, number), cache="none")
        epochs = [all_numbers(got[e : e + 2]) for e in range(0, 8, 2)]
        read.append(epochs)
        resumed = batches(source, 5, (2, number), start_step=3, cache="none")
        assert_same(got[3:], resumed)
    for one, other in zip(*read, strict=True):
        ours, theirs = ({owner[n] for n in epoch} for epoch in (one, other))
        assert not ours & theirs and len(set(one)) == 6
    # A pipeline has other files in other epochs.
    assert len({frozenset(owner[n] for n in epoch) for epoch in read[0]}) > 1


def test_sources_in_memory_and_large_images_give_the_same_stream(
    tmp_path, monkeypatch
):
    kinds = "memory", "paths"
    memory, paths = (build(kind, tmp_path, monkeypatch) for kind in kinds)
    whole = batches(memory, 4)
    assert_same(whole, batches(paths, 4))
    monkeypatch.setattr(pipeline, "BATCHED_BYTES", 0)
    assert_same(whole, batches(memory, 4))
    assert_same(whole, batches(paths, 4))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_photographs_are_decoded_at_the_scale_of_their_crops(kind, tmp_path):
    photographs = [Image.fromarray(photo) for photo in photos()]
    for i, size in enumerate([(1000, 800), (900, 1100)]):
        enlarged = photographs[i].resize(size, Image.BICUBIC)
        enlarged.save(tmp_path / f"{i}.{kind.lower()}", kind)
    source = datasets.source(f"folder:{tmp_path}")
    policy = policies.build("crop", image_size=32)
    maker = policies.Views(policy, 4)

    def first(**options):
        views = datasets.ViewMaker(maker.geometric, **options)
        order = datasets.Order(batch_size=2, seed=3)
        stream = datasets.training_batches(source, views, order)
        return next(stream.as_numpy_iterator()).reshape(8, -1)

    # Numbers that are drawn for many images at once are the same.
    whole = first(numbers=maker.numbers)
    np.testing.assert_array_equal(whole, first())
    scaled = first(halvings=maker.halvings, numbers=maker.numbers)
    if kind == "PNG":
        np.testing.assert_array_equal(whole, scaled)
    else:
        assert not np.array_equal(whole, scaled)
        # The same crops; a decoder filters in another way.
        for a, b in zip(whole, scaled, strict=True):
            assert np.corrcoef(a, b)[0, 1] > 0.9


# ---- Class balance ---


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [6, 7])
def test_balanced_batches_have_each_class_equally_often(source, batch_size):
    got = batches(source, 12, sampler="class_balanced", batch_size=batch_size)
    counts = np.array([np.bincount(b[1], minlength=CLASSES) for b in got])
    assert np.all(counts >= batch_size // CLASSES)
    assert np.all(counts <= -(-batch_size // CLASSES))
    # The class that has one more changes from batch to batch.
    assert counts.sum(0).max() - counts.sum(0).min() <= 1
    drawn = all_numbers(got)
    assert set(drawn) == set(range(EXAMPLES))


def test_rare_classes_cycle_through_their_examples_in_new_views():
    labels = np.array([0] * 20 + [1] * 2 + [3])
    images = np.stack([pixels(i) for i in range(len(labels))])
    source = datasets.from_arrays(images, labels)
    got = batches(source, 10, sampler="class_balanced")
    for batch in got:
        assert np.bincount(batch[1]).tolist() == [2, 2, 0, 2]
        assert {n for n in numbers(batch) if n in (20, 21)} == {20, 21}
    rows = [row for batch in got for row in seeds(batch)]
    assert len(set(rows)) == len(rows) == 60
    common = [n for batch in got for n in numbers(batch) if n < 20]
    assert sorted(common) == list(range(20))


# ---- Errors ---


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 24}, "batch_size=23"),
        ({"context": (1, 0, 4)}, "batch_size=6 is not divisible by 4"),
        ({"sampler": "class_balance"}, "did you mean class_balanced"),
        ({"sampler": "class_balanced"}, "one label"),
    ],
)
def test_batches_that_cannot_be_made_are_refused(options, words):
    source = datasets.from_arrays(np.stack([pixels(i) for i in range(23)]))
    with pytest.raises(errors.UserError, match=words):
        batches(source, 1, **options)


# ---- Channels that are not augmented ---


@pytest.mark.parametrize("channels", [None, 2, 0])
def test_extra_channels_follow_the_views_as_they_are(channels):
    rng = np.random.default_rng(0)
    extra = rng.integers(0, 2, [EXAMPLES, 3])
    planes = rng.random([EXAMPLES, 4, 4, 3])
    images = np.stack([pixels(i) for i in range(EXAMPLES)])
    count = 3 if channels is None else channels
    for given in (extra, planes):
        labels = np.arange(EXAMPLES) % CLASSES
        source = datasets.from_arrays(images, labels, extra=given)
        assert source.info.extra_channels == 3
        data = training_batches(source, extra_channels=channels, cache="none")
        views = data.element_spec[0]
        assert views == tf.TensorSpec([6, 2, 4, 4, 3 + count], tf.float32)
        for views, _ in data.take(2):
            rows = numbers((views.numpy(), None))
            expected = given[rows].astype(np.float32)[..., :count]
            if given is extra:
                expected = expected[:, np.newaxis, np.newaxis]
            expected = np.broadcast_to(expected, [6, 4, 4, count])
            for view in range(2):
                np.testing.assert_array_equal(views[:, view, ..., 3:], expected)

    def preprocess(image):
        return tf.cast(image, tf.float32)

    options = {"batch_size": EXAMPLES, "extra_channels": channels}
    scored = datasets.evaluation_batches(source, preprocess, **options)
    (batch,) = [images for images, _ in scored]
    assert batch.shape == (EXAMPLES, 4, 4, 3 + count)
    np.testing.assert_allclose(batch[..., 3:], planes[..., :count], rtol=1e-6)


# ---- Files of records ---


def test_files_are_shuffled_before_their_records(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "CACHE_BYTES", 0)
    for first in range(0, 180, 6):
        files = [png(pixels(first + i)) for i in range(6)]
        write(tmp_path / f"{first:03}.tfrecord", files, first)
    source = datasets.source(f"tfrecord:{tmp_path}/*.tfrecord")
    # A buffer of one leaves the records in the order in which they are read:
    # from 16 of the files, in turn.
    orders = []
    for seed in (1, 2):
        got = batches(source, 30, shuffle_buffer=1, seed=seed)
        assert sorted(all_numbers(got)) == list(range(180))
        first = [number // 6 for number in all_numbers(got)[:16]]
        assert len(set(first)) == 16 and first != sorted(first)
        orders.append(first)
    assert orders[0] != orders[1]


# ---- Evaluation ---


def test_evaluation_gives_every_example_once_in_order(source):
    def preprocess(image):
        return tf.cast(image[:4, :4], tf.float32) / 255

    data = datasets.evaluation_batches(source, preprocess, batch_size=6)
    got = list(data.as_numpy_iterator())
    assert [len(labels) for _, labels in got] == [6, 6, 6, 5]
    images = np.concatenate([x for x, _ in got])
    expected = np.arange(EXAMPLES)
    np.testing.assert_allclose(images[:, 3, 3, 2], expected / 255)
    labels = np.concatenate([y for _, y in got])
    assert labels.dtype == np.int32
    assert labels.tolist() == (expected % CLASSES).tolist()
