"""HTTP client for webhooks: posts with a total time limit, and without following redirects."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

#: Timeouts for each read from the socket, and for the whole request, in seconds.
_READ_TIMEOUT_S = 10.0
_POST_TIMEOUT_S = 30.0


class HttpPoster:
    """Client that posts one request at a time."""

    def __init__(self) -> None:
        self._deadline = _Deadline()
        self._opener = urllib.request.build_opener(
            _NoRedirects, _HttpHandler(self._deadline), _HttpsHandler(self._deadline)
        )

    def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Post a request; return the status code of the response.

        Raises:
            OSError, http.client.HTTPException: no valid response arrived in time
            RuntimeError: no thread can be started to enforce the time limit
        """
        request = urllib.request.Request(url, body, dict(headers), method="POST")
        try:
            with self._deadline.enforced():
                answer = self._opener.open(request, timeout=_READ_TIMEOUT_S)
                answer.close()
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except urllib.error.URLError as error:
            if isinstance(error.reason, Exception):
                raise error.reason from None
            raise


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects: events go only to the address that the operator has configured."""

    def redirect_request(self, *arguments: Any, **more: Any) -> None:
        return None


class _Deadline:
    """Total time limit of a request. (The timeout of a socket restarts with every byte received.)"""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._expired = False

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Shut down the connections made in this context once the time limit expires."""
        self._expired = False
        timer = threading.Timer(_POST_TIMEOUT_S, self._expire)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            self._follow(None)

    def watch(self, connection: socket.socket) -> None:
        """Apply the time limit to a connection, through a duplicate of its descriptor, since TLS takes over the
        original.
        """
        self._follow(connection.dup())
        if self._expired:
            raise TimeoutError

    def _follow(self, connection: socket.socket | None) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = connection

    def _expire(self) -> None:
        with self._lock:
            self._expired = True
            if self._connection is not None:
                with contextlib.suppress(OSError):  # the peer has closed the connection
                    self._connection.shutdown(socket.SHUT_RDWR)


class _Connection(http.client.HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        self.deadline.watch(self.sock)


class _SecureConnection(http.client.HTTPSConnection, _Connection):
    """HTTPS connection with the time limit: `HTTPSConnection.connect` calls `_Connection.connect` before it starts
    TLS.
    """


def _connection(
    kind: type[_Connection], deadline: _Deadline, *arguments: Any, **more: Any
) -> _Connection:
    made = kind(*arguments, **more)
    made.deadline = deadline
    return made


class _HttpHandler(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, _Connection, self._deadline), req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_connection, _SecureConnection, self._deadline), req)
