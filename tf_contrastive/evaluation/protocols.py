"""Runs named protocols: from an encoder and two splits to accuracies.

Protocols run the encoder in inference mode only. A checksum over its weights
and moving statistics before and after each protocol verifies that they did not
change. A protocol that trains an encoder trains a copy
(`Subject.new_encoder`).
"""

import functools
import importlib
import inspect
import time
from collections.abc import Callable, Iterable
from typing import Any

from tf_contrastive import embedding
from tf_contrastive.base import errors
from tf_contrastive.config import fields
from tf_contrastive.config.protocols import PROTOCOLS
from tf_contrastive.evaluation.context import EvaluationContext
from tf_contrastive.evaluation.report import Part, Report


def select(
    context: EvaluationContext, names: Iterable[str]
) -> tuple[list[str], dict[str, str]]:
    """Selects the protocols whose data are available, out of names or "all".

    Returns:
      (names in order, each once; name -> what is missing, for the protocols
      that "all" leaves out).

    Raises:
      UserError: for an unknown name, one whose data are missing, or an option
        whose value is not allowed.
    """
    fields.validate_fields(context.options)
    names = list(dict.fromkeys(names))
    for name in names:
        if name != "all" and name not in PROTOCOLS:
            raise errors.unknown("protocol", name, [*PROTOCOLS, "all"])
    candidates = list(PROTOCOLS) if "all" in names else names
    left_out = {}
    for name in candidates:
        if reason := missing(name, context):
            if name in names:
                raise errors.UserError(f"protocol {name}: {reason}")
            left_out[name] = errors.plain(reason)
        else:
            getattr(context.options, name).check()
    return [name for name in candidates if name not in left_out], left_out


def missing(name: str, context: EvaluationContext) -> str | None:
    """Returns what a protocol lacks, or None."""
    protocol, data, subject = PROTOCOLS[name], context.data, context.subject
    for source in (data.train, data.test):
        if protocol.needs_labels and not source.info.has_labels:
            return (
                f"{source.info.name} {source.info.split} has no labels to score"
                " against, one per image: set"
                f" {errors.arg('train_split', 'NAME')} and"
                f" {errors.arg('test_split', 'NAME')} to labelled splits, or"
                f" {errors.arg('dataset', 'NAME')} to a labelled dataset"
            )
        if protocol.changes_colors and source.info.float_channels:
            return (
                f"it changes colours of 8 bits, and {source.info.name}"
                f" {source.info.split} is read whole"
            )
    if protocol.needs_projections and subject.projection is None:
        return (
            f"the {subject.name} encoder has no projection head: set"
            f" {errors.arg('workdir')} to a run that trained one, or"
            f" {errors.arg('saved_model')} to its export"
        )
    for split, least in protocol.smallest.items():
        if data.source(split).info.num_examples < least:
            info = data.source(split).info
            return f"{info.name} {info.split} has fewer than {least} images"
    return _load(protocol.lacks)(context) if protocol.lacks else None


def measure(
    context: EvaluationContext, name: str, **hyperparameters: Any
) -> Any:
    """Measures by one protocol; see `ProtocolDeclaration.implementation`."""
    return _load(PROTOCOLS[name].implementation)(context, **hyperparameters)


def _load(path: str) -> Callable[..., Any]:
    """Imports a function by MODULE:FUNCTION."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def run(
    context: EvaluationContext,
    names: Iterable[str] = tuple(PROTOCOLS),
    report: Report | None = None,
) -> dict[str, Any]:
    """Measures a frozen encoder by each of the protocols, or by "all".

    Each result is added to `report` as soon as it is measured.

    Returns:
      {"results": [{"encoder", "protocol", "variant" (one of several results of
      a protocol, or ""), "version", "scale", "hyperparameters", "top1",
      "top1_interval", "top5", "top5_interval" (95 %, by a bootstrap; None
      without one), "metrics", "dataset" (if it is another), "examples"
      (scored), "seconds"}, ...], "left_out": {protocol: what is missing},
      "checksum": of the encoder, before and after}.

    Raises:
      UserError: for an unknown protocol, missing data, no images, or NaN.
      RuntimeError: if a protocol changed the encoder.
      DivergedError: after the last protocol, if the training of some diverged.
    """
    selected, left_out = select(context, names)
    before = embedding.checksum(context.subject.encoder)
    report = Report() if report is None else report
    report.begin(before, left_out)
    results, diverged = [], []
    for name in selected:
        options = context.options
        facts = {
            "protocol": name,
            "variant": "",
            "version": options.version_of(name),
            "scale": options.evaluation.scale,
            "hyperparameters": options.recorded(name),
        }
        start = time.monotonic()
        for variant, part in _parts(context, name):
            title = f"{name} {variant}".strip()
            try:
                measurement = part()
            except errors.DivergedError as error:
                context.log(f"{title}: left out: {error}")
                diverged.append(f"{title}: {error.marked}")
                continue
            after = embedding.checksum(context.subject.encoder)
            if after != before:
                raise RuntimeError(
                    "the encoder changed while it was evaluated"
                    f" ({before[:12]} -> {after[:12]}, protocol {name}):"
                    " its results are invalid"
                )
            seconds, start = time.monotonic() - start, time.monotonic()
            context.log(
                f"{context.subject.name} encoder, {title}: {seconds:.1f} s"
            )
            facts["variant"] = variant
            results.append(report.add(context, facts, measurement, seconds))
    if diverged:
        raise errors.DivergedError("; ".join(diverged))
    return {"results": results, "left_out": left_out, "checksum": before}


def _parts(context: EvaluationContext, name: str) -> Iterable[tuple[str, Part]]:
    """Returns a protocol's variants, and what measures each."""
    whole = functools.partial(
        measure, context, name, **context.options.hyperparameters(name)
    )
    function = _load(PROTOCOLS[name].implementation)
    return whole() if inspect.isgeneratorfunction(function) else [("", whole)]
