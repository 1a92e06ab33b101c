"""Fine-tuning and transfer: copies learn, from few labels of each class."""

import functools

import contexts
import numpy as np
import pytest
import replicas as on_replicas
import saved_run
import tensorflow as tf
from sklearn import datasets as sklearn_datasets
from sklearn import linear_model

from tf_contrastive import (
    checkpoints,
    classifiers,
    datasets,
    embedding,
    errors,
    evaluation,
    exporting,
    views,
)
from tf_contrastive.config.evaluate import evaluate
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.config.protocols import Transfer
from tf_contrastive.config.transfer import SUITES
from tf_contrastive.config.views import PREPROCESSINGS
from tf_contrastive.datasets import tfds_source
from tf_contrastive.datasets.subsets import balanced_rows
from tf_contrastive.embedding import Embedder
from tf_contrastive.evaluation import (
    finetune,
    logistic,
    make_context,
    other_datasets,
    protocols,
    transfer,
)
from tf_contrastive.lab.claims import protocol_numbers


@functools.cache
def _digits():
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    return np.uint8(np.round(images.reshape(-1, 8, 8) * 255 / 16)), labels


def _source(rows, split="all"):
    images, labels = _digits()
    return datasets.from_arrays(
        images[rows], labels[rows], name="digits", split=split
    )


def _network(seed=0):
    """A small network with BatchNormalization: [8, 8, 3] -> [64]."""
    tf.keras.utils.set_random_seed(seed)
    inputs = x = tf.keras.Input([8, 8, 3])
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        x = tf.keras.layers.Conv2D(
            width, 3, stride, padding="same", use_bias=False
        )(x)
        x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
        x = tf.keras.layers.ReLU()(x)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    return tf.keras.Model(inputs, x)


@functools.cache
def _weights():
    """Of a network that has seen the digits of the first 800 images."""
    encoder = _network()
    images, labels = _digits()
    x = np.repeat(images[:800, ..., None], 3, -1).astype(np.float32) / 255
    model = tf.keras.Sequential([encoder, tf.keras.layers.Dense(10)])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.legacy.Adam(0.01), loss)
    model.fit(x, labels[:800], 64, epochs=15, verbose=0)
    return encoder.get_weights()


def _subject(train=None, test=None, strategy=None, **given):
    strategy = strategy or tf.distribute.get_strategy()

    def fresh(trained):
        encoder = _network(seed=1)
        if trained:
            encoder.set_weights(_weights())
        return encoder

    weights = _weights()
    with strategy.scope():
        encoder = _network()
        encoder.set_weights(weights)
    return contexts.make(
        encoder,
        train or _source(slice(800, 1300)),
        test or _source(slice(1300, 1797)),
        evaluate(scale="cpu", **given),
        run=Pretrain(),
        make_encoder=fresh,
        strategy=strategy,
    )


# ---- Subsets -----------------------------------------------------------------


def test_subsets_are_balanced_nested_and_seeded():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    tenth = balanced_rows(labels, 0.1, seed=0)
    assert np.bincount(labels[tenth]).tolist() == [10] * 10
    assert (np.diff(tenth) > 0).all()
    hundredth = balanced_rows(labels, 0.01, seed=0)
    assert np.bincount(labels[hundredth]).tolist() == [1] * 10
    assert set(hundredth) < set(tenth)
    other = balanced_rows(labels, 0.1, seed=1)
    assert set(other) != set(tenth)
    assert len(balanced_rows(labels, 1.0, seed=0)) == 1000
    # A share of less than one example of each class is one.
    assert len(balanced_rows(labels, 1e-6, seed=0)) == 10
    # A class that has fewer gives all.
    few = np.array([0] * 50 + [1] * 2)
    drawn = balanced_rows(few, 0.5, seed=0)
    assert np.bincount(few[drawn]).tolist() == [13, 2]


# ---- Fine-tuning -------------------------------------------------------------

_HYPERPARAMETERS = {
    "scratch": True,
    "fractions": [0.1],
    "epochs": [15],
    "batch_size": 25,
    "learning_rates": [0.5],
    "augmentation": "none",
}


