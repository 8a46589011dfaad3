"""Routes of the OpenAI API: authorization, request handling, and the responses that need no model."""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from pytriton._protocol.parameters import ACCESS_HEADER
from pytriton.dispatcher.http_server.browsers import Foreign, foreign_request, has_allowed_origin
from pytriton.dispatcher.http_server.connections import Connections, ErrorLog, place_of, within
from pytriton.dispatcher.openai.client_connection import RequestBodies, json_response
from pytriton.dispatcher.openai.completions import answer_text
from pytriton.dispatcher.openai.embeddings import answer_embeddings, answer_tensors
from pytriton.dispatcher.openai.keys import KeyFile, KeyOwner, TokenReservation
from pytriton.dispatcher.openai.meters import Meters
from pytriton.dispatcher.openai.state import ApiModel, ApiState
from pytriton.dispatcher.openai.upstream import TritonPool
from pytriton.openai.errors import APIError

__all__ = ["ApiCall", "ApiServer", "cors_headers", "refuse_foreign"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Log = Callable[[str], None]


@dataclass
class _RequestContext:
    """State of the request that the current task is answering.

    Attributes:
        caller: owner of the key, once the key has been verified
        reservation: tokens reserved for the request, once it has been admitted
        reached: whether a worker has answered, even with an error
    """

    request_id: str
    caller: KeyOwner | None = None
    reservation: TokenReservation | None = None
    reached: bool = False

    def settle(self) -> None:
        """Release the tokens that are still reserved, without charging them to the quota."""
        if self.reservation is not None:
            self.reservation.settle(None)


_context: ContextVar[_RequestContext] = ContextVar("context")
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_TOO_SLOW = msgspec.json.encode(
    APIError("The request headers did not arrive in time.", 408, code="timeout").body()
)
#: Time limit of tritonserver's readiness probe, in seconds.
_HEALTH_S = 5.0
#: Request headers that a page may send if the preflight request lists none.
_CORS_REQUEST_HEADERS = (
    "authorization, content-type, x-request-id, openai-organization, openai-project, openai-beta"
)
#: Matches the header names that a preflight request may list. Client libraries add their own (OpenAI's: x-stainless-…).
_HEADER_NAMES = re.compile(r"[a-zA-Z0-9_-]{1,64}(?:[, ]{1,4}[a-zA-Z0-9_-]{1,64}){0,63}")
#: Response headers that a page may read.
_CORS_RESPONSE_HEADERS = "x-request-id, retry-after, " + ", ".join(
    f"x-ratelimit-{what}-{of}"
    for of in ("requests", "tokens")
    for what in ("limit", "remaining", "reset")
)
#: How long browsers may cache a preflight response, in seconds.
_PREFLIGHT_MAX_AGE_S = 600


class ApiCall:
    """A request, after its key has been verified and its body has been read.

    Attributes:
        data: body of the request
        caller: owner of the key; None if no keys are required
        began: start time, on the monotonic clock
        reservation: tokens reserved for the request, once it has been admitted
    """

    def __init__(
        self, request: web.Request, data: bytes, caller: KeyOwner | None, began: float
    ) -> None:
        self.request = request
        self.data = data
        self.caller = caller
        self.began = began
        self.reservation: TokenReservation | None = None

    def record_usage(self, tokens: int) -> None:
        """Charge the tokens that the request used to the caller's quota, and release the reservation."""
        if self.reservation is not None:
            self.reservation.settle(tokens)


class ApiServer:
    """The OpenAI API's server, with the state that all requests share.

    Args:
        state: settings and models, as sent by the daemon
        log: writes a line to the log
        clock: monotonic clock
        max_connections: maximum number of client connections
    """

    def __init__(
        self,
        state: ApiState,
        log: Log,
        clock: Callable[[], float] = time.monotonic,
        max_connections: int = 1 << 16,
    ) -> None:
        self.state = state
        self.meters = Meters()
        self.clock = clock
        self.log = log
        path = state.settings.keys_file
        self.keys = KeyFile(None if path is None else Path(path), log, clock)
        self.triton = TritonPool(state.upstream)
        self.error_log = ErrorLog(log, clock)
        self.connections = Connections(
            lambda: self.state.settings, max_connections, _TOO_SLOW, clock
        )
        self._bodies = RequestBodies()
        self._health_probe: asyncio.Future[bool] | None = None
        self._models = _models_by_id(state.models)

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        app = web.Application(middlewares=[self._around])
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", "/v1/models", self._list_models),
            ("GET", "/v1/models/{name:.+}", self._show_model),
            ("POST", "/v1/models/{name:.+}/{verb:load|unload}", self._load),
            ("POST", "/v1/chat/completions", functools.partial(answer_text, self, "chat")),
            ("POST", "/v1/completions", functools.partial(answer_text, self, "completions")),
            ("POST", "/v1/responses", functools.partial(answer_text, self, "responses")),
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
        """Apply new settings and models from the daemon."""
        former = self.triton if state.upstream != self.state.upstream else None
        self.state = state
        self._models = _models_by_id(state.models)
        if former is not None:
            self.triton = TritonPool(state.upstream)
            await former.close()

    async def _close(self, app: web.Application) -> None:
        await self.triton.close()

    # ── used by the routes ───────────────────────────────────────────────────────────────────────

    def authenticate(self, request: web.Request) -> KeyOwner | None:
        """Verify the key of a request, and return its owner; None if no keys are required.

        Raises:
            APIError: the key is missing or wrong
        """
        try:
            caller = self.keys.authenticate(request.headers.get("Authorization", ""))
        except APIError:
            self.error_log.count("requests without a valid key")
            raise
        _context.get().caller = caller
        return caller

    async def read_call(self, request: web.Request) -> ApiCall:
        """Verify the key of a request, then read its body.

        Raises:
            APIError: the key is missing or wrong, or the body does not arrive in time or is too large
        """
        began = self.clock()
        caller = self.authenticate(request)  # before the body is read
        data = await self._bodies.read(request, self.state.settings)
        return ApiCall(request, data, caller, began)

    def model(
        self, call: ApiCall, name: str, kind: str, tokens_of: Callable[[int], int]
    ) -> ApiModel:
        """Return the requested model, and count the request against the caller's quota.

        Args:
            call: the request
            name: name or alias of the model
            kind: route, such as "chat"
            tokens_of: returns the maximum number of tokens of the request, given the average of earlier requests

        Raises:
            APIError: the model is missing or unknown or does not serve this route, or the quota is used up
        """
        if not name:
            raise APIError(
                "Missing required parameter: 'model'.",
                param="model",
                code="missing_required_parameter",
            )
        found = self._model_for(call.caller, name)
        if call.caller is not None:
            call.reservation = _context.get().reservation = call.caller.admit(tokens_of)
        if kind not in found.card.serves:
            raise APIError(
                f"The model '{name}' serves {', '.join(found.card.serves)}, not {kind}.", 404,
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    def _model_for(self, caller: KeyOwner | None, name: str) -> ApiModel:
        """Return a model by name or alias.

        Raises:
            APIError: the model does not exist, or the key gives no access to it. Both have the same message, so that
                callers cannot discover other models.
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
        """Occupy one of `max_requests` request slots for the duration of this context.

        Raises:
            APIError: all slots are occupied
        """
        limit = self.state.settings.max_requests
        if self.meters.active >= limit:
            raise APIError(
                f"{limit} requests are in progress, which is the limit. Retry later.", 429, type="overloaded",
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
        """Id of the current request, for logs and the x-request-id header."""
        return _context.get().request_id

    def mark_reached(self) -> None:
        """Record that the request has reached a worker, so that an error does not count as a refused request."""
        _context.get().reached = True

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("x-request-id", "")
        is_valid = _REQUEST_ID.fullmatch(sent) is not None
        _context.set(_RequestContext(sent if is_valid else f"req_{secrets.token_hex(12)}"))
        answer: web.StreamResponse
        self.connections.request_started(request)
        try:
            refuse_foreign(request, self.state.settings.cors_origins)
            if request.method == "OPTIONS":  # a preflight request; the headers below answer it
                answer = web.Response(status=204)
            else:
                answer = await handler(request)
        except APIError as error:
            answer = self._error(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            answer = self._error(_from_http_error(error, request))
            if "Allow" in error.headers:
                answer.headers["Allow"] = error.headers["Allow"]
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            answer = self._error(self.internal_error(error))
        finally:
            _context.get().settle()
            self.connections.request_finished(request)
            self._bodies.release(request)
        if not answer.prepared:
            answer.headers.update(self.headers(request))
        return answer

    def internal_error(self, error: Exception) -> APIError:
        """Log and count an internal error, and return the error to send to the client."""
        self.error_log.count(f"internal errors: {type(error).__name__} {place_of(error)}")
        return APIError("Internal error of the OpenAI frontend.", 500)

    def invalid_http(self, status: int, why: str) -> web.Response:
        """Return the response to a request that is not valid HTTP."""
        text = f"The request is not valid HTTP: {why or 'it is malformed'}."
        if status >= 500:
            text = "Internal error of the OpenAI frontend."
        else:
            self.meters.refuse("invalid_http")
        error = APIError(text, status, code="invalid_http" if status < 500 else None)
        headers = {"x-request-id": f"req_{secrets.token_hex(12)}", "Server": "pytriton-daemon"}
        return json_response(error.body(), status, headers)

    def headers(self, request: web.Request) -> dict[str, str]:
        """Return the headers common to all responses to `request`."""
        headers = {"x-request-id": self.request_id, "Server": "pytriton-daemon"}
        headers.update(cors_headers(request, self.state.settings.cors_origins))
        return headers

    async def _expect(self, request: web.Request) -> None:
        """Handle `Expect: 100-continue`: request the body if the key is valid and the body is not too large."""
        expected = request.headers.get("Expect", "").lower()
        if expected != "100-continue" or request.version < aiohttp.HttpVersion11:
            return
        try:
            self.keys.authenticate(request.headers.get("Authorization", ""))
        except APIError:
            return
        if (request.content_length or 0) > self.state.settings.max_body_size:
            return
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the response itself has not started

    def _error(self, error: APIError) -> web.Response:
        context = _context.get()
        context.settle()  # update the rate limit headers
        if error.status < 500 and not context.reached:
            self.meters.refuse(error.code or str(error.status))
        headers = {} if context.caller is None else context.caller.headers()
        if error.retry_after_s is not None:
            headers["Retry-After"] = str(max(1, round(error.retry_after_s + 0.5)))
        if error.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return json_response(error.body(), error.status, headers)

    # ── routes without a model ───────────────────────────────────────────────────────────────────

    async def _health(self, request: web.Request) -> web.Response:
        if self._health_probe is None or self._health_probe.done():
            self._health_probe = asyncio.ensure_future(self._probe_triton())
        ready = await asyncio.shield(self._health_probe)  # shared by all concurrent probes
        return json_response({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    async def _probe_triton(self) -> bool:
        try:
            return await within(self.triton.is_ready(), _HEALTH_S)
        except asyncio.TimeoutError:
            return False

    async def _metrics(self, request: web.Request) -> web.Response:
        caller = self.authenticate(request)
        text = self.meters.text() if caller is None else self.meters.text(caller.may_use)
        return web.Response(text=text, content_type="text/plain")

    async def _list_models(self, request: web.Request) -> web.Response:
        caller = self.authenticate(request)
        shown = [
            model_json(one, name)
            for name, one in self._models.items()
            if _may_use(caller, name, one)
        ]
        return json_response({"object": "list", "data": shown})

    async def _show_model(self, request: web.Request) -> web.Response:
        caller = self.authenticate(request)
        name = request.match_info["name"]
        return json_response(model_json(self._model_for(caller, name), name))

    async def _load(self, request: web.Request) -> web.Response:
        """Load or unload a model, as Triton's own OpenAI frontend does. The request needs Triton's access token."""
        caller = self.authenticate(request)
        requested, verb = request.match_info["name"], request.match_info["verb"]
        found = self._models.get(requested)
        if caller is not None:  # a key restricted to some models must not control others
            self._model_for(caller, requested)
        name = requested if found is None else found.name
        await self.triton.control(name, verb, request.headers.get(ACCESS_HEADER, ""))
        return json_response({"id": requested, "object": "model", "status": f"{verb}ed"})


def _models_by_id(models: Iterable[ApiModel]) -> dict[str, ApiModel]:
    """Return the models by name and alias. Names take precedence over aliases, and earlier aliases over later ones."""
    found: dict[str, ApiModel] = {one.name: one for one in models}
    for one in models:
        for alias in one.card.aliases:
            found.setdefault(alias, one)
    return found


def _may_use(caller: KeyOwner | None, requested: str, model: ApiModel) -> bool:
    """Return whether the caller's key gives access to a model, either by its name or by the requested alias."""
    return caller is None or caller.may_use(model.name) or caller.may_use(requested)


def model_json(model: ApiModel, name: str) -> dict[str, Any]:
    """Return the entry of a model in `/v1/models`, under its name or one of its aliases."""
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


def _from_http_error(error: web.HTTPException, request: web.Request) -> APIError:
    if error.status == 404:
        return APIError(
            f"Invalid URL ({request.method} {request.path[:200]}).", 404, code="unknown_url"
        )
    if error.status == 405:
        return APIError(
            f"The method {request.method} is not allowed here.", 405, code="method_not_supported"
        )
    return APIError(error.reason, error.status)


# ── Pages in browsers ────────────────────────────────────────────────────────────────────────────


def cors_headers(request: web.BaseRequest, allowed_origins: Sequence[str]) -> dict[str, str]:
    """Return the CORS headers that allow a page from an allowed origin to read the response."""
    if not allowed_origins:
        return {}
    headers = {"Vary": "Origin"}  # on all responses, so that caches do not mix up origins
    if has_allowed_origin(request.headers, allowed_origins):
        headers["Access-Control-Allow-Origin"] = request.headers["Origin"]
        headers["Access-Control-Expose-Headers"] = _CORS_RESPONSE_HEADERS
        if request.method == "OPTIONS":  # a preflight request
            wanted = request.headers.get("Access-Control-Request-Headers", "")
            headers["Access-Control-Allow-Headers"] = (
                wanted if _HEADER_NAMES.fullmatch(wanted) else _CORS_REQUEST_HEADERS
            )
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers["Access-Control-Max-Age"] = str(_PREFLIGHT_MAX_AGE_S)
    return headers


def refuse_foreign(request: web.BaseRequest, allowed_origins: Sequence[str]) -> None:
    """Refuse a browser's request if its page has an origin that is not allowed.

    Raises:
        APIError: the request is refused
    """
    local_address = request.get_extra_info("sockname")
    foreign = foreign_request(request.method, request.headers, local_address, allowed_origins)
    if foreign is Foreign.OTHER_SITE:
        raise APIError(
            "Requests from this origin are not allowed; add it to the setting cors_origins.", 403,
            code="origin_not_allowed",
        )  # fmt: skip
    if foreign is not None:
        text = foreign.value
        raise APIError(f"{text[0].upper()}{text[1:]}.", 403, code="host_not_allowed")
