"""The dataset that another one is made of: its opener, records and name."""

from collections.abc import Callable

import tensorflow as tf

from tf_contrastive.config.dataset_names import EMBEDDED_NOTE
from tf_contrastive.datasets.source import Record, Source

# (name, split) -> its source: how a dataset opens the one that it is made of.
Opener = Callable[[str, str], Source]
# What hashes are for, so that those of one seed have nothing in common.
FOR_DIGITS, FOR_BITS = 1, 2


def hashed(record: Record, below: int, seed: int, purpose: int) -> tf.Tensor:
    """Draws an integer by the contents of a record, int64 in [0, below).

    By contents rather than by place (as the paper's code has it): an image has
    the same one in any slice, and its copies have it too.
    """
    if "path" in record:
        parts = [tf.io.read_file(record["path"])]
    else:
        keys = sorted(key for key in record if key != "label")
        parts = [tf.io.serialize_tensor(record[key]) for key in keys]
    return tf.strings.to_hash_bucket_strong(
        tf.strings.join(parts), below, key=[seed % 2**62, purpose]
    )


def note_of(inner: Source) -> str:
    """What the name of a dataset says beyond what was asked for."""
    note = EMBEDDED_NOTE
    return note if inner.info.name.endswith(note) else ""
