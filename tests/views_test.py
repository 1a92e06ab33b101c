"""Views: randomness, every operation against an oracle, policies as used."""

import numpy as np
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from PIL import Image
from sklearn.datasets import load_sample_images

from tf_contrastive import errors, views
from tf_contrastive.config.views import AUGMENTATIONS
from tf_contrastive.views import blur, color, crops, prng

DRAWS = 10_000


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """A real photograph, uint8 [427, 640, 3]."""
    return np.asarray(load_sample_images().images[0])


def seeds(count: int, seed: int = 0) -> tf.Tensor:
    generator = np.random.default_rng(seed)
    words = generator.integers(-(2**31), 2**31, (count, 2))
    return tf.constant(words, tf.int32)


def patches(photo: np.ndarray, count: int, side: int) -> np.ndarray:
    """Pieces of the photograph, uint8 [count, side, side, 3]."""
    generator = np.random.default_rng(1)
    tops = generator.integers(0, photo.shape[0] - side, count)
    lefts = generator.integers(0, photo.shape[1] - side, count)
    return np.stack(
        [
            photo[top : top + side, left : left + side]
            for top, left in zip(tops, lefts, strict=True)
        ]
    )


def within(share: float, expected: float, count: int = DRAWS) -> bool:
    """Whether a share is within three standard errors of its expectation."""
    error = np.sqrt(expected * (1 - expected) / count)
    return abs(share - expected) <= 3 * error


def as_planes(pixels: np.ndarray) -> tf.Tensor:
    return tf.transpose(pixels, [3, 0, 1, 2])


def as_pixels(planes: tf.Tensor) -> np.ndarray:
    return np.transpose(planes, [1, 2, 3, 0])


def scalars(values: np.ndarray) -> tf.Tensor:
    return tf.constant(values, tf.float32)[:, tf.newaxis, tf.newaxis]


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
    unit = prng.uniform(index, {"crop": 5, "flip": 1})
    table = np.concatenate([unit["crop"], unit["flip"]], axis=1)
    assert table.min() >= 0 and table.max() < 1
    for column in table.T:
        assert scipy.stats.kstest(column, "uniform").pvalue > 1e-3
        counts = np.histogram(column, bins=50, range=(0, 1))[0]
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    # Between numbers of a seed, and from one seed to the next.
    both = np.concatenate([table[:-1], table[1:]], axis=1)
    correlation = np.corrcoef(both.T) - np.eye(both.shape[1])
    assert np.abs(correlation).max() < 4.5 / np.sqrt(DRAWS)


def test_one_more_stream_leaves_the_others_as_they_were():
    few = prng.uniform(seeds(20), {"crop": 3, "blur": 2})
    more = prng.uniform(seeds(20), {"flip": 1, "blur": 2, "crop": 3})
    for name in few:
        np.testing.assert_array_equal(few[name], more[name])


def test_stream_numbers_are_unique():
    assert len(set(prng.STREAMS.values())) == len(prng.STREAMS)


def test_folded_seeds_differ_and_do_not_depend_on_the_number_of_views():
    folded = prng.fold(seeds(500), 4)
    assert len({tuple(row) for row in np.reshape(folded, [-1, 2])}) == 2000
    np.testing.assert_array_equal(prng.fold(seeds(500), 2), folded[:, :2])


# ---- Crop, resize, flip -----------------------------------------------------


def boxes(height, width, min_area, count=DRAWS):
    unit = prng.uniform(seeds(count), {"crop": 2 * crops.CANDIDATES + 2})
    return crops.random_boxes(unit["crop"], height, width, min_area).numpy()


def test_boxes_have_the_paper_s_areas_and_aspects():
    top, left, height, width = boxes(3000, 4000, 0.08).T
    assert (top >= 0).all() and (top + height <= 3000).all()
    assert (left >= 0).all() and (left + width <= 4000).all()
    aspect = width / height
    assert aspect.min() > 0.749 and aspect.max() < 1.335
    area = height * width / (3000 * 4000)
    assert area.min() > 0.0799
    # Below 9/16 every aspect fits, so there nothing is rejected.
    free = area < 0.56
    shares = (area[free] - 0.08) / (0.56 - 0.08)
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3
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
def test_whole_image_is_taken_where_no_crop_fits(height, width, min_area):
    expected = np.tile([0, 0, height, width], (50, 1))
    np.testing.assert_array_equal(boxes(height, width, min_area, 50), expected)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("size", [17, 32, 64])
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


