"""Opens what is evaluated: the encoder of a run, or of an export."""

from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting
from tf_contrastive.config.evaluate import Evaluate
from tf_contrastive.evaluation.subject import Subject


def of_run(
    found: checkpoints.Run,
    train: datasets.Source,
    test: datasets.Source,
    options: Evaluate | None = None,
    *,
    trained: bool = True,
    strategy: tf.distribute.Strategy | None = None,
    **others: Any,
) -> Subject:
    """The encoder of a run, or an untrained one of the same kind.

    Args:
      found: of `checkpoints.load_run`.
      train, test, options, strategy, **others: see `Subject`.
      trained: the checkpoint's weights; False: random ones.
    """
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder = checkpoints.load_encoder(found, trained=trained)
        features = encoder.output_shape[-1]
        projection = checkpoints.load_projection(
            found, features, trained=trained
        )
        classifier = checkpoints.load_classifier(
            found, features, trained=trained
        )

    def fresh(again: bool) -> tf.keras.Model:
        # Not from the checkpoint, which may be deleted meanwhile.
        made = checkpoints.load_encoder(found, trained=False, synchronized=True)
        if again:
            made.set_weights(encoder.get_weights())
        return made

    return Subject(
        encoder,
        train,
        test,
        options,
        name="trained" if trained else "untrained",
        run=found.config,
        projection=projection,
        classifier=classifier,
        fresh=fresh,
        strategy=strategy,
        **others,
    )


def of_export(
    path: str,
    train: datasets.Source,
    test: datasets.Source,
    options: Evaluate | None = None,
    **others: Any,
) -> Subject:
    """The encoder of an export.

    Args:
      path: of `exporting.load`.
      train, test, options, **others: see `Subject`.
    """
    encoder = exporting.load(path)
    projection = None
    if hasattr(encoder, "projection"):

        def projection(h: tf.Tensor, training: bool = False) -> tf.Tensor:
            return encoder.projection(h)

    return Subject(
        encoder,
        train,
        test,
        options,
        projection=projection,
        fresh=lambda trained: exporting.load(path) if trained else None,
        **others,
    )
