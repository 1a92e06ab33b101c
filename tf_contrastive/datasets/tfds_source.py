"""Prepared datasets of TensorFlow Datasets, which are read from their files.

Nothing is downloaded, and neither a dataset's code nor TFDS's bucket is used,
which would wait for the network. TFDS is imported late: it takes a second.
"""

import contextlib
import dataclasses
import json
import os
import re
from types import ModuleType
from typing import TYPE_CHECKING

import tensorflow as tf

from tf_contrastive.base import errors, files
from tf_contrastive.config.data import NO_FEATURE, Reading, without_slice
from tf_contrastive.config.dataset import (
    DATASETS,
    FORMS,
    Prepared,
    dataset_family,
)
from tf_contrastive.datasets import float_images, tfrecord
from tf_contrastive.datasets.source import (
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
        # Without a folder, TFDS has several.
        folder = data_dir and place
        return read_only_builder.builder_from_files(name, data_dir=folder)
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(tfds, name, place) from error
    except (ValueError, AssertionError, json_format.Error) as error:
        raise errors.UserError(
            f"dataset {name} in {place} cannot be read"
            f" ({errors.first_line(error)}): prepare it again, read it by the"
            " version of tensorflow-datasets that wrote it, or set another"
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
    is_there = tf.io.gfile.exists(os.path.join(place, base))
    if base not in known and not is_there:
        hint = errors.did_you_mean(base, known)
        return errors.UnknownDatasetError(
            f"unknown dataset {name!r}{hint}: known: {FORMS}; prepared datasets"
            f" are looked for in {place}"
        )
    return errors.AbsentDataError(
        f"dataset {name} is not found in {place}: prepare it, on a machine with"
        ' a network, by python -c "import tensorflow_datasets as tfds;'
        f" tfds.load('{name}', data_dir='{place}')\", or set the"
        f" {errors.arg('data_dir')} that has it"
    )


def _choose(
    tfds: ModuleType, builder: "DatasetBuilder", reading: Reading
) -> tuple[str, str | None]:
    """Returns the names of the features that are the image and its class."""
    types, kinds = {}, tfds.features
    for name, feature in sorted(builder.info.features.items()):
        if name == reading.label_feature and isinstance(
            feature, kinds.Sequence
        ):
            feature = feature.feature  # Several classes of an image.
        types[name] = type(feature).__name__
        if isinstance(feature, kinds.Image) and feature.np_dtype.kind == "u":
            types[name] = "Image"
        elif isinstance(feature, kinds.Image):
            types[name] += f" of {feature.np_dtype}"
        elif isinstance(feature, kinds.ClassLabel) and not feature.num_classes:
            types[name] += " without classes"
    keys = (builder.info.supervised_keys or ())[:2]
    if not all(isinstance(key, str) for key in keys):
        keys = ()
    images = [n for n, kind in types.items() if kind == "Image"]
    classes = [key for key in keys[1:] if types.get(key) == "ClassLabel"]
    usual = images if len(images) == 1 else keys[:1] or ["image"]
    return tfrecord.choose_features(
        f"dataset {builder.info.full_name}",
        types,
        tfrecord.Kind("Image", usual),
        tfrecord.Kind("ClassLabel", classes or ["label"]),
        reading,
    )


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
    name, form = builder.info.full_name, builder.info.file_format
    if form.value != "tfrecord":
        raise errors.UserError(
            f"dataset {name} is of {form.value} files: prepare it again with"
            " tfds.builder(NAME, file_format='tfrecord')"
        )
    parts = builder.info.splits[split].file_instructions
    paths = [os.fspath(part.filename) for part in parts]
    tfrecord.check_counts(
        paths,
        [part.examples_in_shard for part in parts],
        str(builder.data_dir),
        "copy it again, or prepare the dataset again",
    )
    return Files(
        paths,
        [part.skip for part in parts],
        [part.take for part in parts],
        tf.data.TFRecordDataset,
    )


def open_tfds(
    name: str, options: Prepared, split: str, access: Access
) -> Source:
    """Opens a prepared dataset by its TFDS name, `name[/config][:version]`.

    Records keep their encoded bytes and the order of the files. They include a
    feature `extra` of numbers, [k] or [h, w, k], if the dataset has it. Where
    `label_feature` is a sequence of classes, labels are rows of 0 and 1.
    """
    import tensorflow_datasets as tfds

    del options
    builder = _builder(tfds, name, access.data_dir)
    reading = access.reading
    image, label = _choose(tfds, builder, reading)
    count = _num_examples(builder, split)
    kinds = builder.info.features
    files = _files(builder, split)
    # Name in the record -> name of the feature.
    names = {"image": image} | ({"label": label} if label else {})
    names |= {"extra": "extra"} if "extra" in kinds else {}
    partial = tfds.decode.PartialDecoding(
        dict.fromkeys(names.values(), True)
    ).extract_features(kinds)
    several = label is not None and isinstance(
        kinds[label], tfds.features.Sequence
    )
    encoded = {image: tfds.decode.SkipDecoding()}
    may_lack = reading.admits_unlabelled

    def parse(serialized: tf.Tensor) -> Record:
        example = partial.deserialize_example(serialized, decoders=encoded)
        record = {key: example[feature] for key, feature in names.items()}
        if several:
            rows = tf.one_hot(record["label"], kinds[label].num_classes)
            record["label"] = tf.cast(tf.reduce_any(rows > 0, axis=0), tf.int64)
        return _checked(record) if label and not may_lack else record

    height, width, _ = kinds[image].shape
    info = Info(
        name,
        split,
        count,
        kinds[label].num_classes if label else None,
        (height, width, reading.channels) if height and width else None,
        tuple(kinds[label].names) if label else (),
        unlabelled=label is not None and may_lack,
        float_channels=reading.float_channels,
        by_pillow=reading.float_channels is not None,
        multi_label=several,
        extra_channels=kinds["extra"].shape[-1] if "extra" in names else 0,
        found=(
            ("prepared", f"{builder.info.full_name} in {builder.data_dir}"),
            ("images", f"feature {image!r}"),
            ("labels", f"feature {label!r}" if label else "none"),
        ),
    )
    decode = float_images.record_decoder(reading)
    files.use_first(name, lambda x: decode(parse(x)))
    read = files.read
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    return in_files(files, decode, info)


def _checked(record: Record) -> Record:
    """Returns a record, and fails for one without a label, which has -1."""
    advice = errors.arg("label_feature", NO_FEATURE)
    text = f"it has no label: set {advice} to read none"
    check = tf.debugging.Assert(tf.reduce_all(record["label"] >= 0), [text])
    with tf.control_dependencies([check]):
        return {k: tf.identity(v) for k, v in record.items()}
