"""`embed`: writes the embeddings of a dataset, on this machine or on Beam."""

import importlib.util
import os
import uuid
from collections.abc import Callable, Sequence

import tensorflow as tf

from tf_contrastive import (
    checkpoints,
    datasets,
    embedding,
    errors,
    exporting,
    terminal,
)
from tf_contrastive.commands import extensions
from tf_contrastive.config.data import check_encoder_channels
from tf_contrastive.config.embed import Embed, Embedding


def run(options: Embed) -> int:
    """Embeds a split, in order, and writes it with its labels if it has any.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run or export, no such data, too many unreadable
        images, a package that is missing, files of another job, or a file that
        cannot be written.
    """
    extensions.add_papers()
    chosen = options.embedding
    embedding.check_format(chosen.file_format)
    if chosen.runner and importlib.util.find_spec("apache_beam") is None:
        raise errors.UserError(
            f"--runner={chosen.runner} needs apache-beam, which is not"
            " installed: pip install 'tf_contrastive[beam]', or leave --runner"
            " out"
        )
    start = _on_beam(chosen) if chosen.runner else None
    name, data_dir = _input(chosen)
    source = datasets.source(
        name,
        chosen.split,
        data_dir=data_dir or None,
        max_bad_images=chosen.max_bad_images,
    )
    encoder = exporting.load(chosen.workdir or chosen.saved_model)
    size, extra = exporting.image_size(encoder), exporting.extra(encoder)
    check_encoder_channels(extra, source.info.name, source.info.extra_channels)
    features = int(encoder(tf.zeros([1, size, size, 3 + extra])).shape[-1])
    scheme = name.partition(":")[0]
    of_tfds = source.arrays is None and scheme not in datasets.SCHEMES
    job = embedding.Job(
        source,
        size,
        _absolute(chosen.output) if chosen.runner else chosen.output,
        chosen.file_format,
        extra,
        chosen.embedding_batch_size,
        chosen.shard_size,
        chosen.max_bad_images,
        (name, chosen.split, data_dir) if of_tfds else (),
    )
    shards = embedding.begin(job, {"encoder": embedding.checksum(encoder)})
    there = len(job.shards()) - len(shards)
    if there:
        terminal.info(f"{there} of {len(job.shards())} files are there already")
    if shards and start:
        start(job, features, shards)
    else:
        embedding.run(job, encoder, shards, terminal.info)
    _report(chosen, job, features)
    return 0


def _report(chosen: Embedding, job: embedding.Job, features: int):
    """Says what was written, and which images were left out."""
    bad = embedding.finish(job)
    for name in bad:
        terminal.info(f"left out, cannot be read: {name}")
    info = job.source.info
    # What was left out as the source was opened was not counted by it.
    written = info.num_examples - (len(bad) - len(info.bad_images))
    files = f", in {len(job.shards())} files" if chosen.shard_size else ""
    print(
        f"{chosen.output}: {written} embeddings of {features} features{files}"
    )


def _input(chosen: Embedding) -> tuple[str, str]:
    """Name and data_dir of the dataset: those given, or the run's.

    Its paths are absolute, so that Beam's workers find them, and a job is the
    same one from whatever folder it goes on.
    """
    name, data_dir = chosen.input, chosen.data_dir
    if chosen.workdir:
        data = checkpoints.load_run(chosen.workdir).config.data
        name, data_dir = name or data.dataset, data_dir or data.data_dir
    scheme, _, path = name.partition(":")
    if scheme in datasets.SCHEMES:
        name = f"{scheme}:{_absolute(os.path.expanduser(path))}"
    return name, data_dir and _absolute(os.path.expanduser(data_dir))


def _on_beam(chosen: Embedding) -> Callable[..., None]:
    """Makes the function that runs a job on Beam, whose workers load an export.

    Raises:
      UserError: for a runner, or its options, that Beam does not take.
    """
    from tf_contrastive.embedding import beam

    pipeline = beam.pipeline(chosen.runner, chosen.beam_options)

    def start(
        job: embedding.Job, features: int, shards: Sequence[embedding.Shard]
    ) -> None:
        if chosen.saved_model:
            path = _absolute(exporting.find(chosen.saved_model))
            beam.run(pipeline, job, path, features, shards)
            return
        # Beside the output, which the workers can reach.
        folder = f"{job.name}.model-{uuid.uuid4().hex}"
        try:
            path = exporting.export(chosen.workdir, folder)
            beam.run(pipeline, job, path, features, shards)
        finally:
            if tf.io.gfile.exists(folder):
                tf.io.gfile.rmtree(folder)

    return start


def _absolute(path: str) -> str:
    """The path as other processes know it."""
    return path if "://" in path else os.path.abspath(path)
