"""`embed`: writes the embeddings of a dataset, on one machine or on many."""

import functools
import os
from collections.abc import Callable
from typing import ClassVar

from tf_contrastive.base import errors, files, terminal
from tf_contrastive.base.errors import UserError, arg
from tf_contrastive.config import fields
from tf_contrastive.config.checks import check_encoder
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.data import Reading, extra_of_encoder
from tf_contrastive.config.dataset import canonical, path_of
from tf_contrastive.config.embed import Embedding
from tf_contrastive.config.fields import group


class Embed(Command):
    """Write the embeddings of a dataset: npz, TFRecord or Parquet."""

    IS_OF_ONE: ClassVar = True
    COMMON: ClassVar = (
        *("workdir", "saved_model", "input", "data_dir", "split", "output"),
        *("format", "shard_size", "embedding_batch_size", "label_feature"),
        *("max_bad_images", "runner"),
    )

    embedding: Embedding = group(Embedding())
    reading: Reading = group(Reading())
    terminal: Terminal = group(Terminal())

    def _check(self) -> None:
        e = self.embedding
        check_encoder(e, "input")
        if e.runner_options and not e.runner:
            raise UserError(
                f"{arg('runner_options', e.runner_options)} has no effect"
                f" without {arg('runner')}: set it"
            )
        if e.runner and not e.shard_size:
            raise UserError(
                f"{arg('runner', e.runner)} embeds a file after another on its"
                f" workers: set {arg('shard_size')}, such as 10000"
            )


def run(options: Embed) -> int:
    """Embeds a split, in order, and writes it with its labels if it has any."""
    with terminal.without_start_lines():
        from tf_contrastive import datasets, embedding, exporting
        from tf_contrastive.embedding import job as jobs

    settings = options.embedding
    if settings.file_format == "parquet":
        errors.check_package(errors.arg("format", "parquet"), "pyarrow")
    run_on_workers = _engine(settings)
    name, data_dir, reading = _input(options)
    split = settings.split or "test"
    read = functools.partial(
        datasets.source, data_dir=data_dir or None, reading=reading
    )
    try:
        source = read(name, split)
    except errors.AbsentSplitError:
        if settings.split:
            raise
        split = "train"
        source = read(name, split)
    encoder = exporting.load(settings.workdir or settings.saved_model)
    shape = exporting.image_shape(encoder)
    info = source.info
    extra = extra_of_encoder(
        shape[2], info.name, info.channels, info.extra_channels
    )
    features = exporting.num_features(encoder)
    of_tfds = source.arrays is None and not path_of(name)
    job = jobs.Job(
        source,
        shape[0],
        _absolute(settings.output) if settings.runner else settings.output,
        settings.file_format,
        extra,
        settings.embedding_batch_size,
        settings.shard_size,
        options.reading.max_bad_images,
        (name, split, data_dir, reading) if of_tfds else (),
    )
    about = {
        option.name: fields.written(option.value)
        for option in fields.options(reading)
        if option.identity
    }
    shards = jobs.begin(job, about | {"encoder": embedding.checksum(encoder)})
    total = len(job.shards())
    if len(shards) < total:
        terminal.info(
            f"{total - len(shards)} of {total} files are there already"
        )
    export = settings.saved_model and exporting.find(settings.saved_model)
    if not shards or run_on_workers is None:
        jobs.run(job, encoder, shards)
    elif export:
        run_on_workers(job, _absolute(export), shards)
    else:
        # An export next to the output, where workers can read it.
        with files.partial(f"{job.name}.model", True) as folder:
            path = exporting.export(encoder, folder)
            run_on_workers(job, path, shards)
    bad = jobs.finish(job)
    for image in bad:
        terminal.info(f"left out, cannot be read: {image}")
    # The source does not count images that it skipped when it was opened.
    skipped = len(bad) - len(source.info.bad_images)
    written = source.info.num_examples - skipped
    several = f", in {total} files" if settings.shard_size else ""
    print(
        f"{settings.output}: {written} embeddings of {features}"
        f" features{several}"
    )
    return 0


def _engine(settings: Embedding) -> Callable[..., None] | None:
    """Returns what runs a job on workers; None: this process embeds."""
    if not settings.runner:
        return None
    runner = errors.arg("runner", settings.runner)
    if settings.runner == "spark":
        errors.check_package(runner, "pyspark", "spark")
        from tf_contrastive.embedding import spark

        conf = spark.configuration(settings.runner_options)
        return functools.partial(spark.run, conf)
    errors.check_package(runner, "apache_beam", "beam")
    from tf_contrastive.embedding import beam

    pipeline = beam.pipeline(settings.runner, settings.runner_options)
    return functools.partial(beam.run, pipeline)


def _input(options: Embed) -> tuple[str, str, Reading]:
    """Returns name, data_dir and reading of the dataset, by default the run's.

    Paths become absolute, so that workers find them, and a job can be
    resumed from another folder.
    """
    from tf_contrastive import checkpoints

    settings, reading = options.embedding, options.reading
    name, data_dir = settings.input, settings.data_dir
    if settings.workdir:
        run = checkpoints.load_run(settings.workdir).config
        name, data_dir, reading = run.input(name, data_dir, reading)
    data_dir = data_dir and _absolute(os.path.expanduser(data_dir))
    return canonical(name, resolve=False), data_dir, reading


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)
