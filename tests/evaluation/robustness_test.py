"""Corruptions against their published code, and what encoders make of them."""

import itertools
import json
import os

import contexts
import numpy as np
import pytest
import tensorflow as tf
from sklearn import datasets as sklearn_datasets

from tf_contrastive import datasets, files
from tf_contrastive.config.evaluate import evaluate
from tf_contrastive.config.protocols import CORRUPTIONS
from tf_contrastive.errors import UserError
from tf_contrastive.evaluation import (
    classification,
    classification_metrics,
    corruptions,
    other_datasets,
    protocols,
    results,
)
from tf_contrastive.evaluation.corruptions import blur, digital

_TESTDATA = os.path.join(os.path.dirname(__file__), "testdata")
_PHOTO = sklearn_datasets.load_sample_image("china.jpg")


def _photos(side, count=4):
    """Parts of a photograph, made small."""
    cuts = [_PHOTO[0:400, x : x + 400] for x in range(0, 240, 240 // count)]
    made = tf.image.resize(np.stack(cuts), [side, side], "area")
    return np.uint8(np.round(made[:count]))


# ---- The images --------------------------------------------------------------


@pytest.mark.parametrize("severity", corruptions.SEVERITIES)
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "zoom_blur",
        "fog",
        "contrast",
        "pixelate",
        "jpeg_compression",
    ],
)
def test_images_are_those_of_tensorflow_datasets(name, severity):
    from tensorflow_datasets.image_classification import corruptions as theirs

    for image in (_photos(96)[0], _PHOTO[100:164, 50:130]):
        state = np.random.get_state()
        np.random.seed(7)
        expected = getattr(theirs, name)(image, severity)
        np.random.set_state(state)
        found = corruptions.corrupt(image, name, severity, 7, "imagenet")
        np.testing.assert_array_equal(found, expected)


def test_ports_are_what_opencv_and_scikit_image_make():
    # Made by TensorFlow Datasets' code with both installed, from the same
    # seeds: `image`, and NAME_SEVERITY for each.
    with np.load(os.path.join(_TESTDATA, "corruptions.npz")) as file:
        golden = dict(file)
    image = golden.pop("image")
    assert len(golden) >= 20
    for key, expected in golden.items():
        name, _, severity = key.rpartition("_")
        found = corruptions.corrupt(image, name, int(severity), 7, "imagenet")
        error = np.abs(found.astype(int) - expected)
        assert (error <= 1).mean() > 0.999, key


def test_salt_and_pepper_hit_so_many_values_and_are_as_many():
    gray = np.full([200, 200, 3], 128, np.uint8)
    for severity, share in enumerate([0.03, 0.06, 0.09, 0.17, 0.27], 1):
        found = corruptions.corrupt(
            gray, "impulse_noise", severity, 0, "imagenet"
        )
        for value in (0, 255):
            hits = np.mean(found == value)
            three = 3 * np.sqrt(share / 2 / gray.size)
            assert abs(hits - share / 2) < three


def test_motion_runs_along_a_line_with_imagemagick_s_weights():
    dot = np.zeros([41, 41, 3], np.uint8)
    dot[20, 20] = 255
    made = blur.move(dot[..., 0], 6, 1.5, 0.0) * 255
    # The image is dragged: what is at x shows at x, x - 1, ...
    weights = np.exp(-(np.arange(13) ** 2) / (2 * 1.5**2))
    expected = np.around(255 * weights / weights.sum())
    np.testing.assert_array_equal(made[20, 20:7:-1], expected)
    assert made.sum() == expected.sum()
    down = blur.move(dot[..., 0], 6, 1.5, 90.0) * 255
    np.testing.assert_array_equal(down, made.T)


def _distance(clean, made):
    """Root of the mean squared difference, over images and values."""
    return np.sqrt(np.mean((made.astype(float) - clean) ** 2))


def _lost(clean, made):
    """1 - correlation: what share of the image's structure is gone."""
    pairs = zip(clean, made, strict=True)
    return 1 - np.mean(
        [np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in pairs]
    )


# Those whose published levels are not one after the other, and why: both of
# ImageNet-C's code and of CIFAR-10-C's (make_imagenet_c.py, make_cifar_c.py).
_NOT_IN_ORDER = {
    "glass_blur": "blurs wider, or mixes further, or for another round",
    "elastic_transform": "shifts the less, the more it bends",
}


