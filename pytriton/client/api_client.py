"""Clients of typed functions. They take keyword arguments, and return Python values."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from pytriton._protocol.parameters import access_headers
from pytriton.client._transport.url import TritonUrl
from pytriton.client.exceptions import PyTritonClientInvalidUrlError
from pytriton.client.tls import TlsOptions
from pytriton.exceptions import PyTritonError

if TYPE_CHECKING:
    import ssl

    import aiohttp
    import urllib3
    from urllib3.fields import RequestField

__all__ = ["ApiClient", "ApiError", "AsyncApiClient"]

_JSON = "application/json"
_EVENTS = "text/event-stream"
#: Maximum number of idle connections that a client keeps.
_CONNECTIONS = 32
#: Delays before further attempts to connect, in seconds.
_RETRY_DELAYS_S = (0.0, 0.2)
#: Maximum size of a piece of a stream, in bytes.
_CHUNK = 1 << 16
#: Maximum length of an error text that is not a problem document.
_MAX_TEXT = 1000


class ApiError(PyTritonError):
    """The server refused a call, or the function failed.

    Args:
        status: HTTP status
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
        text = ": ".join(said)
        if problem.get("request_id"):
            text += f" [request id: {problem['request_id']}]"
        super().__init__(f"{status} {text}".rstrip())

    def __reduce__(self) -> tuple[type[ApiError], tuple[int, dict[str, Any]]]:
        return type(self), (self.status, self.problem)


