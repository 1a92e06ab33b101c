"""Replicas: strategies, collectives, and layers that span all replicas."""

from tf_contrastive.distribution import cluster, compiled, failures
from tf_contrastive.distribution.collectives import (
    all_finite,
    assign,
    bfloat16_parts,
    cross_replica_concat,
    cross_replica_sum,
    do_not_convert_self,
    num_replicas,
    on_tpu,
    replica_id,
    with_autograph,
)
from tf_contrastive.distribution.strategies import (
    any_worker,
    check_same,
    gpu_capability,
    is_chief,
    is_pod,
    mean_over_workers,
    num_hosts,
    split_cpu,
    strategy,
)

__all__ = [
    "all_finite",
    "any_worker",
    "assign",
    "bfloat16_parts",
    "check_same",
    "cluster",
    "compiled",
    "cross_replica_concat",
    "cross_replica_sum",
    "do_not_convert_self",
    "failures",
    "gpu_capability",
    "is_chief",
    "is_pod",
    "mean_over_workers",
    "num_hosts",
    "num_replicas",
    "on_tpu",
    "replica_id",
    "split_cpu",
    "strategy",
    "with_autograph",
]