def test_what_is_not_in_order_is_so_by_its_published_levels():
    def levels(name):
        return [
            list(zip(*rows[name], strict=True))
            for rows in corruptions.LEVELS.values()
        ]

    for sigmas, reaches, rounds in levels("glass_blur"):
        each = zip(sigmas, reaches, rounds, strict=True)
        assert any(
            any(np.diff(pair, axis=0).ravel() < 0)
            for pair in itertools.pairwise(each)
        )
    for _, bends, shifts in levels("elastic_transform"):
        assert shifts[4] < shifts[0]
        assert bends[4] < bends[1]  # Of a smaller sigma: rougher.


@pytest.mark.parametrize("side", [32, 96])
@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_severity_takes_images_further_away(name, side):
    photos = _photos(side, 6)
    levels = "cifar" if side == 32 else "imagenet"
    found = [
        np.stack(
            [
                corruptions.corrupt(photo, name, severity, seed, levels)
                for seed, photo in enumerate(photos)
            ]
        )
        for severity in corruptions.SEVERITIES
    ]
    assert all(made.dtype == np.uint8 for made in found)
    far = [_distance(photos, made) for made in found]
    lost = [_lost(photos, made) for made in found]
    assert far[0] > 0
    if name not in _NOT_IN_ORDER:
        assert _rises(far) or _rises(lost)
    elif name == "glass_blur":  # What has another round is further away.
        assert side == 96 or max(far[:3]) < far[3]
        assert far[0] < far[4] and lost[0] < lost[4]


def _rises(values):
    return all(np.diff(values) >= 0) and values[-1] > values[0]


def test_elastic_shifts_are_the_rougher_the_more_severe():
    # The published levels shift less and bend more from one to the next, so
    # that the distance falls: at CIFAR's, what they bend rises.
    photos = _photos(32, 6) / 255
    far = []
    for strength, sigma, _ in corruptions.LEVELS["cifar"]["elastic_transform"]:
        bent = np.stack(
            [
                digital.elastic_transform(
                    photo, (strength, sigma, 0), np.random.RandomState(seed)
                )
                for seed, photo in enumerate(photos)
            ]
        )
        far.append(_distance(photos, bent))
    assert far[0] == pytest.approx(0, abs=1e-6)
    assert all(np.diff(far) > 0)


@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
def test_the_same_seed_makes_the_same_image(name):
    photo = _photos(32)[0]
    state = np.random.get_state()[1].copy()
    made = [corruptions.corrupt(photo, name, 3, seed) for seed in (5, 5, 6)]
    np.testing.assert_array_equal(made[0], made[1])
    fixed = {
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
    }
    assert (made[0] == made[2]).all() == (name in fixed)
    # Others' draws are left alone.
    np.testing.assert_array_equal(np.random.get_state()[1], state)


def test_an_image_s_corruption_does_not_depend_on_batches():
    photos = _photos(32, 6)
    whole = corruptions.corrupt_batch(photos, "gaussian_noise", 2, 0)
    parts = [
        corruptions.corrupt_batch(
            photos[start:stop], "gaussian_noise", 2, start
        )
        for start, stop in ((0, 4), (4, 6))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole[0] != whole[1]).any()


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 40, 3), (40, 65, 3)])
@pytest.mark.parametrize("name", corruptions.CORRUPTIONS)
@pytest.mark.parametrize("value", [0, 255])
def test_odd_images_keep_their_shape(name, shape, value):
    image = np.full(shape, value, np.uint8)
    for severity in (1, 5):
        assert corruptions.corrupt(image, name, severity, 0).shape == shape


def test_names_are_those_of_the_flags():
    assert tuple(corruptions.CORRUPTIONS) == CORRUPTIONS
    assert set(classification_metrics.ALEXNET) == set(CORRUPTIONS)
    for levels in corruptions.LEVELS.values():
        assert set(levels) == set(corruptions.CORRUPTIONS)
        assert {len(row) for row in levels.values()} == {5}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fogg", 1), "unknown corruption 'fogg': did you mean 'fog'"),
        (("fog", 6), "severity=6"),
        (("fog", 1, 0, "mnist"), "mnist"),
    ],
)
def test_what_there_is_not_is_refused(arguments, message):
    name, severity, *rest = arguments
    with pytest.raises(UserError, match=message):
        corruptions.corrupt(_photos(32)[0], name, severity, *(rest or [0]))
    with pytest.raises(UserError, match="uint8"):
        corruptions.corrupt(np.zeros([4, 4, 3]), "fog", 1, 0)


# ---- The protocol ------------------------------------------------------------


def _encoder():
    inputs = tf.keras.Input([8, 8, 3])
    x = tf.keras.layers.Flatten()(inputs[..., :1])
    return tf.keras.Model(inputs, x)


