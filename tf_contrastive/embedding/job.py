"""Bulk embedding: every example of a split, into one file or several shards.

`embed_shard` makes a shard, in this process or on an engine's workers. A killed
job with several shards continues at the next one: a shard's file is complete,
or is made again. `NAME.json` identifies the job of the shards.
"""

import dataclasses
import hashlib
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import datasets, embedding, views
from tf_contrastive.base import errors, files, terminal
from tf_contrastive.config.data import Reading
from tf_contrastive.config.embed import EMBEDDING_FORMATS, Embedding
from tf_contrastive.datasets.paths import few
from tf_contrastive.embedding import output_files


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of a job, and its examples [start, stop) of the split."""

    number: int
    path: str
    start: int
    stop: int

    @property
    def bad_path(self) -> str:
        """List of its unreadable images, until the job ends."""
        return f"{self.path}.bad"


@dataclasses.dataclass(frozen=True)
class Job:
    """The input, output and options of a bulk embedding.

    Attributes:
      source: the split.
      image_size: side S of the encoder's images.
      output: file, or with a `shard_size` the prefix of its files' names.
      extra_channels: channels of feature `extra` that the encoder takes.
      format, batch_size, shard_size, max_bad_images: see `config.embed`.
      opener: name, split, data_dir and reading by which another process opens a
        source of TensorFlow Datasets, whose readers cannot be pickled; (): the
        source is pickled.
    """

    source: datasets.Source
    image_size: int
    output: str
    format: str = "npz"
    extra_channels: int = 0
    batch_size: int = Embedding.embedding_batch_size
    shard_size: int = Embedding.shard_size
    max_bad_images: int = Reading.max_bad_images
    opener: tuple[Any, ...] = ()

    def shards(self) -> list[Shard]:
        """All files of the job."""
        total = self.source.info.num_examples
        if not self.shard_size:
            return [Shard(0, self.output, 0, total)]
        starts = range(0, total, self.shard_size)
        ending = EMBEDDING_FORMATS[self.format]
        return [
            Shard(
                number,
                f"{self.name}-{number:05}-of-{len(starts):05}{ending}",
                start,
                min(start + self.shard_size, total),
            )
            for number, start in enumerate(starts)
        ]

    @property
    def name(self) -> str:
        """The output without the ending of its format."""
        return self.output.removesuffix(EMBEDDING_FORMATS[self.format])

    @property
    def identity_path(self) -> str:
        """The file that says of which job the shards are."""
        return f"{self.name}.json"

    def batches(self, part: datasets.Source) -> tf.data.Dataset:
        """Makes batches of the readable images of a part of the source.

        Returns:
          `tf.data.Dataset` of (images float32 [b, S, S, K], rows int64 [b],
          counted from 0 in the part, labels int32 [b], -1 if there are none),
          in order. Rows of unreadable images are missing; an unreadable file
          of records is an error.
        """
        preprocess = views.evaluation(
            self.image_size, channels=self.source.info.float_channels
        )

        def prepare(
            row: tf.Tensor, record: dict[str, tf.Tensor]
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            example = part.decode(record)
            image = preprocess(example["image"])
            if self.extra_channels:
                extra = tf.cast(example["extra"], tf.float32)
                extra = extra[..., : self.extra_channels]
                shape = [*image.shape[:2], self.extra_channels]
                image = tf.concat([image, tf.broadcast_to(extra, shape)], -1)
            label = tf.cast(example.get("label", -1), tf.int32)
            return image, row, label

        def readable(
            rows: tf.Tensor, records: dict[str, tf.Tensor]
        ) -> tf.data.Dataset:
            examples = tf.data.Dataset.from_tensor_slices((rows, records))
            examples = examples.map(
                prepare, tf.data.AUTOTUNE, deterministic=True
            )
            return examples.ignore_errors()

        # Errors are ignored only inside `readable`, where a damaged image is an
        # error of one element. An unreadable file would be an error of every
        # element, and ignored forever.
        records = part.records.enumerate().batch(self.batch_size)
        batches = records.flat_map(readable).batch(self.batch_size)
        return batches.prefetch(tf.data.AUTOTUNE)

    def check_bad(self, bad: Sequence[str]) -> None:
        """Raises `UserError` for more unreadable images than allowed."""
        if len(bad) <= self.max_bad_images:
            return
        raise errors.UserError(
            f"{self.source.info.name}: {len(bad)} images cannot be read"
            f" ({few(bad)}), more than"
            f" {errors.arg('max_bad_images', self.max_bad_images)}: repair or"
            f" remove them, or set a larger {errors.arg('max_bad_images')} to"
            " leave them out"
        )


# ---- Start and end of a job --------------------------------------------------


def begin(job: Job, identity: dict[str, Any]) -> list[Shard]:
    """Returns the shards that do not exist yet.

    Args:
      job: the job.
      identity: further properties that the result depends on, as JSON.

    Raises:
      UserError: if the files are of another job, or cannot be written.
    """
    shards = job.shards()
    files.check_writable(shards[0].path, output_files.ADVICE)
    if not job.shard_size:
        _remove(shards[0].bad_path)  # Of the file that is replaced.
        return shards
    path = job.identity_path
    info, columns = job.source.info, job.source.columns()
    named: list[Any]
    named = [columns[x].tolist() for x in ("label", "path") if x in columns]
    if job.source.decoded:
        named.append(zlib.crc32(columns["image"].tobytes()))
    for name in job.source.files.names if job.source.files else ():
        if tf.io.gfile.exists(name):  # Else reading it is an error.
            stat = tf.io.gfile.stat(name)
            named.append([name, stat.length, stat.mtime_nsec])
    identity = {
        "input": info.name,
        "split": info.split,
        "examples": info.num_examples,
        "content": job.source.content,
        "digest": hashlib.sha256(repr(named).encode()).hexdigest(),
        "shard_size": job.shard_size,
        "format": job.format,
        **identity,
    }
    if tf.io.gfile.exists(path):
        stored = files.read_json(path)
        differing = [
            f"{key} is {stored.get(key)} there, {value} here"
            for key, value in identity.items()
            if value != stored.get(key)
        ]
        if differing:
            raise errors.UserError(
                f"{path} is of another job ({'; '.join(differing)}): set"
                f" another {errors.arg('output')}, or remove its files to start"
                " again"
            )
    else:
        files.write_json(path, identity)
    return [s for s in shards if not tf.io.gfile.exists(s.path)]


def finish(job: Job) -> list[str]:
    """Writes the missing images to one list, `NAME.bad.txt`; returns them.

    Raises:
      UserError: if a shard is gone, or there are too many of them.
    """
    gone = [s.path for s in job.shards() if not tf.io.gfile.exists(s.path)]
    if gone:
        raise errors.UserError(
            f"{gone[0]}, written before, is gone: repeat the command to write"
            f" the {len(gone)} missing file(s)"
        )
    names = list(job.source.info.bad_images)
    for shard in job.shards():
        missing = files.read_json(shard.bad_path, {}, {"missing": [str]})
        names += missing.get("missing", [])
    job.check_bad(names)
    path = f"{job.name}.bad.txt"
    if names:
        files.write(path, "\n".join(names) + "\n")
    else:
        _remove(path)
    if not job.shard_size:
        _remove(job.shards()[0].bad_path)
    return names


def _remove(path: str) -> None:
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


# ---- Shards ------------------------------------------------------------------


def run(
    job: Job, encoder: Callable[..., tf.Tensor], shards: Sequence[Shard]
) -> None:
    """Embeds shard after shard in this process.

    Raises:
      UserError: if too many images cannot be read, or a file cannot be written.
    """
    embedder = embedding.Embedder(encoder)
    total = job.source.info.num_examples
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        embed_shard(job, embedder, shard, part)
        terminal.info(f"{shard.path}: {shard.stop:,} of {total:,} examples")


def embed_shard(
    job: Job,
    embedder: embedding.Embedder,
    shard: Shard,
    part: datasets.Source,
) -> None:
    """Embeds a shard, and writes the list of its missing images and its file.

    Raises:
      UserError: for too many missing images of its examples `part`, or a file
        that changed or cannot be written.
    """
    try:
        size = min(job.batch_size, job.shards()[0].stop)
        batches = list(embedder(job.batches(part), size))
    except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
        reason = datasets.name_unreadable(error) or errors.first_line(error)
        raise errors.UserError(
            f"{job.source.info.name} can no longer be read"
            f" ({reason}): restore the files that changed"
            " since the start, and repeat the command"
        ) from error
    if not batches:  # One image gives the shape of no embeddings.
        side = job.image_size
        channels = job.source.info.channels + job.extra_channels
        zeros = tf.zeros([1, side, side, channels])
        ((h, *_),) = embedder([(zeros,)])
        batches = [(h[:0], np.zeros([0], np.int64), np.zeros([0], np.int32))]
    embeddings, rows, labels = map(np.concatenate, zip(*batches, strict=True))
    paths = part.columns().get("path")
    missing = [
        f"example {shard.start + row}"
        if paths is None
        else tf.compat.as_str(paths[row])
        for row in np.setdiff1d(np.arange(shard.stop - shard.start), rows)
    ]
    job.check_bad(missing)
    if missing:
        files.write_json(shard.bad_path, {"missing": missing})
    else:
        _remove(shard.bad_path)  # Of an attempt that was killed.
    info = job.source.info
    output_files.write(
        shard.path,
        embeddings,
        None if info.num_classes is None else labels,
        info.label_names,
        indices=shard.start + np.asarray(rows, np.int64),
        paths=None if paths is None else np.asarray(paths)[rows],
        format=job.format,
    )
