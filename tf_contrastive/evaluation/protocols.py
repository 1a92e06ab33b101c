"""Named protocols: from an encoder and two splits to accuracies.

The encoder runs in inference mode only, and a checksum over its weights and
moving statistics before and after every protocol says so: a "linear evaluation"
that moved the encoder, or its BatchNorm statistics, measures something else. A
protocol that trains an encoder trains one of its own (`Subject.fresh`).
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_contrastive import classifiers, config, embedding
from tf_contrastive.evaluation import (
    arrays,
    bounds,
    finetune,
    kmeans,
    logistic,
    prepared,
    projected,
    representation,
    robustness,
    separation,
    statistics,
    transfer,
    transforms,
    tsne,
)
from tf_contrastive.evaluation.subject import Subject

Measurement = dict[str, Any]
Recorder = Callable[[Subject, list[dict[str, Any]], list[Measurement]], None]


def needs_nothing(subject: Subject) -> str | None:
    """For protocols that any data will do for."""
    return None


def _needs_spectrum(subject: Subject) -> str | None:
    if subject.run is None:
        return (
            "an export does not say of what kind its projection head is: give"
            " the --workdir of a run"
        )
    return representation.needs_spectrum(subject)


def _needs_head(subject: Subject) -> str | None:
    if subject.classifier is None:
        return (
            "only a run of --loss=cross_entropy has a classifier of its own:"
            " give its --workdir, or --protocols=linear, which trains one"
        )
    if absent := prepared.needs_labels(subject):
        return absent
    info = subject.test.info
    if subject.classifier.units != info.num_classes:
        return (
            f"the run's classifier knows {subject.classifier.units} classes and"
            f" {info.name} has {info.num_classes}: give the dataset that it was"
            " trained on"
        )
    return None


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a named result is computed.

    A change that can change a result raises `version`, so that results that do
    not compare are not compared. At a scale at which a protocol has other knobs
    than the papers', its version says so.

    Attributes:
      version: counted from 1.
      measure: (subject, **knobs) -> a measurement, a dict that holds of the
        following what there is: "top1", "top5" (fractions); "metrics" (name ->
        number or list); "correct", "correct5" (of each example that is scored:
        bool, or a share of its scores) and "predictions"; "plots" (name ->
        matplotlib Figure); "arrays" (name -> ndarray). What scores other
        examples than the subject's test split adds "labels" (int, of those
        examples) and "dataset" (a name); where top-1 is a mean over classes,
        "per_class" is true.
        Several results of one protocol are {"parts": {variant: measurement}}.
      knobs: options -> the keyword arguments of `measure`, for JSON.
      needs: subject -> None, or one line on what is absent.
    """

    version: int
    measure: Callable[..., Measurement]
    knobs: Callable[[config.Evaluate], dict[str, Any]]
    needs: Callable[[Subject], str | None] = prepared.needs_labels

    def version_of(self, options: config.Evaluate) -> str:
        """The version with these options, such as 1 or 1-cpu."""
        scale = options.evaluation.scale
        paper = self.knobs(config.Evaluate())
        scaled = self.knobs(config.evaluate(scale=scale)) != paper
        return f"{self.version}-{scale}" if scaled else f"{self.version}"


# ---- Classifiers on embeddings ----------------------------------------------


def _classified(scores: dict[str, Any], labels: np.ndarray) -> Measurement:
    """A measurement of what `arrays` return."""
    return {**scores, "correct": scores["predictions"] == labels}


def _knn(subject: Subject, k: Sequence[int]) -> Measurement:
    train, train_labels, test, labels = subject.arrays()
    found = classifiers.knn(train, train_labels, test, k)
    return {
        "parts": {
            f"k={count}": {
                "top1": float((predictions == labels).mean()),
                "predictions": predictions,
                "correct": predictions == labels,
            }
            for count, predictions in zip(k, found, strict=True)
        }
    }


def _prototype(subject: Subject) -> Measurement:
    four = subject.arrays()
    return _classified(arrays.prototype(*four), four[-1])


def _head(subject: Subject) -> Measurement:
    """The classifier that the run itself has trained: cross entropy's."""
    logits, labels = subject.logits("test")
    scores = classifiers.Scores(logits, np.arange(logits.shape[1]))
    return _classified(arrays.accuracies(scores, labels), labels)


