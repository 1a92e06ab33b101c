"""The paths of TensorFlow Serving's REST API, and of operations."""

import asyncio
import concurrent.futures
import re
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psutil
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from tf_contrastive.base import errors, terminal
from tf_contrastive.config.serving import Batching, Limits
from tf_contrastive.serving import rest
from tf_contrastive.serving.batching import Batcher
from tf_contrastive.serving.metrics import Metrics
from tf_contrastive.serving.rest import RestError
from tf_contrastive.serving.saved_model import SavedModel
from tf_contrastive.serving.versions import Versions

T = TypeVar("T")
# As TensorFlow Serving reads paths.
_MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d+)|/labels/([^/:]+))?"
_PREDICT = re.compile(_MODEL + r":(predict|classify|regress)", re.IGNORECASE)
_STATUS = re.compile(_MODEL + r"(/metadata)?", re.IGNORECASE)
# Largest bodies that all requests hold together, at most.
_BODIES = 8
# Bytes of JSON, and numbers of arrays, that are converted at once. More would
# keep other requests waiting.
_SMALL_BODY, _SMALL_ARRAY = 2**16, 2**13
_RETRY = {"Retry-After": "1"}
_CLOSE = {"Connection": "close"}
_JSON, _PLAIN = "application/json", "text/plain"


class _GoneError(Exception):
    """A client has closed its connection."""