class ApiClient:
    """Client of one typed function. Can be used from several threads.

    Args:
        url: the server, such as ``"localhost"``, ``"host:8000"`` or ``"https://host/path"``
        name: the model's name, or its route, which begins with a slash
        timeout_s: time limit for connecting, and for each wait for data of the response, in seconds; None for no limit
        headers: additional headers for each request
        access_token: sent with every call; required if the server restricts inference
        tls: certificates for https; None uses the system's trust store

    Raises:
        PyTritonClientInvalidUrlError: the URL cannot be parsed
        PyTritonClientValueError: another argument is invalid

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
        access_token: str | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        import urllib3

        self._address = _Address.of(url, name)
        self._headers = {**(headers or {}), **access_headers(access_token)}
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            timeout=urllib3.Timeout(connect=timeout_s, read=timeout_s),
            # If connecting fails, nothing has been sent. After any other error, the function may have been called.
            retries=urllib3.Retry(
                None,
                connect=len(_RETRY_DELAYS_S),
                read=0,
                redirect=0,
                status=0,
                other=0,
                backoff_factor=0.1,
            ),
            ssl_context=self._address.context(tls),
        )

    def __call__(self, body: Any = None, /, **arguments: Any) -> Any:
        """Call the function.

        Args:
            body: the whole body, instead of arguments: the argument of a function with one parameter, or bytes
            arguments: JSON values, numpy arrays, dataclasses, pydantic models; bytes and open files, or lists of them,
                are uploaded

        Returns:
            the function's result: a decoded JSON value, or bytes; for a generator function, the list of its items

        Raises:
            ApiError: the server refused the call, or the function failed
            ConnectionError: the server cannot be reached, or the connection broke
            TimeoutError: the server did not respond in time
            TypeError: an argument cannot be sent
        """
        with self._post(body, arguments) as response:
            return _result(response.headers.get("Content-Type", ""), response.data)

    def stream(self, body: Any = None, /, **arguments: Any) -> Generator[Any, None, None]:
        """Call a generator function, and yield its items as they arrive. Close the iterator to cancel the call.

        The request is sent when the first item is read. Arguments and exceptions are those of `__call__`; ApiError is also
        raised if the function fails after it has yielded items.
        """
        events = _Events()
        with self._post(body, arguments) as response:
            for chunk in response.stream(_CHUNK):
                yield from events.feed(chunk)
        events.finish()

    def openapi(self) -> dict[str, Any]:
        """Return the server's OpenAPI document. Raises the same errors as `__call__`."""
        with self._request("GET", self._address.openapi, None, {}) as response:
            return dict(json.loads(response.data))

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._pool.clear()

    def __enter__(self) -> ApiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _post(
        self, body: Any, arguments: Mapping[str, Any]
    ) -> AbstractContextManager[urllib3.BaseHTTPResponse]:
        data, content_type = encode_body(body, arguments)
        return self._request("POST", self._address.route, data, {"Content-Type": content_type})

    @contextmanager
    def _request(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        import urllib3

        response = None
        try:
            response = self._pool.request(
                method,
                url,
                body=data,
                headers={**self._headers, **headers},
                preload_content=False,
                redirect=False,
            )
            if response.status != 200:
                raise _refusal(response.status, response.data)
            yield response
            response.release_conn()  # if it has been read to its end
        except urllib3.exceptions.HTTPError as error:
            cause = getattr(error, "reason", None) or error
            if isinstance(cause, urllib3.exceptions.TimeoutError) and not isinstance(
                cause,
                urllib3.exceptions.NewConnectionError,  # is one for historical reasons
            ):
                raise TimeoutError(f"{url}: no response in time") from error
            raise ConnectionError(f"{url}: {cause}") from error
        finally:
            if response is not None:
                response.close()


class AsyncApiClient:
    """Client of one typed function for asyncio. Arguments and exceptions are those of `ApiClient`.

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
        access_token: str | None = None,
        tls: TlsOptions | None = None,
    ) -> None:
        self._address = _Address.of(url, name)
        self._headers = {**(headers or {}), **access_headers(access_token)}
        self._timeout_s = timeout_s
        self._ssl_context = self._address.context(tls)
        self._session: aiohttp.ClientSession | None = None

    async def __call__(self, body: Any = None, /, **arguments: Any) -> Any:
        """Call the function. See `ApiClient`. Cancelling the task cancels the call."""
        async with self._post(body, arguments) as response:
            return _result(response.headers.get("Content-Type", ""), await response.read())

    async def stream(self, body: Any = None, /, **arguments: Any) -> AsyncGenerator[Any, None]:
        """Call a generator function, and yield its items as they arrive. See `ApiClient.stream`."""
        events = _Events()
        async with self._post(body, arguments) as response:
            async for chunk in response.content.iter_any():
                for item in events.feed(chunk):
                    yield item
        events.finish()

    async def openapi(self) -> dict[str, Any]:
        """Return the server's OpenAPI document. Raises the same errors as `__call__`."""
        async with self._request("GET", self._address.openapi, None, {}) as response:
            return dict(json.loads(await response.read()))

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __aenter__(self) -> AsyncApiClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _post(
        self, body: Any, arguments: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        data, content_type = encode_body(body, arguments)
        return self._request("POST", self._address.route, data, {"Content-Type": content_type})

    @asynccontextmanager
    async def _request(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        import aiohttp

        try:
            response = await self._connected(method, url, data=data, headers=headers)
            async with response:
                if response.status != 200:
                    raise _refusal(response.status, await response.read())
                yield response
        except asyncio.TimeoutError as error:  # aiohttp's are of both kinds
            raise TimeoutError(f"{url}: no response in time") from error
        except aiohttp.ClientError as error:
            raise ConnectionError(f"{url}: {error}") from error

    async def _connected(self, method: str, url: str, **given: Any) -> aiohttp.ClientResponse:
        """Send a request, and return its response once the headers have arrived. Retry if connecting fails."""
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(sock_connect=self._timeout_s, sock_read=self._timeout_s)
            secure = True if self._ssl_context is None else self._ssl_context
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, ssl=secure),
            )
        for delay_s in _RETRY_DELAYS_S:
            with suppress(aiohttp.ClientConnectorError):
                return await self._session.request(method, url, allow_redirects=False, **given)
            await asyncio.sleep(delay_s)
        return await self._session.request(method, url, allow_redirects=False, **given)


class _Events:
    """Parser of server-sent events, for the subset of the format that the server uses."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> Iterator[Any]:
        """Yield the items of the events that a chunk completes; raise ApiError for an error event."""
        *events, self._rest = (self._rest + chunk).split(b"\n\n")
        for event in events:
            kind, data = b"", []
            for line in event.split(b"\n"):
                field, _, value = line.partition(b": ")
                if field == b"event":
                    kind = value
                elif field == b"data":
                    data.append(value)
            if kind == b"error":
                problem = json.loads(b"\n".join(data))
                raise ApiError(int(problem.get("status", 500)), problem)
            if data:
                yield _decode(b"\n".join(data))

    def finish(self) -> None:
        """Raise ConnectionError if an event is incomplete."""
        if self._rest.strip():
            raise ConnectionError("the stream ended within an event")


class _Address(NamedTuple):
    """The URLs of a typed function.

    Args:
        route: the function's own URL
        openapi: the URL of the server's OpenAPI document
        is_secure: whether the URLs begin with https
    """

    route: str
    openapi: str
    is_secure: bool

    @classmethod
    def of(cls, url: str, name: str) -> _Address:
        server = TritonUrl.from_url(url)
        if server.is_grpc:
            raise PyTritonClientInvalidUrlError(
                f"Invalid url {url!r}: typed functions are called over HTTP. Use host, host:port, http://… or https://…"
            )
        base = server.with_scheme.rstrip("/")
        route = quote(name if name.startswith("/") else f"/{name}", safe="/-._~%")
        return cls(f"{base}{route}", f"{base}/openapi.json", server.is_secure)

    def context(self, tls: TlsOptions | None) -> ssl.SSLContext | None:
        """Return the SSL context for connections to the server; None for the library's default."""
        if tls is None or not self.is_secure:
            return None
        context: ssl.SSLContext = tls.context()
        return context


def encode_body(body: Any, arguments: Mapping[str, Any]) -> tuple[bytes, str]:
    """Return a request's body and its media type: a form if there are files."""
    if body is not None:
        if arguments:
            raise TypeError("pass either the whole body or arguments by name")
        if _is_file(body):
            return _read(body), "application/octet-stream"
        return _encode(body), _JSON
    if not any(map(_has_files, arguments.values())):
        return _encode(arguments), _JSON
    from urllib3 import encode_multipart_formdata
    from urllib3.fields import RequestField

    fields = []
    for name, value in arguments.items():
        for one in value if isinstance(value, (list, tuple)) and _has_files(value) else [value]:
            if _is_file(one):
                filename = os.path.basename(str(getattr(one, "name", name)))
                fields.append(
                    _field(RequestField, name, _read(one), "application/octet-stream", filename)
                )
            elif isinstance(one, str):
                fields.append(_field(RequestField, name, one.encode(), "text/plain; charset=utf-8"))
            else:
                fields.append(_field(RequestField, name, _encode(one), _JSON))
    return encode_multipart_formdata(fields)


def _field(
    kind: type[RequestField], name: str, data: bytes, content_type: str, filename: str | None = None
) -> RequestField:
    field = kind(name, data, filename)
    field.make_multipart(content_type=content_type)
    return field


def _is_file(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview, io.IOBase))


def _has_files(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return bool(value) and all(map(_is_file, value))
    return _is_file(value)


def _read(file: Any) -> bytes:
    data = file.read() if isinstance(file, io.IOBase) else bytes(file)
    return data.encode() if isinstance(data, str) else data


# msgspec is imported here, since clients of tensors do without it.


def _encode(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value, enc_hook=_encode_custom)


def _decode(data: bytes) -> Any:
    import msgspec

    return msgspec.json.decode(data)


def _encode_custom(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "model_dump"):  # pydantic.BaseModel
        return value.model_dump(mode="json")
    raise TypeError(f"an argument of type {type(value).__name__} cannot be sent")


def _result(content_type: str, data: bytes) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == _EVENTS:
        events = _Events()
        items = [*events.feed(data)]
        events.finish()
        return items
    return _decode(data) if kind == _JSON else data


def _refusal(status: int, data: bytes) -> ApiError:
    try:
        problem = json.loads(data)
    except ValueError:
        problem = {"detail": data[:_MAX_TEXT].decode(errors="replace")}
    return ApiError(status, problem if isinstance(problem, dict) else {"detail": str(problem)})
