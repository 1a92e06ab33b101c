"""Starts the server, and disconnects slow clients."""

import gc
import math
import os
import resource
import signal
import socket
import sys
from typing import Any

import tensorflow as tf
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tf_contrastive import checkpoints, exporting
from tf_contrastive.base import errors
from tf_contrastive.config.serving import MODEL, Serving
from tf_contrastive.serving.app import READ_SECONDS, App
from tf_contrastive.serving.versions import Versions


def serve(serving: Serving) -> None:
    """Serves an export until a signal ends the process; or `UserError`."""
    path = serving.saved_model
    found = exporting.is_complete(path) or exporting.folders(path)
    # A run is data: a SavedModel in it may be somebody else's program.
    if checkpoints.is_run(path) or not found:
        raise errors.UserError(
            f"{errors.arg('saved_model', path)} is not an export: export it,"
            " and use the folder of the versions, such as RUN/export"
        )
    # TensorFlow warns that the loader of TensorFlow Serving is deprecated.
    tf.get_logger().setLevel("ERROR")
    # Imported modules are never freed: later collections need not search them.
    gc.freeze()
    # Idle and slow connections are not counted, and each takes a file.
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with listen(serving.host, serving.port) as listener:
        versions = Versions(path)
        app = App(serving, versions)
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        port = listener.getsockname()[1]
        listener.listen()
        print(
            f"serving version {versions.number} of {path}:"
            f" http://{host}:{port}/v1/models/{MODEL}",
            flush=True,
        )
        # uvicorn raises its signal again when the requests are finished, or
        # their time is over: a computation may still run in a thread.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: os._exit(0))
        make(app, serving.request_seconds).run([listener])
        sys.exit("the server ended without a signal")


def make(app: App, stop_seconds: float) -> uvicorn.Server:
    """Returns uvicorn's server, which ends `stop_seconds` after a signal."""
    config = uvicorn.Config(
        app.asgi,
        http=_Protocol,
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=READ_SECONDS,
        timeout_graceful_shutdown=math.ceil(stop_seconds),
    )
    return uvicorn.Server(config)


def listen(host: str, port: int) -> socket.socket:
    """Takes an address, or raises `UserError`; the socket does not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends an answer's second part at once (TCP_NODELAY) only if the
    # protocol is named; otherwise it waits 40 ms for the client's confirmation.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        address = f"{errors.arg('host', host)} and {errors.arg('port', port)}"
        raise errors.UserError(
            f"cannot listen at {address} ({error.strerror or error}): choose"
            " another address or port"
        ) from error
    return listener


class _Protocol(H11Protocol):
    """uvicorn's protocol with a limit of time between two requests.

    uvicorn's own waits forever for a first request, for headers, and for a
    client that does not read.
    """

    _timer: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        if self._timer:
            self._timer.cancel()
        unsent = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(READ_SECONDS, self._end, unsent)

    def _end(self, unsent: int) -> None:
        """Disconnects, unless a request is answered or the client reads."""
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if 0 < self.transport.get_write_buffer_size() < unsent:
            self._watch()
        else:
            self.transport.abort()
