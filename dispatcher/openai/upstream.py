"""HTTP client that sends the OpenAI frontend's requests to tritonserver: `generate_stream` for text, `infer` for
embeddings.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Optional
from urllib.parse import quote

import aiohttp
import msgspec
import numpy as np

from pytriton._protocol.parameters import ACCESS_HEADER
from pytriton.dispatcher.http_server.connections import within
from pytriton.dispatcher.openai.event_stream import RELAY, EventStream, StreamConnections
from pytriton.dispatcher.openai.state import Upstream
from pytriton.openai.embeddings import DIMENSIONS
from pytriton.openai.errors import APIError

__all__ = ["AnswerTexts", "TritonPool", "Vectors"]

#: Header with the length of the JSON part before the binary tensors.
_HEADER_LENGTH = "Inference-Header-Content-Length"
#: Maximum size of an event that is still incomplete, in bytes.
_MAX_BYTES = 256 << 20
#: Timeout for the native frontend to return a client's connection, in seconds.
_BACK_S = 5.0
#: Parts of Triton's error messages that mean a full queue, or an unavailable model. Other errors come from the model.
_OVERLOADED = ("exceeds maximum queue size", "timeout expired", "queue size")
_GONE = ("unknown model", "is not ready", "not found", "no worker", "is not loaded", "unloaded")

#: Matches the message of an exception in a callable, which starts with its class, unlike those of tritonserver.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: | \[request id: |$)")


class _Event(msgspec.Struct, frozen=True):
    text_output: Optional[str] = None
    error: Optional[str] = None


_read_event = msgspec.json.Decoder(_Event).decode


class Vectors(msgspec.Struct, frozen=True):
    """Embeddings of a batch of texts.

    Attributes:
        rows: array with a row for each text
        tokens: number of tokens in the texts
    """

    rows: Any
    tokens: int


class TritonPool:
    """Connections to one tritonserver. Closing a connection before the response ends cancels the request."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        connector: aiohttp.BaseConnector
        if upstream.socket is not None:
            connector = aiohttp.UnixConnector(upstream.socket, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
        self._streams = StreamConnections(upstream)
        self._headers = {} if upstream.token is None else {ACCESS_HEADER: upstream.token}
        timeout = aiohttp.ClientTimeout(total=None, connect=10.0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            timeout=timeout,
            auto_decompress=False,
            skip_auto_headers=(
                "Accept-Encoding",
                "User-Agent",
            ),  # no compression on the local machine
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        """Close all connections."""
        self._streams.close()
        await self._session.close()

    async def is_ready(self) -> bool:
        """Return whether tritonserver reports ready."""
        try:
            async with self._session.get(f"{self.upstream.url}/v2/health/ready") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def request_texts(
        self, model: str, request: bytes, pulse_s: float | None = None
    ) -> AnswerTexts:
        """Send a request for text to a model, and return the answer, which the caller must release.

        Args:
            model: name of the model
            request: the request, as workers read it
            pulse_s: None unless the native frontend may write to the client itself (`AnswerTexts.hand_over`); then, the
                number of seconds without data after which it sends a comment (0 for never)

        Raises:
            APIError: the model failed or did not answer
        """
        body = b'{"request":' + msgspec.json.encode(request.decode()) + b"}"
        headers = {**self._headers, "Content-Type": "application/json"}
        if pulse_s is not None and self.upstream.socket is not None:
            headers[RELAY] = str(round(pulse_s * 1000))
        path = f"{_path(model)}/generate_stream"
        with _Reached():
            answer = await self._streams.post(path, body, headers)
        if answer.status == 200:
            return AnswerTexts(answer)
        try:
            with _Reached():
                raise _refused(answer.status, await answer.read_all(_MAX_BYTES))
        finally:
            answer.close()

    async def embed(
        self, model: str, texts: Sequence[bytes], dimensions: int | None = None
    ) -> Vectors:
        """Request the embeddings of texts.

        Args:
            model: name of the model
            texts: packed texts, at most as many as the model's batch size
            dimensions: number of dimensions; None for the model's default

        Raises:
            APIError: the model failed or did not answer
        """
        tensor = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
        described = {
            "inputs": [
                {
                    "name": "input_text",
                    "shape": [len(texts), 1],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": len(tensor)},
                }
            ],
            "parameters": {"binary_data_output": True, **_without_none({DIMENSIONS: dimensions})},
        }
        head = json.dumps(described).encode()
        headers = {_HEADER_LENGTH: str(len(head)), "Content-Type": "application/octet-stream"}
        async with self._post(f"{_path(model)}/infer", head + tensor, headers) as answer:
            data = await answer.read()
            return _vectors(data, int(answer.headers.get(_HEADER_LENGTH, len(data))))

    async def control(self, model: str, verb: str, token: str) -> None:
        """Load or unload a model in tritonserver, using the access token that a client sent.

        Raises:
            APIError: the token is wrong, or the model could not be loaded or unloaded
        """
        url = f"{self.upstream.url}/v2/repository/models/{quote(model, safe='')}/{verb}"
        with _Reached():
            async with self._session.post(url, headers={ACCESS_HEADER: token}) as answer:
                data = await answer.read()
        if answer.status == 403:
            raise APIError(
                f"An access token in the header {ACCESS_HEADER} is required to {verb} a model.", 403,
                code="access_token_required",
            )  # fmt: skip
        if answer.status != 200:
            text = _error_text(data) or f"the model server answered with status {answer.status}"
            status = answer.status if answer.status in (400, 404, 409) else 500
            raise APIError(f"The model {model!r:.200} cannot be {verb}ed: {text}", status)

    @asynccontextmanager
    async def _post(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.upstream.url}{path}"
        with _Reached():
            async with self._session.post(url, data=body, headers=headers) as answer:
                if answer.status != 200:
                    raise _refused(answer.status, await answer.read())
                yield answer


class _Reached:
    """Context in which failures of the connection to tritonserver raise an APIError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, where: Any) -> None:
        if isinstance(error, (aiohttp.ClientError, OSError, asyncio.TimeoutError)):
            raise APIError(
                f"The model server is not reachable ({type(error).__name__}). Retry later.", 503,
                code="server_unavailable", retry_after_s=1.0,
            ) from error  # fmt: skip


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


class AnswerTexts:
    """Stream of the texts in one answer.

    New texts go to `on_texts` first. If it is None or returns False, the iterator yields them. Each iteration yields
    all texts that have arrived.

    The native frontend can also write the events after the first to the client itself, in chunks. It waits for a call
    to `hand_over`, after which it writes them, or to `keep`, after which this process does. After `hand_over`, this process
    must not write to the client until `relaying` is False. See proxy_backend/frontend/relay/relay.h.

    Attributes:
        awaits_decision: whether `hand_over` or `keep` must be called after the first event
        relaying: whether the native frontend is writing to the client
        relayed: number of events that the native frontend has written
        whole: whether its output ended with a complete chunk; otherwise nothing can be sent after it
    """

    def __init__(self, answer: EventStream) -> None:
        self._answer = answer
        self.awaits_decision = answer.relays
        self.relaying = False
        self.relayed = 0
        self.whole = True
        self._partial: list[bytes] = []  #: parts of an incomplete event
        self._partial_size = 0
        #: Called with texts as soon as they arrive. Returns False to leave them to the iterator.
        self.on_texts: Callable[[list[str]], bool] | None = None

    def keep(self) -> None:
        """Receive the whole answer in this process, instead of handing it over to the native frontend."""
        self.awaits_decision = False
        self._answer.send(b"n")

    def hand_over(self, client: int) -> None:
        """Let the native frontend write the remaining events to a client's socket, given its descriptor.

        The caller keeps the descriptor open.
        """
        self.awaits_decision = False
        try:
            self._answer.send_descriptor(b"g", client)
            self.relaying = True
        except OSError:  # for example, too many descriptors in flight
            self.keep()

    def release(self) -> None:
        """Cancel the request if the answer is incomplete. Otherwise, its connection can be used for other requests.

        No other method must be called afterwards.
        """
        answer = self._answer
        del self._answer  # its connection may serve another request from now on
        answer.close()

    async def reclaim(self) -> None:
        """Take the client's connection back from the native frontend before the answer ends. Texts received until then
        are dropped.
        """
        self.on_texts = None
        self._answer.send(b"s")
        try:
            await within(self._wait_reclaimed(), _BACK_S)
        except (APIError, OSError, asyncio.TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
            self.whole = False
        self.relaying = False

    async def _wait_reclaimed(self) -> None:
        while self.relaying and (data := await self._answer.read()):
            self._texts(self._complete_events(data))

    async def __aiter__(self) -> AsyncIterator[list[str]]:
        self._answer.tap = self._tap
        while data := await self._read():
            texts, error = self._texts(self._complete_events(data))
            if texts:
                yield texts
            if error is not None:
                raise error_of(error)

    async def _read(self) -> bytes:
        data = b""
        try:
            with _Reached():
                data = await self._answer.read()
        except APIError:
            self.relaying = False  # the native frontend has exited
            raise
        self.relaying = self.relaying and bool(data)
        return data

    def _complete_events(self, data: bytes) -> list[bytes]:
        """Return the events that are complete once `data` is appended, and store the incomplete rest.

        A large event arrives in many pieces; each piece is scanned only once.
        """
        if self._partial and not self._ends(data):
            if self._partial_size + len(data) > _MAX_BYTES:
                raise APIError("The model's response is too large.", 500)
            self._add_partial(data)
            return []
        *whole, left = b"".join([*self._partial, data]).split(b"\n\n")
        self._set_partial(left)
        return whole

    def _ends(self, data: bytes) -> bool:
        """Return whether `data` contains the end of the stored incomplete event."""
        return b"\n\n" in data or (data.startswith(b"\n") and self._partial[-1].endswith(b"\n"))

    def _add_partial(self, data: bytes) -> None:
        self._partial.append(data)
        self._partial_size += len(data)

    def _set_partial(self, data: bytes) -> None:
        self._partial.clear()
        self._partial_size = 0
        if data:
            self._add_partial(data)

    def _tap(self, data: bytes) -> bool:
        if self.on_texts is None:
            return False
        if self._partial:
            if not self._ends(data):
                fits = self._partial_size + len(data) <= _MAX_BYTES
                if fits:
                    self._add_partial(data)
                return fits  # otherwise the iterator yields them
            data = b"".join([*self._partial, data])
        *whole, left = data.split(b"\n\n")
        try:
            texts, error = self._texts(whole)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # the iterator raises the error
        if error is not None or not texts or not self.on_texts(texts):
            return False
        self._set_partial(left)
        return True

    def _texts(self, events: list[bytes]) -> tuple[list[str], str | None]:
        """Return the texts of the events before the first error, and that error (None if there is none)."""
        texts: list[str] = []
        for event in events:
            if not event.startswith(b"data:"):
                self._handle_status(event)
                continue
            self.relaying = False  # the native frontend announces the end of its writing before it sends an event
            received = _read_event(event[5:])
            if received.error is not None:
                return texts, received.error
            texts.append(received.text_output or "")
        return texts, None

    def _handle_status(self, event: bytes) -> None:
        """Handle a status message from the native frontend. Handling the same message twice is harmless."""
        word, _, count = event.partition(b": ")
        if word == b"slow":
            self.whole = False
        elif word in (b"relayed", b"lost"):
            self.relaying = False
            self.relayed = int(count)
            self.whole = word == b"relayed"


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _vectors(data: bytes, head_length: int) -> Vectors:
    head = json.loads(data[:head_length])
    at = head_length
    found: dict[str, Any] = {}
    for output in head["outputs"]:
        size = output["parameters"]["binary_data_size"]
        dtype = np.float32 if output["datatype"] == "FP32" else np.int32
        found[output["name"]] = np.frombuffer(data[at : at + size], dtype).reshape(output["shape"])
        at += size
    return Vectors(found["embedding"], int(found["prompt_tokens"].sum()))


def _error_text(data: bytes) -> str:
    try:
        return _read_event(data.strip().removeprefix(b"data:")).error or ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def _refused(status: int, data: bytes) -> APIError:
    text = _error_text(data)
    return error_of(text or f"the model server answered with status {status}", status)


def error_of(text: str, status: int = 500) -> APIError:
    """Return the APIError for an error message from Triton or from the model."""
    # Ignore words in the message of an exception from a callable: it may contain any.
    low = "" if _RAISED.match(text) else text.lower()
    if any(one in low for one in _OVERLOADED):
        return APIError(
            f"The model is overloaded: {text}", 429, code="overloaded", retry_after_s=1.0
        )
    if status in (404, 503) or any(one in low for one in _GONE):
        return APIError(
            f"The model is unavailable: {text}", 503, code="model_unavailable", retry_after_s=1.0
        )
    return APIError(f"The model failed: {text}", 500, code="model_error")
