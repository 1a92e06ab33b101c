"""Named protocols: from an encoder and two splits to accuracies.

Protocols run the encoder in inference mode only. A checksum over its weights
and moving statistics before and after each protocol verifies that they did not
change. A protocol that trains an encoder trains a copy
(`Subject.new_encoder`).
"""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tf_contrastive import embedding, errors
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate, Evaluation, evaluate
from tf_contrastive.evaluation import (
    classification,
    finetune,
    hypersphere,
    kmeans,
    logistic,
    projections,
    robustness,
    separation,
    spectra,
    transfer,
    transformations,
    tsne,
    view_embeddings,
)
from tf_contrastive.evaluation.context import EvaluationContext, missing_labels
from tf_contrastive.evaluation.results import Measurement, result_row

Recorder = Callable[
    [EvaluationContext, list[dict[str, Any]], list[Measurement]], None
]


@dataclasses.dataclass(frozen=True)
class Protocol:
    """Definition of a named result.

    A change of the code that can change results increases `version`, counted
    from 1, so that incomparable results are not compared. If a scale has other
    hyperparameters than the papers', the protocol's version includes the scale.
    """

    version: int
    # (context, **hyperparameters) -> measurement, or an iterator of (variant,
    # measurement), each yielded as soon as it is there.
    measure: Callable[..., Measurement | Iterator[tuple[str, Measurement]]]
    # Options -> the keyword arguments of `measure`, for JSON.
    hyperparameters: Callable[[Evaluate], dict[str, Any]]
    # Context -> what is missing, in one line, or None.
    needs: Callable[[EvaluationContext], str | None] = missing_labels

    def version_of(self, options: Evaluate) -> str:
        """Returns the version with these options, such as 1 or 1-cpu."""
        scale = options.evaluation.scale
        paper = self.hyperparameters(Evaluate())
        scaled = self.hyperparameters(evaluate(scale=scale)) != paper
        return f"{self.version}-{scale}" if scaled else f"{self.version}"

    def recorded(self, options: Evaluate) -> dict[str, Any]:
        """Returns the hyperparameters, and the preprocessing if it was set."""
        preprocessing = options.evaluation.preprocessing
        chosen = {"preprocessing": preprocessing}
        return self.hyperparameters(options) | (
            chosen if preprocessing != Evaluation.preprocessing else {}
        )


def _selected(name: str) -> Callable[[Evaluate], dict[str, Any]]:
    """Returns the `hyperparameters` of a protocol that selects some of them."""

    def hyperparameters(options: Evaluate) -> dict[str, Any]:
        return getattr(options, name).hyperparameters() | {
            "validation_fraction": options.evaluation.validation_fraction,
            "seed": options.evaluation.seed,
        }

    return hyperparameters


def _features(options: Evaluate) -> dict[str, Any]:
    """Returns the features to classify, if they are not h alone."""
    names = fields.split_list(options.evaluation.features)
    return {} if names == ["h"] else {"features": names}


def _representation(name: str) -> Callable[[Evaluate], dict[str, Any]]:
    """Returns the `hyperparameters` of a protocol of `representation`."""

    def hyperparameters(options: Evaluate) -> dict[str, Any]:
        values = options.representation.hyperparameters_of(name)
        # A protocol without hyperparameters draws nothing.
        return values and values | {"seed": options.evaluation.seed}

    return hyperparameters


PROTOCOLS = {
    "knn": Protocol(
        1,
        classification.measure_knn,
        lambda o: (
            {"k": list(fields.read_counts(o.evaluation.knn_k))} | _features(o)
        ),
        classification.needs_features,
    ),
    "prototype": Protocol(1, classification.measure_prototype, lambda o: {}),
    "head": Protocol(
        1, classification.measure_head, lambda o: {}, classification.needs_head
    ),
    "linear": Protocol(
        1,
        classification.measure_linear,
        lambda o: _selected("linear")(o) | _features(o),
        classification.needs_features,
    ),
    "logistic": Protocol(1, logistic.measure, _selected("logistic")),
    "finetune": Protocol(
        1, finetune.measure, _selected("finetune"), finetune.needs
    ),
    "transfer": Protocol(
        2, transfer.measure, _selected("transfer"), transfer.needs
    ),
    "robustness": Protocol(
        3,
        robustness.measure,
        lambda o: (
            o.robustness.hyperparameters()
            | {
                "linear": robustness.linear_hyperparameters(o),
                "seed": o.evaluation.seed,
            }
        ),
        robustness.needs,
    ),
    "separation": Protocol(
        2, separation.measure, _representation("separation")
    ),
    "kl_bound": Protocol(
        1,
        projections.measure_kl,
        _representation("kl_bound"),
        projections.needs_kl,
    ),
    "contrastive": Protocol(
        1,
        projections.measure_task,
        _representation("contrastive"),
        view_embeddings.missing_projections,
    ),
    "uniformity": Protocol(
        1,
        hypersphere.measure,
        _representation("uniformity"),
        lambda context: None,
    ),
    "spectrum": Protocol(
        1, spectra.measure, _representation("spectrum"), spectra.needs
    ),
    "transforms": Protocol(
        1,
        transformations.measure,
        _representation("transforms"),
        transformations.needs,
    ),
    "tsne": Protocol(1, tsne.measure, _representation("tsne"), tsne.needs),
    "kmeans": Protocol(
        1, kmeans.measure, _representation("kmeans"), lambda context: None
    ),
}


