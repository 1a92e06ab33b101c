"""Views: random numbers, crops, policies, evaluation preprocessing."""

import json

import image_helpers
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from image_helpers import patches, seeds
from PIL import Image

from tf_contrastive import distribution, errors, views
from tf_contrastive.config import views as config
from tf_contrastive.config.views import OPERATIONS
from tf_contrastive.views import crops, policies, prng, warp

DRAWS = 10_000
# Every operation of every policy, and each form of the colour jitter.
POLICIES = {
    **{name: (name, {}) for name in views.POLICIES},
    "pytorch": ("simclr", {"color_jitter_style": "pytorch"}),
    "shuffled": ("simclr", {"color_jitter_style": "tensorflow_shuffled"}),
    "linear": ("simclr", {"color_jitter_style": "linear"}),
    "plus": ("simclr+rotate+noise", {}),
    "ablations": ("ablation:" + "+".join(OPERATIONS), {}),
}


@pytest.fixture(scope="module")
def photo():
    """A real photograph, uint8 [427, 427, 3]."""
    return image_helpers.photos()[0]


def within(fraction, expected):
    return image_helpers.within(fraction, expected, DRAWS)


def build(case, image_size):
    name, options = POLICIES[case]
    return views.build(name, image_size=image_size, **options)


# ---- Random numbers ---------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((2**32 - 1,) * 2, (2**32 - 1,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ],
)
def test_threefry_gives_the_published_answers(key, counter, expected):
    # The known answers of the authors' Random123 library, 20 rounds.
    words = prng.threefry(
        tuple(tf.constant(word, tf.uint32) for word in key),
        tuple(tf.constant(word, tf.uint32) for word in counter),
    )
    assert tuple(int(word) for word in words) == expected


def test_uniform_numbers_are_uniform_and_independent():
    # Neighbouring seeds, as a data set gives them: (seed, index).
    index = tf.stack([tf.zeros([DRAWS], tf.int32), tf.range(DRAWS)], axis=1)
    uniforms = prng.uniform(index, {"crop": 5, "flip": 1})
    table = np.concatenate([uniforms["crop"], uniforms["flip"]], axis=1)
    assert table.min() >= 0 and table.max() < 1
    for column in table.T:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
        counts = np.histogram(column, bins=50, range=(0, 1))[0]
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # Between numbers of a seed, and from one seed to the next.
    both = np.concatenate([table[:-1], table[1:]], axis=1)
    correlation = np.corrcoef(both.T) - np.eye(both.shape[1])
    assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)


def test_an_additional_stream_does_not_change_the_others():
    few = prng.uniform(seeds(20), {"crop": 3, "blur": 2})
    more = prng.uniform(seeds(20), {"flip": 1, "blur": 2, "crop": 3})
    for name in few:
        np.testing.assert_array_equal(few[name], more[name])


def test_stream_numbers_are_unique():
    assert len(set(prng.STREAMS.values())) == len(prng.STREAMS)


def test_folded_seeds_do_not_depend_on_the_number_of_views():
    folded = prng.fold(seeds(500), 4)
    assert len({tuple(row) for row in np.reshape(folded, [-1, 2])}) == 2000
    np.testing.assert_array_equal(prng.fold(seeds(500), 2), folded[:, :2])


# ---- Crop, resize, flip -----------------------------------------------------


def boxes(height, width, min_area, count=DRAWS):
    uniforms = prng.uniform(seeds(count), {"crop": 2 * crops.CANDIDATES + 2})
    return crops.random_boxes(uniforms["crop"], height, width, min_area).numpy()


def test_boxes_have_the_published_areas_and_aspects():
    top, left, height, width = boxes(3000, 4000, 0.08).T
    assert (top >= 0).all() and (top + height <= 3000).all()
    assert (left >= 0).all() and (left + width <= 4000).all()
    aspect = width / height
    assert aspect.min() > 0.749 and aspect.max() < 1.335
    area = height * width / (3000 * 4000)
    assert area.min() > 0.0799
    # Below 9/16 every aspect fits, so there nothing is rejected.
    free = area < 0.56
    fractions = (area[free] - 0.08) / (0.56 - 0.08)
    assert scipy.stats.kstest(fractions, "uniform").pvalue > 1e-3
    logs = np.log(aspect[free]) / np.log(4 / 3) / 2 + 0.5
    assert scipy.stats.kstest(logs, "uniform").pvalue > 1e-3
    # Positions are uniform over the room that is left, borders included.
    place = (top + 0.5) / (3000 - height + 1)
    assert scipy.stats.kstest(place, "uniform").pvalue > 1e-3


