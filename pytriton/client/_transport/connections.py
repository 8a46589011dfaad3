"""Connections to a server, with a common interface to tritonclient's four clients.

`call` respects its timeout with every protocol, and reports every failure as `CallFailed`. A module of tritonclient
is imported when the first connection needs it: gevent and grpc are slow to import, and most programs need only one of
them.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import os
import socket
import sys
import threading
import weakref
from typing import Any, NoReturn, Protocol

from pytriton.client._transport.failures import CallFailed, FailureKind, describe
from pytriton.client._transport.url import TritonUrl
from pytriton.client.tls import TlsOptions

__all__ = ["ServerConnection", "aconnect", "connect", "fail"]

#: Disables tritonclient's own timeouts, so that only the deadline of each call applies.
_NEVER_S = 7 * 24 * 3600.0
#: Detects a restarted server within a second. Connections are not shared with other clients of this process,
#: because their failed attempts would delay this client.
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


class ServerConnection(Protocol):
    """A connection to a server. For asyncio, `call` and `close` return awaitables."""

    url: TritonUrl

    @property
    def module(self) -> Any:
        """tritonclient's module with the classes for inputs and outputs."""

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        """Call a method of tritonclient's client and return its result. Raise CallFailed if it fails."""

    def close(self) -> Any:
        """Close the connection. Does nothing if already closed."""


def connect(url: TritonUrl, tls: TlsOptions | None) -> ServerConnection:
    """Return a connection for use by threads. Nothing is sent before the first call."""
    return _SyncGrpc(url, tls, "tritonclient.grpc") if url.is_grpc else _Http(url, tls)


def aconnect(url: TritonUrl, tls: TlsOptions | None) -> ServerConnection:
    """Return a connection for use with asyncio. Nothing is sent before the first call."""
    return _AioGrpc(url, tls, "tritonclient.grpc.aio") if url.is_grpc else _AioHttp(url, tls)


