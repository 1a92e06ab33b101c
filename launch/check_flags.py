"""Checks a command's flags, before a launcher queues it.

Use: check_flags.py COMMAND [flags of the command]

What only the job's machine has is left out: with a flagfile that is not here,
or a part of one's own (module:name), nothing is checked.
"""

import sys

from tf_contrastive import __main__, flags
from tf_contrastive.base import files
from tf_contrastive.config import dataset, encoder, views


def is_elsewhere(word: str) -> bool:
    """Whether a flag names a file or module that the job's machine may have."""
    name, _, value = word.partition("=")
    if name.lstrip("-") == "flagfile":
        return not (files.exists(value) or files.packaged_flagfile(value))
    if name.lstrip("-") in ("init_from", "saved_model"):
        return False  # Such as pretrained:NAME.
    part = value.rpartition("=")[2]
    return all(x.is_own(part) for x in (dataset, encoder, views))


if __name__ == "__main__":
    if any(map(is_elsewhere, flags.joined(sys.argv[1:]))):
        sys.exit(0)
    sys.exit(__main__.main(only_check=True))
