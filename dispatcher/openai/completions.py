"""The routes for text: chat, completions and responses. They relay a model's answer to the client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.client_connection import ClientConnection
from pytriton.dispatcher.openai.keys import estimate_tokens
from pytriton.openai.bodies import BODIES, Body, ChatBody, ResponsesBody, ToolBody, read_body
from pytriton.openai.deltas import Usage
from pytriton.openai.errors import APIError, WireError
from pytriton.openai.parts import remote_urls
from pytriton.openai.response_writer import json_text

if TYPE_CHECKING:
    from pytriton.dispatcher.openai.server import ApiCall, ApiServer
    from pytriton.dispatcher.openai.upstream import AnswerTexts

__all__ = ["answer_text"]

_PREFIXES = {"chat": "chatcmpl-", "completions": "cmpl-", "responses": "resp_"}
_OPERATIONS = {"chat": "chat", "completions": "text_completion", "responses": "chat"}
_EVENTS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
#: Time for a client to read the end of its stream, once the answer is complete or has timed out, in seconds.
_END_S = 15.0
#: Maximum length of a failure in the log, in characters.
_MAX_LOGGED = 500
#: Number of turns of the event loop to wait for written data to be sent.
_TURNS = 2
_NO_USAGE = Usage()
_read_usage = msgspec.json.Decoder(Usage).decode
_read_error = msgspec.json.Decoder(WireError).decode


async def answer_text(frontend: ApiServer, kind: str, request: web.Request) -> web.StreamResponse:
    """Answer a request to one of the text routes.

    Args:
        kind: "chat", "completions" or "responses"

    Raises:
        APIError: the request failed before any of the response was sent
    """
    call = await frontend.read_call(request)
    body = read_body(call.data, BODIES[kind])
    requested = body.model
    model = frontend.model(call, requested, kind, partial(estimate_tokens, body))
    if not frontend.state.settings.remote_urls:
        _refuse_remote(body)
    streamed = bool(body.stream)
    del body  # the parsed body takes far more memory than its bytes
    envelope = _envelope(kind, requested, call.data)
    with frontend.slot():
        relay = AnswerRelay(frontend, call, model.name, kind, streamed=streamed)
        return await relay.run(envelope)


def _envelope(kind: str, requested: str, data: bytes) -> bytes:
    """Return the request in the form that workers read. The answer repeats `requested` as the model's name."""
    try:
        data.decode()
    except UnicodeDecodeError as error:  # in a part that was not parsed
        raise APIError(
            f"The body is not JSON in UTF-8: {error.reason}.", code="invalid_json"
        ) from None
    head = {"api": kind, "id": _PREFIXES[kind] + secrets.token_hex(12), "model": requested}
    return msgspec.json.encode(head)[:-1] + b',"body":' + data + b"}"


class _EventResponse(web.StreamResponse):
    """Response whose headers are sent together with its first events, because each segment wakes the client."""

    _send_headers_immediately = False


