"""Named protocols: from an encoder and two splits to accuracies.

The encoder runs in inference mode only, and a checksum over its weights and
moving statistics before and after every protocol says so: a "linear evaluation"
that moved the encoder, or its BatchNorm statistics, measures something else. A
protocol that trains an encoder trains one of its own (`Subject.fresh`).
"""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any

from tf_contrastive import embedding, errors
from tf_contrastive.config import fields
from tf_contrastive.config.evaluate import Evaluate, evaluate
from tf_contrastive.evaluation import (
    bounds,
    contrastive,
    entries,
    finetune,
    hypersphere,
    logistic,
    prepared,
    probes,
    projected,
    robustness,
    separation,
    transfer,
)
from tf_contrastive.evaluation.entries import Measurement
from tf_contrastive.evaluation.subject import Subject

Recorder = Callable[[Subject, list[dict[str, Any]], list[Measurement]], None]


def needs_nothing(subject: Subject) -> str | None:
    """For protocols that any data will do for."""
    return None


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How a named result is computed.

    A change that can change a result raises `version`, so that results that do
    not compare are not compared. At a scale whose hyperparameters differ from
    the papers', the protocol's version says so.

    Attributes:
      version: counted from 1.
      measure: (subject, **hyperparameters) -> a measurement, a dict that holds
        of the following what there is: "top1", "top5" (fractions); "metrics"
        (name -> number or list); "correct", "correct5" (of each scored
        example: bool, or a fraction of its scores) and "predictions"; "plots"
        (name -> matplotlib Figure); "arrays" (name -> ndarray). What scores
        other examples than the subject's test split adds "labels" (int, of
        those examples) and "dataset" (a name); where top-1 is a mean over
        classes, "per_class" is true.
        Several results of one protocol are {"parts": {variant: measurement}}.
      hyperparameters: options -> the keyword arguments of `measure`, for JSON.
      needs: subject -> None, or one line on what is absent.
    """

    version: int
    measure: Callable[..., Measurement]
    hyperparameters: Callable[[Evaluate], dict[str, Any]]
    needs: Callable[[Subject], str | None] = prepared.needs_labels

    def version_of(self, options: Evaluate) -> str:
        """The version with these options, such as 1 or 1-cpu."""
        scale = options.evaluation.scale
        paper = self.hyperparameters(Evaluate())
        scaled = self.hyperparameters(evaluate(scale=scale)) != paper
        return f"{self.version}-{scale}" if scaled else f"{self.version}"


def _chosen_hyperparameters(options: Evaluate, group: Any) -> dict[str, Any]:
    """A group's hyperparameters, and those of what it chooses."""
    return group.hyperparameters() | {
        "validation_fraction": options.evaluation.validation_fraction,
        "seed": options.evaluation.seed,
    }


def _robustness_hyperparameters(options: Evaluate) -> dict[str, Any]:
    return options.robustness.hyperparameters() | {
        "linear": robustness.linear_hyperparameters(options),
        "seed": options.evaluation.seed,
    }


def hyperparameters_of(name: str) -> Callable[[Evaluate], dict[str, Any]]:
    """The hyperparameters of a protocol that measures representations."""

    def hyperparameters(options: Evaluate) -> dict[str, Any]:
        chosen = options.representation.hyperparameters(name)
        # Nothing is drawn by those without hyperparameters.
        return chosen and chosen | {"seed": options.evaluation.seed}

    return hyperparameters


# The commands add those of `papers.figures`.
PROTOCOLS = {
    "knn": Protocol(
        1,
        probes.knn,
        lambda o: {"k": list(fields.read_counts(o.evaluation.knn_k))},
    ),
    "prototype": Protocol(1, probes.prototype, lambda o: {}),
    "head": Protocol(1, probes.head, lambda o: {}, probes.needs_head),
    "linear": Protocol(
        1, probes.linear, lambda o: _chosen_hyperparameters(o, o.linear)
    ),
    "logistic": Protocol(
        1, logistic.measure, lambda o: _chosen_hyperparameters(o, o.logistic)
    ),
    "finetune": Protocol(
        1,
        finetune.measure,
        lambda o: _chosen_hyperparameters(o, o.finetune),
        finetune.needs,
    ),
    "transfer": Protocol(
        1,
        transfer.measure,
        lambda o: _chosen_hyperparameters(o, o.transfer),
        transfer.needs,
    ),
    "robustness": Protocol(1, robustness.measure, _robustness_hyperparameters),
    "separation": Protocol(
        2, separation.measure, hyperparameters_of("separation")
    ),
    "kl_bound": Protocol(
        1, bounds.measure, hyperparameters_of("kl_bound"), bounds.needs
    ),
    "contrastive": Protocol(
        1,
        contrastive.measure,
        hyperparameters_of("contrastive"),
        projected.needs,
    ),
    "uniformity": Protocol(
        1,
        hypersphere.measure,
        hyperparameters_of("uniformity"),
        needs_nothing,
    ),
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
            raise errors.unknown("protocol", name, [*PROTOCOLS, "all"])
    every = list(PROTOCOLS) if "all" in names else names
    absent = {name: PROTOCOLS[name].needs(subject) for name in every}
    absent = {name: what for name, what in absent.items() if what}
    for name in names:
        if name in absent:
            raise errors.UserError(f"protocol {name}: {absent[name]}")
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
      a protocol, or ""), "version", "scale", "hyperparameters", "top1",
      "top1_interval", "top5", "top5_interval" (95 %, of a bootstrap; None where
      it has none), "metrics", "dataset" (where it is another), "examples"
      (scored), "seconds"}, ...], "left_out": {protocol: what is absent},
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
        hyperparameters = PROTOCOLS[name].hyperparameters(subject.options)
        measured = PROTOCOLS[name].measure(subject, **hyperparameters)
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
            entries.entry(
                subject,
                part,
                protocol=name,
                variant=variant,
                version=PROTOCOLS[name].version_of(subject.options),
                hyperparameters=hyperparameters,
                seconds=seconds / len(parts),
            )
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
