"""Numbered versions of a SavedModel: each folder is complete, or not there.

Model servers poll a folder `BASE/<version>` and serve the highest number. What
a killed export leaves is a hidden folder, which the next export removes.
"""

import os
from collections.abc import Callable
from pathlib import Path

import tensorflow as tf

from tf_contrastive.base import files

# What makes a folder a SavedModel; it is written last.
GRAPH_FILE = "saved_model.pb"


def folders(base: str) -> dict[int, str]:
    """Returns the folders of versions, as 7 or 00000007, the oldest first.

    Incomplete ones are included.
    """
    paths = files.entries(base, r"\d+")
    return dict(sorted((int(os.path.basename(x)), x) for x in paths))


def is_complete(path: str) -> bool:
    """Whether a folder is a SavedModel."""
    return files.exists(os.path.join(path, GRAPH_FILE))


def newest(path: str) -> str | None:
    """Returns the SavedModel at `path` or its newest version, or None."""
    for folder in (path, *reversed(folders(path).values())):
        if is_complete(folder):
            return folder
    return None


def write_version(save: Callable[[str], None], base: str) -> str:
    """Calls `save` with a local folder, and makes it the next version.

    Returns:
      The version's folder, complete; `base` is made if it is missing.
    """
    tf.io.gfile.makedirs(base)
    files.remove_leftovers(base)
    # Only filesystems of the machine rename folders. Object stores copy file
    # by file, and servers wait for the last one.
    if "://" not in base:
        with files.partial(os.path.join(base, "export"), True) as unfinished:
            save(unfinished)
            files.sync(unfinished)
            while True:
                path = _next_version(base)
                try:
                    os.rename(unfinished, path)
                    return path
                except OSError:
                    # Another export at the same time may have taken it.
                    if not os.path.exists(path):
                        raise
    with files.temporary_folder() as local:
        save(local)
        written = [x for x in Path(local).rglob("*") if x.is_file()]
        # In one order everywhere: the first file claims the version.
        written.sort(key=lambda x: (x.name == GRAPH_FILE, x.relative_to(local)))
        while True:
            path = _next_version(base)
            try:
                for file in written:
                    target = os.path.join(path, file.relative_to(local))
                    tf.io.gfile.makedirs(os.path.dirname(target))
                    tf.io.gfile.copy(str(file), target)
                return path
            except tf.errors.AlreadyExistsError:
                continue  # Another export at the same time has taken it.
            except BaseException:
                files.remove(path)
                raise


def _next_version(base: str) -> str:
    return os.path.join(base, str(max(folders(base), default=0) + 1))