def test_boxes_reach_every_position_of_a_small_image():
    top, left, height, width = boxes(4, 4, 0.25).T
    square = (height == 2) & (width == 2)
    counts = np.unique(4 * top[square] + left[square], return_counts=True)[1]
    assert len(counts) == 9
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(
    ("height", "width", "min_area"), [(1, 5000, 0.08), (32, 32, 1.0)]
)
def test_the_box_is_the_whole_image_if_no_crop_fits(height, width, min_area):
    expected = np.tile([0, 0, height, width], (50, 1))
    np.testing.assert_array_equal(boxes(height, width, min_area, 50), expected)


@pytest.mark.parametrize("size", [(3000, 4000), (500, 375), (200, 900)])
def test_images_are_halved_as_often_as_their_crops_allow(size):
    policy = views.build("simclr", image_size=64)
    halvings = views.Views(policy, 2).halvings
    streams = {"crop": 2 * crops.CANDIDATES + 2}
    for seed in seeds(40):
        number = int(halvings(tf.constant(size), seed))
        uniforms = prng.uniform(prng.fold(seed[tf.newaxis], 2)[0], streams)
        drawn = crops.random_boxes(
            uniforms["crop"], *size, policy.min_crop_area
        )
        least = drawn.numpy()[:, 2:].min()
        assert number == 0 or least >= 64 * 2**number
        assert number == 3 or least < 64 * 2 ** (number + 1)


@pytest.mark.parametrize(("size", "mirrored"), [(17, False), (64, True)])
def test_crops_equal_slice_and_resize(photo, size, mirrored):
    image = photo[:60, :70]
    box = boxes(60, 70, 0.08, 8)
    ours = crops.sample(
        tf.constant(image)[tf.newaxis],
        tf.zeros([8], tf.int32),
        tf.constant(box),
        tf.fill([8], mirrored),
        size,
    ).numpy()
    for view, (top, left, height, width) in zip(
        ours, box.astype(int), strict=True
    ):
        piece = image[top : top + height, left : left + width]
        oracle = tf.image.resize(piece, [size, size]).numpy() / 255
        oracle = oracle[:, ::-1] if mirrored else oracle
        # Outputs whose neighbours all lie in the box; at the border ours uses
        # the pixels beyond it.
        edge = int(np.ceil(0.5 * size / min(height, width)))
        inner = slice(edge, size - edge)
        np.testing.assert_allclose(
            view[inner, inner], oracle[inner, inner], atol=2e-5
        )
        assert np.abs(view - oracle).max() < 0.35


def test_a_crop_of_the_whole_image_is_the_image():
    image = patches(5, 32)
    policy = views.build("crop", image_size=32, min_crop_area=1.0, flip=False)
    np.testing.assert_allclose(
        policy.batch(image, seeds(5)), image / 255, atol=1e-5
    )


def test_crops_of_large_images_have_no_aliasing():
    # Stripes are grey from afar; sampled without averaging, they would be
    # black or white.
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::4] = stripes[:, 1::4] = 255
    policy = views.build("crop", image_size=32, min_crop_area=0.9)
    result = policy.batch(np.stack([stripes] * 20), seeds(20)).numpy()
    assert np.abs(result - 0.5).max() < 0.2
    assert np.abs(result - 0.5).mean() < 0.05
    samples = tf.image.resize(stripes[:, :500], [32, 32]).numpy() / 255
    assert np.abs(samples - 0.5).mean() > 0.3


def test_half_of_the_views_are_mirrored():
    image = np.zeros((1, 2, 2, 3), np.uint8)
    image[:, :, 1] = 255
    images = np.repeat(image, DRAWS, axis=0)
    policy = views.build("crop", image_size=2, min_crop_area=1.0)
    left = policy.batch(images, seeds(DRAWS)).numpy()[:, 0, 0, 0]
    assert set(np.round(left, 5)) == {0.0, 1.0}
    assert within(np.mean(left > 0.5), 0.5)


# ---- Policies ---------------------------------------------------------------


