"""The processes that train together, from `TF_CONFIG` or from SLURM.

Without TensorFlow: a problem of a cluster is reported in one line before
TensorFlow starts, which would wait forever for a missing worker.
"""

import os
from collections.abc import Mapping

from tf_contrastive import errors
from tf_contrastive.distribution.cluster import slurm, tf_config
from tf_contrastive.distribution.cluster.rendezvous import wait_for_all
from tf_contrastive.distribution.cluster.tf_config import Cluster

__all__ = ["Cluster", "from_environment", "require", "wait_for_all"]


def from_environment(
    environment: Mapping[str, str] = os.environ,
) -> Cluster | None:
    """Reads the cluster from `TF_CONFIG`, else from SLURM's variables.

    Returns:
      None if neither names one.

    Raises:
      UserError: for a malformed cluster.
    """
    if environment.get("TF_CONFIG"):
        return tf_config.read(environment["TF_CONFIG"])
    if slurm.in_step(environment):
        return slurm.read(environment)
    return None


def require(environment: Mapping[str, str] = os.environ) -> Cluster:
    """Reads the cluster as `from_environment` does.

    Raises:
      UserError: for an absent or malformed cluster.
    """
    cluster = from_environment(environment)
    if cluster is not None:
        return cluster
    if "SLURM_JOB_ID" in environment:
        raise errors.UserError(
            "strategy=multiworker: this is a SLURM job, but not one of its"
            " steps: start the command by srun, or by launch/slurm"
        )
    raise errors.UserError(
        "strategy=multiworker: TF_CONFIG is not set and this is not a step of a"
        f" SLURM job: on each worker, set {tf_config.EXAMPLE}, or start it by"
        " launch/multiworker"
    )
