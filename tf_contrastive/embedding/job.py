"""Bulk embedding: every example of a split, into one file or several.

A job of several files (shards) goes on where it ended: a shard is there whole,
or is made again. `NAME.json` beside them says which job they belong to.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive import checkpoints, datasets, errors, exporting, views
from tf_contrastive.config.embed import EMBEDDING_FORMATS, Embedding
from tf_contrastive.embedding import arrays, files


@dataclasses.dataclass(frozen=True)
class Shard:
    """A file of a job, and which examples it holds.

    Attributes:
      number: from 0.
      path: of its file.
      start, stop: the examples [start, stop) of the split.
    """

    number: int
    path: str
    start: int
    stop: int

    @property
    def bad_path(self) -> str:
        """Where what could not be read of it is listed meanwhile."""
        return f"{self.path}.bad"


@dataclasses.dataclass(frozen=True)
class Job:
    """What is embedded, how, and where it goes.

    Attributes:
      source: the split.
      image_size: side S of the images that the encoder takes.
      output: file, or with a `shard_size` the name that its files' names begin
        with.
      format: one of `config.EMBEDDING_FORMATS`.
      extra_channels: channels of feature `extra` that the encoder takes.
      batch_size: images embedded at a time.
      shard_size: examples of a file; 0: one file of all.
      max_bad_images: images that may be unreadable.
      opener: name, split and data_dir by which another process opens the
        source, if it is of TensorFlow Datasets, whose readers cannot be sent
        there; (): what the source holds is sent.
    """

    source: datasets.Source
    image_size: int
    output: str
    format: str = "npz"
    extra_channels: int = 0
    batch_size: int = Embedding.embedding_batch_size
    shard_size: int = Embedding.shard_size
    max_bad_images: int = Embedding.max_bad_images
    opener: tuple[str, ...] = ()

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

    def batches(self, part: datasets.Source) -> tf.data.Dataset:
        """Makes batches of what can be read of a part of the source, in order.

        Args:
          part: what `source.select` gave.

        Returns:
          `tf.data.Dataset` of (rows int64 [b], counted from 0 in the part,
          images float32 [b, S, S, K], labels int32 [b], -1 where there are
          none). Rows that are missing could not be read; it fails where a file
          of records cannot.
        """
        preprocess = views.evaluation(self.image_size)

        def prepare(row, record):
            example = part.decode(record)
            image = preprocess(example["image"])
            if self.extra_channels:
                image = _with_extra(
                    image, example["extra"], self.extra_channels
                )
            label = tf.cast(example.get("label", -1), tf.int32)
            return row, image, label

        def readable(rows, records):
            made = tf.data.Dataset.from_tensor_slices((rows, records))
            made = made.map(prepare, tf.data.AUTOTUNE, deterministic=True)
            # A damaged image is an error of its own element only.
            return made.ignore_errors()

        # Not so a file that cannot be read: it would be an error of every
        # element, and ignored for ever.
        records = part.records.enumerate().batch(self.batch_size)
        made = records.flat_map(readable).batch(self.batch_size)
        return made.prefetch(tf.data.AUTOTUNE)

    def write(
        self,
        shard: Shard,
        rows: np.ndarray,
        embeddings: np.ndarray,
        labels: np.ndarray,
        paths: np.ndarray | None,
    ) -> None:
        """Writes a shard, and before it the list of what is missing in it.

        Args:
          shard: which.
          rows: int [n], increasing, counted from the shard's start.
          embeddings: float32 [n, D].
          labels: int [n].
          paths: of all examples of the shard, [stop - start]; None: unknown.

        Raises:
          UserError: if it cannot be written.
        """
        info = self.source.info
        if missing := self.missing(shard, rows, paths):
            checkpoints.write_text(shard.bad_path, "\n".join(missing) + "\n")
        files.write(
            shard.path,
            embeddings,
            labels if info.has_labels else None,
            info.label_names,
            indices=shard.start + np.asarray(rows, np.int64),
            paths=None if paths is None else np.asarray(paths)[rows],
            format=self.format,
        )

    @staticmethod
    def missing(
        shard: Shard, rows: np.ndarray, paths: np.ndarray | None
    ) -> list[str]:
        """Names what is not among the rows of a shard; see `write`."""
        all_rows = np.arange(shard.stop - shard.start)
        return [
            f"example {shard.start + row}"
            if paths is None
            else _text(paths[row])
            for row in np.setdiff1d(all_rows, rows)
        ]

    def check_bad(self, bad: Sequence[str]) -> None:
        """Raises `UserError` if more is unreadable than may be."""
        if len(bad) <= self.max_bad_images:
            return
        first = ", ".join(bad[:3]) + (", ..." if len(bad) > 3 else "")
        raise errors.UserError(
            f"{self.source.info.name}: {len(bad)} images cannot be read"
            f" ({first}), and {self.max_bad_images} are allowed: mend or remove"
            " them, or give a larger `max_bad_images` to leave them out"
        )


def _with_extra(image: tf.Tensor, extra: tf.Tensor, channels: int) -> tf.Tensor:
    """Appends extra, [k] or [S, S, k], to an image [S, S, 3], as it is."""
    extra = tf.cast(extra, tf.float32)[..., :channels]
    shape = tf.concat([tf.shape(image)[:-1], [channels]], 0)
    return tf.concat([image, tf.broadcast_to(extra, shape)], -1)


def _text(path: Any) -> str:
    return path.decode() if isinstance(path, bytes) else str(path)


def paths_of(part: datasets.Source) -> np.ndarray | None:
    """The file of each example of a part, where examples are files."""
    if part.arrays is None or "path" not in part.arrays:
        return None
    return part.arrays["path"].numpy()


# ---- Which job the shards are of ---------------------------------------------


def begin(job: Job, identity: dict[str, Any]) -> list[Shard]:
    """Returns the shards that are still to be made.

    Args:
      job: what is to be done.
      identity: what else decides the result, as JSON has it: of the encoder
        and of the data.

    Raises:
      UserError: if the files are those of another job, or cannot be written.
    """
    shards = job.shards()
    files.check_format(job.format)
    files.check_writable(shards[0].path)
    if not job.shard_size:
        # It takes the place of what is there.
        _remove(shards[0].bad_path)
        return shards
    path = f"{job.name}.json"
    info = job.source.info
    wanted = {
        "input": info.name,
        "split": info.split,
        "examples": info.num_examples,
        "shard_size": job.shard_size,
        "format": job.format,
        **identity,
    }
    if tf.io.gfile.exists(path):
        there = checkpoints.read_json(path)
        differing = [
            f"{key} {wanted[key]}, there {there.get(key)}"
            for key in wanted
            if wanted[key] != there.get(key)
        ]
        if differing:
            raise errors.UserError(
                f"{path} is of another job ({'; '.join(differing)}): give"
                " another `output`, or remove its files to start afresh"
            )
    else:
        checkpoints.write_text(path, json.dumps(wanted, indent=2) + "\n")
    return [s for s in shards if not tf.io.gfile.exists(s.path)]


def bad_images(job: Job) -> list[str]:
    """Names what was left out of the shards that are there."""
    found = list(job.source.info.bad_images)
    for shard in job.shards():
        if tf.io.gfile.exists(shard.bad_path):
            with tf.io.gfile.GFile(shard.bad_path) as file:
                found += file.read().splitlines()
    return found


def finish(job: Job) -> list[str]:
    """Gathers what was left out in one list, `NAME.bad.txt`; returns it."""
    found = bad_images(job)
    path = f"{job.name}.bad.txt"
    if found:
        checkpoints.write_text(path, "\n".join(found) + "\n")
    else:
        _remove(path)
    if not job.shard_size:
        _remove(job.shards()[0].bad_path)
    return found


def _remove(path: str) -> None:
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)


# ---- On one machine ----------------------------------------------------------


def run(
    job: Job,
    encoder: Callable,
    shards: list[Shard],
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Embeds shard after shard, and writes each when it is complete.

    Args:
      job: what is to be done.
      encoder: see `arrays.embed`.
      shards: of `begin`.
      say: is told of progress.

    Raises:
      UserError: if too much cannot be read, or a file cannot be written.
    """
    encode = arrays.embedder(encoder)
    total = job.source.info.num_examples
    bad = bad_images(job)
    for shard in shards:
        part = job.source.select(np.arange(shard.start, shard.stop))
        paths = paths_of(part)
        made = [
            (rows.numpy(), encode(images), labels.numpy())
            for rows, images, labels in _read(job, part)
        ]
        if not made:
            made = [_nothing(encoder, encode)]
        columns = [np.concatenate(column) for column in zip(*made, strict=True)]
        bad += job.missing(shard, columns[0], paths)
        job.check_bad(bad)
        job.write(shard, *columns, paths)
        say(f"{shard.path}: {shard.stop:,} of {total:,} examples")


def _read(job: Job, part: datasets.Source) -> Iterator[tuple]:
    try:
        yield from job.batches(part)
    except (tf.errors.NotFoundError, tf.errors.DataLossError) as error:
        reason = (error.message.splitlines() or ["?"])[0]
        raise errors.UserError(
            f"{job.source.info.name} cannot be read any more ({reason}): put"
            " back what was changed since the start, and repeat the command"
        ) from error


def _nothing(
    encoder: Callable, encode: Callable[[tf.Tensor], np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, embeddings and labels of no image."""
    size, extra = exporting.image_size(encoder), exporting.extra(encoder)
    none = np.zeros([0], np.int64)
    return none, encode(tf.zeros([1, size, size, 3 + extra]))[:0], none