def _digits(rows, name="arrays", split="test"):
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    images = np.uint8(np.round(images.reshape(-1, 8, 8)[rows] * 255 / 16))
    return datasets.from_arrays(images, labels[rows], name=name, split=split)


def _subject(name="arrays", split="test", **options):
    return contexts.make(
        _encoder(),
        _digits(slice(0, 1000)),
        _digits(slice(1000, 1200), name, split),
        evaluate(
            scale="cpu", linear_epochs=20, embedding_batch_size=64, **options
        ),
    )


def _hyperparameters(scored):
    return scored.options.hyperparameters("robustness")["linear"]


_NAMES = ("gaussian_noise", "contrast")


@pytest.fixture(scope="module")
def _measured():
    return contexts.measure("robustness", _subject(), corruptions=_NAMES)


def test_errors_are_those_of_each_image_by_itself(_measured):
    scored = _subject()
    model, _ = classification.fit_linear(
        *scored.embeddings("train"), **_hyperparameters(scored), seed=0
    )
    images = np.stack(
        [e["image"] for e in scored.data.test.examples().as_numpy_iterator()]
    )
    labels = scored.embeddings("test")[1]

    def error(pixels):
        rows = pixels[..., 0].reshape(len(pixels), -1) / 255
        scores = model.scores(rows.astype(np.float32))
        return np.mean(scores.top(1)[:, 0] != labels)

    metrics = _measured["metrics"]
    assert metrics["clean_top1"] == pytest.approx(1 - error(images))
    assert metrics["clean_top1"] > 0.85
    table = np.zeros([2, 5])
    for row, name in enumerate(_NAMES):
        for severity in corruptions.SEVERITIES:
            made = corruptions.corrupt_batch(images, name, severity, 0)
            table[row, severity - 1] = error(made)
        np.testing.assert_allclose(metrics[f"error_{name}"], table[row])
    np.testing.assert_allclose(metrics["accuracy"], 1 - table.mean(axis=0))
    np.testing.assert_allclose(_measured["arrays"]["errors"], table)
    assert _measured["top1"] == pytest.approx(1 - table.mean())
    assert metrics["mean_error"] == pytest.approx(100 * table.mean())
    assert table[:, 4].sum() > table[:, 0].sum()
    # No baseline for these data: no mCE under that name.
    assert metrics["mce"] is metrics["relative_mce"] is None
    assert metrics["generated"] == list(_NAMES)
    assert metrics["prepared"] == metrics["stand_ins"] == []


def test_calibration_is_of_each_severity(_measured):
    metrics = _measured["metrics"]
    assert len(metrics["ece"]) == 5
    assert 0 < metrics["ece_clean"] < 0.3
    assert _measured["arrays"]["ece"].shape == (2, 5)
    assert set(_measured["plots"]) == {"reliability", "severity"}


def test_results_can_be_read_back(_measured):
    metrics = files.as_json(_measured["metrics"])
    assert results.ROW_FORM["metrics"](metrics)
    broken = metrics | {"accuracy_interval": [[0.1], [0.2, 0.3]]}
    assert not results.ROW_FORM["metrics"](broken)


def test_the_first_examples_alone():
    few = contexts.measure(
        "robustness", _subject(), corruptions=["contrast"], examples=70
    )
    errors = np.array(few["metrics"]["error_contrast"]) * 70
    np.testing.assert_allclose(errors, np.round(errors), atol=1e-9)


def test_a_baseline_makes_it_mce(tmp_path, _measured):
    path = tmp_path / "baseline.json"
    base = {name: [0.5] * 5 for name in _NAMES} | {"clean": 0.1}
    path.write_text(json.dumps(base))
    found = contexts.measure(
        "robustness", _subject(), corruptions=_NAMES, baseline=str(path)
    )["metrics"]
    mean = found["mean_error"] / 100
    assert found["mce"] == pytest.approx(100 * mean / 0.5)
    clean = 1 - found["clean_top1"]
    assert found["relative_mce"] == pytest.approx(100 * (mean - clean) / 0.4)


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "[]",
        '{"contrast": 55.0}',
        '{"fog": 0.5}',
        '{"contrast": [0.1, 0.2, 0.3, 0.4]}',
        '{"contrast": "n/a"}',
        '{"contrast": {"1": 0.5}}',
        '{"contrast": 0.5, "clean": 0.5}',
    ],
)
def test_a_bad_baseline_is_refused_before_any_image_is_embedded(
    content, tmp_path, monkeypatch
):
    path = tmp_path / "baseline.json"
    path.write_text(content)
    scored = _subject(
        robustness_corruptions="contrast", robustness_baseline=str(path)
    )
    monkeypatch.setattr(type(scored), "embeddings", None)
    with pytest.raises(UserError, match="robustness_baseline="):
        protocols.run(scored, ["robustness"])


