"""Data of your own: a `tf.data.Dataset`, arrays, or a function of these."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import callables, errors, terminal
from tf_contrastive.config import own
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import DATASETS, Own
from tf_contrastive.datasets import float_images, remembered, split_spec
from tf_contrastive.datasets.array_source import check_labels, from_arrays
from tf_contrastive.datasets.source import (
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

_FORM = (
    "must be a tf.data.Dataset of (image, label), of images, or of"
    " {'image': ..., 'label': ...}, not batched; arrays (images, labels); or a"
    " function of these, which may take split. Images are uint8, or float in"
    " [0, 1], of shape [h, w], [h, w, 1] or [h, w, 3]; labels are integers,"
    " or for several classes per image 0 or 1 of each class, [C]"
)
# Images that are read twice, to see whether they come in the same order.
_AGAIN = 32


def from_dataset(
    dataset: tf.data.Dataset,
    label_names: tuple[str, ...] | None = None,
    *,
    name: str = "dataset",
    split: str = "train",
    unlabelled: bool = False,
    channels: int = 3,
    value_range: tuple[float, ...] = (),
) -> Source:
    """Makes a source of a dataset, which is read once to count it.

    Its order should be the same whenever it is read: this package shuffles.

    Args:
      dataset: of (image, label), of images, or of {"image", "label"}; not
        batched. Images are [h, w], [h, w, 1] or [h, w, 3]; uint8, or float in
        [0, 1]. Labels are integers of at least 0; or of several classes per
        image, 0 or 1 [C].
      label_names: a name per class.
      name, split: for messages.
      unlabelled: whether integers may be -1, for images without a label.
      channels, value_range: see `config.data.Reading`.

    Raises:
      UserError: for other elements, an endless or an empty dataset.
    """
    reading = Reading(channels=channels, value_range=value_range)
    reading.check()
    records = _records(dataset, name, reading)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise errors.UserError(
            f"{name} is endless: remove its repeat(), or use take(n)"
        )
    terminal.info(f"counting {name} {split}, which must have an end")
    shapes = set()
    digests: list[int] = []
    rows: list[np.ndarray] = []
    try:
        for record in records.prefetch(tf.data.AUTOTUNE).as_numpy_iterator():
            shapes.add(record["image"].shape)
            digests.append(_digest(record["image"]))
            if "label" in record:
                rows.append(record["label"])
    except tf.errors.OpError as error:
        raise errors.UserError(
            f"{name} {split}: element {len(digests)} (from 0) cannot be read"
            f" ({errors.first_line(error)})"
        ) from error
    if not all(map(np.prod, shapes)) or not digests:
        raise errors.UserError(
            f"{name} {split} has no elements, or images without pixels"
        )
    second = records.take(_AGAIN).as_numpy_iterator()
    again = [_digest(record["image"]) for record in second]
    if len(again) < len(digests[:_AGAIN]):
        raise errors.UserError(
            f"{name} {split} has {len(digests):,} elements, and fewer when it"
            " is read again: use from_generator with a function that returns a"
            " new generator at each call"
        )
    if again != digests[:_AGAIN]:
        terminal.warning(
            f"{name} {split} gives other images, or another order, when it is"
            " read again: a resumed run does not repeat them; leave shuffling"
            " and augmentation to the options of the run"
        )
    names = tuple(label_names or ())
    classes, labels = None, np.array(rows, np.int64)
    if rows:
        classes = check_labels(labels, names, len(digests), unlabelled)
    info = Info(
        name,
        split,
        len(digests),
        classes,
        shapes.pop() if len(shapes) == 1 else None,
        names,
        multi_label=labels.ndim == 2,
        unlabelled=bool((labels < 0).any()),
        float_channels=reading.float_channels,
        colors=reading.colors,
        by_pillow=reading.float_channels is not None,
    )
    # A split is a file of its own.
    place = f"{name} {split_spec.parse(split)[0]}"
    files = Files([place], [0], [len(digests)], lambda _: records)
    source = in_files(files, lambda record: record, info)
    return dataclasses.replace(source, digests=np.array(digests, np.int64))


def _records(
    dataset: tf.data.Dataset, name: str, reading: Reading
) -> tf.data.Dataset:
    """Returns {"image": uint8 [h, w, 3], "label": int64 [] or [C]}.

    Images are float32 [h, w, K] as `reading` says.

    Raises:
      UserError: for elements of another form.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise errors.UserError(f"{name} is a {type(dataset).__name__}: {_FORM}")
    spec = dataset.element_spec
    if not isinstance(spec, Mapping):
        parts = spec if isinstance(spec, tuple) else (spec,)
        spec = dict(zip(("image", "label", "more"), parts, strict=False))
        dataset = dataset.map(
            lambda *parts: dict(zip(("image", "label"), parts, strict=False))
        )
    is_right = {"image"} <= {*spec} <= {"image", "label"} and all(
        isinstance(part, tf.TensorSpec) for part in spec.values()
    )
    if is_right:
        image, label = spec["image"], spec.get("label")
        is_right = (
            image.shape.rank in (2, 3)
            and (
                reading.float_channels is not None
                or (
                    (image.dtype == tf.uint8 or image.dtype.is_floating)
                    and [*image.shape, 1][2] in (1, 3, None)
                )
            )
            and (label is None or label.shape.is_fully_defined())
            and (label is None or label.shape.rank <= 1)
            and (label is None or label.dtype.is_integer)
        )
    if not is_right:
        raise errors.UserError(f"{name} has elements of {spec}: it {_FORM}")

    def record(element: Record) -> Record:
        image = element["image"]
        if reading.float_channels is None:
            found = {"image": _pixels(image, name)}
        else:
            found = {"image": float_images.decode(image, reading)}
        if "label" in spec:
            found["label"] = tf.cast(element["label"], tf.int64)
        return found

    return dataset.map(record, tf.data.AUTOTUNE, deterministic=True)


