"""`datasets`: what `--dataset` knows, and a look at one of them."""

import dataclasses
import math

from tf_contrastive import errors
from tf_contrastive.config.dataset_names import PROBING_DATASETS
from tf_contrastive.config.datasets import Datasets, Listing

# In the order in which they are listed, those of config.PROBING_DATASETS with
# their options below.
_KNOWN = {
    "digits": "1,797 handwritten digits of 8x8 pixels, embedded",
    "folder:PATH": "a folder per class, or images without labels",
    "csv:PATH": "lines of path,label, or of paths",
    "tfrecord:GLOB": "tf.train.Example with an image, encoded, and a label",
    "NAME": "any prepared dataset of TensorFlow Datasets, such as cifar10",
    "cifar2": "cats and dogs of cifar10",
    "imagenet100": "100 classes of imagenet2012",
    "subset": "a share of train, as many images of each class:"
    " subset:fraction=0.1,of=cifar10",
    "multidigits": "digits of mnist on a black canvas:"
    " multidigits:count=4,placement=grid",
    "digit_on_image": "a digit of mnist at nine places of an image:"
    " digit_on_image:unique=16,of=cifar10",
    "randbit": "a random integer beside each image, as channels of its bits:"
    " randbit:bits=5,of=cifar10",
    "kbits": "such channels alone: kbits:bits=5",
}
# Images on a contact sheet, the side of one in pixels, and how much of that is
# striped by what extra channels it has.
_SHOWN, _TILE, _STRIPES = 64, 96, 8


def run(options: Datasets) -> int:
    """Lists the datasets, or writes a contact sheet; returns 0."""
    chosen = options.listing
    if not chosen.show:
        print("\n".join(_list()))
        return 0
    print(_contact_sheet(chosen))
    return 0


def _list() -> list[str]:
    """What there is to name, a line each, and below it its options."""
    lines = []
    for name, text in _KNOWN.items():
        lines.append(f"{name:14} {text}")
        made = PROBING_DATASETS.get(name)
        for field in dataclasses.fields(made) if made else ():
            text, default = field.metadata["help"], field.default
            shown = f" (default: {default})" if default else ""
            lines.append(f"{'':16} {field.name}: {text}{shown}")
    return lines


def _contact_sheet(chosen: Listing) -> str:
    """Writes the first images as one PNG and says what they are."""
    # Here, so that the list is printed without starting TensorFlow.
    import tensorflow as tf

    from tf_contrastive import datasets
    from tf_contrastive.commands import extensions

    extensions.add_papers()

    source = datasets.source(
        chosen.show, chosen.split, data_dir=chosen.data_dir or None
    )
    sheet = _grid([_tile(x) for x in source.examples().take(_SHOWN)])
    pixels = tf.image.convert_image_dtype(sheet, tf.uint8)
    try:
        tf.io.write_file(chosen.output, tf.io.encode_png(pixels))
    except tf.errors.OpError as error:
        raise errors.UserError(
            f"--output={chosen.output} cannot be written ({error.message}):"
            " give a file in a folder in which you may create files"
        ) from error
    info = source.info
    extra = info.extra_channels
    return (
        f"{info.name} {info.split}: {info.num_examples:,} images,"
        f" {info.labelling}, shape {info.image_shape or 'varies'}"
        + (f", {extra} extra channels (the stripes below)" if extra else "")
        + "; contact sheet:"
        f" {chosen.output}"
    )


def _tile(example):
    """An example as a square of floats in [0, 1], with its extra channels."""
    import tensorflow as tf

    # The whole image: what evaluation leaves out of it counts here too.
    image = tf.image.resize_with_pad(
        example["image"], _TILE, _TILE, antialias=True
    )
    image = tf.clip_by_value(image / 255, 0.0, 1.0)
    # One number for each channel: white is 1, dark grey is 0.
    if "extra" not in example or example["extra"].shape.rank != 1:
        return image
    values = tf.cast(example["extra"], tf.float32)
    if not len(values):
        return image
    levels = 0.2 + 0.8 * tf.clip_by_value(values, 0.0, 1.0)
    stripes = tf.image.resize(
        tf.tile(levels[tf.newaxis, :, tf.newaxis], [1, 1, 3]),
        [_STRIPES, _TILE],
        "nearest",
    )
    return tf.concat([image[:-_STRIPES], stripes], axis=0)


def _grid(images):
    """Squares in rows, as many as there are columns."""
    import tensorflow as tf

    columns = math.ceil(math.sqrt(len(images)))
    images += [tf.zeros_like(images[0])] * (-len(images) % columns)
    rows = [
        tf.concat(images[i : i + columns], axis=1)
        for i in range(0, len(images), columns)
    ]
    return tf.concat(rows, 0)
