"""Evaluation contexts in one call, with the arguments of all their parts."""

import collections
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf

from tf_contrastive.config.evaluate import Scoring
from tf_contrastive.evaluation import figures, protocols
from tf_contrastive.evaluation.context import Data, EvaluationContext
from tf_contrastive.evaluation.subject import Subject

_OF_SUBJECT = {field.name for field in dataclasses.fields(Subject)}


def make(encoder, train, test, options=None, **given):
    """Makes a context, out of arguments of `Subject` and its own."""
    context = EvaluationContext(
        Subject(encoder), Data(train, test), options or Scoring()
    )
    return changed(context, **given)


def of_run(run, train, test, options=None, **arguments):
    """Makes a context of a run's encoder."""
    data = Data(train, test)
    subject = Subject.of_run(run)
    return EvaluationContext(subject, data, options or Scoring(), **arguments)


def changed(context, **given):
    """Returns a new context with other arguments, in which nothing is known."""
    of_subject = {name: given.pop(name) for name in _OF_SUBJECT & {*given}}
    subject = dataclasses.replace(context.subject, **of_subject)
    return dataclasses.replace(context, subject=subject, **given)


def measure(protocol, context, **changed):
    """Measures by a protocol, with the options' hyperparameters or others.

    Returns a measurement, or those of each variant.
    """
    given = context.options.hyperparameters(protocol) | changed
    measured = protocols.measure(context, protocol, **given)
    if isinstance(measured, Iterator):
        return {variant: part() for variant, part in measured}
    return measured


def check_plots(measurement):
    """Checks that all plots are PNG files that are not blank."""
    assert measurement["plots"]
    for figure in measurement["plots"].values():
        assert tf.io.decode_png(figures.png(figure), 3).numpy().std() > 10


def points(folder):
    """tag -> [(step, number)] of a folder of TensorBoard's files."""
    found = collections.defaultdict(list)
    for path in sorted(Path(folder).glob("events.out.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                array = tf.make_ndarray(value.tensor)
                if array.dtype == np.float32 and not array.shape:
                    found[value.tag].append((event.step, float(array)))
    return found
