"""tritonserver as the front asks it: `generate_stream` for texts, `infer` for embeddings, over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Optional
from urllib.parse import quote

import aiohttp
import msgspec
import numpy as np

from pytriton._protocol.access import ACCESS_HEADER
from pytriton.dispatcher.openai.body_reader import within
from pytriton.dispatcher.openai.event_stream import RELAY, EventStream
from pytriton.dispatcher.openai.state import Upstream
from pytriton.openai.embeddings import DIMENSIONS
from pytriton.openai.errors import APIError

__all__ = ["Texts", "Triton", "Vectors"]

#: Where the length of the JSON before the tensors stands.
_HEADER_LENGTH = "Inference-Header-Content-Length"
#: The most bytes of an event that is not complete yet.
_MOST_BYTES = 256 << 20
#: Seconds that the native front has to give a client's connection back: it does so at once.
_BACK_S = 5.0
#: What Triton says where a model, or room in its queue, is not there; the rest is an error of the model.
_OVERLOADED = ("exceeds maximum queue size", "timeout expired", "queue size")
_GONE = ("unknown model", "is not ready", "not found", "no worker", "is not loaded", "unloaded")

#: What a callable raised begins with its class; what tritonserver and the daemon say, with words.
_RAISED = re.compile(r"[A-Za-z_][\w.]*(?:: | \[request id: |$)")


class _Event(msgspec.Struct, frozen=True):
    text_output: Optional[str] = None
    error: Optional[str] = None


_read_event = msgspec.json.Decoder(_Event).decode


class Vectors(msgspec.Struct, frozen=True):
    """The embeddings of some texts, and the tokens that these had."""

    rows: Any
    tokens: int


class Triton:
    """A pool of connections to one tritonserver. A connection that is closed in mid-answer cancels its request."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        connector: aiohttp.BaseConnector
        if upstream.socket is not None:
            connector = aiohttp.UnixConnector(upstream.socket, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0)
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
            ),  # nothing is to be compressed on this machine
            read_bufsize=1 << 20,
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def is_ready(self) -> bool:
        """Ask whether tritonserver is ready."""
        try:
            async with self._session.get(f"{self.upstream.url}/v2/health/ready") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    @asynccontextmanager
    async def texts(
        self, model: str, request: bytes, pulse_s: float | None = None
    ) -> AsyncIterator[Texts]:
        """Ask a model for texts.

        Args:
            model: its name
            request: what the model is asked
            pulse_s: the client's connection may be handed over (`Texts.hand_over`), and gets a comment when it has got
                nothing for so long; 0: none; None: it may not

        Raises:
            APIError: there is no answer, or an error
        """
        body = b'{"request":' + msgspec.json.encode(request.decode()) + b"}"
        headers = {**self._headers, "Content-Type": "application/json"}
        if pulse_s is not None and self.upstream.socket is not None:
            headers[RELAY] = str(round(pulse_s * 1000))
        path = f"{_path(model)}/generate_stream"
        with _reached():
            answer = await EventStream.post(self.upstream, path, body, headers)
        del body, request  # the answer may take long
        try:
            if answer.status != 200:
                with _reached():
                    raise _refused(answer.status, await answer.read_all(_MOST_BYTES))
            yield Texts(answer)  # what fails here may be the client's connection, too
        finally:
            answer.close()

    async def embed(
        self, model: str, texts: Sequence[bytes], dimensions: int | None = None
    ) -> Vectors:
        """Ask a model for the embeddings of texts in their packed form; `dimensions`: None for as many as it has.

        Raises:
            APIError: there is no answer, or an error
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
        """Have a model loaded or unloaded, if that is allowed with a client's access token.

        Raises:
            APIError: it is not, or it failed
        """
        url = f"{self.upstream.url}/v2/repository/models/{quote(model, safe='')}/{verb}"
        with _reached():
            async with self._session.post(url, headers={ACCESS_HEADER: token}) as answer:
                data = await answer.read()
        if answer.status == 403:
            raise APIError(
                f"To {verb} a model needs the access token, in the header {ACCESS_HEADER}.", 403,
                code="access_token_required",
            )  # fmt: skip
        if answer.status != 200:
            text = _error_text(data) or f"the model server answered with the status {answer.status}"
            status = answer.status if answer.status in (400, 404, 409) else 500
            raise APIError(f"The model {model!r:.200} cannot be {verb}ed: {text}", status)

    @asynccontextmanager
    async def _post(
        self, path: str, body: bytes, headers: dict[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.upstream.url}{path}"
        with _reached():
            async with self._session.post(url, data=body, headers=headers) as answer:
                if answer.status != 200:
                    raise _refused(answer.status, await answer.read())
                yield answer


@contextmanager
def _reached() -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError) as error:
        raise APIError(
            f"The model server does not answer now ({type(error).__name__}).", 503, code="server_unavailable",
            retry_after_s=1.0,
        ) from error  # fmt: skip


def _path(model: str) -> str:
    return f"/v2/models/{quote(model, safe='')}"


class Texts:
    """The texts of one answer, in two ways: `at_once` is asked first, whoever iterates gets the others.

    An iteration gives all texts that have come, each time.

    There is a third way, where the native front answers: after the first events, it may write those that follow to the
    client by itself, in chunks. It holds them back until it is told (`hand_over` or `keep`). From `hand_over` until
    `relaying` is false nobody else may write to the client. See proxy_backend/front/relay/relay.h.

    Attributes:
        awaits_word: one of the two is to be called, once there was an event
        relaying: the native front writes to the client
        relayed: so many events it has written
        whole: what it has written ends with a chunk; if not, nothing can follow it
    """

    def __init__(self, answer: EventStream) -> None:
        self._answer = answer
        self.awaits_word = answer.relays
        self.relaying = False
        self.relayed = 0
        self.whole = True
        self._left: list[bytes] = []  #: of an event whose end is still to come
        self._left_size = 0
        #: Takes texts in the moment in which they come; False: it takes none of these.
        self.at_once: Callable[[list[str]], bool] | None = None

    def keep(self) -> None:
        """Have all texts come here."""
        self.awaits_word = False
        self._answer.say(b"n")

    def hand_over(self, client: int) -> None:
        """Have the events that follow written to a client by its descriptor, which stays the caller's."""
        self.awaits_word = False
        try:
            self._answer.say_with(b"g", client)
            self.relaying = True
        except OSError:  # such as too many descriptors on their way
            self.keep()

    async def take_back(self) -> None:
        """Have the client's connection back before the answer ends; what comes of this is dropped."""
        self.at_once = None
        self._answer.say(b"s")
        try:
            await within(self._until_back(), _BACK_S)
        except (APIError, OSError, asyncio.TimeoutError, msgspec.DecodeError, UnicodeDecodeError):
            self.whole = False
        self.relaying = False

    async def _until_back(self) -> None:
        while self.relaying and (data := await self._answer.read()):
            self._texts(self._whole(data))

    async def __aiter__(self) -> AsyncIterator[list[str]]:
        self._answer.tap = self._tap
        while data := await self._read():
            texts, error = self._texts(self._whole(data))
            if texts:
                yield texts
            if error is not None:
                raise error_of(error)

    async def _read(self) -> bytes:
        data = b""
        try:
            with _reached():
                data = await self._answer.read()
        except APIError:
            self.relaying = False  # whoever wrote to the client has gone
            raise
        self.relaying = self.relaying and bool(data)
        return data

    def _whole(self, data: bytes) -> list[bytes]:
        """Return the events that are there with these bytes, and keep the rest.

        An event of a large text comes in many pieces. Each of them is looked at once.
        """
        if self._left and not self._ends(data):
            if self._left_size + len(data) > _MOST_BYTES:
                raise APIError("The model's answer is too large.", 500)
            self._keep(data)
            return []
        *whole, left = b"".join([*self._left, data]).split(b"\n\n")
        self._keep_only(left)
        return whole

    def _ends(self, data: bytes) -> bool:
        """Whether the event that has begun ends with these bytes, or within them."""
        return b"\n\n" in data or (data.startswith(b"\n") and self._left[-1].endswith(b"\n"))

    def _keep(self, data: bytes) -> None:
        self._left.append(data)
        self._left_size += len(data)

    def _keep_only(self, data: bytes) -> None:
        self._left.clear()
        self._left_size = 0
        if data:
            self._keep(data)

    def _tap(self, data: bytes) -> bool:
        if self.at_once is None:
            return False
        if self._left:
            if not self._ends(data):
                fits = self._left_size + len(data) <= _MOST_BYTES
                if fits:
                    self._keep(data)
                return fits  # else whoever iterates is told
            data = b"".join([*self._left, data])
        *whole, left = data.split(b"\n\n")
        try:
            texts, error = self._texts(whole)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # whoever iterates is told
        if error is not None or not texts or not self.at_once(texts):
            return False
        self._keep_only(left)
        return True

    def _texts(self, events: list[bytes]) -> tuple[list[str], str | None]:
        """Return the texts of events, up to the first one with an error, and that."""
        texts: list[str] = []
        for event in events:
            if not event.startswith(b"data:"):
                self._note(event)
                continue
            self.relaying = False  # it says so before, but where nothing was handed over
            said = _read_event(event[5:])
            if said.error is not None:
                return texts, said.error
            texts.append(said.text_output or "")
        return texts, None

    def _note(self, event: bytes) -> None:
        """Take what the native front says of the client; the same may be noted twice."""
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
    said = _error_text(data)
    return error_of(said or f"the model server answered with the status {status}", status)


def error_of(text: str, status: int = 500) -> APIError:
    """Return the error that stands for one of Triton's or of the model's."""
    # What a callable raised may say anything.
    low = "" if _RAISED.match(text) else text.lower()
    if any(one in low for one in _OVERLOADED):
        return APIError(
            f"The model is overloaded: {text}", 429, code="overloaded", retry_after_s=1.0
        )
    if status in (404, 503) or any(one in low for one in _GONE):
        return APIError(
            f"The model cannot answer now: {text}", 503, code="model_unavailable", retry_after_s=1.0
        )
    return APIError(f"The model failed: {text}", 500, code="model_error")