def test_a_trained_encoder_gains_from_few_labels():
    scored = _subject()
    before = embedding.checksum(scored.subject.encoder)
    parts = dict(contexts.measure("finetune", scored, **_HYPERPARAMETERS))
    assert list(parts) == ["10%", "10% scratch"]
    declared = protocol_numbers.names(
        "finetune", evaluate(finetune_fractions="0.1", finetune_scratch=True)
    )
    for name in declared:
        variant, metric = name.split("/")
        assert metric in parts[variant] or metric in parts[variant]["metrics"]
    tuned, scratch = parts.values()
    assert tuned["metrics"]["labels"] == scratch["metrics"]["labels"] == 50
    assert tuned["top1"] > scratch["top1"] + 0.05
    assert tuned["top1"] > 0.85
    assert tuned["top5"] >= tuned["top1"]
    labels = scored.embeddings("test")[1]
    assert tuned["correct"].mean() == pytest.approx(tuned["top1"])
    assert (tuned["predictions"] == labels).mean() == tuned["top1"]
    losses = tuned["metrics"]["losses"]
    assert losses[-1] < losses[0]
    assert embedding.checksum(scored.subject.encoder) == before


@pytest.mark.slow
def test_the_same_seed_trains_the_same_network():
    rows = np.arange(100)
    recipe = finetune.Recipe(
        steps=6, learning_rate=0.05, batch_size=32, augmentation="crop"
    )
    models = [
        finetune.train(_subject(), rows, recipe, trained=True) for _ in range(2)
    ]
    assert models[0].losses == models[1].losses
    sums = {embedding.checksum(model.encoder) for model in models}
    assert len(sums) == 1
    assert sums != {embedding.checksum(_subject().subject.encoder)}


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_step_is_sgd_with_nesterov_momentum_and_decay(several):
    """By Keras' own tape, of one class per image or of several."""
    images, labels = (array[800:1300] for array in _digits())
    rows, sets = np.arange(40), None
    if several:
        sets = np.random.default_rng(0).random([500, 7]) < 0.3
        labels = np.arange(500)  # Row numbers.
    data = datasets.from_arrays(images, labels, name="digits", split="all")
    scored = _subject(data)
    recipe = finetune.Recipe(
        steps=1,
        learning_rate=0.3,
        weight_decay=0.01,
        batch_size=40,
        augmentation="none",
    )
    model = finetune.train(scored, rows, recipe, trained=True, label_sets=sets)
    encoder = scored.subject.new_encoder(True)
    classes = list(range(7 if several else 10))
    kernel = tf.Variable(
        tf.random.stateless_normal([64, len(classes)], [0, 1], stddev=0.01)
    )
    (pixels, _), *_ = scored.images.plain(scored.data.train.select(rows))
    with tf.GradientTape() as tape:
        logits = encoder(pixels, training=True) @ kernel
        if several:
            chance = tf.sigmoid(logits)
            right = tf.where(sets[rows], chance, 1 - chance)
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


def test_two_replicas_share_a_batch():
    on = on_replicas.strategy(2)
    recipe = finetune.Recipe(
        steps=4, learning_rate=0.1, batch_size=33, augmentation="none"
    )
    model = finetune.train(
        _subject(strategy=on), np.arange(90), recipe, trained=True
    )
    assert np.isfinite(model.losses).all()
    scored = _subject(strategy=on)
    scores = model.scores(scored, scored.images.plain(scored.data.test))
    assert scores.scores.shape == (497, 10)


def test_rates_are_chosen_on_held_out_labels():
    said = []
    scored = _subject()
    scored = contexts.changed(scored, log=said.append)
    recipes = [
        finetune.Recipe(
            steps=20, learning_rate=rate, batch_size=50, augmentation="none"
        )
        for rate in (1e-6, 0.1)
    ]
    best, scores = finetune.select_recipe(
        scored, np.arange(200), recipes, trained=True
    )
    assert best is recipes[1]
    assert scores[1] > scores[0] + 0.3
    assert sum("of 20 held-out examples" in line for line in said) == 2
    alone, scores = finetune.select_recipe(
        scored, np.arange(200), recipes[:1], trained=True
    )
    assert alone is recipes[0] and not scores


