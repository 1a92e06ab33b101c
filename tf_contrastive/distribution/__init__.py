"""Replicas: the strategy, and collectives with the right gradient.

Layer 2. `cross_replica_concat` is the one way in which features cross
replicas: scatter into place, then `all_reduce(SUM)`. Its gradient is
`all_reduce(SUM)` of the upstream gradients, so that on replica r the tape
returns d(sum of all replicas' losses)/d(theta of r), and summing gradients over
replicas gives the gradient of the global loss. `all_gather` is not used: it has
no XLA kernel beyond one replica.
"""

import os
import signal
import threading
from collections.abc import Sequence

import tensorflow as tf

from tf_contrastive import errors
from tf_contrastive.config.runtime import (
    STRATEGIES,
    Runtime,
    check_cross_device_ops,
)
from tf_contrastive.distribution import cluster

# How long the workers of a cluster wait for one another, in seconds.
WORKER_TIMEOUT = 300.0

_ALL_REDUCE = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
}


def _context() -> tf.distribute.ReplicaContext | None:
    """The replica context, or None outside of `Strategy.run`."""
    return tf.distribute.get_replica_context()


def num_replicas() -> int:
    """Replicas that share the global batch; 1 outside of `Strategy.run`."""
    context = _context()
    return context.num_replicas_in_sync if context else 1


def replica_id() -> tf.Tensor:
    """This replica's position, int32 []."""
    context = _context()
    if context is None or context.num_replicas_in_sync == 1:
        return tf.constant(0, tf.int32)
    # The id is uint32 on TPUs.
    return tf.cast(context.replica_id_in_sync_group, tf.int32)


def cross_replica_sum(x: tf.Tensor) -> tf.Tensor:
    """Sums `x` (float32 or int32) over replicas; every replica gets the sum.

    The gradient is the sum over replicas of the upstream gradients.
    """
    if num_replicas() == 1:
        return x
    if not x.dtype.is_floating:
        return _all_reduce(x)
    return _differentiable_sum(x)


@tf.custom_gradient
def _differentiable_sum(x: tf.Tensor):
    return _all_reduce(x), cross_replica_sum


def _all_reduce(x: tf.Tensor) -> tf.Tensor:
    # While a graph is built, `all_reduce` walks back from its result to find
    # variables, through the other replicas' graphs to their very beginning:
    # in all as the square of the network's depth. The walk ends where a
    # gradient does.
    x = tf.stop_gradient(x)
    return _context().all_reduce(tf.distribute.ReduceOp.SUM, x)


def cross_replica_concat(x: tf.Tensor) -> tf.Tensor:
    """Concatenates `x` of all replicas on axis 0, in replica order.

    Args:
      x: float32 or int32 [b, ...], of the same shape on every replica. (Half
        precision would lose bits in the gradient's sum, and other integers
        have no all_reduce on TPUs.)

    Returns:
      [replicas * b, ...], with the gradient of the global batch.
    """
    if x.dtype not in (tf.float32, tf.float64, tf.int32):
        raise ValueError(f"cast to float32 or int32 first, not {x.dtype.name}")
    n = num_replicas()
    if n == 1:
        return x
    shape = tf.shape(x)
    buffer = tf.scatter_nd(
        [[replica_id()]], x[tf.newaxis], tf.concat([[n], shape], 0)
    )
    buffer = cross_replica_sum(buffer)
    gathered = tf.reshape(buffer, tf.concat([[n * shape[0]], shape[1:]], 0))
    static = x.shape.as_list()
    rows = None if static[0] is None else n * static[0]
    gathered.set_shape([rows, *static[1:]])
    return gathered


def assign(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor]
) -> None:
    """Assigns, in a replica, to variables of which each replica has a copy.

    `Variable.assign` refuses that unless it was made with a rule by which to
    join what replicas assign; here they all assign the same.

    Args:
      variables: made under the strategy's scope.
      values: one for each of them, equal on all replicas.
    """

    def assign_copies(strategy, values):
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(
                variable,
                lambda copy, own: copy.assign(own),
                args=(value,),
                group=False,
            )

    _context().merge_call(assign_copies, args=(list(values),))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what only one process may write."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "worker":
        return (
            "chief" not in resolver.cluster_spec().jobs
            and resolver.task_id == 0
        )
    return resolver.task_type == "chief"


def any_worker(strategy: tf.distribute.Strategy, flag: bool) -> bool:
    """Whether `flag` is set on any worker; each of them must ask."""
    return _sum_over_replicas(strategy, int(flag)) > 0


def mean_over_workers(strategy: tf.distribute.Strategy, number: int) -> int:
    """The mean of the workers' numbers, rounded down; each must ask."""
    total = _sum_over_replicas(strategy, number)
    return total // strategy.num_replicas_in_sync


