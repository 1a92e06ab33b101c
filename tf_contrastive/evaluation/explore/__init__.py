"""Neighbours, copies, suspects and a map of a dataset in one page.

`images` reads embeddings and pixels, `findings` and `near_copies` are functions
on arrays, `report` joins them as explore.json, and `page` writes the page.
"""
