"""What tests of the training step share: virtual replicas, and a recorder."""

import tensorflow as tf

from tf_contrastive import distribution


def strategy(replicas):
    """The strategy of so many virtual devices of the CPU."""
    if replicas == 1:
        return distribution.strategy("default")
    return distribution.strategy("mirrored", virtual_devices=replicas)


def share(examples, batch_size, of_strategy):
    """Batches of the examples, over and over, a part for every replica."""
    examples = examples.repeat()

    def of_host(context):
        size = context.get_per_replica_batch_size(batch_size)
        return examples.batch(size, drop_remainder=True)

    return of_strategy.distribute_datasets_from_function(of_host)


class Recorder(tf.keras.optimizers.Optimizer):
    """Puts the aggregated gradient in the variable's place."""

    def __init__(self):
        super().__init__(name="recorder", jit_compile=False)
        self._learning_rate = self._build_learning_rate(1.0)

    def update_step(self, gradient, variable):
        """Does so with one of them."""
        variable.assign(gradient)