@pytest.mark.slow
def test_a_diverging_recipe_is_skipped_or_an_error():
    scored = _subject()
    recipes = [
        finetune.Recipe(steps=12, learning_rate=rate, augmentation="none")
        for rate in (1e30, 0.01)
    ]
    best, scores = finetune.select_recipe(
        scored, np.arange(100), recipes, trained=True
    )
    assert best is recipes[1]
    assert scores[0] is None
    with pytest.raises(errors.DivergedError):
        finetune.train(scored, np.arange(100), recipes[0], trained=True)
    # The only loss is finite, and the weights that the step leaves are not.
    last = finetune.Recipe(
        steps=1, learning_rate=1e38, weight_decay=1e10, augmentation="none"
    )
    with pytest.raises(errors.DivergedError):
        finetune.train(scored, np.arange(100), last, trained=True)


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

    def record(context, rows, parts):
        recorded.append([(row["protocol"], row["variant"]) for row in rows])

    scored = _subject(
        finetune_fractions="0.1,1", finetune_scratch=True, knn_k="1,5"
    )
    with pytest.raises(errors.DivergedError, match="10% scratch, 100% scratch"):
        protocols.run(scored, ["finetune", "knn"], record=record)
    assert recorded == [
        [("finetune", "10%")],
        [("finetune", "100%")],
        [("knn", "k=1"), ("knn", "k=5")],
    ]


