"""Datasets of TensorFlow Datasets that stand prepared in a folder.

Read from their files alone: nothing is downloaded, and neither a dataset's
code nor TFDS's bucket is asked. The only module that imports TFDS, and late,
since that takes a second.
"""

import dataclasses
import os
import re

import numpy as np

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import (
    DATASET_SCHEMES,
    EMBEDDED_DATASETS,
    PROBING_DATASETS,
)
from tf_contrastive.datasets import images
from tf_contrastive.datasets.source import (
    Files,
    Info,
    Record,
    Source,
    in_files,
)


def _builder(tfds, name: str, data_dir: str | None):
    """Returns the builder of a prepared dataset.

    From files, never from the dataset's code: that one looks for metadata in
    TFDS's bucket when the files are missing, and so waits for the network.
    """
    from google.protobuf import json_format
    from tensorflow_datasets.core import read_only_builder

    place = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    place = os.path.expanduser(place)
    try:
        return read_only_builder.builder_from_files(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise _not_found(tfds, name, place) from error
    except (ValueError, AssertionError, json_format.Error) as error:
        reason = (str(error).splitlines() or ["?"])[0]
        raise errors.UserError(
            f"dataset {name} in {place} cannot be read ({reason}): prepare it"
            " again, or give another `data_dir`"
        ) from error


def _not_found(tfds, name: str, place: str) -> errors.UserError:
    known = tfds.list_builders(with_community_datasets=False)
    base = re.split("[/:]", name)[0]
    if base not in known:
        own = [f"{scheme}:PATH" for scheme in DATASET_SCHEMES]
        embedded = [*EMBEDDED_DATASETS, *PROBING_DATASETS]
        own = [*embedded, *own]
        match = errors.nearest(base, [*embedded, *known])
        hint = f"did you mean {match!r}? " if match else ""
        return errors.UserError(
            f"unknown dataset {name!r}: {hint}known: {', '.join(own)}, what"
            f" is prepared in {place}, and the {len(known)} names of"
            " tfds.list_builders()"
        )
    return errors.AbsentDataError(
        f"dataset {name} is not found in {place}: prepare it, on a machine"
        ' with a network, by python -c "import tensorflow_datasets as tfds;'
        f" tfds.load('{name}', data_dir='{place}')\", or give the `data_dir`"
        " that has it"
    )


def _image_and_label(tfds, builder) -> tuple[str, str | None]:
    """Finds the features that are the image and its class."""
    features = dict(builder.info.features)
    image, label = "image", "label"
    keys = builder.info.supervised_keys
    if keys and all(isinstance(key, str) for key in keys[:2]):
        image, label = keys[:2]
    if not isinstance(features.get(image), tfds.features.Image):
        found = [
            key
            for key, feature in features.items()
            if isinstance(feature, tfds.features.Image)
        ]
        image = "image" if "image" in found else (found or [None])[0]
    if image is None or features[image].np_dtype.kind != "u":
        raise errors.UserError(
            f"dataset {builder.info.full_name} has no feature that is an"
            " image of unsigned integers; features present:"
            f" {', '.join(features)}"
        )
    if not isinstance(features.get(label), tfds.features.ClassLabel):
        label = "label"
    if not isinstance(features.get(label), tfds.features.ClassLabel):
        return image, None
    return image, label


def _num_examples(builder, split: str) -> int:
    try:
        count = builder.info.splits[split].num_examples
    except (KeyError, ValueError, AssertionError) as error:
        reason = (str(error).strip("\"'").splitlines() or ["?"])[0]
        raise errors.UserError(
            f"dataset {builder.info.full_name} has no split {split!r}"
            f" ({reason}): its splits are {', '.join(builder.info.splits)},"
            " and slices of those such as train[:10%]"
        ) from error
    if not count:
        raise errors.UserError(
            f"split {split} of {builder.info.full_name} holds no example:"
            " give a wider slice"
        )
    return count


def _decode(record: Record) -> Record:
    return record | {"image": images.decode(record["image"])}


def _files(builder, split: str) -> Files:
    """The files of a split, of serialized examples."""
    from tensorflow_datasets.core import file_adapters

    parts = builder.info.splits[split].file_instructions
    adapter = file_adapters.ADAPTER_FOR_FORMAT[builder.info.file_format]
    return Files(
        [os.fspath(part.filename) for part in parts],
        [part.skip for part in parts],
        [part.take for part in parts],
        adapter.make_tf_data,
    )


def _parser(tfds, features, wanted: dict[str, str]):
    """Returns serialized example -> record of the wanted features.

    Args:
      tfds: the package.
      features: of the dataset.
      wanted: what the record calls a feature -> its name.
    """
    partial = tfds.decode.PartialDecoding(
        dict.fromkeys(wanted.values(), True)
    ).extract_features(features)
    encoded = {wanted["image"]: tfds.decode.SkipDecoding()}

    def parse(serialized):
        example = partial.deserialize_example(serialized, decoders=encoded)
        return {key: example[name] for key, name in wanted.items()}

    return parse


def open_tfds(name: str, split: str, data_dir: str | None) -> Source:
    """Opens any prepared dataset by its TFDS name, `name[/config][:version]`.

    Records keep their encoded bytes and come in the order of the files. A
    feature `extra` of numbers, [k] or [h, w, k], comes along.

    Raises:
      UserError: if it is unknown, not prepared, or has no such split or image.
    """
    import tensorflow_datasets as tfds

    builder = _builder(tfds, name, data_dir or None)
    image, label = _image_and_label(tfds, builder)
    count = _num_examples(builder, split)
    features = builder.info.features
    names = {"image": image, "label": label}
    if "extra" in features:
        names["extra"] = "extra"
    files = _files(builder, split)
    # Splits without labels are stored with label -1 throughout.
    if label:
        parse = _parser(tfds, features, {"image": image, "label": label})
        stored = files.numbered().take(1).map(lambda _, text: parse(text))
        if next(stored.as_numpy_iterator())["label"] < 0:
            label = names["label"] = None
    parse = _parser(tfds, features, {k: v for k, v in names.items() if v})
    height, width, _ = features[image].shape
    info = Info(
        name,
        split,
        count,
        features[label].num_classes if label else None,
        (height, width, 3) if height and width else None,
        tuple(features[label].names) if label else (),
        extra_channels=features["extra"].shape[-1] if "extra" in names else 0,
    )
    read = files.read
    files = dataclasses.replace(files, read=lambda file: read(file).map(parse))
    return in_files(files, _decode, info)


def label_sets(
    name: str, split: str, data_dir: str | None, feature: str
) -> np.ndarray:
    """Reads which classes each example has, of datasets of several labels.

    Args:
      name, split, data_dir: see `open_tfds`, in whose order they come.
      feature: a sequence of class labels, such as VOC's `labels`.

    Returns:
      bool [n, C].

    Raises:
      UserError: if there is no such dataset, split or feature.
    """
    import tensorflow_datasets as tfds

    builder = _builder(tfds, name, data_dir or None)
    features = builder.info.features
    if feature not in features:
        raise errors.UserError(
            f"dataset {builder.info.full_name} has no feature {feature!r}, only"
            f" {', '.join(features)}"
        )
    found = np.zeros(
        [_num_examples(builder, split), features[feature].num_classes], bool
    )
    partial = tfds.decode.PartialDecoding({feature: True})
    wanted = partial.extract_features(features)
    examples = _files(builder, split).numbered()
    sets = examples.map(
        lambda row, text: (row, wanted.deserialize_example(text)[feature])
    )
    for row, classes in sets.as_numpy_iterator():
        found[row, classes] = True
    return found
