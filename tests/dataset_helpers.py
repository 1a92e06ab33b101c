"""Files of images, labelled datasets, and what is read of a source."""

import functools
import io

import numpy as np
import pytest
from image_helpers import write_prepared
from PIL import Image

from tf_contrastive import datasets
from tf_contrastive.base import errors
from tf_contrastive.config.data import Reading
from tf_contrastive.config.dataset import ImageNet100


def picture(index, size=(12, 10)):
    rng = np.random.default_rng(index)
    pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def truncated_jpeg():
    contents = encoded(picture(0, (200, 200)), "JPEG")
    return contents[: len(contents) // 2]


def write(path, contents):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(contents)
    return path


def class_folders(root, classes=("cat", "dog"), per_class=3, start=0):
    for c, name in enumerate(classes):
        for i in range(per_class):
            image = picture(start + 100 * c + i)
            write(root / name / f"{i}.png", encoded(image))
    return root


def csv(path, text):
    path.write_text(text)
    return f"csv:{path}"


def pictures(count, side, channels, seed):
    random = np.random.RandomState(seed)
    return random.randint(0, 256, [count, side, side, channels], np.uint8)


def prepare(root, name, images, labels, names, shape=None, **options):
    """Prepares a dataset; `images` and `labels` by split."""
    shape = shape or (None, None, next(iter(images.values()))[0].shape[-1])
    splits = {s: {"image": images[s], "label": labels[s]} for s in images}

    def features(kinds):
        label = kinds.ClassLabel(names=list(names))
        return {"image": kinds.Image(shape=shape), "label": label}

    write_prepared(root, features, splits, name, **options)


def prepare_all(root):
    """Prepares a small mnist, cifar10, imagenet2012 and its 1 %."""
    sizes = {"train": 40, "test": 20}
    images = {s: pictures(n, 28, 1, n) for s, n in sizes.items()}
    labels = {s: np.arange(n) * 7 % 10 for s, n in sizes.items()}
    prepare(root, "mnist", images, labels, "0123456789", shape=(28, 28, 1))
    sizes = {"train": 100, "test": 50}
    images = {s: pictures(n, 32, 3, n) for s, n in sizes.items()}
    labels = {s: np.arange(n) * 3 % 10 for s, n in sizes.items()}
    names = "airplane automobile bird cat deer dog frog horse ship truck"
    prepare(root, "cifar10", images, labels, names.split(), shape=(32, 32, 3))
    names = sorted([*ImageNet100.classes, *(f"n9{i:07}" for i in range(20))])
    images = {"train": pictures(240, 8, 3, 1)}
    labels = {"train": np.arange(240) * 7 % 120}
    prepare(root, "imagenet2012", images, labels, names)
    images = {"train": images["train"][:120], "validation": images["train"]}
    labels = {"train": np.arange(120), "validation": labels["train"]}
    folder = {"config": "1pct"}
    prepare(root, "imagenet2012_subset", images, labels, names, **folder)


def read(source):
    return list(source.examples().as_numpy_iterator())


def labels(source):
    return [int(example["label"]) for example in read(source)]


def understood(name, split="train", **reading):
    """Number of an image of `picture` -> its class, None: without a label."""
    source = datasets.source(name, split, reading=Reading(**reading))
    known = {np.asarray(picture(i)).tobytes(): i for i in range(20)}
    names = source.info.label_names
    classes = {}
    for example in read(source):
        label = example.get("label")
        image = known[example["image"].tobytes()]
        classes[image] = names[label] if names and label is not None else label
    return classes


@functools.cache
def columns(source):
    """All examples of a source, of one shape, as arrays."""
    batches = list(source.examples().batch(256).as_numpy_iterator())
    return {k: np.concatenate([b[k] for b in batches]) for k in batches[0]}


def refused(*words, **kwargs):
    with pytest.raises(errors.UserError) as caught:
        datasets.source(**kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message
