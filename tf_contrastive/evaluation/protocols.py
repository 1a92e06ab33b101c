"""Named protocols: an encoder and two labelled splits in, accuracies out.

The encoder runs in inference mode only, and a checksum over its weights and
moving statistics before and after says so: a "linear evaluation" that moved the
encoder, or its BatchNorm statistics, measures something else.
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tf_contrastive import config, embedding
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
      learns_from_views: whether `classify` can learn from augmented images,
        whose embeddings it takes as `views`.
    """

    version: int
    classify: Callable[..., dict[str, Any]]
    knobs: Callable[[config.Evaluation], dict[str, Any]]
    learns_from_views: bool = False


PROTOCOLS = {
    "knn": Protocol(1, arrays.knn, lambda o: {"k": o.knn_k}),
    "prototype": Protocol(1, arrays.prototype, lambda o: {}),
    "linear": Protocol(
        1,
        arrays.linear_probe,
        lambda o: {
            "epochs": o.probe_epochs,
            "batch_size": o.probe_batch_size,
            "learning_rate": o.probe_learning_rate,
            "seed": o.seed,
        },
        learns_from_views=True,
    ),
}


def run(
    encoder: Callable,
    train_batches: embedding.Batches,
    test_batches: embedding.Batches,
    protocols: Iterable[str] = tuple(PROTOCOLS),
    *,
    name: str = "trained",
    options: config.Evaluation | None = None,
    views: embedding.Batches | None = None,
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
      views: augmented training images of `options.probe_augmentation`, in
        batches of `options.probe_batch_size`, without end, for the protocols
        that learn from such; None: they learn from `train_batches`, too.
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
    before = embedding.checksum(encoder)
    start = time.monotonic()
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
    results = []
    options = options or config.Evaluation()
    for protocol in protocols:
        embedded = None
        if views is not None and PROTOCOLS[protocol].learns_from_views:
            embedded = embedding.embed_batches(encoder, views)
        results.append(_score(protocol, train, test, embedded, name, options))
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
    views: Iterable | None,
    name: str,
    options: config.Evaluation,
) -> dict[str, Any]:
    """Returns one entry of the results of `run`."""
    chosen = PROTOCOLS[protocol]
    knobs = chosen.knobs(options)
    start = time.monotonic()
    learned_from = {} if views is None else {"views": views}
    scores = chosen.classify(*train, *test, **knobs, **learned_from)
    return {
        "encoder": name,
        "protocol": protocol,
        "version": chosen.version,
        "knobs": knobs,
        "augmentation": options.probe_augmentation if learned_from else "none",
        "top1": scores["top1"],
        "top5": scores.get("top5"),
        "examples": len(test[1]),
        "seconds": round(time.monotonic() - start, 3),
    }