def test_batch_norm_momentum_is_the_recipe_s():
    scored = _subject()
    recipe = finetune.Recipe(
        steps=1,
        learning_rate=0.01,
        batch_norm_momentum=1.0,
        augmentation="none",
    )
    model = finetune.train(scored, np.arange(50), recipe, trained=True)
    for ours, theirs in zip(
        model.encoder.non_trainable_variables,
        scored.subject.encoder.non_trainable_variables,
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_an_encoder_without_a_copy_names_workdir():
    bare = contexts.make(
        _network(), _source(slice(0, 40)), _source(slice(40, 80))
    )
    assert "workdir" in protocols.missing("finetune", bare)
    assert protocols.missing("finetune", _subject()) is None
    with pytest.raises(errors.UserError, match="workdir"):
        finetune.train(
            bare, np.arange(20), finetune.Recipe(1, 0.1), trained=True
        )


@pytest.mark.slow
def test_an_export_is_fine_tuned_as_its_run_is(tmp_path):
    saved_run.make(tmp_path / "run")
    exporting.export(str(tmp_path / "run"), str(tmp_path / "export"))
    found = checkpoints.load_run(str(tmp_path / "run"))
    data = (_source(slice(0, 200)), _source(slice(200, 400)))
    options = evaluate(scale="cpu")
    of_run = make_context.from_run(found, *data, options)
    of_export = make_context.from_export(
        str(tmp_path / "export"), *data, options
    )
    assert (
        of_export.subject.width
        == of_run.subject.width
        == of_run.subject.encoder.output_shape[-1]
    )
    before = embedding.checksum(of_export.subject.encoder)
    recipe = finetune.Recipe(
        steps=6,
        learning_rate=0.1,
        weight_decay=0.01,
        batch_size=50,
        augmentation="none",
    )
    rows = np.arange(0, 200, 2)
    run, export = (
        finetune.train(one, rows, recipe, trained=True)
        for one in (of_run, of_export)
    )
    np.testing.assert_allclose(export.losses, run.losses, rtol=1e-4)
    assert export.losses[-1] != export.losses[0]
    # All weights have moved, and all statistics with them.
    tuned, untouched = (
        {v.name: v.numpy() for v in encoder.variables}
        for encoder in (export.encoder, of_export.subject.encoder)
    )
    moved = [name for name in tuned if (tuned[name] != untouched[name]).any()]
    assert len(moved) == len(tuned)
    np.testing.assert_allclose(export.head.kernel, run.head.kernel, atol=1e-4)
    # An export's moving variances have Bessel's correction, a run's have not.
    scores = [
        one.scores(of, of.images.plain(of.data.test)).scores
        for one, of in ((run, of_run), (export, of_export))
    ]
    np.testing.assert_allclose(*scores, atol=0.02)
    assert embedding.checksum(of_export.subject.encoder) == before
    assert protocols.missing("finetune", of_export) is None
    # It has no random weights to compare with.
    assert not of_export.subject.has_new_encoder(trained=False)


# ---- Transfer ----------------------------------------------------------------


def test_the_papers_datasets_and_metrics():
    simclr = SUITES["simclr"].targets
    by_class = {n for n, t in simclr.items() if t.metric == "mean_per_class"}
    assert by_class == {"aircraft", "pets", "caltech101", "flowers"}
    official = {n for n, t in simclr.items() if t.validation}
    assert official == {"dtd", "aircraft", "flowers", "voc2007"}
    assert len(simclr) == 12
    sincere = SUITES["sincere"].targets
    assert set(sincere) == {
        "pets",
        "dtd",
        "aircraft",
        "food101",
        "flowers",
        "cars",
    }
    assert {t.metric for t in sincere.values()} == {"top1"}
    hyperparameters = Transfer().hyperparameters()
    assert hyperparameters["grid"]["steps"] == 20_000
    assert hyperparameters["scratch_grid"]["steps"] == 40_000
    for grid, low, high, decays in (
        (hyperparameters["grid"], 1e-4, 0.1, 8),
        (hyperparameters["scratch_grid"], 1e-3, 1.0, 8),
    ):
        np.testing.assert_allclose(
            grid["learning_rates"], np.geomspace(low, high, 7), rtol=2e-3
        )
        assert len(grid["weight_decays"]) == decays
    with pytest.raises(errors.UserError, match="transfer_suite=simclrr"):
        protocols.run(_subject(transfer_suite="simclrr"), ["transfer"])


def test_a_damaged_dataset_is_not_taken_for_a_missing_one(monkeypatch):
    def source(name, split, data_dir):
        raise raised[name]

    raised = {
        "cifar10": errors.AbsentDataError("not prepared"),
        "birdsnap": errors.UnknownDatasetError("not in TFDS"),
        "pets": errors.UserError("cannot be read"),
    }
    monkeypatch.setattr(datasets, "source", source)
    scored = _subject()
    for name in ("cifar10", "birdsnap"):
        assert other_datasets.source(scored, name, "test") is None
    with pytest.raises(errors.UserError, match="cannot be read"):
        other_datasets.source(scored, "pets", "test")


def _only(monkeypatch, there):
    """Prepared datasets are those of `there`: (name, split) -> source."""

    def source(scored, name, split):
        return there.get((name, split))

    monkeypatch.setattr(other_datasets, "source", source)


@pytest.mark.parametrize(
    ("suite", "chosen", "expected"),
    [
        ("simclr", "auto", ["shorter_side", "center_crop"]),
        ("sincere", "auto", ["squash", "squash"]),
        ("simclr", "squash_crop", ["squash_crop", "squash_crop"]),
    ],
)
def test_transfer_has_the_preprocessing_of_its_paper(
    suite, chosen, expected, monkeypatch
):
    images = {
        ("food101", s): _source(slice(50)) for s in ("train", "validation")
    }
    _only(monkeypatch, images)
    used = []

    def part(other, *args, **options):
        # What `other.images` passes on.
        other.images.plain(other.data.test)
        return {"top1": 0.0}

    original = views.evaluation
    monkeypatch.setattr(
        views, "evaluation", lambda *a: used.append(a[1]) or original(*a)
    )
    monkeypatch.setattr(transfer, "_linear", part)
    monkeypatch.setattr(transfer, "_finetune", part)
    monkeypatch.setattr(transfer, "holdout", lambda *_: (None, np.arange(9)))
    scored = _subject(preprocessing=chosen)
    methods = ["linear", "finetune"]
    parts = list(
        contexts.measure("transfer", scored, suite=suite, methods=methods)
    )
    assert len(parts) == 2
    assert used == expected  # Of linear, and of fine-tuning.


def test_each_split_is_embedded_once_at_most(monkeypatch):
    walks = []
    walk = Embedder.steps
    monkeypatch.setattr(
        Embedder,
        "steps",
        lambda self, make: walks.append(1) or walk(self, make),
    )
    dict(
        contexts.measure(
            "finetune", _subject(), **_HYPERPARAMETERS | {"epochs": [1]}
        )
    )
    assert not walks
    _only(
        monkeypatch,
        {("cifar10", s): _source(slice(100)) for s in ("train", "test")},
    )
    one = {"steps": 1, "learning_rates": [0.1, 0.2], "weight_decays": [0.0]}
    for methods, embedded in ((["finetune"], 0), (["linear", "finetune"], 2)):
        walks.clear()
        dict(
            contexts.measure("transfer", _subject(), methods=methods, grid=one)
        )
        assert len(walks) == embedded


def test_weights_that_are_not_finite_are_refused():
    def broken(trained):
        encoder = _network()
        kernel = encoder.trainable_variables[0]
        kernel.assign(kernel * np.nan)
        return encoder

    bad = contexts.changed(_subject(), make_encoder=broken)
    with pytest.raises(errors.UserError, match="hold NaN"):
        dict(contexts.measure("finetune", bad, **_HYPERPARAMETERS))


def test_parts_of_transfer_come_one_at_a_time(monkeypatch):
    _only(
        monkeypatch,
        {
            (name, split): _source(slice(50))
            for name in ("cifar10", "oxford_iiit_pet")
            for split in ("train", "test")
        },
    )

    def linear(other, target, *args):
        if target.dataset != "cifar10":
            raise errors.UserError("a damaged dataset")
        return {"top1": 0.5}

    def diverging(*args, **options):
        raise errors.DivergedError("at every learning rate")

    monkeypatch.setattr(transfer, "_linear", linear)
    monkeypatch.setattr(transfer, "_finetune", diverging)
    monkeypatch.setattr(transfer, "holdout", lambda *_: (None, np.arange(9)))
    parts = contexts.measure(
        "transfer", _subject(), methods=["finetune", "linear"]
    )
    # Fine-tuning is left out; what comes later does not lose this result.
    part = {"top1": 0.5, "dataset": "cifar10"}
    assert next(parts) == ("cifar10 linear", part)
    with pytest.raises(errors.UserError, match="damaged"):
        next(parts)
    parts = contexts.measure("transfer", _subject(), methods=["finetune"])
    with pytest.raises(errors.DivergedError, match="cifar10 finetune, pets"):
        next(parts)


@pytest.mark.parametrize("preprocessing", PREPROCESSINGS)
def test_evaluated_images_have_the_chosen_preprocessing(preprocessing):
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (6, 16, 24, 3), dtype=np.uint8)
    wide = datasets.from_arrays(images, np.arange(6), name="wide")
    context = _subject(wide, wide, preprocessing=preprocessing)
    ((pixels, _),) = list(context.images.plain(context.data.test))
    expected = [views.evaluation(8, preprocessing)(image) for image in images]
    np.testing.assert_array_equal(pixels, tf.stack(expected))
    protocol = context.options.recorded("knn")
    assert protocol["preprocessing"] == preprocessing


