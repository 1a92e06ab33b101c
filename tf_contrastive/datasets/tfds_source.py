"""Prepared datasets of TensorFlow Datasets, which are read from their files.

Nothing is downloaded, and neither a dataset's code nor TFDS's bucket is used,
which would wait for the network. TFDS is imported late: it takes a second.
"""

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.data import NO_FEATURE, Reading, without_slice
from tf_contrastive.config.dataset import (
    DATASETS,
    FORMS,
    Prepared,
    dataset_family,
    path_with_scheme,
)
from tf_contrastive.datasets import decoding, record_files
from tf_contrastive.datasets.source import (
    FILES_AT_A_TIME,
    Access,
    Files,
    Info,
    Record,
    Source,
    in_files,
)

if TYPE_CHECKING:
    from tensorflow_datasets.core import DatasetBuilder


# The name of a Python class in a description of features.
_CLASS = r'"(?:type|proto_cls|pythonClassName|python_class_name)": "([^"]*)"'


def _builder(
    tfds: ModuleType, name: str, data_dir: str | None
) -> "DatasetBuilder":
    """Returns the builder of a prepared dataset."""
    from google.protobuf import json_format
    from tensorflow_datasets.core import read_only_builder

    place = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    place = os.path.expanduser(place)
    _check_features(name, place)
    try:
        return read_only_builder.builder_from_files(
            name,
            # None: TFDS has several folders.
            data_dir=data_dir and place,
        )
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(tfds, name, place) from error
    except (ValueError, AssertionError, json_format.Error) as error:
        if path_with_scheme(name):
            raise _not_found(tfds, name, place) from error
        raise errors.UserError(
            f"dataset {name} in {place} cannot be read"
            f" ({errors.first_line(error)}): prepare it again, or set another"
            f" {errors.arg('data_dir')}"
        ) from error


def _check_features(name: str, place: str) -> None:
    """Refuses features for which TFDS would import other modules than its own.

    Raises:
      UserError: with the first of them, or for a FIFO or the like.
    """
    base = os.path.join(place, dataset_family(name))
    for folder, _, names in tf.io.gfile.walk(base):
        for file in names:
            if file.endswith((".json", ".txt")):
                files.size(os.path.join(folder, file))  # TFDS opens these.
        if "features.json" not in names:
            continue
        path = os.path.join(folder, "features.json")
        text = ""
        with contextlib.suppress(ValueError, RecursionError):
            # TFDS reports it, if it is of the dataset.
            text = json.dumps(json.loads(files.read(path)))
        for other in re.findall(_CLASS, text):
            if not other.startswith("tensorflow_datasets."):
                raise errors.UserError(
                    f"{path}: feature {other!r} is not of TensorFlow Datasets:"
                    " prepare the dataset with its features"
                )


def _not_found(tfds: ModuleType, name: str, place: str) -> errors.UserError:
    base = dataset_family(name)
    known = [*DATASETS, *tfds.list_builders(with_community_datasets=False)]
    versions = tf.io.gfile.glob(os.path.join(place, base, "*"))
    if base not in known and not versions:
        match = path_with_scheme(name) or errors.nearest(base, known)
        hint = f"did you mean {match!r}? " if match else ""
        return errors.UnknownDatasetError(
            f"unknown dataset {name!r}: {hint}known: {FORMS}; prepared datasets"
            f" are looked for in {place}"
        )
    there = ", ".join(map(os.path.basename, sorted(versions)))
    return errors.AbsentDataError(
        f"dataset {name} is not found in {place}"
        f"{f', which has {there} of it' if there else ''}: prepare it, on a"
        ' machine with a network, by python -c "import tensorflow_datasets as'
        f" tfds; tfds.load('{name}', data_dir='{place}')\", or set the"
        f" {errors.arg('data_dir')} that has it"
    )


