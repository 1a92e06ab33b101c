"""A server of exports, in one process, by TensorFlow Serving's REST API."""

from tf_contrastive.serving.server import serve

__all__ = ["serve"]
