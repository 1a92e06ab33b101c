"""Fine-tuning: copies learn from few labels, and the encoder stays."""

import contexts
import digit_networks
import numpy as np
import pytest
import tensorflow as tf
from dataset_helpers import columns

from tf_contrastive import datasets, embedding, encoders
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets.subsets import balanced_rows
from tf_contrastive.evaluation import finetune, protocols


def test_every_class_has_an_equal_number_of_labels_or_all():
    few = np.array([0] * 50 + [1] * 2)
    # At least one of each.
    for fraction, counts in ((0.5, [13, 2]), (1e-6, [1, 1])):
        drawn = balanced_rows(few, fraction, seed=0)
        assert np.bincount(few[drawn]).tolist() == counts
        assert (np.diff(drawn) > 0).all()


@pytest.mark.slow
def test_a_trained_encoder_gains_from_few_labels():
    scored = digit_networks.subject()
    before = embedding.checksum(scored.subject.encoder)
    parts = contexts.measure("finetune", scored, **digit_networks.FINETUNE)
    assert list(parts) == ["10%", "10% scratch"]
    tuned, scratch = parts.values()
    assert tuned["metrics"]["labels"] == scratch["metrics"]["labels"] == 50
    assert tuned["top1"] > scratch["top1"] + 0.05
    assert tuned["top1"] > 0.85
    labels = scored.embeddings("test")[1]
    assert (tuned["predictions"] == labels).mean() == tuned["top1"]
    losses = tuned["metrics"]["losses"]
    assert losses[-1] < losses[0]
    assert embedding.checksum(scored.subject.encoder) == before


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_step_is_sgd_with_nesterov_momentum_and_decay(several):
    """By Keras' own tape, of one class per image or of several."""
    images, labels = (array[800:1300] for array in digit_networks.digits())
    rows = np.arange(40)
    if several:
        labels = np.random.default_rng(0).integers(0, 2, [500, 7])
    data = datasets.from_arrays(images, labels, name="digits", split="all")
    scored = digit_networks.subject(data, data)
    recipe = finetune.Recipe(
        steps=1,
        learning_rate=0.3,
        weight_decay=0.01,
        batch_size=40,
        augmentation="none",
    )
    model = finetune.train(scored, rows, recipe, trained=True)
    encoder = scored.subject.new_encoder(True)
    classes = list(range(7 if several else 10))
    kernel = tf.Variable(
        tf.random.stateless_normal([64, len(classes)], [0, 1], stddev=0.01)
    )
    (pixels, _), *_ = scored.images(scored.data.train.select(rows))
    with tf.GradientTape() as tape:
        logits = encoder(pixels, training=True) @ kernel
        if several:
            chance = tf.sigmoid(logits)
            right = tf.where(labels[rows] == 1, chance, 1 - chance)
        else:
            chance = tf.nn.softmax(logits)
            right = tf.gather(chance, labels[rows], batch_dims=1)
        loss = -tf.reduce_sum(tf.math.log(right)) / len(rows)
    assert model.losses == [pytest.approx(float(loss), rel=1e-5)]
    variables = [kernel, *encoder.trainable_variables]
    for variable, gradient in zip(
        variables, tape.gradient(loss, variables), strict=True
    ):
        decayed = gradient
        if variable.shape.rank > 1:
            decayed += 0.01 * variable
        variable.assign_sub(0.3 * (1 + 0.9) * decayed)
    np.testing.assert_allclose(model.head.kernel, kernel, atol=2e-5)
    assert model.head.classes.tolist() == classes
    found = model.encoder.get_weights()
    for ours, theirs in zip(found, encoder.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=5e-5)


@pytest.mark.slow
def test_a_transformer_is_fine_tuned_as_in_moco_v3(monkeypatch):
    """By AdamW, with warm-up, weight decay and stochastic depth."""

    def make(trained):
        tf.keras.utils.set_random_seed(0)
        return encoders.build(
            "vit_ti4", depth=2, width=0.25, drop_path=0.9, image_shape=(8, 8, 3)
        )

    recipes = []
    train = finetune.train

    def spy(context, rows, recipe, *, trained):
        recipes.append(recipe)
        return train(context, rows, recipe, trained=trained)

    monkeypatch.setattr(finetune, "train", spy)
    context = contexts.make(
        make(True),
        digit_networks.source(slice(0, 100)),
        digit_networks.source(slice(100, 140)),
        make_encoder=make,
        run=fields.replace(Pretrain(), encoder="vit_ti4"),
    )
    given = digit_networks.FINETUNE | {"epochs": [20], "learning_rate": None}
    given |= {"fractions": [1.0], "batch_size": 50, "scratch": False}
    (part,) = contexts.measure("finetune", context, **given).values()
    assert part["resolved"]["optimizer"] == "adamw"
    (recipe,) = recipes
    # DeiT, table 9.
    assert recipe.learning_rate == pytest.approx(5e-4 * 50 / 512)
    assert (recipe.weight_decay, recipe.drop_path) == (0.05, 0.1)
    # Five epochs, but at most a tenth of all.
    assert (recipe.steps, recipe.warmup_steps) == (40, 4)


# ---- The labels -------------------------------------------------------------


@pytest.fixture
def context(data_dir, opened):
    """Makes contexts of ImageNet, with the published list of 1 %."""

    def make(split="train", **options):
        train, test = (
            opened("imagenet2012", x) for x in (split, "train[90%:]")
        )
        return digit_networks.subject(
            train, test, data_dir=data_dir, finetune_scratch=False, **options
        )

    return make


@pytest.mark.slow
def test_the_published_labels_are_those_of_imagenet_alone(
    context, opened, monkeypatch
):
    options = {
        "finetune_fractions": "0.01,1",
        "finetune_epochs": "1",
        "finetune_augmentation": "none",
    }
    train, used = finetune.train, []

    def spy(context, rows, *arguments, **options):
        used.append(context.data.train.select(rows))
        return train(context, rows, *arguments, **options)

    monkeypatch.setattr(finetune, "train", spy)
    published = contexts.measure("finetune", context(**options))
    listed = columns(opened("imagenet2012_subset/1pct"))["image"]
    np.testing.assert_array_equal(columns(used[0])["image"], listed)
    drawn = contexts.measure("finetune", context("train[:60]", **options))
    subsets = [
        [part[name]["metrics"]["subset"] for name in ("1%", "100%")]
        for part in (published, drawn)
    ]
    assert subsets == [["imagenet2012_subset/1pct", "all"], ["drawn", "all"]]
    assert published["1%"]["metrics"]["labels"] == len(listed) == 120
    assert drawn["1%"]["metrics"]["labels"] == 60
    # Results of both are not compared.
    assert published["1%"]["resolved"]["subset"] == "published"
    assert published["100%"]["resolved"]["subset"] == "drawn"
    assert drawn["1%"]["resolved"] == {"optimizer": "sgd", "subset": "drawn"}


def test_labels_that_are_not_here_are_an_error_that_says_what_to_do(context):
    missing = context(finetune_fractions="1,0.1")
    for word in ("imagenet2012_subset/10pct", "fractions"):
        assert word in protocols.missing("finetune", missing)
    with pytest.raises(errors.UserError, match="imagenet2012_subset/10pct"):
        protocols.run(missing, ["finetune"])
    whole = context(finetune_fractions="1", finetune_epochs="1")
    assert protocols.missing("finetune", whole) is None