def _choose(
    tfds: ModuleType, builder: "DatasetBuilder", reading: Reading
) -> tuple[str, str | None]:
    """Returns the names of the features that are the image and its class.

    Raises:
      UserError: if there is no image, or another feature may be the class.
    """
    name, kinds = f"dataset {builder.info.full_name}", tfds.features
    features = builder.info.features
    present = ", ".join(
        f"{n} ({type(x).__name__})" for n, x in features.items()
    )
    images = [
        n
        for n, x in sorted(features.items())
        if isinstance(x, kinds.Image) and x.np_dtype.kind == "u"
    ]
    classes = [
        n
        for n, x in features.items()
        if isinstance(x, kinds.ClassLabel) and x.num_classes
    ]
    keys = (builder.info.supervised_keys or ())[:2]
    if not all(isinstance(key, str) for key in keys):
        keys = ()
    wanted = reading.image_feature
    usual = [wanted] if wanted else [*keys[:1], "image"]
    if not wanted and len(images) == 1:
        usual += images
    image = next((n for n in usual if n in images), None)
    if image is None:
        raise errors.UserError(
            f"{name} has no feature {wanted or 'image'} that is an image of"
            f" unsigned integers: set {errors.arg('image_feature')} to one of"
            f" {', '.join(images) or 'none'}; features present: {present}"
        )
    wanted = reading.label_feature
    if wanted == NO_FEATURE:
        return image, None
    usual = [wanted] if wanted else [*keys[1:], "label"]
    label = next((n for n in usual if n in classes), None)
    if label is None and (wanted or classes or "label" in features):
        raise errors.UserError(
            f"{name} has no feature {wanted or 'label'} that is the class of an"
            f" image (ClassLabel); features present: {present}: set"
            f" {errors.arg('label_feature', (classes or ['NAME'])[0])}, or"
            f" {errors.arg('label_feature', NO_FEATURE)} to read no labels"
        )
    return image, label


def _num_examples(builder: "DatasetBuilder", split: str) -> int:
    name, splits = builder.info.full_name, builder.info.splits
    try:
        count = splits[split].num_examples
    except (KeyError, ValueError, AssertionError) as error:
        is_known = without_slice(split) in splits
        kind = errors.UserError if is_known else errors.AbsentSplitError
        raise kind(
            f"dataset {name} has no split {split!r}: its splits are"
            f" {', '.join(splits)}, and slices of those such as train[:10%]"
        ) from error
    if not count:
        raise errors.UserError(
            f"split {split} of {name} is empty: use a wider slice"
        )
    return count


def _files(builder: "DatasetBuilder", split: str) -> Files:
    """The files of a split, as serialized examples."""
    from tensorflow_datasets.core import file_adapters

    if builder.info.file_format is file_adapters.FileFormat.ARRAY_RECORD:
        raise errors.UserError(
            f"dataset {builder.info.full_name} is of ArrayRecord files, which"
            " TensorFlow does not read: prepare it again with"
            " tfds.builder(NAME, file_format='tfrecord')"
        )
    parts = builder.info.splits[split].file_instructions
    paths = [os.fspath(part.filename) for part in parts]
    if builder.info.file_format is file_adapters.FileFormat.TFRECORD:
        record_files.check_counts(
            paths,
            [part.examples_in_shard for part in parts],
            str(builder.data_dir),
            "copy it again, or prepare the dataset again",
        )
    adapter = file_adapters.ADAPTER_FOR_FORMAT[builder.info.file_format]
    return Files(
        paths,
        [part.skip for part in parts],
        [part.take for part in parts],
        adapter.make_tf_data,
    )


