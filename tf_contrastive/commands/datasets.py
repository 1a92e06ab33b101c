"""`datasets`: what `--dataset` knows, and a look at one of them."""

import math

from tf_contrastive import config

_KNOWN = (
    ("digits", "1,797 handwritten digits of 8x8 pixels, embedded"),
    ("folder:PATH", "a folder per class, or images without labels"),
    ("csv:PATH", "lines of path,label, or of paths"),
    ("tfrecord:GLOB", "tf.train.Example with an image, encoded, and a label"),
    ("NAME", "any prepared dataset of TensorFlow Datasets, such as cifar10"),
)
# Images on a contact sheet, and the side of one in pixels.
_SHOWN, _TILE = 64, 96


def run(options: config.Datasets) -> int:
    """Lists the datasets, or writes a contact sheet; returns 0."""
    chosen = options.listing
    if not chosen.show:
        for name, text in _KNOWN:
            print(f"{name:14} {text}")
        return 0
    print(_contact_sheet(chosen))
    return 0


def _contact_sheet(chosen: config.Listing) -> str:
    """Writes the first images as one PNG and says what they are."""
    # Here, so that the list is printed without starting TensorFlow.
    import tensorflow as tf

    from tf_contrastive import datasets, views

    source = datasets.source(
        chosen.show, chosen.split, data_dir=chosen.data_dir or None
    )
    tile = views.evaluation(_TILE)
    images = [tile(e["image"]) for e in source.examples().take(_SHOWN)]
    columns = math.ceil(math.sqrt(len(images)))
    images += [tf.zeros_like(images[0])] * (-len(images) % columns)
    rows = [
        tf.concat(images[i : i + columns], axis=1)
        for i in range(0, len(images), columns)
    ]
    pixels = tf.image.convert_image_dtype(tf.concat(rows, 0), tf.uint8)
    try:
        tf.io.write_file(chosen.output, tf.io.encode_png(pixels))
    except tf.errors.OpError as error:
        raise config.UserError(
            f"--output={chosen.output} cannot be written ({error.message}):"
            " give a file in a folder in which you may create files"
        ) from error
    info = source.info
    classes = f"{info.num_classes} classes" if info.has_labels else "unlabelled"
    return (
        f"{info.name} {info.split}: {info.num_examples:,} images, {classes},"
        f" shape {info.image_shape or 'varies'}; contact sheet:"
        f" {chosen.output}"
    )
