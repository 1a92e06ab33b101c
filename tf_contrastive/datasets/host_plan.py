"""What each host reads of a dataset's files, planned without reading them.

The parts are those that training takes (`sampler.Stream.share`), of the first
epoch; those of other epochs are other files of as many examples.
"""

import concurrent.futures
import csv
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.runtime import check_divisible
from tf_contrastive.datasets.sampler import Order, Stream
from tf_contrastive.datasets.source import Files, Info, Source, in_files

# Requests at a time for the sizes of files.
_THREADS = 64
# Of a table: files, and digits of a number.
_MAX_FILES, _MAX_DIGITS = 1_000_000, 15
# Files for each host that are advised.
_FILES_PER_HOST = 8
# Times that all hosts together read the data in an epoch, at most, and the
# fraction of a host's examples that come twice.
_MAX_READS, _MAX_REPEATED = 1.5, 0.01


class Load(NamedTuple):
    """What the hosts of a run read; ranges are (least, most) of all hosts.

    Attributes:
      hosts: their number.
      sharding: what they share, as of `Stream.sharding`.
      files: that a host opens in an epoch.
      bytes: that it reads in an epoch.
      without_file: hosts for which there would be no file of their own.
      repeated: the largest fraction of a host's epoch that comes twice.
      first: bytes that a host reads before its first batch.
      total: bytes that all hosts together read in an epoch.
      reads: how often they read the data so.
    """

    hosts: int
    sharding: str
    files: tuple[int, int]
    bytes: tuple[float, float]
    without_file: int
    repeated: float
    first: tuple[float, float]
    total: float
    reads: float


def file_sizes(source: Source) -> np.ndarray:
    """Returns the bytes of each file of a source, int64 [F].

    Raises:
      UserError: for a source that is not read from files of records.
    """
    if source.files is None:
        raise errors.UserError(
            f"{source.info.name} has a file for each image, or is in memory:"
            " every host reads the images of its rows, equally many for any"
            " number of hosts; plan files of records, such as"
            f" {errors.arg('dataset', 'tfrecord:GLOB')}"
        )
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        sizes = pool.map(files.size, source.files.names)
        return np.array(list(sizes), np.int64)