def test_a_crop_of_the_whole_image_at_its_size_is_the_image(photo):
    image = patches(photo, 5, 32)
    policy = views.build("crop", image_size=32, min_crop_area=1.0, flip=False)
    np.testing.assert_allclose(
        policy.batch(image, seeds(5)), image / 255, atol=1e-5
    )


def test_crops_of_large_images_have_no_aliases():
    # Stripes are grey from afar; sampled without averaging, they would be
    # black or white.
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::4] = stripes[:, 1::4] = 255
    policy = views.build("crop", image_size=32, min_crop_area=0.9)
    made = policy.batch(np.stack([stripes] * 20), seeds(20)).numpy()
    assert np.abs(made - 0.5).max() < 0.2
    assert np.abs(made - 0.5).mean() < 0.05
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


# ---- Colour -----------------------------------------------------------------


def colours() -> np.ndarray:
    """Colours of every sector and border of the hue circle, and greys."""
    levels = np.linspace(0, 1, 6, dtype=np.float32)
    cube = np.stack(np.meshgrid(levels, levels, levels), -1)
    noise = np.random.default_rng(0).random((216, 3), np.float32)
    return np.concatenate([cube.reshape(-1, 3), noise]).reshape(1, 18, 24, 3)


@pytest.mark.parametrize("hue", [-0.5, -0.2, 0.0, 0.13, 0.2, 1.0])
@pytest.mark.parametrize("saturation", [0.0, 0.2, 1.0, 1.8, 3.0])
def test_hue_and_saturation_equal_tf_image(hue, saturation):
    # Beyond [0, 1] too: brightness and contrast come first, unclipped.
    for pixels in (colours(), colours() * 2.4 - 0.8):
        ours = color.adjust_hue_saturation(
            as_planes(pixels), scalars([hue]), scalars([saturation])
        )
        oracle = tf.image.adjust_saturation(pixels, saturation)
        oracle = tf.image.adjust_hue(oracle, hue)
        np.testing.assert_allclose(as_pixels(ours), oracle, atol=2e-6)


@pytest.mark.parametrize("strength", [0.125, 0.5, 1.0, 2.0])
def test_color_jitter_equals_the_papers_chain(photo, strength):
    pixels = patches(photo, 20, 16).astype(np.float32) / 255
    unit = prng.uniform(seeds(20), {"jitter": 5})
    jitter = color.ColorJitter(strength, probability=1.0)
    ours = jitter(tf.constant(pixels), unit)
    low, span = max(0.0, 1 - 0.8 * strength), 0.8 * strength
    for view, image, u in zip(
        ours, pixels, unit["jitter"].numpy()[:, 1:], strict=True
    ):
        x = tf.image.adjust_brightness(image, span * (2 * u[0] - 1))
        x = tf.image.adjust_contrast(x, low + (1 + span - low) * u[2])
        x = tf.image.adjust_saturation(x, low + (1 + span - low) * u[3])
        x = tf.image.adjust_hue(x, 0.2 * strength * (2 * u[1] - 1))
        x = tf.clip_by_value(x, 0, 1)
        # A weakly coloured pixel's hue amplifies rounding.
        np.testing.assert_allclose(view, x, atol=1e-4)
        assert np.abs(view - x).mean() < 2e-6


def test_grayscale_equals_tf_image_and_is_exact():
    gray = color.Grayscale(probability=1.0)
    unit = prng.uniform(seeds(1), gray.streams)
    pixels = tf.image.resize(colours(), [24, 24], method="nearest")
    ours = gray(pixels, unit).numpy()
    oracle = tf.image.rgb_to_grayscale(pixels)
    np.testing.assert_allclose(ours, np.repeat(oracle, 3, -1), atol=1e-6)
    assert (ours[..., 0] == ours[..., 1]).all()
    assert (ours[..., 0] == ours[..., 2]).all()