def _pixels(image: tf.Tensor, name: str) -> tf.Tensor:
    """Returns an image as uint8 [h, w, 3]."""
    if image.dtype.is_floating:
        low, high = tf.reduce_min(image), tf.reduce_max(image)
        check = tf.debugging.Assert(
            (low >= 0) & (high <= 1),
            [f"{name} has float images that are not in [0, 1]:", low, high],
        )
        with tf.control_dependencies([check]):
            image = tf.cast(tf.round(image * 255), tf.uint8)
    image = image[..., tf.newaxis] if image.shape.rank == 2 else image
    size = tf.shape(image)[:2]
    return tf.broadcast_to(image, [size[0], size[1], 3])


def _digest(image: np.ndarray) -> int:
    """Returns a number that is different for other pixels, and not 0."""
    return remembered.digest(str(image.shape).encode() + image.tobytes()) or 1


def own_data(name: str, options: Own, split: str, access: Access) -> Source:
    """Opens `module:name`; without a parameter `split` it is all train."""
    part = own.load("dataset", options.part, DATASETS)
    base = split_spec.parse(split)[0]
    is_function = callable(part)
    by_split = is_function and callables.takes(part, "split")
    if not by_split:
        split_spec.only_train(
            name, split, "give its function a parameter `split` for more"
        )
    data = part
    if is_function:
        callables.options_of(part, ["split"])  # Others must have defaults.
        data = part(split=base) if by_split else part()
    source = _source(name, data, split, access.reading)
    if source.files is None and source.digests is None:
        numbers = np.arange(source.info.num_examples)
        numbers = split_spec.numbered(f"{name} {base}", numbers)
        source = dataclasses.replace(source, digests=numbers)
    rows = np.arange(*split_spec.bounds(split, source.info.num_examples))
    if len(rows) < source.info.num_examples:
        source = source.select(rows)
    return source


def _source(name: str, data: Any, split: str, reading: Reading) -> Source:
    """Makes a source of what a user's function returned."""
    form: dict[str, Any] = {
        "name": name,
        "split": split,
        "unlabelled": reading.admits_unlabelled,
        "channels": reading.channels,
        "value_range": reading.value_range,
    }
    if isinstance(data, Source):
        return data.described(name=name, split=split)
    if isinstance(data, tf.data.Dataset):
        return from_dataset(data, **form)
    if data is None:
        raise errors.AbsentSplitError(
            f"{name} has no split {split_spec.parse(split)[0]!r}: its function"
            " returned None"
        )
    if isinstance(data, Mapping):
        data = (data.get("image"), data.get("label"))
    arrays = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(arrays) <= 2 or not hasattr(arrays[0], "shape"):
        raise errors.UserError(f"{name} is a {type(data).__name__}: it {_FORM}")
    return from_arrays(*arrays, **form)
