"""HTTP routes of the dashboard. All are read-only except `infer`, which requires the access token.

/page/                   the page and its files
/page/view.json          all models; `history.py`
/page/events.json        owner only: the newest events; `asked=1` returns the audit events
/page/model.json?name=   one model: statistics and client snippets; for the owner also diagnosis, events, errors, log
                         and configuration
/page/infer?name=        POST: forwards a JSON request to tritonserver and returns its response; `try_it.py`
/favicon.ico             the page's icon, also for other pages
/page/openapi.json       the HTTP API with each model's inputs

The owner is a client with the access token, or one that connects over the unix socket.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from pytriton._protocol.messages.client import Event, Explanation, Requests, Status
from pytriton._protocol.messages.metrics import MetricsSnapshot
from pytriton.dispatcher.http_server.decompression import Decompressor, EncodingError
from pytriton.dispatcher.telemetry.dashboard import model_view, openapi
from pytriton.dispatcher.telemetry.dashboard.history import History
from pytriton.dispatcher.telemetry.dashboard.try_it import Answer, forward
from pytriton.dispatcher.telemetry.metrics.blocking_source import OwnThread

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATIC = Path(__file__).parent / "static"
_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
#: Response headers, which forbid external resources, inline code and framing.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
#: Age up to which a snapshot is reused, so that many viewers cost no more than one, in seconds.
_REUSE_S = 1.5
#: How long the charts keep being updated after the last view, in seconds.
_IDLE_AFTER_S = 86_400.0
#: Interval between points of charts, in seconds, and maximum share of the time to spend on snapshots for them: the
#: interval grows if snapshots take long.
_INTERVAL_S, _MAX_SHARE = 5.0, 0.02
#: Maximum size of a request that a user types, in bytes.
_MAX_REQUEST_BYTES = 1 << 20
#: Maximum number of concurrent requests to models. (A request that hangs takes a minute.)
_MAX_CONCURRENT = 8
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Sources:
    """Data sources of the dashboard.

    Attributes:
        snapshot: takes a metrics snapshot
        status: returns the daemon's status
        log: returns the newest lines of a model's log, given their maximum number; called in a thread
        requests: returns samples of a model's requests; None if there are none
        explain: returns the diagnosis of a model, with its newest events; None if the model is unknown
        events: returns the newest events of the daemon and of all models, or (given True) only audit events
        is_owner: returns whether an Authorization header contains the access token; called in a thread
        headers: returns the headers required by restricted endpoints of tritonserver
    """

    snapshot: Callable[[], Awaitable[MetricsSnapshot]]
    status: Callable[[], Awaitable[Status]]
    log: Callable[[str, int], list[str]]
    requests: Callable[[str], Awaitable[Requests | None]]
    explain: Callable[[str], Awaitable[Explanation | None]]
    events: Callable[[bool], Awaitable[Sequence[Event]]]
    is_owner: Callable[[str], bool]
    headers: Callable[[], dict[str, str]]


class Page:
    """The dashboard of a daemon, as HTTP routes."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._history = History()
        self._refresh_lock = asyncio.Lock()
        self._refreshed_at = self._viewed_at = 0.0
        self._plot_task: asyncio.Task[None] | None = None
        self._slots = threading.BoundedSemaphore(_MAX_CONCURRENT)

    def routes(
        self, guarded: Callable[[Endpoint], Endpoint] = lambda answer: answer
    ) -> list[web.RouteDef]:
        """Return the routes.

        Args:
            guarded: wraps an endpoint so that it requires the access token, if the settings say so. It is not applied
                to static files: browsers load them before they can send a token, and they reveal nothing.
        """
        return [
            web.get("/", self._redirect),
            web.get("/page", self._redirect),
            web.get("/favicon.ico", self._icon),
            web.get("/page/view.json", guarded(_with_timeout(self._view))),
            web.get("/page/model.json", guarded(_with_timeout(self._model))),
            web.get("/page/events.json", guarded(_with_timeout(self._events))),
            web.get("/page/openapi.json", guarded(_with_timeout(self._openapi))),
            web.post("/page/infer", _with_timeout(self._infer)),
            web.get("/page/{name:.*}", self._file),
        ]

    async def _redirect(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={**HEADERS, "location": "/page/"})

    async def _file(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in _FILES:
            return _problem(404, "page not found")
        return await self._serve_file(request.match_info["name"])

    async def _icon(self, request: web.Request) -> web.Response:
        """Serve the icon at /favicon.ico, where browsers look for it if a page, such as /metrics, does not name one."""
        return await self._serve_file("icon.svg")

    async def _serve_file(self, name: str) -> web.Response:
        name, media = _FILES[name]
        body = await asyncio.to_thread((_STATIC / name).read_bytes)
        return web.Response(body=body, headers={**HEADERS, "content-type": media})

    async def _view(self, request: web.Request) -> web.Response:
        self._viewed_at = time.monotonic()
        if self._plot_task is None or self._plot_task.done():
            self._plot_task = asyncio.create_task(self._plot())
        await self._refresh()
        return _answer(model_view.overview(self._history, private=await self._is_owner(request)))

    async def _plot(self) -> None:
        """Take snapshots for the charts while anyone is viewing the dashboard."""
        took_s = 0.0
        while time.monotonic() - self._viewed_at < _IDLE_AFTER_S:
            await asyncio.sleep(max(_INTERVAL_S, took_s / _MAX_SHARE))
            begun = time.monotonic()
            try:
                await self._refresh()
            except asyncio.TimeoutError:  # the dispatcher is busy: leave a gap in the chart
                continue
            finally:
                took_s = time.monotonic() - begun

    async def _refresh(self) -> None:
        async with self._refresh_lock:
            if time.monotonic() - self._refreshed_at < _REUSE_S:
                return
            self._history.add(await self._sources.snapshot())
            self._refreshed_at = time.monotonic()

    async def _model(self, request: web.Request) -> web.Response:
        name = request.query.get("name", "")
        status = await self._sources.status()
        if not any(one.name == name for one in status.models):
            return _problem(404, f"no model {name!r:.200} is registered")
        if not await self._is_owner(request):
            return _answer(model_view.model_view(name, status, self._history, None))
        private = model_view.Private(
            log=await asyncio.to_thread(self._sources.log, name, model_view.LOG_LINES),
            requests=await self._sources.requests(name),
            explanation=await self._sources.explain(name),
        )
        return _answer(model_view.model_view(name, status, self._history, private))

    async def _events(self, request: web.Request) -> web.Response:
        if not await self._is_owner(request):
            return _answer({"is_private": True, "events": []})
        found = await self._sources.events(request.query.get("asked") == "1")
        events = [model_view.event_view(one) for one in reversed(found)]
        return _answer({"is_private": False, "events": events})

    async def _is_owner(self, request: web.Request) -> bool:
        """Return whether the request contains the access token or came over the unix socket, which only the owner can use."""
        connection = request.get_extra_info("socket")
        is_local = connection is not None and connection.family == socket.AF_UNIX
        return is_local or await self._has_token(request)

    async def _has_token(self, request: web.Request) -> bool:
        authorization = request.headers.get("authorization", "")
        return await asyncio.to_thread(self._sources.is_owner, authorization)

    async def _openapi(self, request: web.Request) -> web.Response:
        status = await self._sources.status()
        return _answer(openapi.document(status.models, status.server.http_url, status.version))

    async def _infer(self, request: web.Request) -> web.Response:
        if not await self._has_token(request):
            return _problem(
                401, "the access token is required: run `pytriton-daemon access-token` to print it"
            )
        try:
            body = await _read(request)
        except EncodingError as error:
            return _problem(415, str(error))
        except (web.RequestPayloadError, zlib.error):
            return _problem(400, "cannot read the body: its framing or compression is invalid")
        if len(body) > _MAX_REQUEST_BYTES:
            return _problem(
                413, f"the request is too large: the limit is {_MAX_REQUEST_BYTES:,} bytes"
            )
        status = await self._sources.status()
        name = request.query.get("name", "")
        if not status.server.http_url:
            return _problem(409, "tritonserver serves no HTTP: set allow_http to true")
        config = next((one.config for one in status.models if one.name == name), {})
        headers = await asyncio.to_thread(self._sources.headers)
        if not self._slots.acquire(blocking=False):
            return _problem(
                429,
                f"{_MAX_CONCURRENT} requests are already in progress: retry when one has finished",
            )

        def infer() -> Answer:
            try:
                return forward(status.server.http_url, name, bytes(body), config, headers)
            finally:
                self._slots.release()

        # In a thread of its own: scrapes need those of the shared pool. The thread also finishes if the client
        # disconnects.
        answering = asyncio.get_running_loop().run_in_executor(OwnThread(), infer)
        try:
            code, answer, kind = await asyncio.shield(answering)
        except OSError as error:
            return _problem(502, f"the server did not answer: {error}")
        return web.Response(body=answer, status=code, headers={**HEADERS, "content-type": kind})


def _with_timeout(answer: Endpoint) -> Endpoint:
    """Wrap an endpoint so that it responds with 503 if the dispatcher does not answer in time."""

    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            return await answer(request)
        except asyncio.TimeoutError:
            return _problem(503, "the daemon is busy and did not answer in time")

    return wrapped


async def _read(request: web.Request) -> bytearray:
    """Read and decompress the body. If it exceeds the limit, return its beginning.

    Raises:
        EncodingError, RequestPayloadError, zlib.error: the body is malformed
    """
    body = bytearray()
    decompressor = Decompressor(request.headers.get("content-encoding", ""))
    async for chunk in request.content.iter_any():
        for piece in decompressor.pieces(chunk):
            body += piece
            if len(body) > _MAX_REQUEST_BYTES:
                return body
    decompressor.end()
    return body


def _answer(value: Any, code: int = 200) -> web.Response:
    # Log lines may contain lone surrogates, which become JSON escapes.
    body = _dumps(value).encode("utf-8", "backslashreplace")
    return web.Response(
        body=body,
        status=code,
        headers={**HEADERS, "content-type": "application/json; charset=utf-8"},
    )


def _problem(code: int, text: str) -> web.Response:
    return _answer({"error": text}, code)