@pytest.mark.parametrize("split", ["test", "test[:200]"])
def test_prepared_corruptions_are_used_by_their_own_names(split, monkeypatch):
    asked = []

    def source(scored, name, split):
        asked.append((name, split))
        if "frosted_glass_blur" not in name:
            return None
        # Of severity s the first 20 * s images are black.
        images = np.stack(
            [
                e["image"]
                for e in scored.data.test.examples().as_numpy_iterator()
            ]
        )
        images[: 20 * int(name[-1])] = 0
        return datasets.from_arrays(images, scored.embeddings("test")[1])

    monkeypatch.setattr(other_datasets, "source", source)
    found = contexts.measure(
        "robustness",
        _subject("cifar10", split),
        corruptions=["glass_blur", "contrast"],
    )
    assert found["resolved"] == {"prepared": ["glass_blur"]}
    found = found["metrics"]
    assert ("cifar10_corrupted/frosted_glass_blur_5", split) in asked
    assert found["prepared"] == ["glass_blur"]
    assert found["generated"] == ["contrast"]
    errors = np.array(found["error_glass_blur"])
    clean = 1 - found["clean_top1"]
    # Black images are all called one class, which a tenth of them are.
    expected = clean + np.arange(1, 6) * 0.1 * (0.9 - clean)
    np.testing.assert_allclose(errors, expected, atol=0.03)


def test_images_of_another_split_are_corrupted_themselves(monkeypatch):
    def source(scored, name, split):
        raise AssertionError(f"{name} is not of train")

    monkeypatch.setattr(other_datasets, "source", source)
    scored = _subject("cifar10", "train[90%:]")
    found = contexts.measure("robustness", scored, corruptions=["contrast"])
    assert found["metrics"]["generated"] == ["contrast"]


def test_the_runs_own_head_is_scored():
    scored = _subject()
    model, _ = classification.fit_linear(
        *scored.embeddings("train"), **_hyperparameters(scored), seed=1
    )
    head = tf.keras.layers.Dense(10)
    head.build([None, 64])
    head.set_weights([model.kernel, model.bias])
    scored = contexts.changed(scored, classifier=head)
    names = {"corruptions": ["contrast"]}
    own = contexts.measure("robustness", scored, **names)
    assert own["metrics"]["classifier"] == "head"
    # The same weights as a linear classifier's, and not those of another one.
    same = contexts.measure(
        "robustness", scored, **names, classifier="linear", seed=1
    )
    other = contexts.measure("robustness", scored, **names, classifier="linear")
    assert own["metrics"]["ece"] == pytest.approx(same["metrics"]["ece"])
    assert own["metrics"]["ece"] != pytest.approx(other["metrics"]["ece"])
    with pytest.raises(UserError, match="robustness: only a run of"):
        bare = _subject(robustness_classifier="head")
        protocols.run(bare, ["robustness"])


def test_neighbors_of_corrupted_images():
    scored = _subject()
    found = contexts.measure(
        "robustness", scored, corruptions=["contrast"], classifier="knn"
    )["metrics"]
    images = np.stack(
        [e["image"] for e in scored.data.test.examples().as_numpy_iterator()]
    )
    labels = scored.embeddings("test")[1]
    for severity in corruptions.SEVERITIES:
        made = corruptions.corrupt_batch(images, "contrast", severity, 0)
        rows = made[..., 0].reshape(len(made), -1).astype(np.float32) / 255
        scores = classification.knn(*scored.embeddings("train"), rows, labels)
        error = found["error_contrast"][severity - 1]
        assert error == pytest.approx(1 - scores["top1"])
    assert "ece" not in found


def test_unlabelled_data_and_unknown_names_are_told():
    images = np.zeros([4, 8, 8, 3], np.uint8)
    bare = contexts.make(
        _encoder(), datasets.from_arrays(images), datasets.from_arrays(images)
    )
    assert "no labels" in protocols.missing("robustness", bare)
    assert protocols.missing("robustness", _subject()) is None
    for option, name in (("corruptions", "fogg"), ("classifier", "svm")):
        wrong = _subject(**{f"robustness_{option}": name})
        with pytest.raises(UserError, match=f"robustness_{option}={name}"):
            protocols.run(wrong, ["robustness"])