@pytest.mark.parametrize(
    "operation",
    [
        color.ColorJitter(0.0),
        color.LinearColorJitter(0.0),
        color.LinearColorJitter(0.0, gray=1e-9),
        color.LinearColorJitter(1.0, probability=0.0),
        color.Grayscale(probability=0.0),
        blur.GaussianBlur(probability=0.0),
    ],
    ids=[
        "jitter strength 0",
        "linear strength 0",
        "linear strength 0, hardly gray",
        "linear probability 0",
        "gray probability 0",
        "blur probability 0",
    ],
)
def test_no_strength_or_probability_is_the_identity(photo, operation):
    pixels = tf.constant(patches(photo, 10, 32).astype(np.float32) / 255)
    unit = prng.uniform(seeds(10), operation.streams)
    np.testing.assert_array_equal(operation(pixels, unit), pixels)


def test_jitter_of_probability_0_keeps_images_up_to_rounding(photo):
    pixels = tf.constant(patches(photo, 10, 32).astype(np.float32) / 255)
    jitter = color.ColorJitter(1.0, probability=0.0)
    unit = prng.uniform(seeds(10), jitter.streams)
    np.testing.assert_allclose(jitter(pixels, unit), pixels, atol=1e-6)


def test_jitter_and_grayscale_happen_as_often_as_in_the_paper():
    pixels = tf.tile([[[[0.3, 0.5, 0.6]]]], [DRAWS, 1, 1, 1])
    gray = color.Grayscale()
    for jitter in (color.ColorJitter(1.0), color.LinearColorJitter(1.0)):
        unit = prng.uniform(seeds(DRAWS), {**jitter.streams, **gray.streams})
        off = np.abs(jitter(pixels, unit) - pixels)
        changed = off.max(axis=(1, 2, 3)) > 1e-5
        assert within(changed.mean(), 0.8)
        grayed = np.ptp(gray(pixels, unit), axis=3)[:, 0, 0] == 0
        assert within(grayed.mean(), 0.2)
        # The two coins are independent.
        assert within((changed & grayed).mean(), 0.8 * 0.2)
    # A weak jitter makes no grey by itself.
    both = color.LinearColorJitter(0.125, gray=0.2)(pixels, unit)
    np.testing.assert_array_equal(np.ptp(both, axis=3)[:, 0, 0] == 0, grayed)


# ---- The colour jitter in YIQ -----------------------------------------------


def yiq_jitter(image, brightness, hue, contrast, saturation):
    """Step by step in float64; hues turn about the axis of the luma."""
    image = image + brightness
    mean = image.mean(axis=(0, 1))
    image = (image - mean) * contrast + mean
    luma = image @ [0.299, 0.587, 0.114]
    # I and Q are U and V after 33 degrees, which a turn does not depend on.
    u = 0.492111 * (image[..., 2] - luma)
    v = 0.877283 * (image[..., 0] - luma)
    turned = saturation * (u + 1j * v) * np.exp(2j * np.pi * hue)
    red = luma + turned.imag / 0.877283
    blue = luma + turned.real / 0.492111
    green = (luma - 0.299 * red - 0.114 * blue) / 0.587
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 1)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("strength", [0.125, 1.0, 2.0])
def test_linear_jitter_equals_the_steps_in_yiq(photo, strength, static):
    pixels = patches(photo, 20, 16).astype(np.float32) / 255
    jitter = color.LinearColorJitter(strength, probability=1.0)
    unit = prng.uniform(seeds(20), jitter.streams)
    made = jitter(tf.constant(pixels), unit, static).numpy()
    low, span = max(0.0, 1 - 0.8 * strength), 0.8 * strength
    for view, image, u in zip(
        made, pixels, unit["jitter"].numpy()[:, 1:], strict=True
    ):
        expected = yiq_jitter(
            image.astype(np.float64),
            span * (2 * u[0] - 1),
            0.2 * strength * (2 * u[1] - 1),
            *(low + (1 + span - low) * u[2:]),
        )
        np.testing.assert_allclose(view, expected, atol=5e-6)
    assert np.abs(made - pixels).mean() > 0.02 * strength


def test_linear_jitter_keeps_luma_and_greys():
    hue = tf.constant(np.linspace(-0.5, 0.5, 11).repeat(3))
    saturation = tf.constant(np.tile([0.0, 0.5, 1.8], 11))
    matrices = color.turning(hue, saturation).numpy()
    luma = np.array([0.299, 0.587, 0.114])
    np.testing.assert_allclose(luma @ matrices, np.tile(luma, [33, 1]))
    np.testing.assert_allclose(matrices @ np.ones(3), np.ones([33, 3]))


