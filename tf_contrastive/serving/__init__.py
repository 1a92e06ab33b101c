"""A server of one export: TensorFlow Serving's REST API from one process.

For machines without Docker, and for tests of clients. It serves the newest good
version, joins requests to batches, and limits size and time of requests; what a
proxy does (encryption, passwords, rates) it leaves to a proxy.
"""

from tf_contrastive.serving.server import serve

__all__ = ["serve"]
