"""The HLO of a run's training step on TPU cores that are not there."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

# The only place of this op: `tf.raw_ops` lacks it.
from tensorflow.compiler.tf2xla.ops import gen_xla_ops
from tensorflow.compiler.xla.service import hlo_pb2

from tf_contrastive import distribution, train
from tf_contrastive.datasets import synthetic
from tf_contrastive.doctor.tpu import compiler
from tf_contrastive.model import ContrastiveModel, networks
from tf_contrastive.model.contrastive_step import Gradients, Results

# A computation of an encoder and a batch of the step.
Passes = Callable[[tf.keras.Model, Any], Any]


def _marker(x: tf.Tensor) -> tf.Tensor:
    """Stands for the sum over all cores: the CPU's XLA has no such kernel."""
    return gen_xla_ops.xla_custom_call(
        [x],
        target_name=compiler.ALL_REDUCE,
        backend_config="",
        dtype=x.dtype,
        shape=x.shape,
    )


def _replica_id() -> tf.Tensor:
    marked = gen_xla_ops.xla_custom_call(
        [],
        target_name=compiler.REPLICA_ID,
        backend_config="",
        dtype=tf.uint32,
        shape=[],
    )
    return tf.cast(marked, tf.int32)


class Step:
    """The training step of a run on TPU cores, to be lowered for any batch."""

    def __init__(self, run: train.PreparedRun) -> None:
        self._run = run
        self._precision = run.options.runtime.precision
        self._model, _ = run.build()
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
        cores = self._run.machine.replicas
        with distribution.simulated(cores, _replica_id, _marker):
            return self._lower(self._model.train_step, images)

    def lower_encoder(self, passes: Passes, images: int) -> bytes:
        """Returns the HLO of `passes`, with `images` on one core.

        The encoder has the fused batch normalization of Keras.
        """
        with networks.precision(self._precision):
            encoder = _with_keras_normalization(self._model.encoder)
        return self._lower(lambda batch: passes(encoder, batch), images)

    def _lower(self, function: Callable[[Any], Any], images: int) -> bytes:
        run = self._run
        classes = run.source.info.num_classes
        few = synthetic.batches(run.options, classes, 1, run.strategy)
        zeros = tf.nest.map_structure(
            lambda x: tf.zeros([images, *x.shape[1:]], x.dtype),
            few.element_spec,
        )

        @tf.function(jit_compile=True)
        def compiled(batch: Any) -> Any:
            return function(batch)

        with networks.precision(self._precision):
            hlo = compiled.experimental_get_compiler_ir(zeros)(
                stage="hlo_serialized"
            )
        return _without_names(hlo)


def _without_names(hlo: bytes) -> bytes:
    """Numbers names: TensorFlow's count the functions that were traced before.

    The same step then is the same program in every process.
    """
    module = hlo_pb2.HloModuleProto.FromString(hlo)
    module.name, module.id = "step", 0
    for computation in module.computations:
        computation.name = f"computation.{computation.id}"
        if computation.id == module.entry_computation_id:
            module.entry_computation_name = computation.name
        for instruction in computation.instructions:
            instruction.name = f"instruction.{instruction.id}"
            instruction.ClearField("metadata")
    return module.SerializeToString(deterministic=True)


def _with_keras_normalization(layer: tf.keras.layers.Layer) -> Any:
    """Clones an encoder, with Keras' own batch normalization for ours."""
    if isinstance(layer, tf.keras.Model):
        return tf.keras.models.clone_model(
            layer, clone_function=_with_keras_normalization
        )
    keras = tf.keras.layers.BatchNormalization
    if isinstance(layer, keras):
        return keras.from_config(keras.get_config(layer))
    return type(layer).from_config(layer.get_config())
