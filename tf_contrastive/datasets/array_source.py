"""Images in memory: NumPy arrays, and scikit-learn's digits."""

import re

import numpy as np

from tf_contrastive import errors
from tf_contrastive.datasets import split_spec
from tf_contrastive.datasets.source import Info, Source, in_memory

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
) -> Source:
    """Makes a source of arrays.

    Args:
      images: [n, h, w], [n, h, w, 1] or [n, h, w, 3]; uint8, or float in
        [0, 1]. One channel is tiled to 3.
      labels: int [n], at least 0; None without labels.
      label_names: a name per class.
      extra: channels that must not be augmented, numbers [n, k] or, with as
        many pixels as the views, [n, S, S, k]; they follow the views' channels.
      name: name of the dataset, for messages.
      split: name of the split, for messages.

    Raises:
      UserError: for other shapes, types or values.
    """
    pixels = _rgb(_as_bytes(np.asarray(images)))
    arrays = {"image": pixels}
    names = tuple(label_names or ())
    num_classes = None
    if labels is not None:
        arrays["label"] = _check_labels(labels, len(pixels), len(names))
        num_classes = len(names) or int(arrays["label"].max()) + 1
    if extra is not None:
        arrays["extra"] = _check_extra(np.asarray(extra), len(pixels))
    info = Info(
        name,
        split,
        len(pixels),
        num_classes,
        (pixels.shape[1], pixels.shape[2], 3),
        names,
        extra_channels=0 if extra is None else arrays["extra"].shape[-1],
    )
    return in_memory(arrays, lambda record: record, info, decoded=True)


def _as_bytes(images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return images
    if not np.issubdtype(images.dtype, np.floating):
        raise errors.UserError(
            f"images of type {images.dtype}: pass uint8 in [0, 255], or float"
            " in [0, 1]"
        )
    if images.size and not (images.min() >= 0 and images.max() <= 1):
        raise errors.UserError(
            f"float images between {images.min():g} and {images.max():g}: pass"
            " float in [0, 1], or uint8 in [0, 255]"
        )
    return np.rint(images * 255).astype(np.uint8)


def _rgb(images: np.ndarray) -> np.ndarray:
    if images.ndim == 3:
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[3] not in (1, 3) or not images.size:
        raise errors.UserError(
            f"images of shape {list(images.shape)}: pass [n, h, w],"
            " [n, h, w, 1] or [n, h, w, 3], of at least one pixel"
        )
    return np.repeat(images, 3, axis=3) if images.shape[3] == 1 else images


def _check_labels(labels: np.ndarray, rows: int, names: int) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.shape != (rows,) or not np.issubdtype(labels.dtype, np.integer):
        raise errors.UserError(
            f"labels of type {labels.dtype} and shape {list(labels.shape)}:"
            f" pass integers [{rows}], one per image"
        )
    if labels.min() < 0 or (names and labels.max() >= names):
        limit = f", below the {names} label names" if names else ""
        raise errors.UserError(
            f"labels between {labels.min()} and {labels.max()}: pass labels of"
            f" at least 0{limit}"
        )
    return labels.astype(np.int64)


def _check_extra(extra: np.ndarray, rows: int) -> np.ndarray:
    if extra.ndim not in (2, 4) or len(extra) != rows:
        raise errors.UserError(
            f"extra channels of shape {list(extra.shape)}: pass [{rows}, k], or"
            f" [{rows}, S, S, k] with the side S of a view"
        )
    return extra.astype(np.float32)


def digits(split: str, name: str = "digits") -> Source:
    """Returns scikit-learn's 1,797 handwritten digits of 8x8 pixels.

    Ordered by class, every fifth is in the test split (360, with the classes'
    own frequencies), the others in the training split (1,437).

    Args:
      split: `train`, `test`, or a slice of one.
      name: `digits`, or `digits/C` for C classes, to try code for C classes:
        if C is more than ten, ten evenly spread classes have examples; if
        less, some hold several digits.

    Raises:
      UserError: for any other split, or number of classes.
    """
    count = name.partition("/")[2] or "10"
    if not re.fullmatch(r"[1-9]\d*", count):
        raise errors.UserError(
            f"dataset {name}: use digits, or digits/C for C classes, such as"
            " digits/100"
        )
    classes = int(count)
    from sklearn import datasets as sklearn_datasets

    data = sklearn_datasets.load_digits()
    base = split_spec.parse(split)[0]
    if base not in ("train", "test"):
        raise errors.unknown("split of digits", base, ("train", "test"))
    is_test = np.zeros([len(data.target)], bool)
    by_class = np.argsort(data.target, kind="stable")
    is_test[by_class[::_DIGITS_TEST_STRIDE]] = True
    rows = np.flatnonzero(is_test == (base == "test"))
    rows = rows[slice(*split_spec.bounds(split, len(rows)))]
    labels = data.target[rows]
    labels = labels * classes // 10 if classes >= 10 else labels % classes
    return from_arrays(
        data.images[rows] / 16,  # Grey levels are 0..16.
        labels,
        tuple(map(str, range(classes))),
        name=name,
        split=split,
    )
