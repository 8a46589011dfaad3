"""The routes of the front: who asks, for what, and the answers that need no model."""

from __future__ import annotations

import asyncio
import functools
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from pytriton.dispatcher.http_server.complaints import Complaints, place_of
from pytriton.dispatcher.http_server.connections import Connections
from pytriton.dispatcher.openai_front.keys import Caller, KeyFile
from pytriton.dispatcher.openai_front.meters import Meters
from pytriton.dispatcher.openai_front.reading import Bodies
from pytriton.dispatcher.openai_front.state import Served, State
from pytriton.dispatcher.openai_front.upstream import Triton
from pytriton.openai.errors import APIError

__all__ = ["Asking", "Front"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Say = Callable[[str], None]

#: Of the request that a task answers.
_request_id: ContextVar[str] = ContextVar("request_id")
_REQUEST_ID = re.compile(r"[\w.-]{1,128}")
_TOO_SLOW = msgspec.json.encode(
    APIError("The headers of a request did not come in time.", 408, code="timeout").body()
)
_ALLOWED = (
    "authorization, content-type, x-request-id, openai-organization, openai-project, openai-beta"
)


class Asking:
    """One request on its way: who asks, since when.

    Attributes:
        data: the body
        caller: the owner of the key; None where no keys are wanted
        began: by the monotonic clock
    """

    def __init__(
        self, request: web.Request, data: bytes, caller: Caller | None, began: float
    ) -> None:
        self.request = request
        self.data = data
        self.caller = caller
        self.began = began

    def used(self, tokens: int) -> None:
        """Count tokens to the caller's quota."""
        if self.caller is not None:
            self.caller.used(tokens)


class Front:
    """The state that all requests share. `say` writes a line of the log; at most `most` connections may be open."""

    def __init__(
        self,
        state: State,
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
        self.triton = Triton(state.upstream)
        self.complaints = Complaints(say, clock)
        self.connections = Connections(lambda: self.state.answering, most, _TOO_SLOW, clock)
        self._bodies = Bodies()
        self._models = {one.name: one for one in state.models}

    def application(self) -> web.Application:
        """Return the routes."""
        from pytriton.dispatcher.openai_front.texts import TextRoute
        from pytriton.dispatcher.openai_front.vectors import answer_embeddings, answer_tensors

        app = web.Application(middlewares=[self._around])
        routes: list[tuple[str, str, Handler]] = [
            ("GET", "/health", self._health),
            ("GET", "/metrics", self._metrics),
            ("GET", "/v1/models", self._list),
            ("GET", "/v1/models/{name}", self._one),
            ("POST", "/v1/chat/completions", TextRoute(self, "chat").answer),
            ("POST", "/v1/completions", TextRoute(self, "completions").answer),
            ("POST", "/v1/responses", TextRoute(self, "responses").answer),
            ("POST", "/v1/embeddings", functools.partial(answer_embeddings, self)),
            ("POST", "/v2/models/{name}/infer", functools.partial(answer_tensors, self)),
        ]
        for method, path, handler in routes:
            app.router.add_route(method, path, handler)
        app.on_cleanup.append(self._close)
        return app

    async def use(self, state: State) -> None:
        """Take over what the daemon has said anew."""
        former = self.triton if state.upstream != self.state.upstream else None
        self.state = state
        self._models = {one.name: one for one in state.models}
        if former is not None:
            self.triton = Triton(state.upstream)
            await former.close()

    async def _close(self, app: web.Application) -> None:
        await self.triton.close()

    # ── what routes use ──────────────────────────────────────────────────────────────────────────

    def caller(self, request: web.Request) -> Caller | None:
        """Return who asks.

        Raises:
            APIError: there is no key, or a wrong one
        """
        try:
            return self.keys.caller(request.headers.get("Authorization", ""))
        except APIError:
            self.complaints.count("requests without a key that is known")
            raise

    async def asking(self, request: web.Request) -> Asking:
        """Return a request with its body, if its key is right.

        Raises:
            APIError: the key is wrong, or the body does not come, or is too large
        """
        began = self.clock()
        caller = self.caller(request)  # before anything is read
        data = await self._bodies.read(request, self.state.answering)
        return Asking(request, data, caller, began)

    def model(self, asking: Asking, name: str, kind: str) -> Served:
        """Return the model that is asked for; the request counts to its caller's quota from now on.

        Raises:
            APIError: none is asked for, there is no such, it does not serve that, or the quota is used up
        """
        if not name:
            raise APIError(
                "Missing required parameter: 'model'.",
                param="model",
                code="missing_required_parameter",
            )
        found = self._shown(asking.caller, name)
        if asking.caller is not None:
            asking.caller.admit()
        if kind not in found.card.serves:
            raise APIError(
                f"The model '{name}' serves {', '.join(found.card.serves)}, not {kind}.", 404,
                param="model", code="model_not_found",
            )  # fmt: skip
        return found

    def _shown(self, caller: Caller | None, name: str) -> Served:
        """Return a model. One that is not for the caller's key is as one that is not there: no key can find it out.

        Raises:
            APIError: there is no such
        """
        found = self._models.get(name)
        if found is None or (caller is not None and not caller.may_use(name)):
            raise APIError(
                f"The model '{name[:200]}' does not exist, or you have no access to it.",
                404,
                param="model",
                code="model_not_found",
            )
        return found

    @contextmanager
    def slot(self) -> Any:
        """Hold a place among the requests under way.

        Raises:
            APIError: there is none
        """
        most = self.state.answering.max_requests
        if self.meters.active >= most:
            raise APIError(
                f"{most} requests are under way, which is the most.", 429, type="overloaded",
                code="overloaded", retry_after_s=1.0,
            )  # fmt: skip
        self.meters.active += 1
        try:
            yield
        finally:
            self.meters.active -= 1

    # ── around every request ─────────────────────────────────────────────────────────────────────

    @web.middleware
    async def _around(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("x-request-id", "")
        _request_id.set(given if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}")
        answer: web.StreamResponse
        self.connections.begins(request)
        try:
            # Browsers ask so before they send a request; the headers below are the answer.
            asks_first = request.method == "OPTIONS"
            answer = web.Response(status=204) if asks_first else await handler(request)
        except APIError as error:
            answer = self._error(error)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            answer = self._error(_of_http(error, request))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception as error:
            self.complaints.count(f"faults: {type(error).__name__} {place_of(error)}")
            answer = self._error(APIError("The front failed to answer this request.", 500))
        finally:
            self.connections.ends(request)
            self._bodies.release(request)
        if not answer.prepared:
            answer.headers.update(self.headers(request))
        return answer

    def headers(self, request: web.Request) -> dict[str, str]:
        """Return the headers of every answer."""
        headers = {"x-request-id": _request_id.get()}
        origin = request.headers.get("Origin")
        allowed = self.state.answering.cors_origins
        if origin is not None and ("*" in allowed or origin in allowed):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Allow-Headers"] = _ALLOWED
            headers["Access-Control-Allow-Methods"] = "GET, POST, OPTIONS"
            headers["Vary"] = "Origin"
        return headers

    def _error(self, error: APIError) -> web.Response:
        if error.status < 500:
            self.meters.refuse(error.code or str(error.status))
        return answer_of(error.body(), error.status, _retry_after(error))

    # ── routes without a model ───────────────────────────────────────────────────────────────────

    async def _health(self, request: web.Request) -> web.Response:
        ready = await self.triton.is_ready()
        return answer_of({"status": "ok" if ready else "not ready"}, 200 if ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        text = self.meters.text() if caller is None else self.meters.text(caller.may_use)
        return web.Response(text=text, content_type="text/plain")

    async def _list(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        shown = [
            shown_model(one)
            for one in self._models.values()
            if caller is None or caller.may_use(one.name)
        ]
        return answer_of({"object": "list", "data": shown})

    async def _one(self, request: web.Request) -> web.Response:
        caller = self.caller(request)
        found = self._shown(caller, request.match_info["name"])
        return answer_of(shown_model(found))


def answer_of(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return an answer with a body of JSON."""
    return web.Response(
        body=msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers=headers,
    )


def shown_model(model: Served) -> dict[str, Any]:
    """Return a model as `/v1/models` shows it."""
    card = model.card
    shown: dict[str, Any] = {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": card.owned_by,
        "serves": card.serves,
    }
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
        return APIError(f"Not allowed to {request.method} here.", 405, code="method_not_supported")
    return APIError(error.reason, error.status)


def _retry_after(error: APIError) -> dict[str, str] | None:
    if error.retry_after_s is None:
        return None
    return {"Retry-After": str(max(1, round(error.retry_after_s + 0.5)))}
