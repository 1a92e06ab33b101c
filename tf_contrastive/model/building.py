"""The model of a resolved config: encoder, head, loss, probe."""

import contextlib
from collections.abc import Callable, Iterator

import tensorflow as tf

from tf_contrastive import encoders, errors, heads, losses
from tf_contrastive.config.data import channel_statistics
from tf_contrastive.config.pretrain import Pretrain
from tf_contrastive.model.contrastive import ContrastiveModel


@contextlib.contextmanager
def precision(policy: str) -> Iterator[None]:
    """Makes layers built inside follow a Keras precision policy."""
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
    zero_init_residual: bool = True,
) -> tf.keras.Model:
    """Makes the encoder of a resolved config, with weights from its seed."""
    # Made first after seeding, so that its weights follow from the seed alone.
    tf.keras.utils.set_random_seed(run.runtime.seed)
    side = run.views.image_size
    statistics = channel_statistics(run.encoder.standardize)
    return encoders.build(
        run.encoder.encoder,
        width=run.encoder.width,
        stem=run.encoder.stem,
        image_shape=(side, side, 3 + max(run.data.extra_channels, 0)),
        synchronized=synchronized,
        mean=statistics.mean,
        std=statistics.std,
        zero_init_residual=zero_init_residual,
    )


def build_head(run: Pretrain, num_classes: int | None) -> tf.keras.layers.Layer:
    """Makes the projection head of a resolved config.

    Raises:
      UserError: for cross entropy without classes.
    """
    if run.loss.loss == "cross_entropy":
        if not num_classes:
            raise errors.UserError(
                f"loss=cross_entropy needs classes, and {run.data.dataset}"
                " has none: give a labelled dataset"
            )
        # Its logits take the place of projections.
        return heads.LinearProbe(
            num_classes, kernel_initializer="glorot_uniform", name="projection"
        )
    projection = run.projection
    return heads.build(
        projection.projection,
        layers=projection.projection_layers,
        hidden=projection.projection_hidden,
        output=projection.projection_output,
        batch_norm=projection.projection_batch_norm,
    )


def build(
    run: Pretrain,
    num_classes: int | None,
    augment: Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None = None,
    mix: Callable[..., tuple[tf.Tensor, tf.Tensor]] | None = None,
) -> ContrastiveModel:
    """Makes the model of a resolved config, to be compiled.

    Args:
      run: the config, in which `auto` has been resolved.
      num_classes: classes of the probe; None for data without labels.
      augment, mix: see `ContrastiveModel`.
    """
    encoder = build_encoder(run)
    head = build_head(run, num_classes)
    loss = losses.build(run.loss.loss, **run.loss.options())
    probe = None
    if run.probe.probe and num_classes:
        probe = heads.LinearProbe(num_classes)
    of_loss = {}
    if run.loss.loss == "moco":
        of_loss["momentum"] = run.loss.key_momentum
        of_loss["queue_size"] = run.loss.queue_size
    return ContrastiveModel(
        encoder,
        head,
        loss,
        probe,
        grad_cache_chunks=run.loss.grad_cache_chunks,
        augment=augment,
        mix=mix,
        online_knn_size=run.probe.online_knn_size if num_classes else 0,
        seed=run.runtime.seed,
        **of_loss,
    )
