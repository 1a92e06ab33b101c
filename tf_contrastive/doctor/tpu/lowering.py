"""The HLO of a run's training step on TPU cores that are not there."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# The only place of this op: `tf.raw_ops` lacks it.
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from tf_contrastive import train
from tf_contrastive.base import terminal
from tf_contrastive.doctor import speed
from tf_contrastive.doctor.tpu import compiler
from tf_contrastive.model import ContrastiveModel, networks
from tf_contrastive.model.contrastive_step import Gradients, Results


def _marker(x: tf.Tensor) -> tf.Tensor:
    """Stands for the sum over all cores: the CPU's XLA has no such kernel."""
    return gen_xla_ops.xla_custom_call(
        [x],
        target_name=compiler.ALL_REDUCE,
        backend_config="",
        dtype=x.dtype,
        shape=x.shape,
    )


def _strategy(on_tpu: bool) -> tf.distribute.Strategy:
    """That of one device, but a TPU's for code that asks."""
    kind = tf.distribute.TPUStrategy if on_tpu else tf.distribute.Strategy
    strategy = kind.__new__(kind)
    extended = tf.distribute.get_strategy().extended
    tf.distribute.Strategy.__init__(strategy, extended)
    return strategy


class _Core(tf.distribute.ReplicaContext):
    """One of `count` cores, whose collectives are marked.

    Entered around a step, it is what `get_replica_context` returns in there.
    """

    def __init__(self, count: int, on_tpu: bool) -> None:
        super().__init__(_strategy(on_tpu), 0)
        self._count = count
        self._outer = tf.distribute.get_replica_context()

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of cores."""
        return self._count

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """The number of the core that runs the program, uint32 []."""
        return gen_xla_ops.xla_custom_call(
            [],
            target_name=compiler.REPLICA_ID,
            backend_config="",
            dtype=tf.uint32,
            shape=[],
        )

    def all_reduce(
        self, reduce_op: Any, value: tf.Tensor, options: Any = None
    ) -> tf.Tensor:
        """Returns the sum over all cores, which is all that a step needs."""
        assert reduce_op == tf.distribute.ReduceOp.SUM
        return _marker(value)

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Merges one replica: Keras' optimizers update variables this way."""
        with self._outer:
            return self._outer.merge_call(merge_fn, args, kwargs)


class Step:
    """The training step of a run on TPU cores, to be lowered for any batch.

    `title` is its name in progress lines, and `encoder` the run's.
    """

    def __init__(self, run: train.PreparedRun) -> None:
        self._run = run
        self._precision = run.options.runtime.precision
        self.title = f"{run.options.encoder.label}, {self._precision}"
        with terminal.elapsed(f"building {self.title}"):
            self._model, _ = run.build()
        self.encoder = self._model.encoder
        if run.machine.replicas > 1:
            self._sum_gradients(self._model)

    @staticmethod
    def _sum_gradients(model: ContrastiveModel) -> None:
        """Keras sums gradients by the strategy, which has one replica here."""
        update = model.update

        def summed(gradients: Gradients, results: Results) -> None:
            marked = {
                name: [_marker(tf.convert_to_tensor(g)) for g in group]
                for name, group in gradients.items()
            }
            update(marked, results)

        setattr(model, "update", summed)  # noqa: B010 # For mypy.

    def lower(self, images: int) -> bytes:
        """Returns the serialized HLO of a step with `images` per core."""
        machine = self._run.machine
        with _Core(machine.replicas, machine.on_tpu):
            return self.lower_function(self._model.train_step, images)

    def lower_function(
        self, function: Callable[[Any], Any], images: int
    ) -> bytes:
        """Returns the HLO of a function of the step's batch, on one core."""
        run = self._run
        classes = run.source.info.num_classes
        few = speed.noise(run.options, classes, 1, run.strategy)
        zeros = tf.nest.map_structure(
            lambda x: tf.zeros([images, *x.shape[1:]], x.dtype),
            few.element_spec,
        )

        @tf.function(jit_compile=True)
        def compiled(batch: Any) -> Any:
            return function(batch)

        with (
            terminal.elapsed(f"lowering {self.title}, {images} images"),
            networks.precision(self._precision),
        ):
            return compiled.experimental_get_compiler_ir(zeros)(
                stage="hlo_serialized"
            )
