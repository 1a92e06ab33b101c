"""Metrics of the server in the format of Prometheus."""

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram

prometheus_client.disable_created_metrics()
_PREFIX = "tf_contrastive_serve"

REQUESTS = Counter(
    f"{_PREFIX}_requests", "Responses by kind and HTTP code.", ["kind", "code"]
)
SECONDS = Histogram(
    f"{_PREFIX}_predict_seconds",
    "Seconds of successful predictions.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
ROWS = Histogram(
    f"{_PREFIX}_batch_rows",
    "Rows of the batches computed.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
)
ACTIVE = Gauge(
    f"{_PREFIX}_requests_active", "Predictions that are read or computed."
)
WAITING = Gauge(
    f"{_PREFIX}_queue_depth",
    "Requests, or parts of large ones, that wait to be computed.",
)
VERSION = Gauge(f"{_PREFIX}_model_version", "The version that is served.")
