"""The papers' claims: recipes that are run, measured and tested.

`definitions` reads the claims, which are data; `runs` runs their commands;
`measures` reads numbers off the runs; `verdicts` tests the claimed relations;
`listing` and `report` show the results.
"""
