"""The loop of steps that `fit` calls, which also counts the wait for input."""

from collections.abc import Callable

import tensorflow as tf


def train_function(
    step: Callable, strategy: tf.distribute.Strategy, steps: tf.Variable, meters
) -> Callable:
    """Makes Keras' training function: iterator -> the means so far.

    Args:
      step: what a replica does with its part of a batch -> dict by name.
      strategy: that runs it.
      steps: how many a call takes; `fit` lowers it for the last one.
      meters: the model's.
    """
    updated = []

    def one_step(iterator):
        start = tf.timestamp()
        with tf.control_dependencies([start]):
            data = next(iterator)
        arrived = tf.nest.flatten(data, expand_composites=True)
        with tf.control_dependencies(arrived):
            waited = tf.timestamp() - start
        meters.input_wait.assign_add(waited)
        updated[:] = strategy.run(step, args=(data,))

    def several_steps(iterator):
        # Nothing is carried through the loop: AutoGraph would trace its body
        # twice.
        for _ in tf.range(steps):
            with tf.name_scope(""):
                one_step(iterator)
        return meters.read(updated)

    return tf.function(several_steps, reduce_retracing=True)
