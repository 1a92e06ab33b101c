"""When the host looks in: every few seconds, and where something is due."""

import dataclasses

import counting_model
import pytest
import tensorflow as tf

from tf_contrastive import callbacks
from tf_contrastive.config.runtime import Runtime

# A point at each fifth step, a checkpoint at each twelfth, an epoch of 16.
_DUE = {*range(5, 49, 5), *range(12, 49, 12), *range(16, 49, 16)}


class _Kept:
    """The step, and the last one that was saved."""

    last_saved = None

    def __init__(self, model):
        self._model = model

    @property
    def step(self):
        return int(self._model.optimizer.iterations.numpy())


def _looks(seconds, **options):
    """Steps at which the host looks in, where `seconds` is the time by step."""
    runtime = dataclasses.replace(
        Runtime(),
        **{"checkpoint_every_steps": 12, "log_every_steps": 5, **options},
    )
    model = counting_model.Model()
    model.compile(
        tf.keras.optimizers.SGD(jit_compile=False), steps_per_execution=1
    )
    kept, every = _Kept(model), runtime.checkpoint_every_steps
    pacer = callbacks.AdaptiveStepsPerExecution(
        kept,
        runtime,
        runtime.log_every_steps,
        tf.distribute.get_strategy(),
        clock=lambda: seconds(kept.step),
    )
    looks = []

    def look(batch, logs):
        looks.append(kept.step)
        if every and kept.step - (kept.last_saved or 0) >= every:
            kept.last_saved = kept.step

    watcher = tf.keras.callbacks.LambdaCallback(on_batch_end=look)
    data = tf.data.Dataset.from_tensors(0.0).repeat()
    model.make_train_function = lambda: _several(model)
    model.fit(
        data,
        epochs=3,
        steps_per_epoch=16,
        verbose=0,
        callbacks=[pacer, watcher],
    )
    return looks


def _several(model):
    """As many steps as the variable says, as `ContrastiveModel` makes it."""

    def execute(iterator):
        for _ in range(int(model._steps_per_execution.numpy())):
            results = model.train_step(next(iterator))
        return results

    return execute


@pytest.mark.parametrize(
    ("seconds", "between"),
    [
        # At most 5 s at a time, and twice as many steps as the last time.
        (0.001, {1, 2, 4}),
        (2.5, {1, 2, 4, 7, 9, 14, 18, 22, 27, 29, 34, 38, 42, 44, 47}),
        (20.0, {*range(1, 49)}),
    ],
)
def test_the_host_looks_in_every_few_seconds_and_where_something_is_due(
    seconds, between
):
    assert _looks(lambda step: seconds * step) == sorted(between | _DUE)


def test_a_step_that_becomes_slow_is_looked_at_sooner():
    looks = _looks(
        lambda step: 0.1 * step + 2.9 * max(step - 20, 0),
        log_every_steps=100,
        checkpoint_every_steps=None,
    )
    assert looks == [1, 2, 4, 8, 16, 32, *range(34, 49)]
