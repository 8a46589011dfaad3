"""Connections to one server: tritonclient's four clients behind one way to call them.

`call` waits no longer than it is told to, whatever the protocol, and fails with `CallFailed` only. tritonclient
is imported with the first connection of its kind: gevent and grpc are slow to import, and a program needs one.
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

from pytriton.client._transport.failures import CallFailed, Kind, describe
from pytriton.client._transport.url import TritonUrl
from pytriton.client.tls import TlsOptions

__all__ = ["Connection", "aconnect", "connect", "fail"]

#: tritonclient's own limits. Each call has its own deadline, which is to be the one that counts.
_NEVER_S = 7 * 24 * 3600.0
#: A server that comes up is found within a second; and no connection is shared with another client of this
#: process, whose failed attempts would delay ours.
_CHANNEL = [
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
]


class Connection(Protocol):
    """The interface of a connection to the clients; `call` returns an awaitable for asyncio."""

    url: TritonUrl

    @property
    def module(self) -> Any:
        """Module of tritonclient with the classes for inputs and outputs."""

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        """Call a method of tritonclient's client."""

    def close(self) -> Any:
        """Close it; a second time does nothing."""


def connect(url: TritonUrl, tls: TlsOptions | None) -> Connection:
    """Return a connection for threads. Nothing is sent before the first call."""
    return _SyncGrpc(url, tls, "tritonclient.grpc") if url.is_grpc else _Http(url, tls)


def aconnect(url: TritonUrl, tls: TlsOptions | None) -> Connection:
    """Return a connection for asyncio. Nothing is sent before the first call."""
    return _AioGrpc(url, tls, "tritonclient.grpc.aio") if url.is_grpc else _AioHttp(url, tls)


class _Grpc:
    """A connection over gRPC: one channel for all threads, as gRPC allows."""

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
        """Return tritonclient's client, made on first use."""
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
    pid = 0  #: of the process that has made the channel

    def client(self) -> Any:
        client = super().client()
        if self not in _open:
            self.pid = os.getpid()
            _open.add(self)
        return client


#: Those that may have a channel.
_open: weakref.WeakSet[_SyncGrpc] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close gRPC's channels while its threads still run.

    At the interpreter's end, gRPC's threads stop wherever they are, perhaps with a lock that closing a channel takes: a
    program whose clients were not closed hung there for ever.
    """
    for connection in list(_open):
        if connection.pid == os.getpid():  # a fork has none of the threads
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
    """Import gevent, and let every process that is forked from now on have what it needs of its own."""
    gevent = importlib.import_module("gevent")

    def renew() -> None:
        # Before anything else: without it, the loop of the thread that forked waits for ever.
        gevent.reinit()
        for connection in list(_carried_over):
            connection.renew()

    os.register_at_fork(after_in_child=renew)
    return gevent


class _Resolver:
    """A hub's way to resolve names, in a thread of gevent's, and without one where none can be started any more.

    From the end of the main thread on, Python 3.12 starts none. Requests of other threads are answered all the same.
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
    """A connection for each thread that calls: gevent's sockets belong to the thread that made them."""

    def __init__(self, url: TritonUrl, tls: TlsOptions | None) -> None:
        _gevent()
        self.url = url
        self.module: Any = importlib.import_module("tritonclient.http")
        self._context = None
        if url.is_secure:  # gevent's own: the other would block its loop, and with it the timer
            self._context = (tls or TlsOptions()).context(importlib.import_module("gevent.ssl"))
        self._mine = threading.local()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()
        _carried_over.add(self)

    def renew(self) -> None:
        """Let go of the parent's connections, in a forked child: an answer would reach either of the two."""
        self._mine = threading.local()
        self._all = weakref.WeakSet()
        self._lock = threading.Lock()  # a thread that the child has not may have held it

    def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        gevent = _gevent()
        client = self._client()
        # Not tritonclient's own time-outs: they count each wait for bytes anew.
        timer = gevent.Timeout.start_new(timeout_s)
        try:
            answer = getattr(client, method)(**arguments, headers=headers)
            if answer is False:
                # tritonclient does not read the text of a refusal (a proxy's, say): while it is
                # unread the connection is taken, and the next call would wait for it.
                self._drop(client)
            return answer
        except gevent.Timeout as late:
            if late is not timer:
                raise
            self._drop(client)  # what is still to come must not be taken for the next answer
            raise CallFailed(Kind.TIMEOUT, "no answer within the time") from None
        except Exception as error:
            fail(error)
        finally:
            timer.close()

    def _client(self) -> Any:
        client = getattr(self._mine, "client", None)
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
            self._mine.client = client
            with self._lock:
                self._all.add(client)
        return client

    def _drop(self, client: Any) -> None:
        self._mine.client = None
        client.close()

    def close(self) -> None:
        with self._lock:
            clients, self._all = list(self._all), weakref.WeakSet()
        self._mine = threading.local()
        for client in clients:
            client.close()


#: Those that a forked child has, too.
_carried_over: weakref.WeakSet[_Http] = weakref.WeakSet()


class _AioHttp:
    def __init__(self, url: TritonUrl, tls: TlsOptions | None) -> None:
        self.url = url
        self.module: Any = importlib.import_module("tritonclient.http.aio")
        self._context = (tls or TlsOptions()).context() if url.is_secure else None
        self._client: Any = None

    async def call(
        self, method: str, timeout_s: float, arguments: dict[str, Any], headers: dict[str, str]
    ) -> Any:
        if self._client is None:  # here: aiohttp wants a running loop
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
    """Raise what an exception of tritonclient means; others as they are."""
    failure = describe(error)
    if failure is None:
        raise error
    raise failure from error
