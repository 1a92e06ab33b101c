"""The paths of TensorFlow Serving's REST API, and of operations."""

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import prometheus_client
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from tf_contrastive.base import terminal
from tf_contrastive.config.serving import Serving
from tf_contrastive.serving import metrics, rest
from tf_contrastive.serving.batching import Batcher
from tf_contrastive.serving.rest import RestError
from tf_contrastive.serving.saved_model import SavedModel
from tf_contrastive.serving.versions import Versions

T = TypeVar("T")
# For a client to send its headers, or a body; also of an idle connection.
READ_SECONDS = 10
# A version is an int64.
_MODEL = r"/v1/models/([^/:]+)(?:/versions/(\d{1,18}))?"
_PREDICT = re.compile(_MODEL + ":predict")
_STATUS = re.compile(_MODEL + "(/metadata)?")
# Largest bodies that all requests hold together, at most.
_BODIES = 8
# Bytes of JSON, and numbers of arrays, that are converted at once. More would
# keep other requests waiting.
_SMALL_BODY, _SMALL_ARRAY = 2**16, 2**13
# Status -> headers of a response.
_METRICS_TYPE = prometheus_client.CONTENT_TYPE_LATEST
_HEADERS = {408: {"Connection": "close"}, 503: {"Retry-After": "1"}}


class App:
    """Answers requests, in one event loop.

    Args:
      serving: the model's name, and the limits.
      versions: of the model, already loaded.

    Attributes:
      asgi: the application.
    """

    def __init__(self, serving: Serving, versions: Versions) -> None:
        self._serving, self._versions = serving, versions
        # Predictions that are read or computed, and the bytes of their bodies.
        self._active = self._bytes = 0
        self._batcher = Batcher(serving.max_batch_size)
        metrics.ACTIVE.set_function(lambda: self._active)
        metrics.VERSION.set_function(lambda: versions.number)
        self.asgi = Starlette(
            routes=[
                Route("/healthz", self._show_health),
                Route("/metrics", self._show_metrics),
                Mount("/", self._answer),
            ],
            middleware=[
                Middleware(GZipMiddleware, minimum_size=1024, compresslevel=1)
            ],
            lifespan=self._follow,
        )

    @contextlib.asynccontextmanager
    async def _follow(self, app: Starlette) -> AsyncIterator[None]:
        """Replaces versions while the application runs."""
        del app
        following = asyncio.create_task(self._versions.follow())
        yield
        following.cancel()

    async def _show_health(self, request: Request) -> Response:
        del request
        return Response("ok\n", media_type="text/plain")

    async def _show_metrics(self, request: Request) -> Response:
        del request
        text = prometheus_client.generate_latest()
        return Response(text, headers={"Content-Type": _METRICS_TYPE})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request to another path, and counts it."""
        start, kind = time.monotonic(), "other"
        method, path = scope["method"], scope["path"]
        try:
            if method == "POST" and (match := _PREDICT.fullmatch(path)):
                kind = "predict"
                number = self._version(match)
                request = Request(scope, receive)
                status, body = 200, await self._predict(request, number)
            elif method == "GET" and (match := _STATUS.fullmatch(path)):
                kind = "metadata" if match[3] else "status"
                number = self._version(match)
                status, body = 200, self._describe(number, kind)
            else:
                is_api = path.startswith("/v1/")
                raise RestError(
                    400 if is_api else 404,
                    f"{method} {path[:99]} is not served: use POST"
                    " /v1/models/NAME:predict, GET /v1/models/NAME or GET"
                    " /v1/models/NAME/metadata, for one version with"
                    " /versions/NUMBER after the name",
                )
        except ClientDisconnect:
            status, body = 499, b""
        except RestError as error:
            status, body = error.status, rest.as_json({"error": str(error)})
        except Exception as error:
            terminal.warning(f"{method} {path}: {error!r}")
            status, body = 500, rest.as_json({"error": repr(error)})
        metrics.REQUESTS.labels(kind, status).inc()
        if kind == "predict" and status == 200:
            metrics.SECONDS.observe(time.monotonic() - start)
        headers = _HEADERS.get(status)
        response = Response(body, status, headers, "application/json")
        await response(scope, receive, send)

    def _version(self, match: re.Match[str]) -> int | None:
        """Returns the version that a path names, if any."""
        name = self._serving.model_name
        if match[1] != name:
            raise RestError(404, f"there is no model {match[1]}: use {name}")
        return int(match[2]) if match[2] else None

    def _describe(self, number: int | None, kind: str) -> bytes:
        """Returns the status of versions, or the metadata of one."""
        if kind == "status":
            status = self._versions.status(number)
            return rest.as_json({"model_version_status": status})
        served, model = self._versions.model(number)
        spec = {
            "name": self._serving.model_name,
            "signature_name": "",
            "version": str(served),
        }
        # Twice: a map in a message of the same name.
        signatures = {"signature_def": model.metadata}
        metadata = {"signature_def": signatures}
        return rest.as_json({"model_spec": spec, "metadata": metadata})

    async def _predict(self, request: Request, number: int | None) -> bytes:
        """Returns the body of the response to a prediction."""
        if self._active >= self._serving.max_queue:
            raise RestError(503, "too many requests at a time")
        self._active += 1
        body = bytearray()
        try:
            reading, late = self._read(request, body), "the body was not sent"
            await _in_time(reading, READ_SECONDS, 408, late)
            computing = self._compute(bytes(body), self._versions.model(number))
            limit, late = self._serving.request_seconds, "it was not computed"
            return await _in_time(computing, limit, 504, late)
        finally:
            self._active -= 1
            self._bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Reads the body of a request within the limits."""
        limit = self._serving.max_body_bytes
        encoding = request.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise RestError(415, f"bodies encoded as {encoding} are not read")
        too_large = RestError(413, f"the body has more than {limit} bytes")
        if int(request.headers.get("content-length", "0")) > limit:
            raise too_large
        async for part in request.stream():
            if len(body) + len(part) > limit:
                raise too_large
            if self._bytes + len(part) > _BODIES * limit:
                raise RestError(503, "too many large requests at a time")
            self._bytes += len(part)
            body.extend(part)

    async def _compute(
        self, body: bytes, version: tuple[int, SavedModel]
    ) -> bytes:
        """Reads JSON, computes it, and writes JSON."""
        _, model = version

        def input_of(name: str) -> rest.Input:
            if name in model.signatures:
                return model.signatures[name].input
            names = ", ".join(model.signatures)
            raise RestError(400, f"there is no signature {name}: use {names}")

        name, array, is_rows = await self._convert(
            lambda: rest.read(body, input_of), len(body) <= _SMALL_BODY
        )
        outputs = await self._batcher.compute(
            (model, name), lambda rows: model.run(name, rows), array
        )
        size = sum(array.size for array in outputs.values())
        return await self._convert(
            lambda: rest.write(outputs, is_rows), size <= _SMALL_ARRAY
        )

    async def _convert(self, convert: Callable[[], T], is_small: bool) -> T:
        return convert() if is_small else await asyncio.to_thread(convert)


async def _in_time(
    work: Coroutine[Any, Any, T], seconds: float, status: int, late: str
) -> T:
    """Returns the result of `work`, which is cancelled when it is late."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise RestError(status, f"{late} in time") from error
