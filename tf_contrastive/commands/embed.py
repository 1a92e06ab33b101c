"""`embed`: writes the embeddings of a dataset to an npz file."""

import sys

from tf_contrastive import (
    checkpoints,
    config,
    datasets,
    embedding,
    exporting,
    views,
)


def run(options: config.Embed) -> int:
    """Embeds a split, in order, and writes it with its labels if it has any.

    Args:
      options: validated.

    Returns:
      0.

    Raises:
      UserError: for no run or export, no such data, too many unreadable
        images, or a file that cannot be written.
    """
    chosen = options.embedding
    name, data_dir = chosen.input, chosen.data_dir
    if chosen.workdir:
        found = checkpoints.load_run(chosen.workdir)
        name = name or found.config.data.dataset
        data_dir = data_dir or found.config.data.data_dir
    source = datasets.source(
        name,
        chosen.split,
        data_dir=data_dir or None,
        max_bad_images=chosen.max_bad_images,
    )
    encoder = exporting.load(chosen.workdir or chosen.saved_model)
    extra = exporting.extra(encoder)
    config.check_encoder_channels(
        extra, source.info.name, source.info.extra_channels
    )
    embedding.check_writable(chosen.output)
    embeddings, labels = embedding.embed(
        encoder,
        datasets.evaluation_batches(
            source,
            views.evaluation(exporting.image_size(encoder)),
            batch_size=chosen.embedding_batch_size,
            extra_channels=extra,
        ),
    )
    embedding.write(
        chosen.output,
        embeddings,
        labels if source.info.has_labels else None,
        source.info.label_names,
    )
    count, size = embeddings.shape
    print(f"{chosen.output}: {count} embeddings of {size} features")
    for bad in source.info.bad_images:
        print(f"left out, cannot be read: {bad}", file=sys.stderr)
    return 0