def from_table(path: str) -> tuple[Source, np.ndarray]:
    """Reads a list of files that need not exist: their source, and bytes [F].

    Its lines are IMAGES,BYTES or IMAGES,BYTES,FILES for as many equal files. A
    line that starts with # is a comment.

    Raises:
      UserError: for other lines.
    """
    try:
        rows = list(csv.reader(io.StringIO(files.read(path).decode())))
    except (ValueError, csv.Error, OSError, tf.errors.OpError) as error:
        raise errors.UserError(
            f"{path} cannot be read ({errors.first_line(error)}): write lines"
            " of IMAGES,BYTES,FILES"
        ) from error
    table = []
    for number, row in enumerate(rows, 1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#"):
            continue
        is_line = len(cells) in (2, 3) and all(
            cell.isdecimal() and len(cell) <= _MAX_DIGITS for cell in cells
        )
        values = [*map(int, cells), 1][:3] if is_line else [0, 0, 0]
        if not min(values):
            raise errors.UserError(
                f"{path}: line {number} ({','.join(row)}) is not"
                " IMAGES,BYTES,FILES, integers above 0, such as"
                " 1251,144000000,1024"
            )
        table.append(values)
    if not table:
        raise errors.UserError(f"{path} is empty: write IMAGES,BYTES,FILES")
    images, sizes, repeats = np.array(table, np.int64).T
    if repeats.sum() > _MAX_FILES:
        raise errors.UserError(
            f"{path} has {repeats.sum():,} files, more than {_MAX_FILES:,}:"
            " plan larger ones"
        )
    images, sizes = np.repeat(images, repeats), np.repeat(sizes, repeats)
    names = list(map(str, range(len(images))))
    skips = np.zeros_like(images)
    of_records = Files(names, skips, images, tf.data.TFRecordDataset)
    info = Info(path, "train", int(images.sum()))
    return in_files(of_records, dict, info), sizes


def plan(source: Source, sizes: np.ndarray, hosts: int, order: Order) -> Load:
    """Plans the first epoch of a number of hosts.

    Args:
      source: files of records.
      sizes: bytes of each, int64 [F].
      hosts: their number.
      order: of training.

    Raises:
      UserError: if the batch or the files cannot be shared by them.
    """
    check_divisible(order.batch_size, hosts)
    images = source.record_files().sizes()
    each = sizes / np.maximum(images, 1)  # Bytes per image.
    read, first, opened, repeated = [], [], [], []
    streams = [
        Stream(source, order, tf.distribute.InputContext(hosts, host, hosts))
        for host in range(hosts)
    ]
    seed, _ = streams[0].seeds(tf.constant(0, tf.int64))
    files_order, sharding = streams[0].file_order(seed), streams[0].sharding
    for stream in streams:
        share = stream.share(files_order, sharding)
        chosen, skip, count = (part.numpy() for part in share)
        have = int(count.sum())
        is_whole = sharding == "example"
        need = stream.steps * (order.batch_size if is_whole else stream.local)
        # A batch waits for the shuffle buffer, and for the records before the
        # first one of a part.
        mean = float(np.dot(each[chosen], count) / max(have, 1))
        skipped = float(np.dot(each[chosen], skip))
        ahead = order.batch_size if is_whole else stream.local
        first.append(skipped + mean * min(have, stream.buffer + ahead))
        taken = min(have, need + stream.buffer) + max(need - have, 0)
        read.append(skipped + mean * taken)
        opened.append(len(chosen))
        repeated.append(max(need - have, 0) / need)
    return Load(
        hosts,
        sharding,
        (min(opened), max(opened)),
        (min(read), max(read)),
        max(hosts - int(np.count_nonzero(images)), 0),
        max(repeated),
        (min(first), max(first)),
        sum(read),
        sum(read) / float(sizes.sum()),
    )


def format_loads(loads: Sequence[Load], speeds: Sequence[float]) -> str:
    """Returns a table of plans.

    `speeds` are the bandwidths of a host in MB/s, for the seconds until its
    first batch.
    """
    waits = [f"first batch at {speed:g} MB/s" for speed in speeds]
    rows = [
        [
            *("hosts", "sharing", "files a host", "GB a host", "slowest/mean"),
            *("without a file", "twice", "all read", *waits),
        ]
    ]
    for load in loads:
        mean = load.total / load.hosts
        rows.append(
            [
                f"{load.hosts:,}",
                load.sharding,
                _range(load.files, "{:,}"),
                _range([x / 1e9 for x in load.bytes], "{:,.2f}"),
                f"{load.bytes[1] / mean:.2f}",
                f"{load.without_file:,}",
                f"{load.repeated:.1%}",
                f"{load.reads:,.2f} x",
                *(f"{load.first[1] / speed / 1e6:,.1f} s" for speed in speeds),
            ]
        )
    return terminal.format_table(rows, {1})


def _range(ends: Sequence[float], form: str) -> str:
    least, most = map(form.format, ends)
    return least if least == most else f"{least} to {most}"


def advise(examples: int, load: Load) -> str | None:
    """Says what to do about a plan of so many examples; None: nothing."""
    per_file = max(examples // (_FILES_PER_HOST * load.hosts), 1)
    packed = (
        f"write at least {_FILES_PER_HOST * load.hosts:,} files, such as by"
        f" {errors.arg('pack', 'FOLDER')} with"
        f" {errors.arg('pack_file_images', per_file)}"
    )
    if load.reads > _MAX_READS:
        reads = f"the hosts together read the data {load.reads:,.1f} times"
        if load.sharding == "example":
            packed = (
                f"set {errors.arg('input_sharding', 'record')}, or {packed}"
            )
        return f"{load.hosts:,} hosts: {reads} an epoch: {packed}"
    if load.repeated > _MAX_REPEATED:
        return (
            f"{load.hosts:,} hosts: up to {load.repeated:.1%} of a host's epoch"
            f" comes twice: set {errors.arg('input_sharding', 'record')}"
        )
    return None
