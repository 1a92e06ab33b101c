"""Images in memory: NumPy arrays, and scikit-learn's digits."""

import dataclasses

import numpy as np

from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import Digits
from tf_contrastive.datasets import float_images, split_spec
from tf_contrastive.datasets.source import Access, Info, Source, in_memory

# Every fifth of the digits is in the test split: 360 of 1,797.
_DIGITS_TEST_STRIDE = 5


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray | None = None,
    label_names: tuple[str, ...] | None = None,
    *,
    extra: np.ndarray | None = None,
    name: str = "arrays",
    split: str = "all",
    unlabelled: bool = False,
    channels: int = 3,
    value_range: tuple[float, ...] = (),
) -> Source:
    """Makes a source of arrays.

    Args:
      images: [n, h, w], [n, h, w, 1] or [n, h, w, 3]; uint8, or float in
        [0, 1]. One channel is tiled to 3.
      labels: int [n], at least 0; or of several classes per image, 0 or 1
        [n, C]. None without labels.
      label_names: a name per class.
      extra: channels that must not be augmented, numbers [n, k] or, with as
        many pixels as the views, [n, S, S, k]; they follow the views' channels.
      name, split: for messages.
      unlabelled: whether integers may be -1, for images without a label.
      channels, value_range: see `config.data.Reading`.

    Raises:
      UserError: for other shapes, types or values.
    """
    pixels = np.asarray(images)
    reading = Reading(channels=channels, value_range=value_range)
    reading.check()
    is_whole = reading.float_channels is not None
    pixels = _whole(pixels, reading) if is_whole else _levels(pixels)
    arrays, rows = {"image": pixels}, len(pixels)
    names = tuple(label_names or ())
    num_classes, extra_channels = None, 0
    classes = np.asarray([] if labels is None else labels)
    if labels is not None:
        num_classes = check_labels(classes, names, rows, unlabelled)
        arrays["label"] = classes.astype(np.int64)
    if extra is not None:
        more = np.asarray(extra)
        if more.ndim not in (2, 4) or len(more) != rows:
            raise errors.UserError(
                f"extra channels of shape {list(more.shape)}: pass"
                f" [{rows}, k], or [{rows}, S, S, k] with the side S of a view"
            )
        arrays["extra"] = more.astype(np.float32)
        extra_channels = more.shape[-1]
    info = Info(
        name,
        split,
        rows,
        num_classes,
        (pixels.shape[1], pixels.shape[2], pixels.shape[3]),
        names,
        unlabelled=bool((classes < 0).any()),
        multi_label=classes.ndim == 2,
        extra_channels=extra_channels,
        float_channels=reading.float_channels,
        colors=reading.colors,
    )
    return in_memory(arrays, lambda record: record, info, decoded=True)


def _levels(pixels: np.ndarray) -> np.ndarray:
    """Returns images as uint8 [n, h, w, 3]."""
    if np.issubdtype(pixels.dtype, np.floating):
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise errors.UserError(
                f"float images between {pixels.min():g} and {pixels.max():g}:"
                " pass float in [0, 1], or uint8 in [0, 255]"
            )
        pixels = np.rint(pixels * 255).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise errors.UserError(
            f"images of type {pixels.dtype}: pass uint8 in [0, 255], or float"
            " in [0, 1]"
        )
    if pixels.ndim == 3:
        pixels = pixels[..., np.newaxis]
    if pixels.ndim != 4 or pixels.shape[3] not in (1, 3) or not pixels.size:
        raise errors.UserError(
            f"images of shape {list(pixels.shape)}: pass [n, h, w],"
            " [n, h, w, 1] or [n, h, w, 3], of at least one pixel"
        )
    if pixels.shape[3] == 1:
        pixels = np.repeat(pixels, 3, axis=3)
    return pixels


def _whole(images: np.ndarray, reading: Reading) -> np.ndarray:
    """Returns images of any type as float32 [n, h, w, C] in [0, 1]."""
    if images.ndim not in (3, 4) or not images.size:
        raise errors.UserError(
            f"images of shape {[*images.shape]}: pass [n, h, w, channels]"
        )
    try:
        # One by one, since some are float64 on the way.
        rows = [float_images.scaled(image, reading) for image in images]
    except float_images.FormError as error:
        raise errors.UserError(f"an image {error}") from error
    return np.stack(rows)


def check_labels(
    labels: np.ndarray, names: tuple[str, ...], rows: int, unlabelled: bool
) -> int:
    """Returns the number of classes of the labels of `rows` images.

    Raises:
      UserError: for labels that are neither int [rows] nor 0 or 1 [rows, C].
    """
    if (
        labels.ndim == 2
        and labels.shape[1] > 1
        and np.isin(labels, (0, 1)).all()
    ):
        return _check_several(labels, names, rows)
    if labels.shape != (rows,) or labels.dtype.kind not in "iu":
        raise errors.UserError(
            f"labels of type {labels.dtype} and shape {list(labels.shape)}:"
            f" pass integers [{rows}], one per image, or for several classes"
            f" per image 0 or 1 [{rows}, C]"
        )
    smallest, largest = labels.min(), labels.max()
    allowed = -1 if unlabelled else 0
    if smallest < allowed or largest < 0 or (names and largest >= len(names)):
        raise errors.UserError(
            f"labels between {smallest} and {largest}: pass labels of at least"
            f" {allowed}, and below the number of label names"
        )
    return len(names) or int(largest) + 1


def _check_several(
    labels: np.ndarray, names: tuple[str, ...], rows: int
) -> int:
    """Returns the number of classes of multi-hot labels."""
    if labels.shape != (rows, len(names) or labels.shape[1]):
        raise errors.UserError(
            f"labels of shape {list(labels.shape)}: pass a row for each of"
            f" {rows} images, with a column for each of {len(names)} names"
        )
    if (labels.sum(axis=1) == 1).all():
        raise errors.UserError(
            f"labels of shape {list(labels.shape)} have one class per image:"
            f" pass integers [{rows}], such as labels.argmax(axis=1)"
        )
    return labels.shape[1]


def digits(name: str, options: Digits, split: str, access: Access) -> Source:
    """Returns scikit-learn's 1,797 handwritten digits of 8x8 pixels.

    Ordered by class, every fifth is in the test split (360), the others in the
    training split (1,437).
    """
    del options
    from sklearn import datasets as sklearn_datasets

    data = sklearn_datasets.load_digits()
    base = split_spec.parse(split)[0]
    if base not in ("train", "test"):
        raise errors.unknown("split of digits", base, ("train", "test"))
    by_class = np.argsort(data.target, kind="stable")
    rows = np.sort(by_class[::_DIGITS_TEST_STRIDE])
    if base == "train":
        rows = np.setdiff1d(by_class, rows)
    rows = rows[slice(*split_spec.bounds(split, len(rows)))]
    source = from_arrays(
        data.images[rows] / 16,  # Grey levels are 0..16.
        data.target[rows],
        tuple(map(str, range(10))),
        name=name,
        split=split,
        channels=access.reading.channels,
        value_range=access.reading.value_range,
    )
    digests = split_spec.numbered(Digits.name, rows)
    return dataclasses.replace(source, digests=digests)