class App:
    """Answers requests, in one event loop.

    Args:
      name: of the model.
      versions: of the model, already loaded.
      batching: how requests are joined.
      limits: what is refused.

    Attributes:
      asgi: the application.
      stopping: whether new predictions are refused.
    """

    def __init__(
        self, name: str, versions: Versions, batching: Batching, limits: Limits
    ) -> None:
        self._name, self._versions, self._limits = name, versions, limits
        self._metrics = Metrics()
        self._batcher = Batcher(
            batching.max_batch_size,
            batching.batch_timeout_ms / 1000,
            batching.batch_threads,
            self._metrics.batch,
        )
        # Converts large JSON; more threads would only share Python's lock.
        self._pool = concurrent.futures.ThreadPoolExecutor(2)
        # Predictions at hand, and the bytes of their bodies.
        self._active = self._bytes = 0
        self.stopping = False
        self.asgi = Starlette(
            routes=[
                Route("/healthz", self._show_health),
                Route("/readyz", self._show_readiness),
                Route("/metrics", self._show_metrics),
                Mount("/", self._answer),
            ],
            exception_handlers={HTTPException: self._refuse},
        )

    def close(self) -> None:
        """Ends its threads."""
        self._batcher.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- Operations ---------------------------------------------------------

    async def _show_health(self, request: Request) -> Response:
        del request
        return Response("ok\n", media_type=_PLAIN)

    async def _show_readiness(self, request: Request) -> Response:
        del request
        if self.stopping or not self._versions.numbers():
            return Response("not ready\n", 503, media_type=_PLAIN)
        return Response("ok\n", media_type=_PLAIN)

    async def _show_metrics(self, request: Request) -> Response:
        del request
        served = self._versions.numbers()
        text = self._metrics.text(
            {
                "requests_active": ("Predictions at hand.", self._active),
                "queue_depth": (
                    "Requests, or parts of large ones, that wait to be"
                    " computed.",
                    self._batcher.depth(),
                ),
                "model_version": (
                    "The newest version that is served, or -1.",
                    served[0] if served else -1,
                ),
                "resident_memory_bytes": (
                    "Memory of the process.",
                    psutil.Process().memory_info().rss,
                ),
            }
        )
        return Response(text, media_type=f"{_PLAIN}; version=0.0.4")

    async def _refuse(self, request: Request, error: Exception) -> Response:
        """Answers what no route takes, such as another method."""
        del request
        assert isinstance(error, HTTPException)
        return Response(
            rest.error(error.detail),
            error.status_code,
            error.headers,
            media_type=_JSON,
        )

    # ---- TensorFlow Serving's API -------------------------------------------

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request to another path, and counts it."""
        start, kind = time.monotonic(), "other"
        method, path = scope["method"], scope["raw_path"].decode("ascii")
        headers: dict[str, str] = {}
        try:
            if method == "POST" and (match := _PREDICT.fullmatch(path)):
                kind = match[4].lower()
                number = self._version(*match.groups()[:3])
                status = 200
                body = await self._predict(
                    Request(scope, receive), number, kind
                )
            elif method == "GET" and (match := _STATUS.fullmatch(path)):
                kind = "metadata" if match[4] else "status"
                number = self._version(*match.groups()[:3])
                status, body = 200, self._describe(number, kind)
            elif path.lower().startswith("/v1/"):
                raise RestError(400, f"Malformed request: {method} {path}")
            else:
                raise RestError(404, f"Not found: {method} {path}")
        except _GoneError:
            status, body = 499, b""
        except RestError as error:
            status, body = error.status, rest.error(str(error))
            headers = error.headers
        except Exception as error:
            terminal.warning(f"{method} {path}: {error!r}")
            status, body = 500, rest.error(errors.first_line(error))
        self._metrics.request(kind, status, time.monotonic() - start)
        response = Response(body, status, headers, media_type=_JSON)
        await response(scope, receive, send)

    def _version(
        self, name: str, number: str | None, label: str | None
    ) -> int | None:
        """Returns the version that a path names, if any."""
        name = urllib.parse.unquote(name)
        if name != self._name:
            asked = (
                f"Specific({name}, {number})" if number else f"Latest({name})"
            )
            raise RestError(404, f"Servable not found for request: {asked}")
        if label:
            raise RestError(
                400,
                "Unrecognized servable version label:"
                f" {urllib.parse.unquote(label)}: this server has no labels,"
                " use /versions/NUMBER",
            )
        if number and int(number) >= 2**63:
            raise RestError(400, f"Failed to convert version: {number}")
        return int(number) if number else None

    def _describe(self, number: int | None, kind: str) -> bytes:
        """Returns the status of versions, or the metadata of one."""
        if kind == "status":
            status = self._versions.status(number)
            return rest.as_json({"model_version_status": status})
        with self._versions.using(number) as (served, model):
            spec = {
                "name": self._name,
                "signature_name": "",
                "version": str(served),
            }
            # Twice: a map in a message of the same name.
            signatures = {"signature_def": {"signature_def": model.metadata}}
            return rest.as_json({"model_spec": spec, "metadata": signatures})

    async def _predict(
        self, request: Request, number: int | None, kind: str
    ) -> bytes:
        """Returns the body of the response to a prediction."""
        if kind != "predict":
            raise RestError(
                400, f":{kind} is not served, as exports have no such signature"
            )
        if self.stopping:
            raise RestError(503, "The server is stopping", _RETRY | _CLOSE)
        if self._active >= self._limits.max_queue:
            raise RestError(503, "The queue of requests is full", _RETRY)
        self._active += 1
        body = bytearray()
        try:
            await self._read(request, body)
            with self._versions.using(number) as (served, model):
                return await self._in_time(
                    self._compute(bytes(body), served, model), request.receive
                )
        finally:
            self._active -= 1
            self._bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Reads the body of a request within the limits."""
        limit = self._limits.max_body_bytes
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise RestError(
                415, f"Content-Encoding {encoding} is not supported"
            )
        too_large = RestError(413, f"The body has more than {limit} bytes")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_large

        async def read() -> None:
            more = True
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise _GoneError
                part = message["body"]
                if len(body) + len(part) > limit:
                    raise too_large
                if self._bytes + len(part) > _BODIES * limit:
                    raise RestError(503, "Too many large requests", _RETRY)
                self._bytes += len(part)
                body.extend(part)
                more = message["more_body"]

        try:
            await asyncio.wait_for(read(), self._limits.read_seconds)
        except asyncio.TimeoutError as error:
            raise RestError(408, "The body was not sent in time", _CLOSE) from (
                error
            )

    async def _in_time(
        self, work: Coroutine[Any, Any, T], receive: Receive
    ) -> T:
        """Returns the result of `work`, unless it is late or of no use."""

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        working, leaving = (
            asyncio.create_task(work),
            asyncio.create_task(gone()),
        )
        try:
            await asyncio.wait(
                {working, leaving},
                timeout=self._limits.request_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if working.done():
                return working.result()
            if leaving.done():
                raise _GoneError
            raise RestError(504, "The request was not computed in time")
        finally:
            working.cancel()
            leaving.cancel()

    async def _compute(
        self, body: bytes, number: int, model: SavedModel
    ) -> bytes:
        """Reads JSON, computes it, and writes JSON."""

        def inputs_of(name: str) -> dict[str, rest.Tensor]:
            if name not in model.signatures:
                raise RestError(
                    400,
                    f'Serving signature name: "{name}" not found in signature'
                    " def",
                )
            return model.signatures[name].inputs

        name, inputs, rows = await self._convert(
            lambda: rest.read(body, inputs_of), len(body) <= _SMALL_BODY
        )
        outputs = await self._batcher.compute(
            (number, name),
            lambda arrays: model.run(name, arrays),
            inputs,
            model.by_row,
        )
        size = sum(array.size for array in outputs.values())
        return await self._convert(
            lambda: rest.write(outputs, rows), size <= _SMALL_ARRAY
        )

    async def _convert(self, convert: Callable[[], T], is_small: bool) -> T:
        if is_small:
            return convert()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, convert)
