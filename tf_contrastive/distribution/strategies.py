"""The strategy of a run, and what its workers agree on."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tf_contrastive.base import errors
from tf_contrastive.distribution import (
    cluster,
    compiled,
    failures,
    rendezvous,
)

# How long the workers of a cluster wait for each other, in seconds.
_WORKER_TIMEOUT = 300.0
_NAMES = ("auto", "default", "mirrored", "multiworker", "tpu")


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this is the process that writes checkpoints and logs."""
    return strategy.extended.should_checkpoint


def gpu_capability(
    strategy: tf.distribute.Strategy,
) -> tuple[int, int] | None:
    """Returns the GPUs' lowest compute capability; None: no GPU is used."""
    if isinstance(strategy, tf.distribute.MirroredStrategy) and not any(
        "GPU" in device for device in strategy.extended.worker_devices
    ):
        return None  # Virtual devices, on a machine that may have GPUs.
    details = map(
        tf.config.experimental.get_device_details,
        tf.config.list_physical_devices("GPU"),
    )
    capabilities = [gpu.get("compute_capability", (0, 0)) for gpu in details]
    return min(capabilities, default=None)


def num_hosts(strategy: tf.distribute.Strategy) -> int:
    """Returns the number of machines, or processes, that hold the replicas."""
    if isinstance(strategy, tf.distribute.TPUStrategy):
        return strategy.extended.num_hosts
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        jobs = strategy.cluster_resolver.cluster_spec().as_dict()
        return sum(len(jobs.get(name, ())) for name in ("chief", "worker"))
    return 1


def is_pod(strategy: tf.distribute.Strategy) -> bool:
    """Whether it is a TPU of several hosts, only one of which runs Python."""
    on_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
    return on_tpu and num_hosts(strategy) > 1


def any_worker(strategy: tf.distribute.Strategy, flag: bool) -> bool:
    """Whether `flag` is set on any worker; all workers must call it."""
    return _sum_over_replicas(strategy, int(flag)) > 0


def mean_over_workers(strategy: tf.distribute.Strategy, number: int) -> int:
    """Returns the workers' mean, rounded down; all workers must call it."""
    total = _sum_over_replicas(strategy, number)
    return total // strategy.num_replicas_in_sync


def _sum_over_replicas(strategy: tf.distribute.Strategy, number: int) -> int:
    """Sums the number of each replica's worker over all replicas."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return number * strategy.num_replicas_in_sync
    numbers = strategy.experimental_distribute_values_from_function(
        lambda _: tf.constant(number)
    )
    total = strategy.reduce(tf.distribute.ReduceOp.SUM, numbers, axis=None)
    return int(total)


def check_same(
    strategy: tf.distribute.Strategy,
    options: Mapping[str, str],
    data: Mapping[str, str],
) -> None:
    """Compares what the workers were given; all of them must call it.

    `options` are name -> value, `data` what is read -> what was found there.
    Raises `UserError` on all workers, naming what differs first.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    both = json.dumps([dict(options), dict(data)])
    first, *others = map(json.loads, _of_all_workers(strategy, both))
    for worker, (theirs, read) in enumerate(others, 1):
        for name, value in first[0].items():
            if theirs.get(name) != value:
                raise errors.UserError(
                    f"worker {worker} has {errors.arg(name, theirs.get(name))},"
                    f" worker 0 {errors.arg(name, value)}: start all workers by"
                    " the same command"
                )
        for name, found in first[1].items():
            if read[name] != found:
                raise errors.UserError(
                    f"{name}: worker {worker} reads {read[name]}, worker 0"
                    f" {found}: give all workers the same data"
                )