# Those that run always use all kinds of operations.
@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("simclr", "autoaugment", "ablations")
        else pytest.param(case, marks=pytest.mark.slow)
        for case in POLICIES
    ],
)
def test_views_do_not_depend_on_batch_threads_or_parts(case):
    images, keys = patches(7, 48), seeds(7)
    policy = build(case, 33)
    # Graphs round the blends of these differently in the last bit.
    atol = 1e-6 if case in ("pytorch", "shuffled", "linear") else 0
    make_views = views.Views(policy, 2)
    eager = make_views(images, keys).numpy()
    assert eager.shape == (7, 2, 33, 33, 3) and eager.dtype == np.float32
    assert eager.min() >= 0.0 and eager.max() <= 1.0 and eager.std() > 0.01
    # In other batches, on several threads, in a graph.
    data = tf.data.Dataset.from_tensor_slices((images, keys))
    batches = data.batch(3).map(make_views, 4)
    result = np.concatenate(list(batches.as_numpy_iterator()))
    np.testing.assert_allclose(result, eager, rtol=0, atol=atol)
    # Alone.
    folded = prng.fold(keys, 2)
    for i in (0, 6):
        one = policy(images[i], folded[i, 0])
        np.testing.assert_allclose(one, eager[i, 0], rtol=0, atol=atol)
    # Cropped image by image, changed as a batch.
    crop = make_views.geometric
    cropped = [crop(images[i : i + 1], keys[i : i + 1]) for i in range(7)]
    result = make_views.photometric(tf.concat(cropped, 0), folded)
    np.testing.assert_allclose(result, eager, rtol=0, atol=atol)


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
        "stacked_randaugment",
        "broader",
        "pytorch",
        "shuffled",
        "linear",
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
        "linear",
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
    if case in ("simaugment", "pytorch", "linear"):
        np.testing.assert_allclose(made, expected, atol=1e-4)
    else:
        check_views_of_a_device(made, expected)


@pytest.mark.parametrize(
    "case",
    [
        case
        if case in ("stacked_randaugment", "broader", "linear")
        else pytest.param(case, marks=pytest.mark.slow)
        for case in POLICIES
    ],
)
def test_graphs_for_tpus_are_float32_of_static_shapes(case, monkeypatch):
    monkeypatch.setattr(distribution, "on_tpu", lambda: True)
    policy = build(case, 32)
    trace = tf.function(
        lambda x, k: policy.photometric(x, k, static=True, view=k[:, 0]),
        [
            tf.TensorSpec([4, 32, 32, 3], tf.float32),
            tf.TensorSpec([4, 2], tf.int32),
        ],
        autograph=False,
    )
    graph = trace.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node]
    for function in graph.library.function:
        nodes += function.node_def
    wide = {tf.float64.as_datatype_enum, tf.int64.as_datatype_enum}
    for node in nodes:
        types = {value.type for value in node.attr.values()}
        assert tf.float64.as_datatype_enum not in types, node
        # Of dynamic shape, or one pixel at a time.
        slow = ("Where", "DynamicPartition", "GatherNd", "DenseBincount")
        assert node.op not in slow, node
        assert node.op not in ("TopKV2", "Unique") or not types & wide, node


def test_displacements_of_a_device_are_those_of_the_host(monkeypatch):
    operation = warp.Warp(1.0)
    uniforms = prng.uniform(seeds(20), operation.streams)["warp"]
    points = [[i, j] for i in (75.0, 149.0) for j in (75.0, 149.0)]

    def displaced(dtype, static):
        grid = tf.constant([points], dtype)
        shifts = operation.displacements(tf.cast(uniforms, dtype), 224)
        return warp.flow(grid, grid + shifts, 224, static)

    expected = displaced(tf.float64, False)
    bfloat16_products(monkeypatch)
    assert np.abs(expected).max() > 40
    np.testing.assert_allclose(displaced(tf.float32, True), expected, atol=0.02)


def test_graphs_for_images_of_any_size_agree_bit_for_bit(photo):
    for name in ("none", "crop", "simclr"):
        policy = views.build(name, image_size=96)
        signature = [
            tf.TensorSpec([None, None, 3], tf.uint8),
            tf.TensorSpec([2], tf.int32),
        ]
        graph = tf.function(policy, input_signature=signature, autograph=False)
        for i, (height, width) in enumerate([(90, 133), (400, 300)]):
            image, seed = photo[i : i + height, :width], seeds(5)[i]
            expected = policy(image, seed)
            np.testing.assert_array_equal(graph(image, seed), expected)


