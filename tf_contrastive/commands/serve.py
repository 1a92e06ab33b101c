"""`serve`: serves an export over HTTP, as TensorFlow Serving does."""

import dataclasses
from typing import ClassVar

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.fields import Command, Terminal, group
from tf_contrastive.config.serving import Batching, Limits, Serving


@dataclasses.dataclass(frozen=True)
class Serve(Command):
    """Serve an export over HTTP: TensorFlow Serving's REST API."""

    COMMON: ClassVar = (
        "saved_model",
        "model_name",
        "versions",
        "host",
        "port",
        "max_batch_size",
        "batch_timeout_ms",
        "max_body_bytes",
        "max_queue",
        "request_seconds",
    )

    serving: Serving = group(Serving())
    batching: Batching = group(Batching())
    limits: Limits = group(Limits())
    terminal: Terminal = group(Terminal())


def run(options: Serve) -> int:
    """Serves until SIGTERM or SIGINT."""
    for package in ("uvicorn", "starlette"):
        errors.check_package("serve", package, "serve")
    with terminal.without_start_lines():
        from tf_contrastive import serving
    serving.serve(options.serving, options.batching, options.limits)
    return 0