def _of_all_workers(strategy: tf.distribute.Strategy, text: str) -> list[str]:
    """Returns each worker's text; all must call it."""
    replicas = strategy.num_replicas_in_sync

    def rows(numbers: np.ndarray) -> np.ndarray:
        """Returns the numbers of each replica, [replicas, n]."""

        def own(context: Any) -> tf.Tensor:
            row = [[context.replica_id_in_sync_group]]
            return tf.scatter_nd(row, numbers[None], [replicas, len(numbers)])

        values = strategy.experimental_distribute_values_from_function(own)
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, values, axis=None)
        return total.numpy()

    data = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    length = int(rows(np.array([len(data)], np.int32)).max())
    every = rows(np.pad(data, (0, length - len(data))))
    first_of_each = every[:: replicas // num_hosts(strategy)]
    return [bytes(row.tolist()).rstrip(b"\0").decode() for row in first_of_each]


def split_cpu(virtual_devices: int) -> list[str]:
    """Splits the first CPU into virtual devices and returns their names."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * virtual_devices
    try:
        current = tf.config.get_logical_device_configuration(cpu) or []
        if len(current) < virtual_devices:
            tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError as error:
        raise errors.UserError(
            f"{errors.arg('virtual_devices', virtual_devices)}: TensorFlow has"
            f" already started with {max(len(current), 1)} CPU device(s);"
            " create the strategy before any other use of TensorFlow"
        ) from error
    return [f"CPU:{i}" for i in range(virtual_devices)]


def tpu_strategy(tpu: str) -> tf.distribute.Strategy:
    """Connects to a TPU by its name, that of this machine by default."""
    tpu = tpu or os.environ.get("TPU_NAME") or "local"
    try:
        # In this order, and on pods before any op: the second call adds the
        # hosts' devices, which fails once TensorFlow has started.
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
    except Exception as error:
        # The resolver, the cloud client and the runtime raise many types.
        raise errors.UserError(
            f"{errors.arg('strategy', 'tpu')}: no TPU at {tpu!r}"
            f" ({errors.first_line(error)}): run on a TPU VM, set"
            f" {errors.arg('tpu', 'NAME')}, or use"
            f" {errors.arg('strategy', 'auto')}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


def mirrored_strategy(virtual_devices: int) -> tf.distribute.Strategy:
    """Makes a strategy of all GPUs, or of parts of the CPU."""
    if not virtual_devices:
        return tf.distribute.MirroredStrategy()
    # Virtual devices share a few threads, on which a ring of collectives can
    # starve; a sum on one device cannot.
    return tf.distribute.MirroredStrategy(
        split_cpu(virtual_devices),
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )


def _set_up_gpus() -> None:
    """Lets other processes share the GPUs, and steps their host's threads."""
    # Threads that launch kernels do not wait for those of the input.
    os.environ.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
    for gpu in tf.config.list_physical_devices("GPU"):
        # Too late where TensorFlow has started, as in a notebook.
        with contextlib.suppress(RuntimeError):
            tf.config.experimental.set_memory_growth(gpu, True)


def multiworker_strategy(timeout: float) -> tf.distribute.Strategy:
    """Waits for the environment's cluster and makes its strategy."""
    workers = cluster.require()
    # TensorFlow would block forever and ignore signals.
    rendezvous.wait_for_all(workers, timeout)
    failures.set_others(
        [x for i, x in enumerate(workers.places) if i != workers.rank]
    )
    gpus = len(tf.config.list_physical_devices("GPU"))
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({k: list(v) for k, v in workers.jobs.items()}),
        task_type=workers.task_type,
        task_id=workers.index,
        num_accelerators={"GPU": gpus} if gpus else {},
        rpc_layer="grpc",
    )
    try:
        strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except tf.errors.OpError as error:
        raise failures.LostWorkerError(
            "the workers' connection has failed while TensorFlow started"
            f" ({errors.first_line(error)}): repeat the command on all of them"
        ) from error
    failures.watch_others()
    if threading.current_thread() is threading.main_thread():
        # TensorFlow's server has replaced the handler by one that ignores
        # SIGTERM, unknown to Python: install Python's again.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return strategy


def _automatic(virtual_devices: int, tpu: str) -> str:
    """Returns the strategy's name for the devices and the environment."""
    if virtual_devices:
        return "mirrored"
    # The driver's device nodes on a TPU VM, by generation: TensorFlow must not
    # start yet.
    exists = tf.io.gfile.exists
    if (
        tpu not in ("", "local")
        or os.environ.get("TPU_NAME")
        or exists("/dev/accel0")
        or (exists("/dev/vfio/0") and exists("/lib/libtpu.so"))
    ):
        return "tpu"
    workers = cluster.from_environment()
    if workers is not None and len(workers.tasks) > 1:
        return "multiworker"
    if len(tf.config.list_physical_devices("GPU")) > 1:
        return "mirrored"
    return "default"


def strategy(
    name: str = "auto",
    *,
    virtual_devices: int = 0,
    tpu: str = "",
    timeout: float = _WORKER_TIMEOUT,
) -> tf.distribute.Strategy:
    """Creates the strategy of a run, before any other use of TensorFlow.

    Args:
      name: auto, default, mirrored, multiworker (from `TF_CONFIG`, or as a step
        of a SLURM job) or tpu. auto: virtual devices, a TPU, several workers,
        several GPUs: the first of these that there are.
      virtual_devices: CPU devices to mirror over, without GPUs.
      tpu: name of a TPU, or "local" on a TPU VM; empty: the environment's
        `TPU_NAME`, else "local".
      timeout: how long to wait for the other workers, in seconds.

    Raises:
      UserError: for an unknown name, a malformed cluster, absent devices, or
        workers that do not start.
    """
    if name not in _NAMES:
        raise errors.unknown("strategy", name, _NAMES)
    compiled.keep()
    if name == "auto":
        name = _automatic(virtual_devices, tpu)
    if name == "tpu":
        return tpu_strategy(tpu)
    _set_up_gpus()
    if name == "multiworker":
        return multiworker_strategy(timeout)
    if name == "mirrored":
        return mirrored_strategy(virtual_devices)
    return tf.distribute.get_strategy()