class AnswerRelay:
    """Relays one request's answer from the model to the client."""

    def __init__(
        self, frontend: ApiServer, call: ApiCall, model: str, kind: str, *, streamed: bool
    ) -> None:
        self._frontend = frontend
        self._call = call
        self._model = model
        self._kind = kind
        self._streamed = streamed
        self._response: web.StreamResponse | None = None
        self._writing = asyncio.Lock()
        self._first_at: float | None = None
        self._wrote_at = frontend.clock()
        self._usage = _NO_USAGE
        self._events = 0
        self._body = b""
        self._ended = False
        self._is_complete = False  #: the end of the stream has been written
        self._in_chunks = False  #: the stream has started, with HTTP chunked encoding
        self._answer: AnswerTexts | None = None
        #: The next check for silence, and the comment that is being written.
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._pulse_task: asyncio.Task[None] | None = None

    async def run(self, envelope: bytes) -> web.StreamResponse:
        """Send the request to the model, relay the answer, and return the response.

        Raises:
            APIError: the request failed before any of the response was sent
        """
        error = "cancelled"
        if self._streamed:
            self._start_pulse()
        try:
            await self._exchange_in_time(envelope)
            error = ""
        except APIError as failure:
            error = failure.code or str(failure.status)
            if failure.status >= 500:
                self._log(failure)
            if self._response is None:
                raise
            if not self._is_complete:
                await self._finish_writing(self._failed(failure))
        finally:
            self._stop_pulse()
            self._set_probe(None)
            # A client may disconnect as soon as it has the end.
            self._measure("" if self._is_complete and error == "cancelled" else error)
        if self._response is None:
            headers = {} if self._call.caller is None else self._call.caller.headers()
            return web.Response(body=self._body, content_type="application/json", headers=headers)
        if not self._is_complete:
            await self._finish_writing(self._response.write_eof())
        return self._response

    def _log(self, failure: APIError) -> None:
        """Log a failure on a single line, even if the model's message has several lines."""
        line = " ".join(failure.message[: 2 * _MAX_LOGGED].split())[:_MAX_LOGGED]
        self._frontend.log(f"model {self._model}, request {self._frontend.request_id}: {line}")

    async def _finish_writing(self, writing: Awaitable[None]) -> None:
        """Write the end of a stream. If the client does not read it in time, abort the connection to free its request
        slot.

        Raises:
            ConnectionError: the client did not read the end of the stream
        """
        try:
            await within(writing, _END_S)
        except asyncio.TimeoutError:
            transport = self._call.request.transport
            if transport is not None:
                transport.abort()
            raise ConnectionAbortedError("the client did not read the response") from None

    async def _exchange_in_time(self, envelope: bytes) -> None:
        timeout_s = self._frontend.state.settings.timeout_s
        try:
            await within(self._exchange(envelope), timeout_s)
        except asyncio.TimeoutError:
            raise APIError(
                f"The response took longer than {timeout_s:g} s.", 504, code="timeout"
            ) from None
        except (APIError, ConnectionError):
            raise
        except Exception as error:  # here, since a started stream cannot send an error response
            raise self._frontend.internal_error(error) from error

    async def _exchange(self, envelope: bytes) -> None:
        settings = self._frontend.state.settings
        pulse_s = settings.keepalive_s if self._streamed else None
        answer = await self._frontend.triton.request_texts(self._model, envelope, pulse_s)
        self._answer = answer
        try:
            await self._relay(answer)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise _unreadable() from None
        finally:
            try:
                await self._reclaim_connection(answer)
            finally:
                answer.release()
        if not self._ended:
            raise APIError(
                "The model stopped in the middle of its response.", 500, code="model_error"
            )

    async def _relay(self, answer: AnswerTexts) -> None:
        if self._streamed:
            answer.on_texts = self._write_now
        async for texts in answer:
            data = ""
            try:
                for text in texts:
                    data += self._client_part(text)
            finally:  # send what arrived before an error first
                if self._streamed and (data or self._ended) and not self._is_complete:
                    await self._send(data.encode())
            if self._ended:
                self._body = data.encode()
            elif data and answer.awaits_decision:
                await self._hand_over(answer)

    async def _hand_over(self, answer: AnswerTexts) -> None:
        """If the connection has no TLS and no unsent data, let the native frontend write the remaining events to the
        client.

        The native frontend receives the descriptor of the connection, so everything written here must have been sent.
        """
        transport = self._call.request.transport
        for _ in range(_TURNS):  # event loops write at the end of a turn
            if transport is not None and transport.get_write_buffer_size():
                await asyncio.sleep(0)
        fits = (
            self._in_chunks
            and transport is not None
            and not transport.is_closing()
            and transport.get_extra_info("sslcontext") is None
            and not transport.get_write_buffer_size()
        )
        if fits and transport is not None:
            answer.hand_over(transport.get_extra_info("socket").fileno())
        else:
            answer.keep()

    async def _reclaim_connection(self, answer: AnswerTexts) -> None:
        """Take the client's connection back if the native frontend is writing to it."""
        if answer.relaying:
            await answer.reclaim()
        self._events += answer.relayed
        self._wrote_at = self._frontend.clock()

    def _abort_client(self) -> None:
        """Abort the client's connection, because nothing can be sent after an incomplete chunk.

        Raises:
            ConnectionResetError: always
        """
        transport = self._call.request.transport
        if transport is not None:
            transport.abort()
        raise ConnectionResetError("the client did not read the stream")

    def _client_part(self, text: str) -> str:
        """Return the part of a worker's message that the client gets. For the messages, see response_writer.py."""
        kind = "" if self._ended else text[:1]
        if kind == "s":
            self._events += text.count("\n\n")
            return text[1:]
        if kind == "u":
            usage, _, rest = text[1:].partition("\n")
            self._usage = _read_usage(usage)
            self._ended = True
            done = self._streamed and self._kind != "responses"
            return f"{rest}data: [DONE]\n\n" if done else rest
        if kind == "e":
            error = _read_error(text[1:]).error()
            self._frontend.mark_reached()
            raise error
        raise _unreadable()

    # ── streaming ────────────────────────────────────────────────────────────────────────────────

    def _write_now(self, texts: list[str]) -> bool:
        """Write events now if the client is ready for them. Otherwise return False; the task then waits until the
        client is ready.
        """
        if not self._in_chunks or self._first_at is None or self._ended:
            return False
        if self._answer is not None and not self._answer.whole:
            return False
        transport = self._call.request.transport
        if transport is None or transport.get_write_buffer_size():
            return False
        data = ""
        for text in texts:
            if not text.startswith("s"):
                return False
            data += text[1:]
        if data:
            self._events += data.count("\n\n")
            self._wrote_at = self._frontend.clock()
            encoded = data.encode()
            transport.write(b"%x\r\n%b\r\n" % (len(encoded), encoded))
        return True

    async def _send(self, data: bytes) -> None:
        now = self._frontend.clock()
        if self._first_at is None:
            self._first_at = now
        self._wrote_at = now
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        if self._response is None:
            async with self._writing:
                await self._begin()
        response, answer = self._response, self._answer
        assert response is not None
        if answer is not None and answer.relaying:
            return  # skip a comment: the native frontend is writing now
        if answer is not None and not answer.whole:
            self._abort_client()
        if self._ended:
            await self._write_end(response, data)
            return
        await response.write(data)
        # Set only now, after the headers have been sent.
        self._in_chunks = response.headers.get("Transfer-Encoding") == "chunked"

    async def _write_end(self, response: web.StreamResponse, data: bytes) -> None:
        """Write the last events and the end of the body together, without waiting for the end of the model's answer."""
        self._is_complete = True
        self._stop_pulse()
        self._set_probe(None)
        try:
            await self._finish_writing(response.write_eof(data))
        except asyncio.CancelledError:  # aiohttp would write the end again
            transport = self._call.request.transport
            if transport is not None:
                transport.abort()
            raise

    async def _begin(self) -> None:
        if self._response is not None:
            return
        request = self._call.request
        caller = self._call.caller
        headers = {
            **_EVENTS,
            **self._frontend.headers(request),
            **(caller.headers() if caller else {}),
        }
        response = _EventResponse(headers=headers)
        await response.prepare(request)
        self._response = response
        self._set_probe(self._probe)

    def _set_probe(self, probe: Callable[[], None] | None) -> None:
        protocol = self._call.request.protocol
        if isinstance(protocol, ClientConnection):
            protocol.probe = probe

    def _probe(self) -> None:
        """Send a comment to test the connection. If the native frontend is writing, do nothing: it sends its own
        comments.
        """
        answer, transport = self._answer, self._call.request.transport
        is_ours = answer is None or (answer.whole and not answer.relaying)
        if self._in_chunks and is_ours and transport is not None:
            comment = b": still there?\n\n"
            transport.write(b"%x\r\n%b\r\n" % (len(comment), comment))

    def _start_pulse(self) -> None:
        """Send a comment whenever the stream has been silent for `keepalive_s`, because proxies close silent
        connections.
        """
        every_s = self._frontend.state.settings.keepalive_s
        if every_s > 0:
            self._pulse_timer = asyncio.get_running_loop().call_later(every_s, self._pulse, every_s)

    def _stop_pulse(self) -> None:
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
        if self._pulse_task is not None:
            self._pulse_task.cancel()

    def _pulse(self, every_s: float) -> None:
        now = self._frontend.clock()
        if self._answer is not None and self._answer.relaying:
            self._wrote_at = now  # the native frontend sends comments itself
        left_s = self._wrote_at + every_s - now
        if left_s <= 0:
            self._wrote_at, left_s = now, every_s
            if self._pulse_task is None or self._pulse_task.done():
                self._pulse_task = asyncio.ensure_future(self._write_comment())
        self._pulse_timer = asyncio.get_running_loop().call_later(left_s, self._pulse, every_s)

    async def _write_comment(self) -> None:
        with suppress(ConnectionError):  # the client has disconnected; `_exchange` handles that
            await self._write(b": keep-alive\n\n")

    async def _failed(self, error: APIError) -> None:
        """Write an error to the stream as an event."""
        if self._kind == "responses":
            # Events are numbered from 0, so this is the next number.
            event: dict[str, Any] = {**error.body()["error"], "sequence_number": self._events}
            event["type"] = "error"
            await self._write(f"event: error\ndata: {json_text(event)}\n\n".encode())
        else:
            await self._write(f"data: {json_text(error.body())}\n\ndata: [DONE]\n\n".encode())

    def _measure(self, error: str) -> None:
        now, began = self._frontend.clock(), self._call.began
        usage = self._usage
        # An aborted stream reported no usage, so count each event as a token.
        tokens = usage.prompt_tokens + usage.completion_tokens
        self._call.record_usage(tokens if self._ended else self._events)
        self._frontend.meters.answered(
            self._model,
            _OPERATIONS[self._kind],
            now - began,
            first_s=None if self._first_at is None else self._first_at - began,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            error=error,
        )


