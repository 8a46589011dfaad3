"""The page's addresses and their answers. The page is for reading; only `infer` changes anything, and wants the token.

/page/                   the page, and its files
/page/view.json          all models; `history.py`
/page/events.json        for the owner: the newest events; `asked=1`: those that somebody asked for, the audit
/page/model.json?name=   one model: times, what to copy; for the owner why it is as it is, events, errors, log,
                         configuration
/page/infer?name=        POST: a request in JSON is passed on to the server, and its answer back; `asking.py`
/favicon.ico             the page's icon, for what else browsers show
/page/openapi.json       the HTTP API with each model's inputs

The owner is who has the access token, or comes over the unix socket.
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

from pytriton._protocol.messages.answers import Status
from pytriton._protocol.messages.events import Event, Explanation
from pytriton._protocol.messages.figures import Figures
from pytriton._protocol.messages.requests import Requests
from pytriton.dispatcher.http_server.decompression import Decompressor, EncodingError
from pytriton.dispatcher.telemetry.dashboard import model_view, openapi
from pytriton.dispatcher.telemetry.dashboard.history import History
from pytriton.dispatcher.telemetry.dashboard.try_it import Answer, passed_on
from pytriton.dispatcher.telemetry.metrics.blocking_source import OwnThread

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]

_STATIC = Path(__file__).parent / "static"
_FILES = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
#: Nothing from elsewhere, no code in the page itself, and no frame around it.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
#: A snapshot that is younger is shown again: many who watch cost no more than one.
_FRESH_S = 1.5
#: While somebody watches, and for so long after that, the charts go on.
_WATCHED_S = 86_400.0
#: Between two points of a chart; longer where a snapshot takes long, so that charts take a fiftieth of the time.
_EVERY_S, _SHARE = 5.0, 0.02
#: A request is text of people.
_REQUEST_BYTES = 1 << 20
#: Requests to models that are under way: one that hangs takes a minute.
_MOST_ASKED = 8
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


@dataclass(frozen=True)
class Sources:
    """The sources of all that the page shows.

    Attributes:
        snapshot: takes a snapshot of figures.
        status: tells the daemon's status.
        log: returns the newest lines of a model's log; called in a thread.
        requests: tells what is known of single requests of a model; None: nothing.
        explain: tells why a model is as it is, with its newest events; None: nothing is known of it.
        events: tells the newest events of all models and of the daemon; True: those that somebody asked for.
        is_owner: whether an Authorization header carries the access token; called in a thread.
        headers: what a request to a restricted endpoint of the server carries.
    """

    snapshot: Callable[[], Awaitable[Figures]]
    status: Callable[[], Awaitable[Status]]
    log: Callable[[str, int], list[str]]
    requests: Callable[[str], Awaitable[Requests | None]]
    explain: Callable[[str], Awaitable[Explanation | None]]
    events: Callable[[bool], Awaitable[Sequence[Event]]]
    is_owner: Callable[[str], bool]
    headers: Callable[[], dict[str, str]]


class Page:
    """The page of one daemon."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._history = History()
        self._taking = asyncio.Lock()
        self._taken_at = self._watched_at = 0.0
        self._plotting: asyncio.Task[None] | None = None
        self._room = threading.BoundedSemaphore(_MOST_ASKED)

    def routes(
        self, guarded: Callable[[Endpoint], Endpoint] = lambda answer: answer
    ) -> list[web.RouteDef]:
        """Return its addresses.

        Args:
            guarded: makes an endpoint one that asks for the token, where the settings want that. The page itself
                needs none: a browser has none to send before there is a page, and nothing is told by it.
        """
        return [
            web.get("/", self._to_page),
            web.get("/page", self._to_page),
            web.get("/favicon.ico", self._icon),
            web.get("/page/view.json", guarded(_patient(self._view))),
            web.get("/page/model.json", guarded(_patient(self._model))),
            web.get("/page/events.json", guarded(_patient(self._events))),
            web.get("/page/openapi.json", guarded(_patient(self._openapi))),
            web.post("/page/infer", _patient(self._infer)),
            web.get("/page/{name:.*}", self._file),
        ]

    async def _to_page(self, request: web.Request) -> web.Response:
        return web.Response(status=307, headers={**HEADERS, "location": "/page/"})

    async def _file(self, request: web.Request) -> web.Response:
        if request.match_info["name"] not in _FILES:
            return _problem(404, "there is no such page")
        return await self._known_file(request.match_info["name"])

    async def _icon(self, request: web.Request) -> web.Response:
        """Answer browsers that show what names no icon, such as the metrics: they ask for it by this name."""
        return await self._known_file("icon.svg")

    async def _known_file(self, name: str) -> web.Response:
        name, media = _FILES[name]
        body = await asyncio.to_thread((_STATIC / name).read_bytes)
        return web.Response(body=body, headers={**HEADERS, "content-type": media})

    async def _view(self, request: web.Request) -> web.Response:
        self._watched_at = time.monotonic()
        if self._plotting is None or self._plotting.done():
            self._plotting = asyncio.create_task(self._plot())
        await self._refresh()
        return _answer(model_view.overview(self._history, private=await self._is_owner(request)))

    async def _plot(self) -> None:
        """Go on taking snapshots while somebody watches."""
        took_s = 0.0
        while time.monotonic() - self._watched_at < _WATCHED_S:
            await asyncio.sleep(max(_EVERY_S, took_s / _SHARE))
            begun = time.monotonic()
            try:
                await self._refresh()
            except asyncio.TimeoutError:  # the dispatcher is busy: the chart has a gap
                continue
            finally:
                took_s = time.monotonic() - begun

    async def _refresh(self) -> None:
        async with self._taking:
            if time.monotonic() - self._taken_at < _FRESH_S:
                return
            self._history.add(await self._sources.snapshot())
            self._taken_at = time.monotonic()

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
        """Return whether a request carries the access token, or came over the unix socket of the daemon's user."""
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
            return _problem(401, "this needs the access token: `pytriton-daemon token` prints it")
        try:
            body = await _read(request)
        except EncodingError as error:
            return _problem(415, str(error))
        except (web.RequestPayloadError, zlib.error):
            return _problem(400, "the body cannot be read: its framing or compression is broken")
        if len(body) > _REQUEST_BYTES:
            return _problem(413, f"a request of the page has {_REQUEST_BYTES:,} bytes at most")
        status = await self._sources.status()
        name = request.query.get("name", "")
        if not status.server.http_url:
            return _problem(409, "the server serves no HTTP (http_port)")
        config = next((one.config for one in status.models if one.name == name), {})
        headers = await asyncio.to_thread(self._sources.headers)
        if not self._room.acquire(blocking=False):
            return _problem(429, f"{_MOST_ASKED} requests of the page are under way: wait for them")

        def ask() -> Answer:
            try:
                return passed_on(status.server.http_url, name, bytes(body), config, headers)
            finally:
                self._room.release()

        # A thread of the pool would be missing to scrapers. Who asks may go: it ends by itself.
        asking = asyncio.get_running_loop().run_in_executor(OwnThread(), ask)
        try:
            code, answer, kind = await asyncio.shield(asking)
        except OSError as error:
            return _problem(502, f"the server does not answer: {error}")
        return web.Response(body=answer, status=code, headers={**HEADERS, "content-type": kind})


def _patient(answer: Endpoint) -> Endpoint:
    """Return an endpoint that says so when the dispatcher does not come to it in time."""

    async def patient(request: web.Request) -> web.StreamResponse:
        try:
            return await answer(request)
        except asyncio.TimeoutError:
            return _problem(503, "the daemon is busy, and has not answered in time")

    return patient


async def _read(request: web.Request) -> bytearray:
    """Return the body, or what is too much of it; raises EncodingError, RequestPayloadError and zlib.error."""
    body = bytearray()
    inflating = Decompressor(request.headers.get("content-encoding", ""))
    async for chunk in request.content.iter_any():
        for piece in inflating.pieces(chunk):
            body += piece
            if len(body) > _REQUEST_BYTES:
                return body
    inflating.end()
    return body


def _answer(value: Any, code: int = 200) -> web.Response:
    # What is no Unicode can come in a log: in JSON, its escape says the same.
    body = _dumps(value).encode("utf-8", "backslashreplace")
    return web.Response(
        body=body,
        status=code,
        headers={**HEADERS, "content-type": "application/json; charset=utf-8"},
    )


def _problem(code: int, text: str) -> web.Response:
    return _answer({"error": text}, code)
