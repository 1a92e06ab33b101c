"""What an encoder sees in a dataset: neighbours, copies, suspects, a map.

`images` reads embeddings and pictures, `findings` and `near_copies` are
functions on arrays, `report` joins them, and `page` writes them as HTML.
"""
