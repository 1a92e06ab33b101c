"""What proves the project, and nobody needs to train.

`claims` reproduces the papers' tables and figures, `benchmarks` compares with
other packages, and `tpu` compiles a run's step for a TPU that is not there.
Only their commands import it.
"""
