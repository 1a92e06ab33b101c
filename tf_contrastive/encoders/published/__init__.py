"""Encoders that others published: their weights in networks of this package.

`reading` reads named arrays and executes nothing, `tables` has the names that
the authors' programs give them, `network` builds the encoder.
"""

from tf_contrastive.encoders.published.network import Found, find

__all__ = ["Found", "find"]
