"""Every policy: what it does how often, and the same views everywhere."""

import image_helpers
import numpy as np
import pytest
import tensorflow as tf
from image_helpers import patches, seeds, uniforms_of, within

from tf_contrastive import distribution, views
from tf_contrastive.base import errors
from tf_contrastive.config.views import OPERATIONS
from tf_contrastive.views import prng

# Every operation of every policy, and each form of the colour jitter.
POLICIES = {
    **{name: (name, {}) for name in views.POLICIES},
    "rotated": ("simaugment", {"rotate": True, "warp_probability": 0.3}),
    "code": ("stacked_randaugment", {"stacked_randaugment_order": "code"}),
    "pytorch": ("simclr", {"color_jitter_style": "pytorch"}),
    "shuffled": ("simclr", {"color_jitter_style": "tensorflow_shuffled"}),
    "plus": ("simclr+rotate+noise", {}),
    "ablations": ("ablation:" + "+".join(OPERATIONS), {}),
}
_JITTER, _GRAY = ("ColorJitter", 0.8), ("Grayscale", 0.2)
_BLUR, _WARP = ("GaussianBlur", 0.5), ("Warp", 0.5)
_AUGMENT = ("RandAugment", None)
# Operations in the papers' order, and the fraction of views that each changes;
# None: it depends on what is drawn, as `autoaugment_test.py` has it.
FREQUENCIES = {
    "none": [],
    "crop": [],
    "simclr": [_JITTER, _GRAY, _BLUR],
    "broader": [_JITTER, _GRAY, ("RandomApply", 1 - 0.8**4), _BLUR],
    "simaugment": [_JITTER, _GRAY, _WARP, _BLUR],
    "autoaugment": [("AutoAugment", None)],
    "randaugment": [_AUGMENT],
    "stacked_randaugment": [_AUGMENT, _JITTER, _GRAY, _WARP, _BLUR],
    "rotated": [("Rotate", 0.75), _JITTER, _GRAY, ("Warp", 0.3), _BLUR],
    "code": [_JITTER, _AUGMENT, _GRAY, _WARP, _BLUR],
    "pytorch": [("PyTorchColorJitter", 0.8), _GRAY, _BLUR],
    "shuffled": [("ShuffledColorJitter", 0.8), _GRAY, _BLUR],
    "plus": [_JITTER, _GRAY, _BLUR, ("Rotate", 0.75), ("RandomApply", 0.5)],
    "ablations": [
        ("SecondCrop", None),
        ("Rotate", 1),
        ("Cutout", 1),
        ("Noise", 1),
        ("Fixed", 1),
        ("GaussianBlur", 1),
        _JITTER,
        _GRAY,
        ("Grayscale", 1),
        ("ColorJitter", 1),
        ("Fixed", 1),
        ("Fixed", 1),
        ("MotionBlur", 1),
    ],
}


def build(case, image_size):
    name, options = POLICIES[case]
    return views.build(name, image_size=image_size, **options)


@pytest.mark.parametrize("case", POLICIES)
def test_operations_change_their_fraction_of_the_views(case):
    operations = build(case, 20).operations
    names = [type(operation).__name__ for operation in operations]
    assert names == [name for name, _ in FREQUENCIES[case]]
    count = 2000
    pixels = tf.repeat(image_helpers.noise(1, 20), count, axis=0)
    for operation, (name, expected) in zip(
        operations, FREQUENCIES[case], strict=True
    ):
        if expected is not None:
            uniforms = uniforms_of(operation, count)
            if name == "GaussianBlur":  # A narrow one changes nothing.
                coins = uniforms["blur"][:, :1]
                uniforms["blur"] = tf.concat([coins, tf.ones_like(coins)], 1)
            result = operation(pixels, uniforms)
            off = np.abs(result - pixels).max(axis=(1, 2, 3))
            assert within(np.mean(off > 1e-5), expected, count), name


@pytest.mark.parametrize(
    "case",
    [
        case if case == "simclr" else pytest.param(case, marks=pytest.mark.slow)
        for case in POLICIES  # Others have all operations of these four.
        if case not in ("simaugment", "randaugment", "code", "plus")
    ],
)
def test_views_do_not_depend_on_batch_threads_or_parts(case):
    images, keys = patches(7, 140), seeds(7)  # Large: they are averaged.
    policy = build(case, 33)
    # Graphs round the blends of these differently in the last bit.
    atol = 1e-6 if case in ("pytorch", "shuffled") else 0
    make_views = views.Views(policy, 2)
    eager = make_views(images, keys).numpy()
    assert eager.shape == (7, 2, 33, 33, 3) and eager.dtype == np.float32
    assert eager.min() >= 0.0 and eager.max() <= 1.0 and eager.std() > 0.01
    # They differ by image and seed.
    distinct = len(np.unique(eager.reshape(14, -1), axis=0))
    # Of two images no operation was drawn: views of an ablation share the crop.
    assert distinct == {"none": 7, "ablations": 12}.get(case, 14)
    # In other batches, on several threads, in a graph.
    data = tf.data.Dataset.from_tensor_slices((images, keys)).batch(3)
    result = tf.concat(list(data.map(make_views, 4)), 0)
    np.testing.assert_allclose(result, eager, rtol=0, atol=atol)
    # Alone, and in a graph for images of any size.
    signature = [
        tf.TensorSpec([None, None, 3], tf.uint8),
        tf.TensorSpec([2], tf.int32),
    ]
    graph = tf.function(policy, input_signature=signature, autograph=False)
    folded = prng.fold(keys, 2)
    for i in (0, 6):
        for one in (policy, graph):
            view = one(images[i], folded[i, 0])
            np.testing.assert_allclose(view, eager[i, 0], rtol=0, atol=atol)
    # Cropped image by image, changed as a batch.
    crop = make_views.geometric
    cropped = [crop(images[i : i + 1], keys[i : i + 1]) for i in range(7)]
    cropped = tf.concat(cropped, 0)
    result = make_views.photometric(cropped, folded)
    np.testing.assert_allclose(result, eager, rtol=0, atol=atol)
    # One operation after the other, each with numbers of its own.
    expected = cropped[:, 0]
    for operation in policy.operations:
        drawn = prng.uniform(folded[:, 0], operation.streams)
        expected = operation(expected, drawn)
    np.testing.assert_allclose(eager[:, 0], expected, rtol=0, atol=1e-6)


