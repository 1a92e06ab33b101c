"""Encoders that others published: their weights in networks of this package."""

from tf_contrastive.encoders.published.network import Found, find

__all__ = ["Found", "find"]