@pytest.mark.slow
def test_each_prepared_dataset_is_scored_by_its_rules(monkeypatch):
    said = []
    scored = _subject(test=_source(slice(0, 30)))
    scored = contexts.changed(scored, log=said.append)
    _only(
        monkeypatch,
        {
            ("cifar10", "train"): _source(slice(800, 1100)),
            ("cifar10", "test"): _source(slice(1300, 1500)),
            ("dtd", "train"): _source(slice(800, 1000), "train"),
            ("dtd", "validation"): _source(slice(1000, 1100), "validation"),
            ("dtd", "train+validation"): _source(slice(800, 1100)),
            ("dtd", "test"): _source(slice(1300, 1400)),
        },
    )
    before = embedding.checksum(scored.subject.encoder)
    small = {"steps": 12, "learning_rates": [0.05], "weight_decays": [0.0]}
    parts = dict(
        contexts.measure(
            "transfer",
            scored,
            methods=["linear", "finetune", "scratch"],
            grid=small,
            scratch_grid=small,
            batch_size=64,
        )
    )
    assert list(parts) == [
        f"{name} {method}"
        for name in ("cifar10", "dtd")
        for method in ("linear", "finetune", "scratch")
    ]
    assert len(parts["cifar10 linear"]["labels"]) == 200
    assert len(parts["dtd linear"]["correct"]) == 100
    assert parts["dtd linear"]["dataset"] == "dtd"
    assert parts["cifar10 linear"]["top1"] > 0.9
    assert parts["cifar10 finetune"]["top1"] > parts["cifar10 scratch"]["top1"]
    # The official part of train is what the penalty is chosen on.
    train, test = (
        scored.subject.embed(scored.images.plain(_source(rows)))
        for rows in (slice(800, 1100), slice(1300, 1400))
    )
    expected = logistic.logistic_regression(
        *train, *test, validation=np.arange(200, 300)
    )
    metrics = parts["dtd linear"]["metrics"]
    assert metrics["penalty"] == expected["penalty"]
    assert metrics["score"] == expected["top1"]
    assert any("left out, not prepared" in line for line in said)
    assert embedding.checksum(scored.subject.encoder) == before