def test_views_are_equal_in_groups_that_fit_in_the_cache():
    # Ten views of 224 pixels are changed in two groups.
    images, keys = patches(10, 200), seeds(10)
    policy = views.build("stacked_randaugment", image_size=224)
    batch = policy.batch(images, keys).numpy()
    for i in (0, 7, 8, 9):
        np.testing.assert_array_equal(policy(images[i], keys[i]), batch[i])


@pytest.mark.parametrize(
    "policy",
    # At full strength a bright view can be white all over.
    [views.SimCLR(32, color_jitter_strength=0.5), views.Crop(32)],
)
def test_views_differ_by_position_and_seed(photo, policy):
    image = np.repeat(photo[np.newaxis, 300:332, 200:232], 50, axis=0)
    rows = views.Views(policy, 2)(image, seeds(50)).numpy().reshape(100, -1)
    assert len(np.unique(rows, axis=0)) == 100


def test_no_augmentation_makes_equal_views():
    images = patches(3, 40)
    result = views.Views(views.NoAugmentation(32), 2)(images, seeds(3))
    np.testing.assert_array_equal(result[:, 0], result[:, 1])
    expected = views.evaluation(32)(images[1])
    np.testing.assert_array_equal(result[1, 0], expected)


def test_extra_channels_are_passed_on():
    maker = views.Views(views.SimCLR(32), 2)
    pixels = maker.geometric(patches(3, 40), seeds(3))
    keys = prng.fold(seeds(3), 2)
    more = tf.concat([pixels, 7 * pixels[..., :2]], -1)
    result = maker.photometric(more, keys)
    expected = maker.photometric(pixels, keys)
    np.testing.assert_array_equal(result[..., :3], expected)
    np.testing.assert_array_equal(result[..., 3:], more[..., 3:])


# ---- Components --------------------------------------------------------------


@pytest.mark.parametrize("case", POLICIES)
def test_a_policy_is_rebuilt_from_its_config(case):
    policy = build(case, 32)
    config = json.loads(json.dumps(policy.get_config()))
    again = type(policy).from_config(config)
    assert again.get_config() == policy.get_config()


def test_policies_take_their_own_options_only():
    options = config.Views("randaugment", flip=False, blur=True).options()
    assert options == {"flip": False}
    with pytest.raises(errors.UserError, match="option of crop 'blur'"):
        views.build("crop", image_size=32, blur=True)
    assert tuple(policies.OPERATIONS) == tuple(OPERATIONS)


def test_options_reach_the_operations():
    images, keys = patches(40, 32), seeds(40)
    plain = views.SimCLR(32, color_jitter_strength=0.0, blur=False)
    result = plain.batch(images, keys).numpy()
    cropped = views.Crop(32).batch(images, keys).numpy()
    same = np.all(result == cropped, axis=(1, 2, 3))
    assert 0.6 < same.mean() < 1.0  # Grayscale of a fifth remains.
    blurred = views.SimCLR(32, color_jitter_strength=0.0)
    assert not np.array_equal(blurred.batch(images, keys), result)
    weak, strong = (
        views.RandAugment(32, randaugment_layers=layers).batch(images, keys)
        for layers in (1, 3)
    )
    distances = [np.abs(x - cropped).mean() for x in (weak, strong)]
    assert distances[0] < distances[1]


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("simclrr", {}, "augmentation=simclrr.*did you mean simclr"),
        ("ablation:bluur", {}, "did you mean blur"),
        ("ablation:blur+blur", {}, "distinct operations"),
        ("ablation", {}, "ablation:OP"),
        ("simclr", {"blurr": True}, "'blurr': did you"),
        ("simclr", {"color_jitter_style": "torch"}, "color_jitter_style=torch"),
        ("simclr", {"color_jitter_strength": -1.0}, "color_jitter_strength=-1"),
        ("simclr", {"image_size": 0}, "image_size=0"),
        ("crop", {"min_crop_area": 0.0}, "min_crop_area=0.0: must be above 0"),
        ("crop", {"min_crop_area": 1.5}, "min_crop_area=1.5.* at most 1"),
        ("randaugment", {"randaugment_layers": 0}, "randaugment_layers=0"),
        ("simaugment", {"warp_probability": 1.5}, "warp_probability=1.5"),
    ],
)
def test_invalid_options_are_named(name, options, match):
    with pytest.raises(errors.UserError, match=match):
        views.build(name, **{"image_size": 32, **options})


