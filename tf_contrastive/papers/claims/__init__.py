"""The papers' claims as recipes that can be run, judged and shown.

Layer 8: `claims` are data, `runs` runs them command by command, `measures`
reads numbers off the runs, `verdicts` tests what was claimed, `report` tells.
"""