@pytest.fixture(scope="module")
def _voc(tmp_path_factory):
    """Two digits side by side, and the classes shown; some are difficult."""
    import tensorflow_datasets as tfds

    images, labels = _digits()
    # Digits 0 to 4 alone, so that each class has many.
    images, labels = images[labels < 5], labels[labels < 5]
    random = np.random.default_rng(0)

    def examples(first, count):
        for n in range(first, first + count):
            pair = labels[[n, n + 300]]
            picture = np.concatenate([images[n], images[n + 300]], axis=1)
            shown = sorted(set(pair.tolist()))
            yield {
                "image": np.repeat(picture[..., None], 3, -1),
                "labels": shown,
                "labels_no_difficult": [
                    c for c in shown if random.random() < 0.9
                ],
            }

    folder = tmp_path_factory.mktemp("tfds")
    names = [str(n) for n in range(5)]
    sequence = tfds.features.Sequence(tfds.features.ClassLabel(names=names))
    tfds.dataset_builders.store_as_tfds_dataset(
        name="voc",
        config="2007",
        version="4.0.0",
        data_dir=str(folder),
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(shape=(8, 16, 3)),
                "labels": sequence,
                "labels_no_difficult": sequence,
            }
        ),
        split_datasets={
            "train": list(enumerate(examples(0, 200))),
            "validation": list(enumerate(examples(200, 80))),
            "test": list(enumerate(examples(300, 150))),
        },
    )
    return str(folder)


def test_labels_of_several_classes_come_in_the_order_of_the_images(_voc):
    read = tfds_source.label_sets(
        "voc/2007", "train+validation", _voc, "labels"
    )
    assert read.shape == (280, 5)
    source = datasets.source("voc/2007", "train+validation", data_dir=_voc)
    assert not source.info.has_labels
    images, labels = _digits()
    images, labels = images[labels < 5], labels[labels < 5]
    of_left = {image.tobytes(): n for n, image in enumerate(images)}
    for row, example in zip(
        read, source.examples().as_numpy_iterator(), strict=True
    ):
        left = of_left[example["image"][:, :8, 0].tobytes()]
        assert set(np.flatnonzero(row)) == set(labels[[left, left + 300]])
    with pytest.raises(errors.UserError, match="no feature 'label', only"):
        tfds_source.label_sets("voc/2007", "train", _voc, "label")


def test_rows_as_labels_are_those_of_the_order_of_the_files(_voc):
    for split, rows in (
        ("train[20:60]+validation", 40 + 80),
        ("train[-30:]", 30),
    ):
        source = datasets.source("voc/2007", split, data_dir=_voc)
        found = other_datasets.with_row_labels(source)
        assert found.info.num_classes == rows
        plain = [e["image"] for e in source.examples().as_numpy_iterator()]
        # In any order, and of some of them.
        for row, example in enumerate(found.examples().as_numpy_iterator()):
            assert example["label"] == row
            np.testing.assert_array_equal(example["image"], plain[row])
        some = np.array([3, 17, 28])
        for row, example in zip(
            some,
            found.select(some).examples().as_numpy_iterator(),
            strict=True,
        ):
            assert example["label"] == row
            np.testing.assert_array_equal(example["image"], plain[row])


