"""A run's folder: its experiment, its checkpoints, its networks, preemption.

A workdir holds one experiment, recorded in `config.flags`: the same command
resumes it, another one is refused. All paths go through `tf.io.gfile`.
"""

from tf_contrastive.checkpoints.loading import (
    DeletedCheckpointError,
    Run,
    load_encoder,
    load_heads,
    load_run,
    restore_part,
)
from tf_contrastive.checkpoints.lock import FolderLock
from tf_contrastive.checkpoints.preemption import saving_on_error, session
from tf_contrastive.checkpoints.retention import Retention
from tf_contrastive.checkpoints.saving import Checkpoints, NonFiniteError
from tf_contrastive.checkpoints.storage import (
    CONFIG_FILE,
    damage_of,
    is_present,
    newest,
    saved,
    step_of,
)
from tf_contrastive.checkpoints.workdir import (
    OpenedRun,
    check_run,
    check_workdir,
    is_run,
)

__all__ = [
    "CONFIG_FILE",
    "Checkpoints",
    "DeletedCheckpointError",
    "FolderLock",
    "NonFiniteError",
    "OpenedRun",
    "Retention",
    "Run",
    "check_run",
    "check_workdir",
    "damage_of",
    "is_present",
    "is_run",
    "load_encoder",
    "load_heads",
    "load_run",
    "newest",
    "restore_part",
    "saved",
    "saving_on_error",
    "session",
    "step_of",
]
