"""Evaluation contexts: each example is embedded and scored once."""

import contexts
import numpy as np
import pytest
import replicas as on_replicas
import tensorflow as tf

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.evaluation import context, protocols


def _encoder(outputs=None):
    tf.keras.utils.set_random_seed(0)
    inputs = tf.keras.Input([8, 8, 3])
    x = tf.keras.layers.Flatten()(inputs)
    return tf.keras.Model(inputs, outputs(x) if outputs else x)


def _numbered(n=53, classes=5, first=0):
    """Images whose mean tells their number."""
    images = np.zeros([n, 8, 8, 3], np.uint8)
    images += np.arange(first, first + n, dtype=np.uint8)[:, None, None, None]
    return datasets.from_arrays(images, np.arange(n) % classes)


def _subject(encoder=None, train=None, test=None, strategy=None, **options):
    return contexts.make(
        encoder or _encoder(),
        train or _numbered(),
        test or _numbered(20, first=100),
        Scoring.of(scale="cpu", **options),
        run=fields.replace(Pretrain(), augmentation="crop"),
        strategy=strategy or tf.distribute.get_strategy(),
    )


def _numbers(h):
    return np.round(h.mean(axis=1) * 255).astype(int).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_augmented_images_are_embedded_in_order_on_any_replicas(replicas):
    options = {"batch_size": 12, "start_step": 3}
    on = on_replicas.strategy(replicas)
    with on.scope():
        encoder = _encoder()
    scored = _subject(encoder, strategy=on)
    stream = scored.subject.embed_batches(
        scored.training_images(scored.data.train, "crop", **options)
    )
    expected = _subject().training_images(
        _subject().data.train, "crop", **options
    )
    # More steps than the first executions have.
    for (h, labels), (images, classes), _ in zip(
        stream, expected, range(9), strict=False
    ):
        np.testing.assert_array_equal(labels, classes)
        np.testing.assert_array_equal(h, np.reshape(images, h.shape))


def test_augmented_views_differ_by_seed_and_by_view_not_by_batch():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, [11, 8, 8, 3], np.uint8)
    source = datasets.from_arrays(pixels, np.arange(11))

    def views(**options):
        scored = _subject(train=source, **options)
        parts = scored.views(scored.data.train)
        return np.concatenate([np.asarray(v) for v, _ in parts])

    base = views(embedding_batch_size=4)
    np.testing.assert_array_equal(base, views(embedding_batch_size=11))
    assert np.abs(base[:, 0] - base[:, 1]).max() > 0.1
    assert np.abs(base - views(seed=1)).max() > 0.1


def test_a_stream_is_of_the_chosen_rows_alone():
    scored = _subject()
    rows = np.array([3, 4, 10, 50])
    seen = []
    stream = scored.training_images(
        scored.data.train, "none", batch_size=2, rows=rows
    )
    for (images, _), _ in zip(stream, range(6), strict=False):
        seen += _numbers(images.numpy().reshape(2, -1))
    assert [sorted(seen[i : i + 4]) for i in (0, 4, 8)] == [[3, 4, 10, 50]] * 3
    assert seen[:4] != seen[4:8] or seen[4:8] != seen[8:]


def test_nan_embeddings_are_refused():
    bad = _encoder(lambda x: x / tf.zeros([192]))
    with pytest.raises(errors.UserError, match="20 of 20 rows hold NaN"):
        _subject(bad).embeddings("test")
    with pytest.raises(errors.UserError, match="hold NaN or infinity"):
        protocols.run(_subject(bad), ["knn"])


def test_a_holdout_is_stratified_seeded_and_disjoint():
    labels = np.repeat([0, 1, 2], [100, 10, 1])
    fit, held = context.holdout(labels, 0.2)
    assert sorted([*fit, *held]) == list(range(111))
    assert np.bincount(labels[held], minlength=3).tolist() == [20, 2, 0]
    again = context.holdout(labels, 0.2)
    np.testing.assert_array_equal(again[1], held)
    assert (context.holdout(labels, 0.2, seed=1)[1] != held).any()
    with pytest.raises(errors.UserError, match="leave none to select on"):
        context.holdout(np.arange(5), 0.2)


def test_the_learning_rate_is_chosen_without_the_test_split():
    train, one, other = (
        datasets.source("digits", split)
        for split in ("train[:200]", "train[200:]", "test")
    )

    def run(test):
        scored = _subject(
            train=train,
            test=test,
            linear_epochs=20,
            linear_learning_rates="0.00001,1",
            validation_fraction=0.25,
        )
        (row,) = protocols.run(scored, ["linear"])["results"]
        return row["metrics"]

    metrics = run(one)
    assert metrics["learning_rate"] == 1.0
    low, high = metrics["validation_top1"]
    assert low < high
    assert run(other)["validation_top1"] == [low, high]
