"""Checks of a run before it starts, without training it.

`inspection` predicts and measures a run, `smoke` makes a trial of it, `tpu`
compiles its step for a TPU that is not there.
"""
