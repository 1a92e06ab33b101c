"""The server: its socket, connections and signals."""

import asyncio
import contextlib
import gc
import http
import math
import os
import signal
import socket
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import tensorflow as tf
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tf_contrastive import exporting
from tf_contrastive.base import errors, terminal
from tf_contrastive.config.serving import Batching, Limits, Serving
from tf_contrastive.serving import rest
from tf_contrastive.serving.app import App
from tf_contrastive.serving.versions import Versions

_EVERYWHERE = ("0.0.0.0", "::")


def serve(serving: Serving, batching: Batching, limits: Limits) -> None:
    """Serves an export until a signal ends it.

    Raises:
      UserError: if there is no export, it cannot be loaded, or the address
        cannot be listened at.
    """
    path = serving.saved_model
    if exporting.kind_of(path) != "export":
        raise errors.UserError(
            f"{errors.arg('saved_model', path)} is not an export: export it,"
            " and use the folder of the versions, such as RUN/export"
        )
    # It warns of the loader that TensorFlow Serving uses.
    tf.get_logger().setLevel("ERROR")
    with _listen(serving.host, serving.port) as listener:
        # What was imported stays: not to be searched after each version.
        gc.freeze()
        versions = Versions(path, serving.versions, serving.model_name)
        newest = versions.load_first()
        app = App(serving.model_name, versions, batching, limits)
        host = f"[{serving.host}]" if ":" in serving.host else serving.host
        port = listener.getsockname()[1]
        if serving.host in _EVERYWHERE:
            terminal.warning(
                f"{errors.arg('host', serving.host)}: everybody who can connect"
                " may use this server, and it does not encrypt"
            )
        line = (
            f"serving version {newest} of {path}:"
            f" http://{host}:{port}/v1/models/{serving.model_name}"
        )
        asyncio.run(_run(app, versions, listener, line, serving, limits))
    app.close()
    sys.stdout.flush()
    # What was not finished in time may still compute.
    os._exit(0)


def _listen(host: str, port: int) -> socket.socket:
    """Takes an address. Clients can connect once the server accepts."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends an answer's second part at once (TCP_NODELAY) only if the
    # protocol is named; otherwise it waits 40 ms for the client's confirmation.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise errors.UserError(
            f"cannot listen at {errors.arg('host', host)} and"
            f" {errors.arg('port', port)} ({error.strerror or error}): choose"
            " another address or port"
        ) from error
    return listener


async def _run(
    app: App,
    versions: Versions,
    listener: socket.socket,
    line: str,
    serving: Serving,
    limits: Limits,
) -> None:
    following = asyncio.create_task(versions.follow(serving.poll_seconds))
    config = uvicorn.Config(
        app.asgi,
        http=_protocol(limits),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=math.ceil(limits.read_seconds),
        timeout_graceful_shutdown=math.ceil(limits.stop_seconds),
    )
    await _Server(config, app, line).serve([listener])
    following.cancel()


class _Server(uvicorn.Server):
    """Prints a line when it can be used, and ends normally after a signal."""

    def __init__(self, config: uvicorn.Config, app: App, line: str) -> None:
        super().__init__(config)
        self._app, self._line = app, line

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens."""
        await super().startup(sockets)
        print(self._line, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handles signals, and does not raise them again at the end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.handle_exit)
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stops; a second signal does not wait for requests."""
        self._app.stopping = True
        self.force_exit = self.should_exit
        super().handle_exit(sig, frame)


def _protocol(limits: Limits) -> type[H11Protocol]:
    """Returns uvicorn's protocol with limits of time and of connections."""

    class Protocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _unsent = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > limits.max_connections:
                self._refuse(503, "Too many connections")
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._unwatch()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def send_400_response(self, msg: str) -> None:
            self._refuse(400, f"Malformed request: {msg}")

        def _watch(self) -> None:
            """Limits the time until the next request was sent.

            It also limits that of a client that does not read a response.
            """
            if self.cycle is not None and not self.cycle.response_complete:
                self._unwatch()
            elif self._timer is None:
                self._unsent = self.transport.get_write_buffer_size()
                self._timer = self.loop.call_later(
                    limits.read_seconds, self._end
                )

        def _unwatch(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end(self) -> None:
            self._timer = None
            if 0 < self.transport.get_write_buffer_size() < self._unsent:
                self._watch()
            else:
                self.transport.abort()

        def _refuse(self, status: int, message: str) -> None:
            if self.cycle is None or not self.cycle.response_started:
                body = rest.error(message)
                head = (
                    f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
                    "Content-Type: application/json\r\n"
                    f"Content-Length: {len(body)}\r\n"
                    "Retry-After: 1\r\nConnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
            self.transport.close()

    return Protocol