def _linear(
    subject: Subject,
    *,
    augmentation: str,
    learning_rates: Sequence[float],
    validation_share: float,
    **knobs: Any,
) -> Measurement:
    """Softmax regression, on embeddings made once or on fresh views.

    Args:
      subject: whose encoder.
      augmentation: policy of the images learned from; "none": as they are.
      learning_rates: to choose from on a part of train; empty: none.
      validation_share: what part.
      **knobs: of `arrays.linear_probe`.
    """

    def views_of(rows: np.ndarray | None) -> Callable | None:
        if augmentation == "none":
            return None
        return lambda step: subject.embed_batches(
            subject.stream(
                augmentation,
                batch_size=knobs["batch_size"],
                rows=rows,
                seed=knobs["seed"],
                start_step=step,
            )
        )

    train, train_labels, test, labels = subject.arrays()
    chosen = {}
    if learning_rates:
        fit, held = subject.holdout(train_labels, validation_share)
        split = (train[fit], train_labels[fit], train[held], train_labels[held])
        scored = [
            _top1_at(rate, split, knobs, views_of(fit))
            for rate in learning_rates
        ]
        if max(scored) < 0:
            raise config.UserError(
                "the linear classifier diverged at every learning rate: give"
                " lower ones (--linear_learning_rates)"
            )
        best = learning_rates[int(np.argmax(scored))]
        knobs["learning_rate"] = best
        chosen = {"learning_rate": best, "validation_top1": scored}
    scores = arrays.linear_probe(
        train,
        train_labels,
        test,
        labels,
        **knobs,
        views=views_of(None),
        follower=subject.follower,
    )
    measured = _classified(scores, labels)
    return {**measured, "metrics": {"loss": scores["loss"], **chosen}}


def _top1_at(
    rate: float, split: tuple, knobs: dict[str, Any], views: Callable | None
) -> float:
    """Accuracy with a learning rate; -1 where it diverges."""
    options = {**knobs, "learning_rate": rate}
    try:
        return arrays.linear_probe(*split, **options, views=views)["top1"]
    except config.UserError as error:
        if "diverged" not in str(error):
            raise
        return -1.0


def _chosen_knobs(options: config.Evaluate, group: Any) -> dict[str, Any]:
    """The knobs of a group of options, and those of what it chooses."""
    return group.knobs() | {
        "validation_share": options.evaluation.validation_share,
        "seed": options.evaluation.seed,
    }


def _robustness_knobs(options: config.Evaluate) -> dict[str, Any]:
    return options.robustness.knobs() | {
        "linear": robustness.linear_knobs(options),
        "seed": options.evaluation.seed,
    }


def _knobs(name: str) -> Callable[[config.Evaluate], dict[str, Any]]:
    """The knobs of a protocol that looks at representations themselves."""

    def knobs(options: config.Evaluate) -> dict[str, Any]:
        chosen = options.representation.knobs(name)
        # Nothing is drawn by those without knobs.
        return chosen and chosen | {"seed": options.evaluation.seed}

    return knobs


PROTOCOLS = {
    "knn": Protocol(
        1,
        _knn,
        lambda o: {"k": list(config.read_counts(o.evaluation.knn_k))},
    ),
    "prototype": Protocol(1, _prototype, lambda o: {}),
    "head": Protocol(1, _head, lambda o: {}, _needs_head),
    "linear": Protocol(1, _linear, lambda o: _chosen_knobs(o, o.linear)),
    "logistic": Protocol(
        1, logistic.measure, lambda o: _chosen_knobs(o, o.logistic)
    ),
    "finetune": Protocol(
        1,
        finetune.measure,
        lambda o: _chosen_knobs(o, o.finetune),
        finetune.needs,
    ),
    "transfer": Protocol(
        1,
        transfer.measure,
        lambda o: _chosen_knobs(o, o.transfer),
        transfer.needs,
    ),
    "robustness": Protocol(1, robustness.measure, _robustness_knobs),
    "separation": Protocol(2, separation.measure, _knobs("separation")),
    "kl_bound": Protocol(1, bounds.measure, _knobs("kl_bound"), bounds.needs),
    "contrastive": Protocol(
        1,
        representation.measure_contrastive,
        _knobs("contrastive"),
        projected.needs,
    ),
    "uniformity": Protocol(
        1,
        representation.measure_uniformity,
        _knobs("uniformity"),
        needs_nothing,
    ),
    "spectrum": Protocol(
        1,
        representation.measure_spectrum,
        _knobs("spectrum"),
        _needs_spectrum,
    ),
    "transforms": Protocol(
        1, transforms.measure, _knobs("transforms"), transforms.needs
    ),
    "tsne": Protocol(1, tsne.measure, _knobs("tsne"), tsne.needs),
    "kmeans": Protocol(1, kmeans.measure, _knobs("kmeans"), kmeans.needs),
}


