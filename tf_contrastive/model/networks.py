"""Networks and model of a resolved run, and Keras' precision."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from tf_contrastive import encoders, heads, losses
from tf_contrastive.base import errors
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model.contrastive_model import ContrastiveModel


@contextlib.contextmanager
def precision(policy: str) -> Iterator[None]:
    """Sets Keras' precision policy for the layers created inside."""
    before = tf.keras.mixed_precision.global_policy()
    tf.keras.mixed_precision.set_global_policy(policy)
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def build_encoder(
    run: Pretrain,
    *,
    synchronized: bool = True,
    untrained: bool = False,
) -> tf.keras.Model:
    """Creates the encoder of a resolved run, with weights from its seed.

    `untrained`: whether it stays so, and takes the options for that.
    """
    options = run.encoder.arguments()
    if untrained:
        options |= run.encoder.untrained
    # Created first after seeding, so that its weights depend on the seed only.
    tf.keras.utils.set_random_seed(run.runtime.seed)
    side = run.views.side
    statistics = channel_statistics(run.setup.standardize)
    return encoders.build(
        run.encoder.label,
        image_shape=(side, side, run.channels),
        synchronized=synchronized,
        mean=statistics.mean,
        std=statistics.std,
        **options,
    )


def build_head(run: Pretrain, num_classes: int | None) -> tf.keras.layers.Layer:
    """Creates the projection head of a resolved run.

    Raises:
      UserError: for cross entropy without classes.
    """
    if run.loss.takes_logits:
        if not num_classes:
            raise errors.UserError(
                f"loss={run.loss.label} needs classes, and {run.data.dataset}"
                " has none: use a labelled dataset"
            )
        # Logits instead of projections.
        return heads.LinearProbe(
            num_classes,
            kernel_initializer="glorot_uniform",
            normalize_input=run.setup.l2_normalize_features,
            name="projection",
        )
    return heads.build(
        run.projection.label,
        normalize_input=run.setup.l2_normalize_features,
        **run.projection.arguments(),
    )


def build_model(run: Pretrain, num_classes: int | None) -> ContrastiveModel:
    """Returns the model of a resolved run, with weights drawn from its seed.

    `num_classes` is None for data without labels, which get no probe.

    Raises:
      UserError: for cross entropy without classes.
    """
    return ContrastiveModel(
        build_encoder(run),
        build_head(run, num_classes),
        losses.build(run.loss.label, **run.loss.arguments()),
        **ContrastiveModel.arguments_of_run(run, num_classes),
    )