def _unreadable() -> APIError:
    return APIError("The model's answer is invalid.", 500, code="model_error")


def _refuse_remote(body: Body) -> None:
    """Refuse remote URLs in messages and tools: the machine that fetches them may have access that the client lacks.

    Raises:
        APIError: a message or tool refers to a remote URL
    """
    contents: list[tuple[str, Any]] = []
    tools: Sequence[ToolBody] = ()
    if isinstance(body, ChatBody):
        contents = [(f"messages[{i}]", one.content) for i, one in enumerate(body.messages)]
        tools = body.tools or ()
    elif isinstance(body, ResponsesBody):
        tools = body.tools or ()
        contents = [
            (f"input[{i}]", one.get(name))
            for i, one in enumerate(body.input if isinstance(body.input, list) else ())
            # The worker reads one of them, depending on the item's type.
            for name in ("content", "output")
        ]
    for place, content in contents:
        for part in content if isinstance(content, list) else ():
            if next(remote_urls(part), None) is not None:
                raise _remote(place, "send the data itself, as 'data:image/png;base64,...'")
    for index, tool in enumerate(tools):
        if tool.server_url is not None:
            raise _remote(f"tools[{index}]", "call it in the client")


def _remote(place: str, instead: str) -> APIError:
    return APIError(
        f"'{place}' refers to a remote URL, which this server does not allow: {instead}.",
        param=place,
        code="remote_url_not_allowed",
    )