# ---- Running them ------------------------------------------------------------


def choose(
    subject: Subject, names: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Finds the protocols whose data are there.

    Args:
      subject: what is to be measured.
      names: of `PROTOCOLS`, or "all".

    Returns:
      (names in order, each once; name -> what is absent, of those that "all"
      leaves out).

    Raises:
      UserError: for an unknown name, or one whose data are absent.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name != "all" and name not in PROTOCOLS:
            raise config.unknown("protocol", name, [*PROTOCOLS, "all"])
    every = list(PROTOCOLS) if "all" in names else names
    absent = {name: PROTOCOLS[name].needs(subject) for name in every}
    absent = {name: what for name, what in absent.items() if what}
    for name in names:
        if name in absent:
            raise config.UserError(f"protocol {name}: {absent[name]}")
    return [name for name in every if name not in absent], absent


def run(
    subject: Subject,
    names: Iterable[str] = tuple(PROTOCOLS),
    *,
    record: Recorder = lambda subject, rows, parts: None,
) -> dict[str, Any]:
    """Measures a frozen encoder by each of the protocols.

    Args:
      subject: the encoder and its data.
      names: of `PROTOCOLS`, or "all".
      record: is told of each protocol: (subject, rows of the results,
        measurements that they are of).

    Returns:
      {"results": [{"encoder", "protocol", "variant" (one of several results of
      a protocol, or ""), "version", "scale", "knobs", "top1", "top1_interval",
      "top5", "top5_interval" (95 %, of a bootstrap; None where it has none),
      "metrics", "dataset" (where it is another), "examples" (scored),
      "seconds"}, ...], "left_out": {protocol: what is absent},
      "checksum_before", "checksum_after": of the encoder, equal}.

    Raises:
      UserError: for an unknown protocol, absent data, no images, or NaN.
      RuntimeError: if the encoder has changed.
    """
    chosen, absent = choose(subject, names)
    before = embedding.checksum(subject.encoder)
    results = []
    for name in chosen:
        start = time.monotonic()
        knobs = PROTOCOLS[name].knobs(subject.options)
        measured = PROTOCOLS[name].measure(subject, **knobs)
        seconds = time.monotonic() - start
        after = embedding.checksum(subject.encoder)
        if after != before:
            raise RuntimeError(
                f"the encoder changed while it was evaluated ({before[:12]} ->"
                f" {after[:12]}, protocol {name}): these results say nothing"
                " of it"
            )
        parts = measured.get("parts", {"": measured})
        rows = [
            _row(subject, name, variant, knobs, part, seconds / len(parts))
            for variant, part in parts.items()
        ]
        results += rows
        record(subject, rows, list(parts.values()))
        subject.say(f"{subject.name} encoder, {name}: {seconds:.1f} s")
    return {
        "results": results,
        "left_out": absent,
        "checksum_before": before,
        "checksum_after": before,
    }


def _row(
    subject: Subject,
    name: str,
    variant: str,
    knobs: dict[str, Any],
    part: Measurement,
    seconds: float,
) -> dict[str, Any]:
    """Returns one entry of the results of `run`."""
    correct = part.get("correct")
    scored = correct if correct is not None else part.get("labels")
    row = {
        "encoder": subject.name,
        "protocol": name,
        "variant": variant,
        "version": PROTOCOLS[name].version_of(subject.options),
        "scale": subject.options.evaluation.scale,
        "knobs": knobs,
        "top1": part.get("top1"),
        "top1_interval": _interval(
            correct, labels_of(subject, part) if part.get("per_class") else None
        ),
        "top5": part.get("top5"),
        "top5_interval": _interval(part.get("correct5")),
        "metrics": part.get("metrics", {}),
        "examples": subject.test.info.num_examples
        if scored is None
        else len(scored),
        "seconds": round(seconds, 3),
    }
    if "dataset" in part:
        row["dataset"] = part["dataset"]
    return plain(row)


def labels_of(subject: Subject, part: Measurement) -> np.ndarray:
    """The labels of the examples that a measurement scored."""
    labels = part.get("labels")
    return subject.embeddings("test")[1] if labels is None else labels


def _interval(
    correct: np.ndarray | None, labels: np.ndarray | None = None
) -> list[float] | None:
    """The 95 % interval of a share of hits, or of its mean over classes."""
    return None if correct is None else statistics.interval(correct, labels)


def plain(value: Any) -> Any:
    """Returns `value` with NumPy's numbers and arrays as JSON has them."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
