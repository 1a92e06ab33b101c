"""The options of every command: types, defaults, checks and help.

One module per subject. `flags.py` makes one absl flag of each field; library
code takes the dataclasses, or plain keyword arguments whose defaults it reads
here. Nothing here imports TensorFlow, so that `--help` answers at once.
"""
