"""Runs a module like `python -m`, without the lines of TensorFlow's start.

Use: run_module.py MODULE [ARGUMENTS]
"""

import runpy
import sys

from tf_contrastive.base import terminal

if __name__ == "__main__":
    with terminal.without_start_lines():
        import tensorflow  # noqa: F401
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