def test_hues_of_the_linear_jitter_turn_as_those_of_hsv():
    # A hue of HSV is the angle of a colour about the greys, but for the skew.
    reds = np.array([[[[0.7, 0.3, 0.3]]]])
    for turns in (1 / 3, -1 / 3, 0.15, -0.15):
        matrix = color.turning(tf.constant([turns], tf.float64), [1.0])[0]
        linear = np.clip(reds @ np.transpose(matrix), 0, 1)
        hue = tf.image.rgb_to_hsv(linear).numpy()[0, 0, 0, 0]
        off = (hue - turns + 0.5) % 1.0 - 0.5
        assert abs(off) < 0.09


def test_the_linear_jitter_s_grey_is_grayscale_of_its_colour(photo):
    pixels = tf.constant(patches(photo, 20, 16) / np.float32(255))
    # So weak that nothing is clipped.
    pixels = 0.3 + 0.4 * pixels
    plain = color.LinearColorJitter(0.125, probability=1.0)
    unit = prng.uniform(seeds(20), plain.streams)
    made = color.LinearColorJitter(0.125, 1.0, gray=0.5)(pixels, unit)
    gray = color.Grayscale(probability=0.5)
    np.testing.assert_allclose(made, gray(plain(pixels, unit), unit), atol=1e-6)
    chosen = unit["gray"].numpy()[:, 0] < 0.5
    assert 0 < chosen.sum() < 20
    same = np.ptp(made, axis=-1).max(axis=(1, 2)) == 0
    np.testing.assert_array_equal(same, chosen)


def test_linear_jitter_is_distributed_like_that_of_hsv(photo):
    pixels = tf.constant(patches(photo, 400, 16) / np.float32(255))
    made = {}
    for form in (color.ColorJitter, color.LinearColorJitter):
        jitter = form(0.5, probability=1.0)
        unit = prng.uniform(seeds(400), jitter.streams)
        made[form] = jitter(pixels, unit).numpy()
    exact, linear = made.values()
    # The same draws: brightness and contrast are the same, the colours alike.
    for moment, bound in ((np.mean, 0.02), (np.std, 0.02)):
        for axis in ((0, 1, 2), (0, 1, 2, 3)):
            off = moment(exact, axis=axis) - moment(linear, axis=axis)
            assert np.abs(off).max() < bound
    luma = [x.mean(axis=(1, 2)) @ [0.299, 0.587, 0.114] for x in made.values()]
    assert np.corrcoef(*luma)[0, 1] > 0.98
    colourfulness = [np.ptp(x, axis=3).mean(axis=(1, 2)) for x in made.values()]
    assert np.corrcoef(*colourfulness)[0, 1] > 0.9
    hues = [tf.image.rgb_to_hsv(x).numpy()[..., 0] for x in made.values()]
    coloured = np.minimum(*(np.ptp(x, axis=3) for x in made.values())) > 0.1
    off = np.abs((hues[0] - hues[1] + 0.5) % 1.0 - 0.5)[coloured]
    assert np.median(off) < 0.03


# ---- Blur -------------------------------------------------------------------


