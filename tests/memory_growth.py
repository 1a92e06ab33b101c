"""Trains 211 short epochs in the folder that is its argument.

Prints the growth of the process's memory in the last 150, in bytes, and how
much of it TensorFlow itself has lost.
"""

import ctypes
import gc
import os
import sys

import tensorflow as tf

from tests import small
from tf_contrastive import callbacks, train
from tf_contrastive.config import fields


def _resident():
    """Memory of this process in bytes, without what malloc keeps free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _lost_per_tensor():
    """Bytes that TensorFlow itself loses with each eager tensor."""
    one, count = tf.constant(1.0), 200_000
    before = _resident()
    for _ in range(count):
        tf.identity(one)
    return max(0, _resident() - before) / count


def main(workdir):
    """Trains, and prints both numbers."""
    seen = []  # Memory, and the number of tensors so far.
    epoch_end = callbacks.CheckpointCallback.on_epoch_end

    def noting(self, epoch, logs=None):
        epoch_end(self, epoch, logs)
        if epoch % 150 in range(51, 61):
            self._checkpoints.finish()
            seen.append((_resident(), tf.constant(0)._id))

    callbacks.CheckpointCallback.on_epoch_end = noting
    options = small.DIGITS | {"split": "train[:64]", "batch_size": 32}
    options |= {"epochs": 211, "log_every_steps": 50, "workdir": workdir}
    with small.encoder():
        train.pretrain(fields.replace(small.RUN, **options))
    # The least of ten epochs: some of it comes and goes.
    (first, before), (last, after) = min(seen[:10]), min(seen[10:])
    print(last - first, _lost_per_tensor() * (after - before))


if __name__ == "__main__":
    main(sys.argv[1])
