"""Memory of `pretrain` for many records: an index, and nothing else.

DRILL_RECORDS is their number; ten million take 4 GB of disk.
"""

import os
import struct
import subprocess
import sys
import zlib

import pytest
import tensorflow as tf

RECORDS = int(os.environ.get("DRILL_RECORDS", "10_000_000"))
_FEW, _PER_FILE, _SIDE = 20_000, 100_000, 8
_INDEX = 100  # Bytes of each image.
pytestmark = pytest.mark.skipif(
    "DRILL_RECORDS" not in os.environ, reason="set DRILL_RECORDS"
)


def _chunk(kind, data):
    checksum = struct.pack(">I", zlib.crc32(kind + data))
    return struct.pack(">I", len(data)) + kind + data + checksum


_HEADER = _chunk(b"IHDR", struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0))


def _png(number):
    """A PNG file whose first pixels are a number."""
    rows = bytearray((b"\0" + b"\x80" * 3 * _SIDE) * _SIDE)
    rows[1:9] = struct.pack("<Q", number)
    pixels = _chunk(b"IDAT", zlib.compress(rows, 0))
    return b"\x89PNG\r\n\x1a\n" + _HEADER + pixels + _chunk(b"IEND", b"")


def _example():
    image = tf.train.Feature(bytes_list=tf.train.BytesList(value=[_png(0)]))
    label = tf.train.Feature(int64_list=tf.train.Int64List(value=[7]))
    features = tf.train.Features(feature={"image": image, "label": label})
    return tf.train.Example(features=features).SerializeToString()


def _write(folder, count):
    """Writes records of one class, which differ in the number of the image."""
    folder.mkdir()
    before, after = _example().split(_png(0))
    for first in range(0, count, _PER_FILE):
        path = str(folder / f"train-{first // _PER_FILE:05}.tfrecord")
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(first, min(first + _PER_FILE, count)):
                writer.write(before + _png(number) + after)


def _peak(folder, workdir):
    """Bytes that the first step of a run held at most."""
    command = [
        *(sys.executable, "-m", "tf_contrastive", "pretrain"),
        f"--dataset=tfrecord:{folder}/*.tfrecord",
        f"--workdir={workdir}",
        *("--augmentation=crop", f"--image_size={_SIDE}", "--batch_size=64"),
        *("--encoder=resnet10", "--width=0.125", "--epochs=1"),
        "--log_every_steps=1",
    ]
    cache = {"XDG_CACHE_HOME": os.path.dirname(workdir)}
    run = subprocess.Popen(
        command, env=os.environ | cache, stderr=subprocess.PIPE, text=True
    )
    for line in run.stderr:
        if line.startswith("epoch 1/1  step"):
            run.terminate()
    _, status, usage = os.wait4(run.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 42)
    return 1024 * usage.ru_maxrss


def test_a_run_holds_an_index_of_its_records(tmp_path):
    few, many = tmp_path / "few", tmp_path / "many"
    _write(few, _FEW)
    _write(many, RECORDS)
    base = _peak(few, str(tmp_path / "run_few"))
    first = _peak(many, str(tmp_path / "run_many"))
    again = _peak(many, str(tmp_path / "run_again"))
    grown = [(x - base) / (RECORDS - _FEW) for x in (first, again)]
    print(f"bytes a record: {grown[0]:.1f} at the first start, {grown[1]:.1f}")
    assert max(grown) < _INDEX