@pytest.mark.parametrize("size", [20, 29, 32, 64, 96, 113, 224])
def test_blur_equals_scipy_with_a_sigma_per_image(photo, size):
    pixels = patches(photo, 3, size).astype(np.float32) / 255
    operation = blur.GaussianBlur(probability=1.0)
    unit = prng.uniform(seeds(3), operation.streams)
    ours = operation(tf.constant(pixels), unit).numpy()
    sigmas = 0.1 + 1.9 * unit["blur"].numpy()[:, 1]
    assert len(set(sigmas)) == 3
    for view, image, sigma in zip(ours, pixels, sigmas, strict=True):
        oracle = scipy.ndimage.gaussian_filter(
            image,
            [sigma, sigma, 0],
            mode="mirror",
            radius=[size // 10 // 2] * 2 + [0],
        )
        np.testing.assert_allclose(view, oracle, atol=2e-6)


def test_blur_keeps_a_plain_image_up_to_its_borders():
    pixels = tf.fill([4, 96, 96, 3], 0.7)
    operation = blur.GaussianBlur(probability=1.0)
    unit = prng.uniform(seeds(4), operation.streams)
    np.testing.assert_allclose(operation(pixels, unit), 0.7, atol=1e-6)


def test_half_of_the_views_are_blurred_with_uniform_sigmas():
    operation = blur.GaussianBlur()
    unit = prng.uniform(seeds(DRAWS), operation.streams)["blur"]
    kernel = operation.weights(unit, 11).numpy()
    blurred = kernel[:, 1] > 0
    assert within(blurred.mean(), 0.5)
    ratio = kernel[blurred, 1] / kernel[blurred, 0]
    sigma = np.sqrt(-0.5 / np.log(ratio))
    shares = (sigma - 0.1) / 1.9
    assert scipy.stats.kstest(shares, "uniform").pvalue > 1e-3


# ---- Policies ---------------------------------------------------------------

SHAPES = [(32, 32, 32), (8, 8, 8), (28, 40, 33), (96, 90, 133), (16, 100, 80)]


@pytest.mark.parametrize("name", list(views.POLICIES))
@pytest.mark.parametrize(("size", "height", "width"), SHAPES)
def test_batches_and_single_images_agree_bit_for_bit(
    photo, name, size, height, width
):
    images = np.stack([photo[i : i + height, :width] for i in range(7)])
    policy = views.build(name, image_size=size)
    batch = policy.batch(images, seeds(7)).numpy()
    assert batch.shape == (7, size, size, 3) and batch.dtype == np.float32
    assert batch.min() >= 0.0 and batch.max() <= 1.0
    assert batch.std() > 0.02
    for image, seed, view in zip(images, seeds(7), batch, strict=True):
        np.testing.assert_array_equal(policy(image, seed), view)


@pytest.mark.parametrize("name", list(views.POLICIES))
@pytest.mark.parametrize(("size", "height", "width"), SHAPES[-2:])
def test_graphs_for_images_of_any_size_agree_bit_for_bit(
    photo, name, size, height, width
):
    policy = views.build(name, image_size=size)
    signature = [
        tf.TensorSpec([None, None, 3], tf.uint8),
        tf.TensorSpec([2], tf.int32),
    ]
    graph = tf.function(policy, input_signature=signature, autograph=False)
    for i in range(5):
        image, seed = photo[i : i + height, :width], seeds(5)[i]
        np.testing.assert_array_equal(graph(image, seed), policy(image, seed))


def test_threads_and_batch_size_do_not_change_views(photo):
    images, keys = patches(photo, 24, 32), seeds(24)
    policy = views.build("simclr", image_size=32)
    make_views = views.views(policy, 2)
    data = tf.data.Dataset.from_tensor_slices((images, keys))

    def run(batch_size: int, threads: int) -> np.ndarray:
        batches = data.batch(batch_size).map(make_views, threads)
        return np.concatenate(list(batches.as_numpy_iterator()))

    eager = make_views(images, keys).numpy()
    assert eager.shape == (24, 2, 32, 32, 3)
    np.testing.assert_array_equal(run(24, 1), eager)
    np.testing.assert_array_equal(run(5, 8), eager)


def test_views_are_single_views_of_folded_seeds(photo):
    images, keys = patches(photo, 4, 32), seeds(4)
    policy = views.build("simclr", image_size=32)
    made = views.views(policy, 3)(images, keys)
    folded = prng.fold(keys, 3)
    for i in range(4):
        for v in range(3):
            np.testing.assert_array_equal(
                made[i, v], policy(images[i], folded[i, v])
            )


@pytest.mark.parametrize("name", ["simclr", "crop"])
def test_views_differ_by_position_and_seed(photo, name):
    image = np.repeat(photo[np.newaxis, 300:332, 300:332], 50, axis=0)
    # At full strength a bright view can be white all over.
    policy = views.build(name, image_size=32, color_jitter_strength=0.5)
    made = views.views(policy, 2)(image, seeds(50)).numpy().reshape(100, -1)
    assert len(np.unique(made, axis=0)) == 100
    again = views.views(policy, 2)(image, seeds(50)).numpy().reshape(100, -1)
    np.testing.assert_array_equal(made, again)


def test_no_augmentation_makes_equal_views(photo):
    images = patches(photo, 3, 40)
    policy = views.build("none", image_size=32)
    made = views.views(policy, 2)(images, seeds(3))
    np.testing.assert_array_equal(made[:, 0], made[:, 1])
    np.testing.assert_array_equal(made[1, 0], views.evaluation(32)(images[1]))


def test_options_reach_the_operations(photo):
    images = patches(photo, 40, 32)
    plain = views.build(
        "simclr", image_size=32, color_jitter_strength=0.0, blur=False
    )
    crop = views.build("crop", image_size=32)
    same = np.abs(
        plain.batch(images, seeds(40)) - crop.batch(images, seeds(40))
    ).max(axis=(1, 2, 3))
    # All that is left is the grayscale of a fifth.
    assert 0.6 < np.mean(same == 0) < 1.0
    blurred = views.build("simclr", image_size=32, color_jitter_strength=0.0)
    assert not np.array_equal(
        blurred.batch(images, seeds(40)), plain.batch(images, seeds(40))
    )


def test_colours_compile_under_xla_with_a_draw_per_image(photo):
    policy = views.build("simclr", image_size=32)
    pixels = patches(photo, 6, 32).astype(np.float32) / 255
    compiled = tf.function(
        policy.photometric, jit_compile=True, autograph=False
    )
    # XLA rounds products and sums together.
    np.testing.assert_allclose(
        compiled(pixels, seeds(6)),
        policy.photometric(pixels, seeds(6)),
        atol=2e-5,
    )


# ---- Evaluation preprocessing -----------------------------------------------


@pytest.mark.parametrize("size", [8, 32, 224])
def test_evaluation_only_scales_images_of_its_size(photo, size):
    image = patches(photo, 1, size)[0]
    preprocess = views.evaluation(size)
    expected = image.astype(np.float32) * np.float32(1 / 255)
    np.testing.assert_array_equal(preprocess(image), expected)
    signature = [tf.TensorSpec([None, None, 3], tf.uint8)]
    dynamic = tf.function(preprocess, input_signature=signature)
    np.testing.assert_array_equal(dynamic(image), expected)


@pytest.mark.parametrize(
    ("size", "height", "width", "target"),
    [
        (32, 427, 640, 32),
        (32, 31, 97, 32),
        (33, 101, 64, 33),
        (224, 427, 640, 256),
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
    ("height", "width"), [(1, 1), (1, 5000), (5000, 1), (3, 2)]
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


# ---- Bad input --------------------------------------------------------------


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(
        errors.UserError,
        match=r"augmentation=simclrr: must be one of simclr, .*"
        r"\(did you mean simclr\?\)",
    ):
        views.build("simclrr", image_size=32)


def test_policies_are_those_of_the_flag():
    assert tuple(views.POLICIES) == AUGMENTATIONS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_crop_area": 0.0}, "min_crop_area=0.0: must be above 0"),
        (
            {"min_crop_area": 1.5},
            "min_crop_area=1.5: must be above 0 and at most 1",
        ),
        (
            {"color_jitter_strength": -1.0},
            "color_jitter_strength=-1.0: must be at least 0",
        ),
        ({"image_size": 0}, "image_size=0: give the side of a view"),
    ],
)
def test_options_out_of_bounds_are_told(options, message):
    with pytest.raises(errors.UserError, match=message):
        views.build("simclr", **{"image_size": 32, **options})


@pytest.mark.parametrize(
    ("image", "given"),
    [
        (np.zeros((8, 8, 3), np.float32), r"float32 \(8, 8, 3\)"),
        (np.zeros((8, 8, 1), np.uint8), r"uint8 \(8, 8, 1\)"),
        (np.zeros((2, 8, 8, 3), np.uint8), r"uint8 \(2, 8, 8, 3\)"),
    ],
)
def test_other_images_are_refused(image, given):
    for function in (
        views.evaluation(8),
        lambda x: views.build("crop", image_size=8)(x, [0, 0]),
    ):
        with pytest.raises(errors.UserError, match=given + ": give uint8"):
            function(image)


def test_no_views_are_refused():
    with pytest.raises(errors.UserError, match="views=0: must be at least 1"):
        views.views(views.build("crop", image_size=8), 0)


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__]))