# ---- Running them ------------------------------------------------------------


def select(
    context: EvaluationContext, names: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Selects the protocols whose data are available, out of names or "all".

    Returns:
      (names in order, each once; name -> what is missing, for the protocols
      that "all" leaves out).

    Raises:
      UserError: for an unknown name, or one whose data are missing.
    """
    names = list(dict.fromkeys(names))
    for name in names:
        if name != "all" and name not in PROTOCOLS:
            raise errors.unknown("protocol", name, [*PROTOCOLS, "all"])
    candidates = list(PROTOCOLS) if "all" in names else names
    missing = {}
    for name in candidates:
        if reason := PROTOCOLS[name].needs(context):
            if name in names:
                raise errors.UserError(f"protocol {name}: {reason}")
            missing[name] = errors.plain(reason)
    return [name for name in candidates if name not in missing], missing


def run(
    context: EvaluationContext,
    names: Iterable[str] = tuple(PROTOCOLS),
    *,
    record: Recorder = lambda context, rows, parts: None,
) -> dict[str, Any]:
    """Measures a frozen encoder by each of the protocols, or by "all".

    `record` is called with the rows and measurements of each protocol, and of
    each variant of those that yield them.

    Returns:
      {"results": [{"encoder", "protocol", "variant" (one of several results of
      a protocol, or ""), "version", "scale", "hyperparameters", "top1",
      "top1_interval", "top5", "top5_interval" (95 %, by a bootstrap; None
      without one), "metrics", "dataset" (if it is another), "examples"
      (scored), "seconds"}, ...], "left_out": {protocol: what is missing},
      "checksum_before", "checksum_after": of the encoder, equal}.

    Raises:
      UserError: for an unknown protocol, missing data, no images, or NaN.
      RuntimeError: if a protocol changed the encoder.
      DivergedError: after the last protocol, if the training of some diverged.
    """
    selected, missing = select(context, names)
    before = embedding.checksum(context.subject.encoder)
    results = []
    diverged = []
    for name in selected:
        protocol = PROTOCOLS[name]
        facts = {
            "protocol": name,
            "variant": "",
            "version": protocol.version_of(context.options),
            "scale": context.options.evaluation.scale,
            "hyperparameters": protocol.recorded(context.options),
        }
        begin = start = time.monotonic()
        try:
            for parts in _parts(protocol, context):
                seconds = (time.monotonic() - start) / len(parts)
                after = embedding.checksum(context.subject.encoder)
                if after != before:
                    raise RuntimeError(
                        "the encoder changed while it was evaluated"
                        f" ({before[:12]} -> {after[:12]}, protocol {name}):"
                        " its results are invalid"
                    )
                rows = [
                    result_row(
                        context, facts | {"variant": variant}, part, seconds
                    )
                    for variant, part in parts.items()
                ]
                results += rows
                record(context, rows, list(parts.values()))
                start = time.monotonic()
        except errors.DivergedError as error:
            diverged.append(f"{name}: {error.marked}")
        seconds = time.monotonic() - begin
        context.log(f"{context.subject.name} encoder, {name}: {seconds:.1f} s")
    if diverged:
        raise errors.DivergedError("; ".join(diverged))
    return {
        "results": results,
        "left_out": missing,
        "checksum_before": before,
        "checksum_after": before,
    }


def _parts(
    protocol: Protocol, context: EvaluationContext
) -> Iterator[dict[str, Measurement]]:
    """Yields a protocol's measurements by variant, as they come."""
    measured = protocol.measure(
        context, **protocol.hyperparameters(context.options)
    )
    if isinstance(measured, Iterator):
        for variant, part in measured:
            yield {variant: part}
    else:
        yield measured.get("parts", {"": measured})
