"""Named protocols: an encoder and two labelled splits in, accuracies out.

The encoder runs in inference mode only, and a checksum over its weights and
moving statistics before and after says so: a "linear evaluation" that moved the
encoder, or its BatchNorm statistics, measures something else.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tf_contrastive import classifiers, config, embedding
from tf_contrastive.evaluation import arrays


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a named result is computed.

    A change that can change a result raises `version`, so that results that do
    not compare are not compared.

    Attributes:
      version: counted from 1.
      classify: (train embeddings, train labels, test embeddings, test labels,
        **knobs) -> {"top1": ..., "top5" or none: ...}.
      knobs: options -> the keyword arguments of `classify`.
      learns: whether `classify` learns in epochs, of which a `follower` is
        told, and can do so from augmented images, whose embeddings it takes as
        `views`.
    """

    version: int
    classify: Callable[..., dict[str, Any]]
    knobs: Callable[[config.Evaluate], dict[str, Any]]
    learns: bool = False


PROTOCOLS = {
    "knn": Protocol(1, arrays.knn, lambda o: {"k": o.evaluation.knn_k}),
    "prototype": Protocol(1, arrays.prototype, lambda o: {}),
    "linear": Protocol(
        1,
        arrays.linear_probe,
        lambda o: o.linear.knobs() | {"seed": o.evaluation.seed},
        learns=True,
    ),
}


def run(
    encoder: Callable,
    train_batches: embedding.Batches,
    test_batches: embedding.Batches,
    protocols: Iterable[str] = tuple(PROTOCOLS),
    *,
    name: str = "trained",
    options: config.Evaluate | None = None,
    views: Callable[[int], embedding.Batches] | None = None,
    strategy: tf.distribute.Strategy | None = None,
    follower: classifiers.Follower | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Scores a frozen encoder by each of the protocols.

    Args:
      encoder: a Keras model or a loaded export, images float32 [b, S, S, K] in
        [0, 1] -> [b, D].
      train_batches, test_batches: yield (images, labels int [b]).
      protocols: names out of `PROTOCOLS`.
      name: what the results call the encoder.
      options: knobs of the protocols; None: the defaults.
      views: first step -> augmented training images of
        `options.linear.linear_augmentation` from that step on, in batches of
        `options.linear.linear_batch_size`, without end, for the protocols that
        learn from such; None: they learn from `train_batches`, too.
      strategy: whose replicas, of one host, share the images; the encoder was
        made in its scope. None: that of the call.
      follower: is told of every epoch of what learns in epochs.
      say: is told of progress.

    Returns:
      {"results": [{"encoder", "protocol", "version", "knobs", "augmentation"
      (of the images learned from), "top1", "top5" (None where it has none),
      "examples" (scored), "seconds"}, ...],
      "checksum_before", "checksum_after": of the encoder, equal}.

    Raises:
      UserError: for an unknown protocol, no images, no labels, or NaN.
      RuntimeError: if the encoder has changed.
    """
    protocols = list(protocols)
    for protocol in protocols:
        if protocol not in PROTOCOLS:
            raise config.unknown("protocol", protocol, PROTOCOLS)
    strategy = strategy or tf.distribute.get_strategy()
    before = embedding.checksum(encoder)
    start = time.monotonic()
    with strategy.scope():
        train = embedding.embed(encoder, train_batches)
        test = embedding.embed(encoder, test_batches)
    say(
        f"{name} encoder: embedded {len(train[1])} + {len(test[1])} images in"
        f" {time.monotonic() - start:.1f} s"
    )
    if unseen := sorted({*test[1].tolist()} - {*train[1].tolist()}):
        say(
            f"warning: {len(unseen)} classes of the test split have no training"
            f" example and count as missed ({', '.join(map(str, unseen[:10]))})"
        )

    def embedded(step: int) -> Iterable[tuple]:
        with strategy.scope():
            return embedding.embed_batches(encoder, views(step))

    learning = {"views": embedded if views else None, "follower": follower}
    results = []
    options = options or config.Evaluate()
    for protocol in protocols:
        results.append(_score(protocol, train, test, learning, name, options))
        say(f"{name} encoder, {protocol}: {results[-1]['seconds']:.1f} s")
    after = embedding.checksum(encoder)
    if after != before:
        raise RuntimeError(
            f"the encoder changed while it was evaluated ({before[:12]} ->"
            f" {after[:12]}): these results say nothing of it"
        )
    return {
        "results": results,
        "checksum_before": before,
        "checksum_after": after,
    }


def _score(
    protocol: str,
    train: Sequence,
    test: Sequence,
    learning: dict[str, Any],
    name: str,
    options: config.Evaluate,
) -> dict[str, Any]:
    """Returns one entry of the results of `run`."""
    chosen = PROTOCOLS[protocol]
    knobs = chosen.knobs(options)
    start = time.monotonic()
    learning = learning if chosen.learns else {}
    scores = chosen.classify(*train, *test, **knobs, **learning)
    augmented = learning.get("views") is not None
    return {
        "encoder": name,
        "protocol": protocol,
        "version": chosen.version,
        "knobs": knobs,
        "augmentation": options.linear.linear_augmentation
        if augmented
        else "none",
        "top1": scores["top1"],
        "top5": scores.get("top5"),
        "examples": len(test[1]),
        "seconds": round(time.monotonic() - start, 3),
    }
