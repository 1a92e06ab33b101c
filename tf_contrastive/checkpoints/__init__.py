"""A run's folder: its experiment, its checkpoints, its networks, preemption.

A workdir holds one experiment, recorded in `config.flags`: the same command
resumes it, another one is refused. All paths go through `tf.io.gfile`.
"""

from tf_contrastive.checkpoints.loading import (
    Run,
    load_encoder,
    load_heads,
    load_run,
    restore_part,
)
from tf_contrastive.checkpoints.lock import FolderLock
from tf_contrastive.checkpoints.saving import Checkpoints
from tf_contrastive.checkpoints.storage import (
    NUMBER_OR_NONE,
    damage_of,
    files_in,
    is_interval_or_none,
    newest,
    read_json,
    saved,
    step_of,
    write_file,
    write_json,
)
from tf_contrastive.checkpoints.workdir import check_run, check_workdir

__all__ = [
    "NUMBER_OR_NONE",
    "Checkpoints",
    "FolderLock",
    "Run",
    "check_run",
    "check_workdir",
    "damage_of",
    "files_in",
    "is_interval_or_none",
    "load_encoder",
    "load_heads",
    "load_run",
    "newest",
    "read_json",
    "restore_part",
    "saved",
    "step_of",
    "write_file",
    "write_json",
]