@pytest.mark.slow
def test_multi_label_are_learned_by_a_sigmoid_each(_voc):

    def network(trained):
        made = _network(seed=1)
        if trained:
            made.set_weights(_weights())
        inputs = tf.keras.Input([16, 16, 3])
        # Of the enlarged middle both digits are at hand, one above the other.
        halves = tf.concat([inputs[:, ::2, :8], inputs[:, ::2, 8:]], 0)
        left, right = tf.split(made(halves), 2)
        return tf.keras.Model(inputs, tf.concat([left, right], -1))

    scored = contexts.make(
        network(True),
        _source(slice(0, 40)),
        _source(slice(40, 80)),
        evaluate(data_dir=_voc),
        run=Pretrain(),
        make_encoder=network,
    )
    small = {"learning_rates": [1e-5, 0.05], "weight_decays": [0.0]}
    small["steps"] = 40
    ((name, part),) = contexts.measure(
        "transfer", scored, methods=["finetune"], grid=small, batch_size=64
    )
    assert name == "voc2007 finetune"
    metrics = part["metrics"]
    assert metrics["metric"] == "mean_average_precision"
    # The rate is chosen on the official validation part.
    assert metrics["learning_rate"] == 0.05
    assert metrics["validation"][1] > metrics["validation"][0] + 0.2
    assert metrics["score"] == pytest.approx(np.mean(metrics["precisions"]))
    assert metrics["score"] > 0.7
    shown = tfds_source.label_sets("voc/2007", "test", _voc, "labels")
    first = part["predictions"]
    np.testing.assert_array_equal(
        part["correct"], shown[np.arange(len(first)), first]
    )
    assert part["top1"] == part["correct"].mean() > 0.7


@pytest.mark.slow
def test_multi_label_are_scored_by_mean_average_precision(_voc):
    inputs = tf.keras.Input([16, 16, 3])
    encoder = tf.keras.Model(
        inputs, tf.keras.layers.Flatten()(inputs[:, ::2, :, 0])
    )
    scored = contexts.make(
        encoder,
        _source(slice(0, 40)),
        _source(slice(40, 80)),
        evaluate(data_dir=_voc, logistic_penalties=3),
    )
    assert protocols.missing("transfer", scored) is None
    parts = dict(contexts.measure("transfer", scored))
    assert list(parts) == ["voc2007 linear"]
    part = parts["voc2007 linear"]
    metrics = part["metrics"]
    # Against scikit-learn, one class at a time, at the penalty chosen.
    (h, _), (test, _) = (
        scored.subject.embed(
            scored.images.plain(
                datasets.source("voc/2007", split, data_dir=_voc)
            )
        )
        for split in ("train+validation", "test")
    )
    wanted, plain, shown = (
        tfds_source.label_sets("voc/2007", split, _voc, feature)
        for split, feature in (
            ("train+validation", "labels"),
            ("test", "labels_no_difficult"),
            ("test", "labels"),
        )
    )
    expected = []
    for c in range(5):
        model = linear_model.LogisticRegression(
            C=1 / metrics["penalty"], tol=1e-8, max_iter=10_000
        ).fit(h, wanted[:, c])
        counts = plain[:, c] | ~shown[:, c]
        assert 0 < counts.sum() < 150
        expected.append(
            evaluation.eleven_point_average_precision(
                model.decision_function(test)[counts],
                shown[counts, c].astype(int),
            )
        )
    np.testing.assert_allclose(metrics["precisions"], expected, atol=0.02)
    assert metrics["score"] == pytest.approx(np.mean(metrics["precisions"]))
    assert metrics["score"] > 0.75
    assert metrics["validation"][0] < max(metrics["validation"])
    assert part["top1"] == part["correct"].mean() > 0.8


def test_missing_datasets_are_named(monkeypatch):
    _only(monkeypatch, {})
    assert "none of its datasets is prepared" in protocols.missing(
        "transfer", _subject()
    )
    with pytest.raises(errors.UserError, match="data_dir"):
        list(contexts.measure("transfer", _subject()))
