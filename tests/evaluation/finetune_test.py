"""Fine-tuning: copies learn from few labels, and the encoder stays."""

import contexts
import digit_networks
import numpy as np
import pytest
import tensorflow as tf
from image_helpers import write_prepared

from tf_contrastive import classifiers, datasets, embedding, encoders
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.datasets.subsets import balanced_rows
from tf_contrastive.evaluation import finetune, protocols
from tf_contrastive.evaluation.report import Report, row_name


def test_subsets_are_balanced_nested_and_seeded():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    tenth, hundredth, one, other = (
        balanced_rows(labels, fraction, seed)
        for fraction, seed in ((0.1, 0), (0.01, 0), (1e-6, 0), (0.1, 1))
    )
    # A share of less than one example of each class is one.
    for rows, count in ((tenth, 10), (hundredth, 1), (one, 1)):
        assert np.bincount(labels[rows]).tolist() == [count] * 10
    assert (np.diff(tenth) > 0).all()
    assert set(hundredth) < set(tenth) != set(other)
    # A class that has fewer gives all.
    few = np.array([0] * 50 + [1] * 2)
    drawn = balanced_rows(few, 0.5, seed=0)
    assert np.bincount(few[drawn]).tolist() == [13, 2]


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


@pytest.mark.slow
def test_a_diverging_variant_is_left_out_and_reported_at_the_end(monkeypatch):
    class _Model:
        losses = ()

        def scores(self, context, batches):
            h, _ = context.subject.embed(batches)
            return classifiers.Scores(h[:, :10], np.arange(10))

    def train(context, rows, recipe, *, trained):
        if not trained:
            raise errors.DivergedError("diverged")
        return _Model()

    monkeypatch.setattr(finetune, "train", train)
    recorded = []

    class Recording(Report):
        def add(self, *arguments):
            row = super().add(*arguments)
            recorded.append(row_name(row))
            return row

    scored = digit_networks.subject(
        finetune_fractions="0.1,1", finetune_scratch=True, knn_k="1,5"
    )
    with pytest.raises(
        errors.DivergedError, match=r"10% scratch: .* 100% scratch: "
    ):
        protocols.run(scored, ["finetune", "knn"], Recording())
    assert recorded == ["finetune 10%", "finetune 100%", "knn k=1", "knn k=5"]


# ---- The labels -------------------------------------------------------------

_IDS = ["n01440764", "n01443537", "n01484850", "n01491361"]
# As in SimCLR's lists: in no order.
_LISTED = [31, 4, 17, 2, 38, 9, 12, 23]


def _prepare(root, rows, name, **options):
    """Prepares images of the form of imagenet2012."""
    images, _ = digit_networks.digits()
    columns = {
        "image": np.repeat(images[rows, ..., np.newaxis], 3, -1),
        "label": np.array(rows) % 4,
    }
    write_prepared(
        root,
        lambda f: {
            "image": f.Image(shape=(8, 8, 3)),
            "label": f.ClassLabel(names=_IDS),
        },
        {"train": columns, "validation": columns},
        name,
        **options,
    )


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """ImageNet, with the published list of 1 %."""
    root = tmp_path_factory.mktemp("prepared")
    _prepare(root, list(range(40)), "imagenet2012")
    _prepare(root, sorted(_LISTED), "imagenet2012_subset", config="1pct")
    return root


def _context(data_dir, split="train", **options):
    opened = [
        datasets.source("imagenet2012", part, data_dir=str(data_dir))
        for part in (split, "validation")
    ]
    return digit_networks.subject(
        *opened, data_dir=str(data_dir), finetune_scratch=False, **options
    )


@pytest.mark.slow
def test_the_published_labels_are_those_of_imagenet_alone(data_dir):
    options = {
        "finetune_fractions": "0.01,1",
        "finetune_epochs": "1",
        "finetune_augmentation": "none",
    }
    train, used = finetune.train, []

    def spy(context, rows, *arguments, **options):
        chosen = context.data.train.select(rows).examples()
        used.append(np.stack([x["image"][..., 0] for x in chosen]))
        return train(context, rows, *arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(finetune, "train", spy)
        published = contexts.measure("finetune", _context(data_dir, **options))
    images, _ = digit_networks.digits()
    np.testing.assert_array_equal(used[0], images[sorted(_LISTED)])
    part = _context(data_dir, split="train[:80%]", **options)
    drawn = contexts.measure("finetune", part)
    subsets = [
        [part[name]["metrics"]["subset"] for name in ("1%", "100%")]
        for part in (published, drawn)
    ]
    assert subsets == [["imagenet2012_subset/1pct", "all"], ["drawn", "all"]]
    assert published["1%"]["metrics"]["labels"] == len(_LISTED)
    assert drawn["1%"]["metrics"]["labels"] == 4
    # Results of both are not compared.
    assert published["1%"]["resolved"]["subset"] == "published"
    assert published["100%"]["resolved"]["subset"] == "drawn"
    assert drawn["1%"]["resolved"] == {"optimizer": "sgd", "subset": "drawn"}


def test_labels_that_are_not_here_are_an_error_that_says_what_to_do(data_dir):
    context = _context(data_dir, finetune_fractions="1,0.1")
    for word in ("imagenet2012_subset/10pct", "fractions"):
        assert word in protocols.missing("finetune", context)
    with pytest.raises(errors.UserError, match="imagenet2012_subset/10pct"):
        protocols.run(context, ["finetune"])
    whole = _context(data_dir, finetune_fractions="1", finetune_epochs="1")
    assert protocols.missing("finetune", whole) is None
