"""`serve`: serves an export over HTTP, as TensorFlow Serving does."""

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.command import Command, Terminal
from tf_contrastive.config.fields import group
from tf_contrastive.config.serving import Serving


class Serve(Command):
    """Serve an export over HTTP: TensorFlow Serving's REST API."""

    serving: Serving = group(Serving())
    terminal: Terminal = group(Terminal())


def run(options: Serve) -> int:
    """Serves until SIGTERM or SIGINT."""
    for package in ("uvicorn", "starlette", "prometheus_client"):
        errors.check_package("serve", package, "serve")
    with terminal.without_start_lines():
        from tf_contrastive import serving
    serving.serve(options.serving)
    return 0
