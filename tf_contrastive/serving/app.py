"""The paths of TensorFlow Serving's REST API, and of operations."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import prometheus_client
from prometheus_client import Counter, Gauge, Histogram
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tf_contrastive.base import terminal
from tf_contrastive.config.serving import MODEL, Serving
from tf_contrastive.serving import rest
from tf_contrastive.serving.batching import Batcher
from tf_contrastive.serving.versions import SavedModel, Versions

T = TypeVar("T")
# For a client to send its headers, or a body; also of an idle connection.
READ_SECONDS = 10
# A version is an int64.
_MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d{1,18}))?"
_PREDICT = re.compile(_MODEL + ":predict")
_STATUS = re.compile(_MODEL + "(/metadata)?")
# Largest bodies that all requests hold together, at most.
_BODIES = 8

prometheus_client.disable_created_metrics()
_PREFIX = "tf_contrastive_serve"
_REQUESTS = Counter(
    f"{_PREFIX}_requests", "Responses by kind and HTTP code.", ["kind", "code"]
)
_SECONDS = Histogram(
    f"{_PREFIX}_predict_seconds",
    "Seconds of successful predictions.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
)
_ACTIVE = Gauge(
    f"{_PREFIX}_requests_active", "Predictions that are read or computed."
)
_VERSION = Gauge(f"{_PREFIX}_model_version", "The version that is served.")


class App:
    """Answers requests, in one event loop; `asgi` is the application."""

    def __init__(self, serving: Serving, versions: Versions) -> None:
        self._serving, self._versions = serving, versions
        # Predictions that wait or are computed, and the bytes of all bodies.
        self._in_work = self._bytes = 0
        self._batcher = Batcher(serving.max_batch_size)
        _VERSION.set_function(lambda: versions.number)
        self.asgi = Starlette(
            routes=[
                Route("/healthz", lambda _: Response("ok\n")),
                Route("/metrics", _metrics),
                Mount("/", self._answer),
            ],
            middleware=[
                Middleware(_normalized),
                Middleware(GZipMiddleware, minimum_size=1024, compresslevel=1),
            ],
            lifespan=self._follow,
        )

    @contextlib.asynccontextmanager
    async def _follow(self, _: Starlette) -> AsyncIterator[None]:
        """Replaces versions while the application runs."""
        following = asyncio.create_task(self._versions.follow())
        yield
        following.cancel()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request to a path of the model, and counts it."""
        start, kind = time.monotonic(), "other"
        method, path = scope["method"], scope["path"]
        try:
            if method == "POST" and (match := _PREDICT.fullmatch(path)):
                kind = "predict"
                with _ACTIVE.track_inprogress():
                    body = await self._predict(
                        Request(scope, receive), self._version(match)
                    )
            elif method == "GET" and (match := _STATUS.fullmatch(path)):
                kind = "metadata" if match[3] else "status"
                body = self._describe(self._version(match), kind)
            else:
                raise HTTPException(
                    400 if path.startswith("/v1/") else 404,
                    f"{method} {path[:99]} is not served: use POST"
                    " /v1/models/NAME:predict, GET /v1/models/NAME, or GET"
                    " /v1/models/NAME/metadata",
                )
            status = 200
        except ClientDisconnect:
            status, body = 499, b""
        except HTTPException as error:
            status, body = error.status_code, _json(error=error.detail)
        except Exception as error:
            terminal.warning(f"{method} {path}: {error!r}")
            status, body = 500, _json(error=repr(error))
        _REQUESTS.labels(kind, status).inc()
        if kind == "predict" and status == 200:
            _SECONDS.observe(time.monotonic() - start)
        response = Response(body, status, media_type="application/json")
        await response(scope, receive, send)

    def _version(self, match: re.Match[str]) -> int | None:
        """Returns the version that a path names, if any."""
        if match[1] != MODEL:
            raise HTTPException(404, f"there is no model but {MODEL}")
        return int(match[2]) if match[2] else None

    def _describe(self, number: int | None, kind: str) -> bytes:
        """Returns the status of the served version, or its metadata."""
        served, model = self._versions.model(number)
        version = {"version": str(served)}
        if kind == "status":
            status = {"error_code": "OK", "error_message": ""}
            row = {**version, "state": "AVAILABLE", "status": status}
            return _json(model_version_status=[row])
        spec = {"name": MODEL, "signature_name": "", **version}
        # Twice: a map in a message of the same name.
        metadata = {"signature_def": {"signature_def": model.metadata}}
        return _json(model_spec=spec, metadata=metadata)

    async def _predict(self, request: Request, number: int | None) -> bytes:
        """Returns the body of the response to a prediction."""
        content = bytearray()
        try:
            await _in_time(self._read(request, content), READ_SECONDS, 408)
            # Clients that send slowly do not count.
            if self._in_work >= self._serving.max_queue:
                raise HTTPException(503, "too many requests at a time")
            self._in_work += 1
            try:
                _, model = self._versions.model(number)
                computing = self._compute(bytes(content), model)
                limit = self._serving.request_seconds
                return await _in_time(computing, limit, 504)
            finally:
                self._in_work -= 1
        finally:
            self._bytes -= len(content)

    async def _read(self, request: Request, content: bytearray) -> None:
        """Reads the body of a request within the limits."""
        limit = self._serving.max_body_bytes
        too_large = HTTPException(413, f"the body has more than {limit} bytes")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_large
        async for part in request.stream():
            if len(content) + len(part) > limit:
                raise too_large
            if self._bytes + len(part) > _BODIES * limit:
                raise HTTPException(503, "too many large requests at a time")
            self._bytes += len(part)
            content.extend(part)

    async def _compute(self, content: bytes, model: SavedModel) -> bytes:
        """Reads JSON, computes it, and writes JSON."""
        # JSON of many numbers would keep other requests waiting.
        name, array, is_rows = await asyncio.to_thread(
            rest.read, content, model.signatures
        )
        outputs = await self._batcher.compute(
            (model, name), lambda rows: model.run(name, rows), array
        )
        return await asyncio.to_thread(rest.write, outputs, is_rows)


def _json(**values: Any) -> bytes:
    return json.dumps(values).encode()


def _metrics(_: Request) -> Response:
    text = prometheus_client.generate_latest()
    return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


def _normalized(app: ASGIApp) -> ASGIApp:
    """Takes absolute URIs, and refuses bodies of two lengths.

    Some proxies send http://HOST/PATH, and a proxy may take the other length
    (RFC 9112, 6.1: the connection is closed).
    """

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] == "http":
            path = re.sub("^https?://[^/]*", "", scope["path"], flags=re.I)
            scope = {**scope, "path": path or "/"}
            names = {name for name, _ in scope["headers"]}
            if {b"content-length", b"transfer-encoding"} <= names:
                text = "Content-Length and Transfer-Encoding: use one"
                answer = Response(
                    _json(error=text), 400, {"Connection": "close"}
                )
        await answer(scope, receive, send)

    return run


async def _in_time(
    work: Coroutine[Any, Any, T], seconds: float, status: int
) -> T:
    """Returns the result of `work`, which is cancelled when it is late."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise HTTPException(status, f"not done in {seconds:g} s") from error
