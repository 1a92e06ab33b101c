"""Replicas: strategies, collectives, and layers that span all replicas."""

from tf_contrastive.distribution.collectives import (
    assign,
    cross_replica_concat,
    cross_replica_sum,
    do_not_convert_self,
    num_replicas,
    replica_id,
)
from tf_contrastive.distribution.strategies import (
    any_worker,
    is_chief,
    mean_over_workers,
    strategy,
)

__all__ = [
    "any_worker",
    "assign",
    "cross_replica_concat",
    "cross_replica_sum",
    "do_not_convert_self",
    "is_chief",
    "mean_over_workers",
    "num_replicas",
    "replica_id",
    "strategy",
]
