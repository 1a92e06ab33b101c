"""Near copies of photographs, with copies made by Pillow."""

import io

import numpy as np
import pytest
from image_helpers import tiles
from PIL import Image, ImageEnhance
from sklearn.datasets import load_digits

from tf_contrastive.evaluation.explore import near_copies

_SIDE = 71


def _jpeg(image):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer)


def _crop(image):
    return image.crop((7, 0, _SIDE, _SIDE - 7)).resize((64, 64))


_COPIES = {
    "jpeg": _jpeg,
    "resized": lambda image: image.resize((40, 56)),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "mirrored": lambda image: image.transpose(Image.FLIP_LEFT_RIGHT),
    "cropped": _crop,
}


def _pictures(images):
    return np.stack(
        [near_copies.small_picture(np.asarray(x)).numpy() for x in images]
    )


@pytest.fixture(scope="module")
def photographs():
    return [*map(Image.fromarray, tiles())]


@pytest.mark.slow
@pytest.mark.parametrize("kind", _COPIES)
def test_copies_correlate_and_other_photographs_do_not(kind, photographs):
    originals = _pictures(photographs)
    copies = _pictures(map(_COPIES[kind], photographs))
    assert near_copies.correlations(originals, copies).min() > 0.75
    others = np.roll(originals, 1, axis=0)
    assert near_copies.correlations(others, copies).max() < 0.75


def test_pairs_are_found_once_in_both_directions(photographs, monkeypatch):
    monkeypatch.setattr(near_copies, "PAIRS", 7)
    originals = _pictures(photographs[:10])
    pictures = np.concatenate([originals, originals[::-1, :, ::-1]])
    others = np.arange(20)[np.newaxis].repeat(20, 0)
    pairs = near_copies.find(pictures, others, 0.9)
    found = [*zip(pairs.first, pairs.second, strict=True)]
    assert found == [(i, 19 - i) for i in range(10)]
    np.testing.assert_allclose(pairs.correlations, 1, atol=1e-5)


def test_a_frame_makes_no_copies_and_hides_none(photographs):
    pixels = np.stack([np.asarray(x) for x in photographs])
    framed = np.pad(pixels, ((0, 0), (9, 9), (5, 5), (0, 0)))
    framed = _pictures([Image.fromarray(x) for x in framed])
    others = near_copies.correlations(framed, np.roll(framed, 1, axis=0))
    assert others.max() < 0.75
    bare = near_copies.correlations(framed, _pictures(photographs))
    assert bare.min() > 0.75


def _drawings():
    """30 handwritten ones, which resemble each other."""
    digits = load_digits()
    for image in digits.images[digits.target == 1][:30]:
        yield np.repeat((15.9 * image).astype(np.uint8)[..., None], 3, axis=-1)


@pytest.mark.parametrize("copies", [1, 7])
def test_copies_of_photographs_beside_drawings_are_found(copies, photographs):
    some = photographs[:10] + [_crop(photographs[0])] * copies
    pictures = _pictures([*some, *_drawings()])
    count = len(some)
    # As of an encoder: drawings are the neighbours of drawings.
    kind = np.arange(len(pictures)) >= count
    random = np.random.default_rng(0)
    order = random.random([len(pictures)] * 2) + (kind[:, None] != kind)
    order[0, 10:count] = order[10:count, 0] = -1
    candidates = np.argsort(order, axis=1)[:, :11]
    pairs = near_copies.find(pictures, candidates, 0.75)
    found = {*zip(pairs.first.tolist(), pairs.second.tolist(), strict=True)}
    assert {(0, 10 + i) for i in range(copies)} <= found
    i, j = np.triu_indices(30, 1)
    values = near_copies.correlations(*pictures[count:][np.array([i, j])])
    # By the limit of photographs many drawings would be copies.
    assert (values > 0.75).mean() > 0.1
    assert all(second < count for _, second in found)