class _Grpc:
    """A gRPC connection with one channel, which all threads share."""

    def __init__(self, url: TritonUrl, tls: TlsOptions | None, module: str) -> None:
        self.url = url
        self._tls = tls
        self._factory = importlib.import_module(module).InferenceServerClient
        self._client: Any = None
        self._lock = threading.Lock()

    @property
    def module(self) -> Any:
        return importlib.import_module("tritonclient.grpc")

    def client(self) -> Any:
        """Return tritonclient's client, created on first use."""
        with self._lock:
            if self._client is None:
                options = (self._tls or TlsOptions()).grpc_options() if self.url.is_secure else {}
                self._client = self._factory(
                    self.url.without_scheme,
                    ssl=self.url.is_secure,
                    channel_args=[*_CHANNEL, *self.url.channel_options],
                    **options,
                )
            return self._client

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        try:
            return self._start(method, timeout_s, arguments, headers)
        except Exception as error:
            fail(error)

    def _start(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        if method == "get_model_config":
            arguments = {"as_json": True, **arguments}
        function = getattr(self.client(), method)
        return function(**arguments, headers=headers, client_timeout=timeout_s)

    def _detach(self) -> Any:
        with self._lock:
            client, self._client = self._client, None
        return client

    def close(self) -> Any:
        client = self._detach()
        if client is not None:
            client.close()


class _SyncGrpc(_Grpc):
    pid = 0  #: the process that created the channel

    def client(self) -> Any:
        client = super().client()
        if self not in _open:
            self.pid = os.getpid()
            _open.add(self)
        return client


#: Connections that may have an open channel.
_open: weakref.WeakSet[_SyncGrpc] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close gRPC's channels while gRPC's threads are still running.

    Later during interpreter exit, gRPC's threads stop at any point, perhaps holding a lock that closing a channel
    needs. A program that does not close its clients would then hang.
    """
    for connection in list(_open):
        if connection.pid == os.getpid():  # a forked child has none of the threads
            connection.close()


class _AioGrpc(_Grpc):
    async def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        try:
            return await self._start(method, timeout_s, arguments, headers)
        except Exception as error:
            fail(error)

    async def close(self) -> None:
        client = self._detach()
        if client is not None:
            await client.close()


@functools.cache
def _gevent() -> Any:
    """Import gevent, and reset its state in every child process that is forked from now on."""
    gevent = importlib.import_module("gevent")

    def renew() -> None:
        # Call this first. Otherwise, the event loop of the forking thread waits forever.
        gevent.reinit()
        for connection in list(_inherited):
            connection.renew()

    os.register_at_fork(after_in_child=renew)
    return gevent


class _Resolver:
    """Resolver for a gevent hub. It resolves names in the calling thread if gevent cannot start another one.

    Python 3.12 starts no threads after the main thread has ended, but requests of other threads must still work.
    """

    def __init__(self, usual: Any) -> None:
        self._usual = usual

    def getaddrinfo(self, *args: Any) -> Any:
        try:
            return self._usual.getaddrinfo(*args)
        except RuntimeError:
            return socket.getaddrinfo(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)


class _Http:
    """An HTTP connection for each calling thread, because gevent's sockets belong to the thread that created them."""

    def __init__(self, url: TritonUrl, tls: TlsOptions | None) -> None:
        _gevent()
        self.url = url
        self.module: Any = importlib.import_module("tritonclient.http")
        self._context = None
        # Use gevent's context: the standard one would block gevent's loop and its timers.
        if url.is_secure:
            self._context = (tls or TlsOptions()).context(importlib.import_module("gevent.ssl"))
        self._local = threading.local()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        _inherited.add(self)

    def renew(self) -> None:
        """Forget the parent's connections in a forked child: a response could reach either process."""
        self._local = threading.local()
        self._all = weakref.WeakSet()
        # A thread that does not exist in the child may hold the old one.
        self._lock = threading.Lock()

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        gevent = _gevent()
        client = self._client()
        # Do not use tritonclient's own timeouts, which restart with each wait for data.
        timer = gevent.Timeout.start_new(timeout_s)
        try:
            answer = getattr(client, method)(**arguments, headers=headers)
            if answer is False:
                # tritonclient does not read the body of a rejection (for example from a reverse proxy). An unread
                # body blocks the connection, and the next call would wait for it.
                self._drop(client)
            return answer
        except gevent.Timeout as late:
            if late is not timer:
                raise
            self._drop(client)  # a late response must not be mistaken for that of the next call
            raise CallFailed(FailureKind.TIMEOUT, "no response in time") from None
        except Exception as error:
            fail(error)
        finally:
            timer.close()

    def _client(self) -> Any:
        client = getattr(self._local, "client", None)
        if client is None:
            hub = _gevent().get_hub()
            if sys.version_info[:2] == (3, 12) and not isinstance(hub.resolver, _Resolver):
                hub.resolver = _Resolver(hub.resolver)
            client = self.module.InferenceServerClient(
                self.url.without_scheme,
                connection_timeout=_NEVER_S,
                network_timeout=_NEVER_S,
                ssl=self._context is not None,
                ssl_context_factory=lambda: self._context,
            )
            self._local.client = client
            with self._lock:
                self._all.add(client)
        return client

    def _drop(self, client: Any) -> None:
        self._local.client = None
        client.close()

    def close(self) -> None:
        with self._lock:
            clients, self._all = list(self._all), weakref.WeakSet()
        self._local = threading.local()
        for client in clients:
            client.close()


#: Connections that forked children inherit.
_inherited: weakref.WeakSet[_Http] = weakref.WeakSet()


class _AioHttp:
    def __init__(self, url: TritonUrl, tls: TlsOptions | None) -> None:
        self.url = url
        self.module: Any = importlib.import_module("tritonclient.http.aio")
        self._context = (tls or TlsOptions()).context() if url.is_secure else None
        self._client: Any = None

    async def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        if self._client is None:  # created here because aiohttp needs a running loop
            self._client = self.module.InferenceServerClient(
                self.url.without_scheme,
                conn_timeout=_NEVER_S,
                ssl=self._context is not None,
                ssl_context=self._context,
            )
        try:
            function = getattr(self._client, method)
            return await asyncio.wait_for(function(**arguments, headers=headers), timeout_s)
        except Exception as error:
            fail(error)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


def fail(error: Exception) -> NoReturn:
    """Raise `CallFailed` for an exception of tritonclient or its transport. Raise other exceptions unchanged."""
    failure = describe(error)
    if failure is None:
        raise error
    raise failure from error