def test_images_of_another_type_or_shape_are_refused():
    for image in (
        np.zeros((8, 8, 3), np.float32),
        np.zeros((8, 8, 1), np.uint8),
        np.zeros((2, 8, 8, 3), np.uint8),
    ):
        with pytest.raises(errors.UserError, match="pass uint8"):
            views.evaluation(8)(image)
    with pytest.raises(errors.UserError, match="pass uint8"):
        views.Crop(8).batch(np.zeros((8, 8, 3), np.uint8), seeds(8))
    with pytest.raises(errors.UserError, match="views=0"):
        views.Views(views.Crop(8), 0)
    with pytest.raises(ValueError, match="pass view="):
        views.Ablation(8, names=("sobel",)).photometric(
            tf.zeros([2, 8, 8, 3]), seeds(2)
        )


# ---- Evaluation preprocessing -----------------------------------------------


@pytest.mark.parametrize("size", [8, 224])
def test_evaluation_only_scales_images_of_its_size(size):
    image = patches(1, size)[0]
    preprocess = views.evaluation(size)
    expected = image.astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(preprocess(image), expected)
    signature = [tf.TensorSpec([None, None, 3], tf.uint8)]
    dynamic = tf.function(preprocess, input_signature=signature)
    np.testing.assert_array_equal(dynamic(image), expected)


@pytest.mark.parametrize(
    ("size", "height", "width", "target"),
    [
        (32, 427, 420, 32),
        (32, 31, 97, 32),
        (33, 101, 64, 33),
        (224, 427, 420, 256),
        (224, 401, 301, 256),
        (224, 100, 150, 256),
        (96, 96, 200, 110),
    ],
)
def test_evaluation_is_resize_then_centre_crop(
    photo, size, height, width, target
):
    image = photo[:height, :width]
    shorter = min(height, width)
    tall, wide = (round(side * target / shorter) for side in (height, width))
    top, left = (tall - size) // 2, (wide - size) // 2
    ours = views.evaluation(size)(image).numpy()
    oracle = tf.image.resize(image, [tall, wide], antialias=True)
    oracle = oracle[top : top + size, left : left + size] / 255
    np.testing.assert_allclose(ours, oracle, atol=2e-4)
    # Pillow works in steps of one grey level, and on uint8 between its passes.
    pillow = np.asarray(
        Image.fromarray(image).resize((wide, tall), Image.Resampling.BILINEAR)
    )[top : top + size, left : left + size]
    assert np.abs(ours - pillow / 255.0).max() < 2.1 / 255


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize(
    "preprocessing", ["shorter_side", "squash_crop", "squash"]
)
def test_other_preprocessings_equal_pillow(photo, preprocessing, size):
    image = photo[:401, :301]
    side = 256 if size == 224 else size
    wide, tall, method = {
        "shorter_side": (size, round(401 * size / 301), "BICUBIC"),
        "squash_crop": (side, side, "BILINEAR"),
        "squash": (size, size, "BILINEAR"),
    }[preprocessing]
    top, left = (tall - size) // 2, (wide - size) // 2
    # In Pillow's floating-point mode, which does not round between its passes.
    channels = [
        Image.fromarray(channel.astype(np.float32)).resize(
            (wide, tall), getattr(Image.Resampling, method)
        )
        for channel in np.moveaxis(image, -1, 0)
    ]
    resized = np.stack([np.asarray(channel) for channel in channels], axis=-1)
    expected = np.clip(resized / 255, 0, 1)
    ours = views.evaluation(size, preprocessing)(image).numpy()
    np.testing.assert_allclose(
        ours, expected[top : top + size, left : left + size], atol=2e-4
    )


@pytest.mark.parametrize(
    ("size", "height", "width"),
    [(32, 1, 1), (224, 1, 5000), (32, 5000, 1), (224, 3, 2)],
)
def test_evaluation_takes_images_of_any_shape(size, height, width):
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (height, width, 3), dtype=np.uint8)
    view = views.evaluation(size)(image).numpy()
    assert view.shape == (size, size, 3)
    assert view.min() >= 0 and view.max() <= 1
    middle = image[(height - 1) // 2 : height // 2 + 1]
    middle = middle[:, (width - 1) // 2 : width // 2 + 1]
    np.testing.assert_allclose(
        view[
            (size - 1) // 2 : size // 2 + 1, (size - 1) // 2 : size // 2 + 1
        ].mean((0, 1)),
        middle.mean((0, 1)) / 255,
        atol=0.02,
    )


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
