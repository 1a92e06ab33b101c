"""Programs that XLA has compiled for GPUs, kept for the next process."""

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import ops  # uid: not in the public API.

from tf_contrastive.base import terminal

DRIVER = Path("/proc/driver/nvidia")
# Not the CPU's: hosts with different CPUs share home folders.
DEVICES = "GPU,XLA_GPU_JIT"
# Seconds without use after which a program is deleted.
_UNUSED = 60 * 24 * 3600


def keep() -> None:
    """Makes XLA read and write its programs in a folder of the user.

    Called before TensorFlow starts. The user's own `TF_XLA_FLAGS` and
    `XLA_FLAGS` take precedence. TensorFlow 2.15 fails when it writes a program.
    """
    machine = [DRIVER / "version", *DRIVER.glob("gpus/*/information")]
    version = tuple(map(int, tf.__version__.split(".")[:2]))
    if "TF_XLA_FLAGS" in os.environ or len(machine) < 2 or version < (2, 21):
        return
    try:
        # Programs do not record the GPU, driver and options they are for.
        key = {file.read_text().partition("\n")[0] for file in machine}
        key.add(os.environ.get("XLA_FLAGS", ""))
        name = hashlib.sha256(repr(sorted(key)).encode()).hexdigest()[:16]
        folder = _make_private(f"{tf.__version__}-{name}")
        _clean(folder.parent)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home.
        terminal.info(f"compiled programs are not kept: {error}")
        return
    os.environ["TF_XLA_FLAGS"] = (
        f"--tf_xla_persistent_cache_directory={folder}"
        f" --tf_xla_persistent_cache_device_types={DEVICES}"
    )
    os.environ.setdefault(
        "XLA_FLAGS", f"--xla_gpu_per_fusion_autotune_cache_dir={folder}"
    )


def align_names() -> None:
    """Names the next functions as every process does that calls this.

    A program's key has its function's name, with a count of all functions and
    variables so far, which is another one in a resumed run.
    """
    while ops.uid() % 2**18:
        pass


def _make_private(name: str) -> Path:
    """Makes the folder; raises `OSError` if others could write to it."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache, "tf_contrastive", "xla", name)
    if " " in str(folder):
        raise OSError(f"{folder} has a space, which separates XLA's flags")
    # From the top: a program is code.
    for place in (folder.parents[1], folder.parent, folder):
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(f"{place} is not a folder of this user")
        place.chmod(0o700)
    return folder


def _clean(folder: Path) -> None:
    """Deletes programs that nobody uses, and empty ones of a lost machine."""
    for file in folder.glob("*/*"):
        with contextlib.suppress(OSError):  # Another process deleted it.
            status = file.stat()
            used = max(status.st_atime, status.st_mtime)
            is_empty = file.suffix == ".pb" and not status.st_size
            if is_empty or time.time() - used > _UNUSED:
                file.unlink()