def check_views_of_a_device(views, expected):
    off = np.abs(views - expected)
    # Where rounding decides between two levels, the next operation (a table, a
    # threshold, the nearest pixel) may decide otherwise.
    assert np.mean(off < 1.01 / 255) > 0.995
    assert off.mean() < 5e-4


@pytest.mark.slow
@pytest.mark.parametrize("on_tpu", [False, True])
@pytest.mark.parametrize(
    "case",
    [
        "simaugment",
        "autoaugment",
        "randaugment",
        "broader",
        "pytorch",
        "shuffled",
        "ablations",
    ],
)
def test_forms_for_devices_compile_and_make_the_same_views(
    case, on_tpu, monkeypatch
):
    monkeypatch.setattr(distribution, "on_tpu", lambda: on_tpu)
    count = 48
    pixels, keys = image_helpers.pixel_patches(count, 32), seeds(count)
    if case == "ablations":  # Sobel of noise amplifies rounding.
        names = [name for name in OPERATIONS if name not in ("noise", "sobel")]
        policy = views.Ablation(32, names=names[:5], ablation_branch="both")
    else:
        policy = build(case, 32)
    compiled = tf.function(
        lambda x, k: policy.photometric(x, k, static=True),
        jit_compile=True,
        autograph=False,
    )
    check_views_of_a_device(
        compiled(pixels, keys), policy.photometric(pixels, keys)
    )


def bfloat16_products(monkeypatch):
    """Rounds factors as TPUs do."""
    exact = tf.matmul

    def rounded(a, b, **options):
        a, b = (
            tf.cast(tf.cast(x, tf.bfloat16), tf.float32)
            for x in (tf.convert_to_tensor(a), tf.convert_to_tensor(b))
        )
        return exact(a, b, **options)

    for module in (tf, tf.linalg):
        monkeypatch.setattr(module, "matmul", rounded)
    for name in ("einsum", "tensordot"):
        monkeypatch.delattr(tf, name)
    for name in ("solve", "inv", "matvec", "einsum"):
        monkeypatch.delattr(tf.linalg, name)


@pytest.mark.parametrize(
    "case",
    [
        "simaugment",
        "autoaugment",
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ("broader", "pytorch", "randaugment")
        ),
    ],
)
def test_forms_for_tpus_make_the_same_views_with_rounded_products(
    case, monkeypatch
):
    policy = build(case, 33)
    pixels, keys = image_helpers.pixel_patches(48, 33), seeds(48)
    expected = policy.photometric(pixels, keys)
    monkeypatch.setattr(distribution, "on_tpu", lambda: True)
    bfloat16_products(monkeypatch)
    made = policy.photometric(pixels, keys, static=True)
    if case in ("simaugment", "pytorch"):
        np.testing.assert_allclose(made, expected, atol=1e-4)
    else:
        check_views_of_a_device(made, expected)


def test_views_are_equal_in_groups_that_fit_in_the_cache():
    # Ten views of 224 pixels are changed in two groups.
    images, keys = patches(10, 200), seeds(10)
    policy = views.build("stacked_randaugment", image_size=224)
    batch = policy.batch(images, keys).numpy()
    for i in (0, 7, 8, 9):
        np.testing.assert_array_equal(policy(images[i], keys[i]), batch[i])


# ---- Components --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("simclrr", {}, "augmentation=simclrr.*did you mean simclr"),
        ("ablation:bluur", {}, "did you mean blur"),
        ("ablation", {}, "ablation:OP"),
        ("simclr", {"blurr": True}, "'blurr'.*did you"),
        ("simclr", {"image_size": 1}, "image_size=1.*at least 2"),
        ("simclr", {"channels": 5, "colors": (0, 1)}, r"\(0, 1\).*three"),
        ("simclr", {"channels": 2}, "colors.*of channels=2"),
        ("simclr", {"channels": 0, "colors": ()}, "channels=0"),
        ("randaugment", {"channels": 5, "colors": ()}, "rounds pixels"),
        ("ablation:equalize", {"channels": 3}, "rounds pixels"),
    ],
)
def test_invalid_options_are_named(name, options, match):
    with pytest.raises(errors.UserError, match=match):
        views.build(name, **{"image_size": 32, **options})


def test_images_of_another_type_or_shape_are_refused():
    wrong = {(8, 8, 3): "f", (8, 8, 1): "B", (2, 8, 8, 3): "B"}
    for shape, dtype in wrong.items():
        with pytest.raises(errors.UserError, match="pass uint8"):
            views.evaluation(8)(np.zeros(shape, dtype))
    with pytest.raises(errors.UserError, match="pass uint8"):
        views.Crop(8).batch(np.zeros((8, 8, 3), np.uint8), seeds(8))
    with pytest.raises(errors.UserError, match="views=0"):
        views.Views(views.Crop(8), 0)
    with pytest.raises(ValueError, match="pass view="):
        views.Ablation(8, names=("sobel",)).photometric(
            tf.zeros([2, 8, 8, 3]), seeds(2)
        )
