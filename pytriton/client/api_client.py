"""Clients of typed functions: keyword arguments in, Python values out."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pytriton.exceptions import PyTritonError

if TYPE_CHECKING:
    import aiohttp
    import urllib3

__all__ = ["ApiClient", "ApiError", "AsyncApiClient", "parse_arguments"]

_JSON = "application/json"
_EVENTS = "text/event-stream"


class ApiError(PyTritonError):
    """The server refused a call, or the function failed.

    Args:
        status: HTTP status; 0: the server sent no response
        problem: the problem details of the response (RFC 9457), with "title", "detail" and "errors"
    """

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        said = [str(problem[name]) for name in ("title", "detail", "error") if problem.get(name)]
        said += [
            f"{one.get('pointer', '')}: {one.get('detail', '')}"
            for one in problem.get("errors", ())
        ]
        text = ": ".join(said) or "no response"
        if problem.get("request_id"):
            text += f" [request id: {problem['request_id']}]"
        super().__init__(f"{status} {text}" if status else text)

    def __reduce__(self) -> tuple[type[ApiError], tuple[int, dict[str, Any]]]:
        return type(self), (self.status, self.problem)


class ApiClient:
    """Client of one typed function. Can be used from several threads.

    Args:
        url: the server, such as ``http://127.0.0.1:8000``
        name: the model's name, or its route if that begins with a slash
        timeout_s: time limit of a call, in seconds; None: no limit
        headers: further headers of each request

    Example:
        >>> predict = ApiClient("http://127.0.0.1:8000", "predict")    # doctest: +SKIP
        >>> predict(text="to be or not to be", top_k=2)                # doctest: +SKIP
        ['to', 'be']
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        timeout_s: float | None = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        import urllib3

        self._server, self._url = _addresses(url, name)
        self._headers = dict(headers or {})
        self._pool = urllib3.PoolManager(
            maxsize=32, timeout=urllib3.Timeout(timeout_s), retries=urllib3.Retry(0, connect=2)
        )

    def __call__(self, **arguments: Any) -> Any:
        """Call the function.

        Args:
            arguments: values that JSON can hold, numpy arrays, dataclasses; bytes and open files are uploaded

        Returns:
            what the function returns: JSON's types, or bytes

        Raises:
            ApiError: the server or the function refused it
            OSError: no connection
            TypeError: an argument cannot be sent
        """
        response = self._post(arguments)
        try:
            return _result(response.headers.get("Content-Type", ""), response.data)
        finally:
            response.release_conn()

    def stream(self, **arguments: Any) -> Iterator[Any]:
        """Call a generator function, and yield its items as they arrive. Close the iterator to cancel it.

        Raises:
            ApiError: the server or the function refused it, or failed while it was streaming
        """
        response = self._post(arguments)
        events = _Events()
        try:
            for chunk in response.stream(1 << 16):
                yield from events.feed(chunk)
        finally:
            response.close()

    def operation(self) -> dict[str, Any]:
        """Return the description of the function from the server's OpenAPI document; raises ApiError if there is none."""
        response = self._pool.request("GET", f"{self._server}/openapi.json", headers=self._headers)
        return _operation(response.status, response.data, self._url.removeprefix(self._server))

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _post(self, arguments: Mapping[str, Any]) -> urllib3.BaseHTTPResponse:
        import urllib3

        files, values = _split(arguments)
        headers = {**self._headers}
        if files:
            fields: Any = {
                **{name: (None, text, kind) for name, (text, kind) in values.items()},
                **files,
            }
            body, headers["Content-Type"] = urllib3.encode_multipart_formdata(fields)
        else:
            body, headers["Content-Type"] = _encode(arguments), _JSON
        try:
            response = self._pool.request(
                "POST", self._url, body=body, headers=headers, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError(f"{self._url}: {error}") from error
        if response.status >= 400:
            try:
                raise _refusal(response.status, response.data)
            finally:
                response.release_conn()
        return response


class AsyncApiClient:
    """Client of one typed function for asyncio; see `ApiClient`.

    Example:
        >>> async with AsyncApiClient("http://127.0.0.1:8000", "predict") as predict:    # doctest: +SKIP
        ...     await predict(text="to be or not to be")
    """

    def __init__(
        self,
        url: str,
        name: str,
        *,
        timeout_s: float | None = 60.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._server, self._url = _addresses(url, name)
        self._headers = dict(headers or {})
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, **arguments: Any) -> Any:
        """Call the function; as `ApiClient`."""
        async with self._post(arguments) as response:
            return _result(response.headers.get("Content-Type", ""), await response.read())

    async def stream(self, **arguments: Any) -> AsyncIterator[Any]:
        """Call a generator function, and yield its items as they arrive; as `ApiClient.stream`."""
        events = _Events()
        async with self._post(arguments) as response:
            async for chunk in response.content.iter_any():
                for item in events.feed(chunk):
                    yield item

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> AsyncApiClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def _post(self, arguments: Mapping[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, headers=self._headers)
        files, values = _split(arguments)
        if files:
            form = aiohttp.FormData()
            for name, (text, kind) in values.items():
                form.add_field(name, text, content_type=kind)
            for name, (filename, data, kind) in files.items():
                form.add_field(name, data, filename=filename, content_type=kind)
            given: dict[str, Any] = {"data": form}
        else:
            given = {"data": _encode(arguments), "headers": {"Content-Type": _JSON}}
        try:
            async with self._session.post(self._url, **given) as response:
                if response.status >= 400:
                    raise _refusal(response.status, await response.read())
                yield response
        except aiohttp.ClientConnectionError as error:
            raise ConnectionError(f"{self._url}: {error}") from error
        except asyncio.TimeoutError as error:
            raise TimeoutError(f"{self._url}: no response within {self._timeout_s:g} s") from error


class _Events:
    """Parser of server-sent events, as the server sends them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the items of the events that are complete now; raises ApiError for an error event."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            kind, data = b"", b""
            for line in event.split(b"\n"):
                field, _, value = line.partition(b": ")
                if field == b"event":
                    kind = value
                elif field == b"data":
                    data = value
            if kind == b"error":
                problem = json.loads(data)
                raise ApiError(int(problem.get("status", 500)), problem)
            if data:
                yield msgspec.json.decode(data)


def parse_arguments(words: Iterable[str], operation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in NAME=VALUE words of a command line.

    Args:
        words: NAME=TEXT, NAME=JSON or NAME=@FILE
        operation: the function's description; decides which values are text

    Raises:
        ValueError: a word is malformed, or a file cannot be read
    """
    content = operation.get("requestBody", {}).get("content", {})
    properties = content.get(_JSON, {}).get("schema", {}).get("properties", {})
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise ValueError(f"{word!r} is not NAME=VALUE")
        if value.startswith("@"):
            found[name] = open(value[1:], "rb")  # noqa: SIM115  sent, and closed with the process
        elif properties.get(name, {}).get("type") == "string":
            found[name] = value
        else:
            try:
                found[name] = json.loads(value)
            except ValueError:
                found[name] = value
    return found


def _addresses(url: str, name: str) -> tuple[str, str]:
    server = url.rstrip("/") if "//" in url else f"http://{url.rstrip('/')}"
    return server, server + (name if name.startswith("/") else f"/{name}")


def _split(
    arguments: Mapping[str, Any],
) -> tuple[dict[str, tuple[str, bytes, str]], dict[str, tuple[str, str]]]:
    """Return the files among arguments (name, content, type), and the other arguments as fields of a form, if any is."""
    files = {}
    for name, value in arguments.items():
        if isinstance(value, (bytes, bytearray, memoryview)):
            files[name] = (name, bytes(value), "application/octet-stream")
        elif isinstance(value, io.IOBase):
            filename = os.path.basename(str(getattr(value, "name", name)))
            files[name] = (filename, value.read(), "application/octet-stream")
    if not files:
        return {}, {}
    values = {}
    for name, value in arguments.items():
        if name not in files:
            text = value if isinstance(value, str) else _encode(value).decode()
            values[name] = (text, "text/plain" if isinstance(value, str) else _JSON)
    return files, values


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=_encode_custom)


def _encode_custom(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "model_dump"):  # pydantic.BaseModel
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__!r} cannot be sent")


def _result(content_type: str, data: bytes) -> Any:
    kind = content_type.partition(";")[0]
    if kind == _EVENTS:
        return [*_Events().feed(data)]
    return msgspec.json.decode(data) if kind == _JSON else data


def _refusal(status: int, data: bytes) -> ApiError:
    try:
        problem = json.loads(data)
    except ValueError:
        problem = {"detail": data[:1000].decode(errors="replace")}
    return ApiError(status, problem if isinstance(problem, dict) else {"detail": str(problem)})


def _operation(status: int, data: bytes, path: str) -> dict[str, Any]:
    if status != 200:
        raise ApiError(status, {"detail": "this server has no typed functions"})
    paths = json.loads(data)["paths"]
    if path not in paths:
        known = ", ".join(sorted(paths)) or "none"
        raise ApiError(404, {"detail": f"there is no route {path}; there are: {known}"})
    return dict(paths[path]["post"])
