"""Checks a command's flags, before a launcher queues it.

Use: check_flags.py COMMAND [flags of the command]

What only the job's machine has is left out: with a flagfile that is not here,
or a part of one's own (module:name), nothing is checked.
"""

import sys

from tf_contrastive import __main__
from tf_contrastive.base import files
from tf_contrastive.config import fields


def is_elsewhere(word: str) -> bool:
    """Whether a flag names a file or module that the job's machine may have."""
    name, _, value = word.partition("=")
    if name.lstrip("-") == "flagfile":
        return not (files.exists(value) or files.packaged_flagfile(value))
    return bool(fields.module_of(value.rpartition("=")[2]))


if __name__ == "__main__":
    if any(map(is_elsewhere, sys.argv[1:])):
        sys.exit(0)
    sys.exit(__main__.main(only_check=True))
