"""Which processes train together: from `TF_CONFIG`, or from SLURM.

Layer 1. No TensorFlow: whatever is wrong with a cluster is told in one line
before TensorFlow starts, which would wait for a missing worker for ever.
"""

import os
from collections.abc import Mapping

from tf_contrastive import errors
from tf_contrastive.distribution.cluster import slurm, tf_config
from tf_contrastive.distribution.cluster.rendezvous import wait_for_all
from tf_contrastive.distribution.cluster.tasks import Cluster

__all__ = ["Cluster", "from_environment", "needed", "wait_for_all"]


def from_environment(
    environment: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """Reads the cluster from `TF_CONFIG` or else SLURM's variables.

    Returns:
      None where neither names one.

    Raises:
      UserError: for a cluster that is malformed.
    """
    if environment.get("TF_CONFIG"):
        return tf_config.read(environment["TF_CONFIG"])
    if slurm.in_step(environment):
        return slurm.read(environment)
    return None


def needed(environment: Mapping[str, str] = os.environ) -> Cluster:
    """`from_environment`, where there must be one.

    Raises:
      UserError: for no cluster, or a malformed one.
    """
    cluster = from_environment(environment)
    if cluster is not None:
        return cluster
    if "SLURM_JOB_ID" in environment:
        raise errors.UserError(
            "strategy=multiworker: this is a SLURM job, but none of its steps:"
            " start the command by srun, or by launch/slurm"
        )
    raise errors.UserError(
        "strategy=multiworker: TF_CONFIG is not set and this is no step of a"
        f" SLURM job: set, on each worker, {tf_config.EXAMPLE}, or start it by"
        " launch/multiworker"
    )
