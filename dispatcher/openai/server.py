"""The frontend's routes: authorization, request handling, and the answers that need no model."""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import select
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import HttpVersion11, web

from pytriton._protocol.access import ACCESS_HEADER
from pytriton.dispatcher.http_server.connections import Connections, ErrorLog, place_of
from pytriton.dispatcher.openai.body_reader import Bodies, within
from pytriton.dispatcher.openai.browsers import headers_for_pages, refuse_other_sites
from pytriton.dispatcher.openai.keys import Holding, KeyFile, KeyOwner
from pytriton.dispatcher.openai.meters import Meters
from pytriton.dispatcher.openai.state import ApiModel, ApiState
from pytriton.dispatcher.openai.upstream import TritonPool
from pytriton.openai.errors import APIError

__all__ = ["ApiServer", "Asking", "Protocol"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Say = Callable[[str], None]


@dataclass
class _About:
    """The context of the request that a task answers.

    Attributes:
        caller: set once the key has been verified
        holding: reserved tokens of the caller, once the request is admitted
        reached: whether a worker has answered, even with an error
    """

    request_id: str
    caller: KeyOwner | None = None
    holding: Holding | None = None
    reached: bool = False

    def settle(self) -> None:
        """Release tokens that are still reserved, because no model was asked."""
        if self.holding is not None:
            self.holding.settle(None)


_about: ContextVar[_About] = ContextVar("about")
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_TOO_SLOW = msgspec.json.encode(
    APIError("The request headers did not arrive in time.", 408, code="timeout").body()
)
#: Time limit of tritonserver's readiness probe, in seconds.
_HEALTH_S = 5.0


class Asking:
    """A request with its body and caller.

    Attributes:
        data: the body
        caller: the owner of the key; None if no keys are required
        began: start time by the monotonic clock
        holding: reserved tokens of the caller, once the request is admitted
    """

    def __init__(
        self, request: web.Request, data: bytes, caller: KeyOwner | None, began: float
    ) -> None:
        self.request = request
        self.data = data
        self.caller = caller
        self.began = began
        self.holding: Holding | None = None

    def used(self, tokens: int) -> None:
        """Count the tokens used against the caller's quota, instead of the reserved ones."""
        if self.holding is not None:
            self.holding.settle(tokens)


class ApiServer:
    """The state shared by all requests. `say` writes a log line; `most` is the maximum number of connections."""

    def __init__(
        self,
        state: ApiState,
        say: Say,
        clock: Callable[[], float] = time.monotonic,
        most: int = 1 << 16,
    ) -> None:
        self.state = state
        self.meters = Meters()
        self.clock = clock
        self.say = say
        path = state.answering.keys_file
        self.keys = KeyFile(None if path is None else Path(path), say, clock)
        self.triton = TritonPool(state.upstream)
        self.complaints = ErrorLog(say, clock)
        self.connections = Connections(lambda: self.state.answering, most, _TOO_SLOW, clock)
        self._bodies = Bodies()
        self._health_asked: asyncio.Future[bool] | None = None
        self._models = _by_id(state.models)

    def application(self) -> web.Application:
        """Return the application with its routes."""
        from pytriton.dispatcher.openai.completions import TextRoute
        from pytriton.dispatcher.openai.embeddings import answer_embeddings, answer_tensors

        app = web.Application(middlewares=[self._around])
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", "/v1/models", self._list),
            ("GET", "/v1/models/{name:.+}", self._one),
            ("POST", "/v1/models/{name:.+}/{verb:load|unload}", self._load),
            ("POST", "/v1/chat/completions", TextRoute(self, "chat").answer),
            ("POST", "/v1/completions", TextRoute(self, "completions").answer),
            ("POST", "/v1/responses", TextRoute(self, "responses").answer),
            ("POST", "/v1/embeddings", functools.partial(answer_embeddings, self)),
            ("POST", "/v2/models/{name}/infer", functools.partial(answer_tensors, self)),
        ]
        for method, path, handler in routes:
            # GET routes also answer HEAD, which load balancers use.
            add = app.router.add_get if method == "GET" else app.router.add_post
            add(path, handler, expect_handler=self._expect)
        app.on_cleanup.append(self._close)
        return app

    async def use(self, state: ApiState) -> None:
        """Apply a new state from the daemon."""
        former = self.triton if state.upstream != self.state.upstream else None
        self.state = state
        self._models = _by_id(state.models)
        if former is not None:
            self.triton = TritonPool(state.upstream)
            await former.close()

    async def _close(self, app: web.Application) -> None:
        await self.triton.close()

    # ── used by the routes ───────────────────────────────────────────────────────────────────────

    def caller(self, request: web.Request) -> KeyOwner | None:
        """Return the caller that the key belongs to.

        Raises:
            APIError: the key is missing or wrong
        """
        try:
            caller = self.keys.caller(request.headers.get("Authorization", ""))
        except APIError:
            self.complaints.count("requests without a valid key")
            raise
        _about.get().caller = caller
        return caller

    async def asking(self, request: web.Request) -> Asking:
        """Return a request with its body after verifying its key.

        Raises:
            APIError: the key is wrong, or the body is late or too large
        """
        began = self.clock()
        caller = self.caller(request)  # before the body is read
        data = await self._bodies.read(request, self.state.answering)
        return Asking(request, data, caller, began)

    def model(
        self, asking: Asking, name: str, kind: str, tokens_of: Callable[[int], int]
    ) -> ApiModel:
        """Return the requested model, and count the request against the caller's quota.

        Args:
            tokens_of: returns the number of tokens it may use, given the typical number

        Raises:
            APIError: no model or an unknown one is named, it does not serve this route, or the quota is used up
        """
        if not name:
            raise APIError(
                "Missing required parameter: 'model'.",
                param="model",
                code="missing_required_parameter",
            )
        found = self._shown(asking.caller, name)
        if asking.caller is not None:
            asking.holding = _about.get().holding = asking.caller.admit(tokens_of)
        if kind not in found.card.serves:
            raise APIError(
                f"The model '{name}' serves {', '.join(found.card.serves)}, not {kind}.", 404,
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    def _shown(self, caller: KeyOwner | None, name: str) -> ApiModel:
        """Return a model. One that the key does not permit is reported as missing, so that keys cannot discover it.

        Raises:
            APIError: there is no such model
        """
        found = self._models.get(name)
        if found is None or not _may_use(caller, name, found):
            raise APIError(
                f"The model '{name[:200]}' does not exist, or you have no access to it.",
                404,
                param="model",
                code="model_not_found",
            )
        return found

    @contextmanager
    def slot(self) -> Any:
        """Occupy one of the request slots.

        Raises:
            APIError: all are occupied
        """
        most = self.state.answering.max_requests
        if self.meters.active >= most:
            raise APIError(
                f"{most} requests are in progress, which is the limit. Retry later.", 429, type="overloaded",
                code="overloaded", retry_after_s=1.0,
            )  # fmt: skip
        self.meters.active += 1
        try:
            yield
        finally:
            self.meters.active -= 1

    # ── middleware ───────────────────────────────────────────────────────────────────────────────

    @property
    def request_id(self) -> str:
        """The id of the current request."""
        return _about.get().request_id

    def reached(self) -> None:
        """Record that a worker has answered, so that its error is not counted as a refused request."""
        _about.get().reached = True

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        named = _REQUEST_ID.fullmatch(given) is not None
        _about.set(_About(given if named else f"req_{secrets.token_hex(12)}"))
        answer: web.StreamResponse
        self.connections.begins(request)
        try:
            # A preflight request of a browser; the headers below are the answer.
            asks_first = request.method == "OPTIONS"
            refuse_other_sites(request, self.state.answering.cors_origins)
            answer = web.Response(status=204) if asks_first else await handler(request)
        except APIError as error:
            answer = self._error(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            answer = self._error(_of_http(error, request))
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            answer = self._error(self.fault(error))
        finally:
            _about.get().settle()
            self.connections.ends(request)
            self._bodies.release(request)
        if not answer.prepared:
            answer.headers.update(self.headers(request))
        return answer

    def fault(self, error: Exception) -> APIError:
        """Count an internal error; return the error for the client."""
        self.complaints.count(f"internal errors: {type(error).__name__} {place_of(error)}")
        return APIError("Internal error of the OpenAI frontend.", 500)

    def unreadable(self, status: int, why: str) -> web.Response:
        """Return the answer to a request that is not valid HTTP."""
        text = f"The request is not valid HTTP: {why or 'it is malformed'}."
        if status >= 500:
            text = "Internal error of the OpenAI frontend."
        else:
            self.meters.refuse("invalid_http")
        error = APIError(text, status, code="invalid_http" if status < 500 else None)
        headers = {"x-request-id": f"req_{secrets.token_hex(12)}", "Server": "pytriton-daemon"}
        return answer_of(error.body(), status, headers)

    def headers(self, request: web.Request) -> dict[str, str]:
        """Return the common headers of all answers."""
        headers = {"x-request-id": self.request_id, "Server": "pytriton-daemon"}
        headers.update(headers_for_pages(request, self.state.answering.cors_origins))
        return headers

    async def _expect(self, request: web.Request) -> None:
        """Handle `Expect: 100-continue`: ask for the body if the key is valid and the size permitted."""
        expected = request.headers.get("Expect", "").lower()
        if expected != "100-continue" or request.version < aiohttp.HttpVersion11:
            return
        try:
            self.keys.caller(request.headers.get("Authorization", ""))
        except APIError:
            return
        if (request.content_length or 0) > self.state.answering.max_body_size:
            return
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not started

    def _error(self, error: APIError) -> web.Response:
        about = _about.get()
        about.settle()  # update the rate limit headers
        if error.status < 500 and not about.reached:
            self.meters.refuse(error.code or str(error.status))
        headers = {} if about.caller is None else about.caller.headers()
        if error.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(error.retry_after_s + 0.5)))
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return answer_of(error.body(), error.status, headers)

    # ── routes without a model ───────────────────────────────────────────────────────────────────

    async def _health(self, request: web.Request) -> web.Response:
        if self._health_asked is None or self._health_asked.done():
            self._health_asked = asyncio.ensure_future(self._ask_health())
        ready = await asyncio.shield(self._health_asked)  # shared by all concurrent probes
        return answer_of({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    async def _ask_health(self) -> bool:
        try:
            return await within(self.triton.is_ready(), _HEALTH_S)
        except asyncio.TimeoutError:
            return False

    async def _metrics(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        text = self.meters.text() if caller is None else self.meters.text(caller.may_use)
        return web.Response(text=text, content_type="text/plain")

    async def _list(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        shown = [
            shown_model(one, name)
            for name, one in self._models.items()
            if _may_use(caller, name, one)
        ]
        return answer_of({"object": "list", "data": shown})

    async def _one(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        name = request.match_info["name"]
        return answer_of(shown_model(self._shown(caller, name), name))

    async def _load(self, request: web.Request) -> web.Response:
        """Load or unload a model, as Triton's OpenAI frontend does; requires the access token."""
        caller = self.caller(request)
        asked, verb = request.match_info["name"], request.match_info["verb"]
        found = self._models.get(asked)
        if caller is not None:
            self._shown(caller, asked)  # a key restricted to some models must not control others
        name = asked if found is None else found.name
        await self.triton.control(name, verb, request.headers.get(ACCESS_HEADER, ""))
        return answer_of({"id": asked, "object": "model", "status": f"{verb}ed"})


def answer_of(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return a JSON response."""
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def _by_id(models: Iterable[ApiModel]) -> dict[str, ApiModel]:
    """Return the models by name and alias. Names take precedence over aliases, and earlier aliases over later ones."""
    found: dict[str, ApiModel] = {one.name: one for one in models}
    for one in models:
        for alias in one.card.aliases:
            found.setdefault(alias, one)
    return found


def _may_use(caller: KeyOwner | None, asked: str, model: ApiModel) -> bool:
    """Return whether a caller's key permits a model, by its name or by the requested alias."""
    return caller is None or caller.may_use(model.name) or caller.may_use(asked)


def shown_model(model: ApiModel, name: str) -> dict[str, Any]:
    """Return a model as shown by `/v1/models` under one of its ids."""
    card = model.card
    shown: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": card.owned_by,
        "serves": card.serves,
    }
    if name != model.name:
        shown["root"] = model.name
    if card.context_length is not None:
        shown["context_length"] = shown["max_model_len"] = card.context_length
    if card.description:
        shown["description"] = card.description
    return shown


def _of_http(error: web.HTTPException, request: web.Request) -> APIError:
    if error.status == 404:
        return APIError(
            f"Invalid URL ({request.method} {request.path[:200]}).", 404, code="unknown_url"
        )
    if error.status == 405:
        return APIError(
            f"The method {request.method} is not allowed here.", 405, code="method_not_supported"
        )
    return APIError(error.reason, error.status)


# ── A client's connection to the frontend ──


#: Start of client data in aiohttp's messages, which must not be logged. Names of known headers may stay.
_BYTES = re.compile(r"[:\s]*(?:\n|\b(?:bytearray\()?b['\"]|(?<!\w)['\"](?![A-Za-z-]+' header))")
#: Start of aiohttp's own text. Some messages consist only of client data.
_SENTENCE = re.compile(r"[A-Z][\w'-]* ")


#: Probe for a client that has closed its sending half and received nothing of its answer: the client ignores it (RFC
#: 9110, 15.2), and a closed socket answers with a reset.
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Delay from the client's EOF to the first check whether it has disconnected, and interval of further checks.
_FIRST_CHECK_S, _CHECK_INTERVAL_S = 0.01, 0.5


class Protocol(web.RequestHandler):
    """The server's end of a connection.

    Args:
        answer: returns the response to an invalid request, given its status and a one-line description or ""
    Attributes:
        probe: sends data that the client ignores within a stream; None outside of a stream
    """

    __slots__ = ("_answer", "_end_check", "probe")

    def __init__(
        self, server: web.Server, answer: Callable[[int, str], web.Response], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._answer = answer
        self.probe: Callable[[], None] | None = None
        self._end_check: asyncio.TimerHandle | None = None

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Keep the connection open to answer requests that arrived before EOF; close it if there are none.

        Until something is sent, it is unknown whether the client closed its socket or only its sending half (like `nc
        -N`).
        """
        if self._is_idle():
            return None
        self._end_check = self._loop.call_later(_FIRST_CHECK_S, self._check_after_end, True)
        return True

    def connection_lost(self, exc: BaseException | None) -> None:
        """Cancel the check and the requests in progress."""
        if self._end_check is not None:
            self._end_check.cancel()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self._waiter is not None and not self._waiter.done() and not self._messages

    def _check_after_end(self, is_first: bool) -> None:
        """Close the connection if the client has disconnected, its last request is truncated, or all is answered.

        After EOF, the event loop no longer watches the socket.
        """
        transport, request = self.transport, self._current_request
        if transport is None or transport.is_closing():
            return
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), 0)
        is_cut_off = request is not None and not request.content.is_eof()
        if poll.poll(0) or is_cut_off:
            transport.abort()
            return
        if self._is_idle():
            transport.close()
            return
        if not self._messages:
            self.close()  # after the current answer
        if is_first and request is not None and request.version >= HttpVersion11:
            if request.writer.output_size == 0:
                transport.write(_CONTINUE)
            elif self.probe is not None:
                self.probe()
        self._end_check = self._loop.call_later(_CHECK_INTERVAL_S, self._check_after_end, False)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Log as aiohttp does, but answer in the API's format.

        Raises:
            ConnectionError: part of an answer has been sent already
        """
        super().handle_error(request, status, exc, message)
        answer = self._answer(status, _without_bytes(message or ""))
        answer.force_close()
        return answer


def _without_bytes(message: str) -> str:
    """Return aiohttp's error message without client data; "" if nothing else is in it."""
    what, *_ = _BYTES.split(message, maxsplit=1)
    return what.rstrip(".: ") if _SENTENCE.match(what) else ""