def open_tfds(
    name: str, options: Prepared, split: str, access: Access
) -> Source:
    """Opens a prepared dataset by its TFDS name, `name[/config][:version]`.

    Records keep their encoded bytes and the order of the files. They include a
    feature `extra` of numbers, [k] or [h, w, k], if the dataset has it.
    """
    import tensorflow_datasets as tfds

    del options
    builder = _builder(tfds, name, access.data_dir)
    image, label = _choose(tfds, builder, access.reading)
    count = _num_examples(builder, split)
    features = builder.info.features
    files = _files(builder, split)
    # Name in the record -> name of the feature.
    names = {"image": image} | ({"label": label} if label else {})
    names |= {"extra": "extra"} if "extra" in features else {}
    partial = tfds.decode.PartialDecoding(
        dict.fromkeys(names.values(), True)
    ).extract_features(features)
    encoded = {image: tfds.decode.SkipDecoding()}

    def parse(serialized: tf.Tensor) -> Record:
        example = partial.deserialize_example(serialized, decoders=encoded)
        return {key: example[feature] for key, feature in names.items()}

    read_record: Callable[[tf.Tensor], Record] = parse
    may_lack = access.reading.admits_unlabelled
    if label and not may_lack:
        has_labels = files.use_first(
            name, lambda x: int(parse(x)["label"]) >= 0
        )
        read_record = _checked(parse, has_labels)
        label = label if has_labels else None
    height, width, _ = features[image].shape
    info = Info(
        name,
        split,
        count,
        features[label].num_classes if label else None,
        (height, width, 3) if height and width else None,
        tuple(features[label].names) if label else (),
        unlabelled=label is not None and may_lack,
        extra_channels=features["extra"].shape[-1] if "extra" in names else 0,
        found=(
            ("prepared", f"{builder.info.full_name} in {builder.data_dir}"),
            ("images", f"feature {image!r}"),
            ("labels", f"feature {label!r}" if label else "none"),
        ),
    )
    decode = decoding.decode_record
    files.use_first(name, lambda x: decode(read_record(x)))
    read = files.read
    files = dataclasses.replace(
        files, read=lambda file: read(file).map(read_record)
    )
    return in_files(files, decode, info)


def _checked(
    parse: Callable[[tf.Tensor], Record], has_labels: bool
) -> Callable[[tf.Tensor], Record]:
    """Returns `parse` that fails where only a part of a split has labels.

    A split without has -1 in their place.
    """

    def parse_and_check(serialized: tf.Tensor) -> Record:
        record = parse(serialized)
        label = record["label"] if has_labels else record.pop("label")
        expected = (label >= 0) == has_labels
        what = "it has no label, and others have"
        if not has_labels:
            what = "it has a label, and the first record has none"
        with tf.control_dependencies([tf.debugging.Assert(expected, [what])]):
            return {k: tf.identity(v) for k, v in record.items()}

    return parse_and_check


def label_sets(
    name: str, split: str, data_dir: str | None, feature: str
) -> np.ndarray:
    """Reads the classes of each example of a multi-label dataset, bool [n, C].

    The rows have the order of `open_tfds`. `feature` is a sequence of class
    labels, such as VOC's `labels`.
    """
    builder, values = _feature(name, split, data_dir, feature)
    rows = np.zeros(
        [len(values), builder.info.features[feature].num_classes], bool
    )
    for row, classes in enumerate(values):
        rows[row, classes] = True
    return rows


def file_names(name: str, split: str, data_dir: str | None) -> list[str]:
    """Reads the feature `file_name` of each example, in `open_tfds`' order."""
    _, values = _feature(name, split, data_dir, "file_name")
    return [tf.compat.as_str_any(value) for value in values]


def _feature(
    name: str, split: str, data_dir: str | None, feature: str
) -> tuple["DatasetBuilder", list[Any]]:
    """Reads a feature of each example, without images: (builder, values)."""
    import tensorflow_datasets as tfds

    builder = _builder(tfds, name, data_dir or None)
    features = builder.info.features
    if feature not in features:
        raise errors.UserError(
            f"dataset {builder.info.full_name} has no feature {feature!r}, only"
            f" {', '.join(features)}"
        )
    partial = tfds.decode.PartialDecoding({feature: True})
    parser = partial.extract_features(features)
    values: list[Any] = [None] * _num_examples(builder, split)
    numbered = _files(builder, split).numbered(at_a_time=FILES_AT_A_TIME)
    numbered = numbered.map(
        lambda row, text: (row, parser.deserialize_example(text)[feature]),
        tf.data.AUTOTUNE,
    )
    for row, value in numbered.as_numpy_iterator():
        values[row] = value
    return builder, values
