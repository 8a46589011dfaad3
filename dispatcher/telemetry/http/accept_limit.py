"""Accepts connections up to a limit, because the process needs descriptors for other purposes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from pytriton.dispatcher.http_server.connections import Connections

__all__ = ["Accepting"]

#: Interval between checks for a free slot, and pause after running out of descriptors.
_POLL_INTERVAL_S, _SCARCE_S = 0.01, 1.0


class Accepting:
    """Accepts connections for one server, at most `most` at a time.

    When the limit is reached, an idle connection is closed to admit another; if more than half are still in a TLS
    handshake, the oldest of those is closed instead. If none can be closed, new ones wait in the kernel's queue.
    aiohttp's own sites have no limit, and do not know a connection before its handshake is complete.

    Args:
        server: receives the connections
        connections: closes idle ones
        most: maximum number of connections
        tls: None for plain HTTP
        handshake_s: time limit of a handshake
        say: reports problems for the operator
    """

    def __init__(
        self,
        server: web.Server,
        connections: Connections,
        most: int,
        tls: ssl.SSLContext | None,
        handshake_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._server = server
        self._connections = connections
        self._most = most
        self._tls = tls
        self._handshake_s = handshake_s if tls is not None else None
        self._say = say
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}  #: oldest first

    async def run(self, listener: socket.socket) -> None:
        """Accept connections from a listening socket."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await self._room()
            try:
                taken, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # the client has disconnected already
                continue
            except OSError as error:  # for example, no descriptors are left
                self._say(f"cannot accept connections: {error.strerror}")
                await asyncio.sleep(_SCARCE_S)
                continue
            task = asyncio.ensure_future(self._begin(taken))
            self._beginning[task] = taken
            task.add_done_callback(self._begun)

    def close(self) -> None:
        """Cancel pending handshakes; `run` must have ended."""
        for task in self._beginning:
            task.cancel()

    async def _room(self) -> None:
        await asyncio.sleep(0)  # yield to other tasks, however fast connections arrive
        while len(self._server.connections) + len(self._beginning) >= self._most:
            if self._tls is not None and len(self._beginning) > self._most // 2:
                next(iter(self._beginning)).cancel()
            else:
                self._connections.make_room(self._server.connections)
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _begin(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # the peer has disconnected, or does not speak TLS
            await loop.connect_accepted_socket(
                self._server, taken, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )

    def _begun(self, task: asyncio.Task[None]) -> None:
        taken = self._beginning.pop(task)
        if task.cancelled():  # possibly before it was handed to the server
            taken.close()
