"""What proves the project, and nobody needs to train.

`claims` reproduces the papers' tables and figures: `python -m lab reproduce`.
`benchmarks` compares with other packages: `python -m lab benchmark`. The
package never imports it.
"""
