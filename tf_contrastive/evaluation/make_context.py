"""Evaluation contexts of a run's encoder and of an export's."""

from typing import Any

import tensorflow as tf

from tf_contrastive import checkpoints, datasets, exporting
from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.data import Data
from tf_contrastive.evaluation.subject import Subject


def from_run(
    run: checkpoints.Run,
    train: datasets.Source,
    test: datasets.Source,
    options: Scoring | None = None,
    *,
    trained: bool = True,
    strategy: tf.distribute.Strategy | None = None,
    **arguments: Any,
) -> EvaluationContext:
    """Loads a run's encoder, or an untrained one of the same kind.

    Other arguments: see `EvaluationContext`.
    """
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder = checkpoints.load_encoder(run, trained=trained)
        features = encoder.output_shape[-1]
        projection, classifier = checkpoints.load_heads(
            run, features, trained=trained
        )

    def make_encoder(with_weights: bool) -> tf.keras.Model:
        # Weights from memory: the checkpoint may be deleted in the meantime.
        copy = checkpoints.load_encoder(run, trained=False, synchronized=True)
        if with_weights:
            copy.set_weights(encoder.get_weights())
        return copy

    subject = Subject(
        encoder,
        name="trained" if trained else "untrained",
        run=run.config,
        projection=projection,
        classifier=classifier,
        make_encoder=make_encoder,
        strategy=strategy,
    )
    data = Data(train.labelled(), test.labelled())
    return EvaluationContext(subject, data, options or Scoring(), **arguments)


def from_export(
    path: str,
    train: datasets.Source,
    test: datasets.Source,
    options: Scoring | None = None,
    *,
    strategy: tf.distribute.Strategy | None = None,
    **arguments: Any,
) -> EvaluationContext:
    """Loads the encoder of `exporting.load(path)`; see `EvaluationContext`."""
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        encoder: Any = exporting.load(path)
    subject = Subject(
        encoder,
        projection=(
            (lambda h, training=False: encoder.projection(h))
            if hasattr(encoder, "projection")
            else None
        ),
        make_encoder=lambda trained: exporting.load(path) if trained else None,
        strategy=strategy,
    )
    data = Data(train.labelled(), test.labelled())
    return EvaluationContext(subject, data, options or Scoring(), **arguments)