def _sum_over_replicas(strategy: tf.distribute.Strategy, number: int) -> int:
    """The sum of the numbers of all replicas' workers."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return number * strategy.num_replicas_in_sync
    numbers = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(number)
    )
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)
    return int(total)


def _split_cpu(virtual_devices: int) -> list[str]:
    """Splits the first CPU into virtual devices and returns their names."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    wanted = [tf.config.LogicalDeviceConfiguration()] * virtual_devices
    try:
        current = tf.config.get_logical_device_configuration(cpu) or []
        if len(current) < virtual_devices:
            tf.config.set_logical_device_configuration(cpu, wanted)
    except RuntimeError as error:
        raise errors.UserError(
            f"virtual_devices={virtual_devices}: TensorFlow has already"
            f" started with {max(len(current), 1)} CPU device(s); make the"
            " strategy before any other use of TensorFlow"
        ) from error
    return [f"CPU:{i}" for i in range(virtual_devices)]


def _tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    try:
        # In this order, on pods before anything else: the second adds the
        # hosts' devices, for which TensorFlow must not have started yet.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:
        # Whatever the resolver, the cloud client or the runtime raises, the
        # user's question is the same: which TPU?
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise errors.UserError(
            f"strategy=tpu: no TPU at {tpu!r} ({reason}): run on a TPU VM, name"
            " the TPU by tpu=NAME, or take strategy=auto"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def _mirrored(
    virtual_devices: int, cross_device_ops: str
) -> tf.distribute.Strategy:
    if virtual_devices:
        devices = _split_cpu(virtual_devices)
        # Virtual devices share a few threads, on which a ring of collectives
        # can starve; adding on one device cannot.
        if cross_device_ops == "auto":
            cross_device_ops = "reduction_to_one_device"
    else:
        devices = None
    if cross_device_ops == "auto":
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.MirroredStrategy(
        devices, cross_device_ops=_ALL_REDUCE[cross_device_ops]()
    )


def _multiworker(
    cross_device_ops: str, timeout: float
) -> tf.distribute.Strategy:
    """Of the cluster that the environment names, once all of it is up."""
    workers = cluster.needed()
    # TensorFlow itself would wait for ever, and deaf to signals.
    cluster.wait_for_all(workers, timeout)
    gpus = len(tf.config.list_physical_devices("GPU"))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({k: list(v) for k, v in workers.jobs.items()}),
        task_type=workers.task_type,
        task_id=workers.index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation(
            cross_device_ops.upper()
        )
    )
    made = tf.distribute.MultiWorkerMirroredStrategy(resolver, options)
    if threading.current_thread() is threading.main_thread():
        # TensorFlow's server has put a handler of its own there, which takes
        # note of SIGTERM and does nothing.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return made


def _has_tpu(tpu: str) -> bool:
    """Whether a TPU is named or plugged in; asking TensorFlow would start it.

    A TPU VM has its driver's device nodes, by generation.
    """
    if tpu != "local" or os.environ.get("TPU_NAME"):
        return True
    exists = tf.io.gfile.exists
    return exists("/dev/accel0") or (
        exists("/dev/vfio/0") and exists("/lib/libtpu.so")
    )


def _automatic(virtual_devices: int, tpu: str) -> str:
    """Names the strategy that the devices and the environment ask for."""
    if virtual_devices:
        return "mirrored"
    if _has_tpu(tpu):
        return "tpu"
    workers = cluster.from_environment()
    if workers is not None and len(workers.tasks) > 1:
        return "multiworker"
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return "mirrored"
    return "default"


def strategy(
    name: str = Runtime.strategy,
    *,
    virtual_devices: int = Runtime.virtual_devices,
    tpu: str = Runtime.tpu,
    cross_device_ops: str = Runtime.cross_device_ops,
    timeout: float = WORKER_TIMEOUT,
) -> tf.distribute.Strategy:
    """Makes the strategy of a run; call it before any other use of TensorFlow.

    Args:
      name: auto, default, mirrored, multiworker (from `TF_CONFIG`, or as a step
        of a SLURM job) or tpu. auto: virtual devices if given, else a TPU if
        there is one, else the workers if there are several, else the GPUs if
        there are several.
      virtual_devices: CPU devices to mirror over, where there are no GPUs.
      tpu: "local" on a TPU VM, else the TPU's name.
      cross_device_ops: how replicas add, see `config.CROSS_DEVICE_OPS`.
      timeout: how long to wait for the other workers, in seconds.

    Raises:
      UserError: for an unknown name, a malformed cluster, devices that are not
        there, or workers that do not come up.
    """
    if name not in STRATEGIES:
        raise errors.unknown("strategy", name, STRATEGIES)
    if name == "auto":
        name = _automatic(virtual_devices, tpu)
    check_cross_device_ops(cross_device_ops, name, virtual_devices)
    if cross_device_ops == "nccl" and not tf.config.list_physical_devices(
        "GPU"
    ):
        raise errors.UserError(
            "cross_device_ops=nccl needs GPUs, and TensorFlow sees none: give"
            " cross_device_ops=auto, or mend the drivers"
        )
    if name == "tpu":
        return _tpu_strategy(tpu)
    if name == "multiworker":
        return _multiworker(cross_device_ops, timeout)
    if name == "mirrored":
        return _mirrored(virtual_devices, cross_device_ops)
    return tf.distribute.get_strategy()
