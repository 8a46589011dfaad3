"""Takes connections while there is room: the process has other uses for its descriptors."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from aiohttp import web

from pytriton.dispatcher.http_server.connections import Connections

__all__ = ["Accepting"]

#: Seconds until the next look whether there is room, and until the next try where there was no descriptor.
_LOOK_S, _SCARCE_S = 0.01, 1.0


class Accepting:
    """Takes connections for one server, and never has more than `most`.

    For another one, one that idles has to go, or the oldest of those that still shake hands for TLS, where these are
    more than half. While there is none, others wait in the kernel's queue. aiohttp's own sites take whatever comes, and
    know nothing of a connection before its handshake is over.

    Args:
        server: gets them
        connections: closes them
        most: how many there may be
        tls: None for plain HTTP
        handshake_s: what a handshake may take
        say: writes what somebody should look at
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
        self._beginning: dict[asyncio.Task[None], socket.socket] = {}  #: the oldest first

    async def run(self, listener: socket.socket) -> None:
        """Take what comes on a socket that listens."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            await self._room()
            try:
                taken, _ = await loop.sock_accept(listener)
            except ConnectionAbortedError:  # it has gone meanwhile
                continue
            except OSError as error:  # there are no descriptors, say
                self._say(f"cannot take connections: {error.strerror}")
                await asyncio.sleep(_SCARCE_S)
                continue
            task = asyncio.ensure_future(self._begin(taken))
            self._beginning[task] = taken
            task.add_done_callback(self._begun)

    def close(self) -> None:
        """Give up what has not begun; `run` has ended."""
        for task in self._beginning:
            task.cancel()

    async def _room(self) -> None:
        await asyncio.sleep(0)  # however fast they come, the others have their turn
        while len(self._server.connections) + len(self._beginning) >= self._most:
            if self._tls is not None and len(self._beginning) > self._most // 2:
                next(iter(self._beginning)).cancel()
            else:
                self._connections.make_room(self._server.connections)
            await asyncio.sleep(_LOOK_S)

    async def _begin(self, taken: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError):  # its peer has gone, or speaks no TLS
            await loop.connect_accepted_socket(
                self._server, taken, ssl=self._tls, ssl_handshake_timeout=self._handshake_s
            )

    def _begun(self, task: asyncio.Task[None]) -> None:
        taken = self._beginning.pop(task)
        if task.cancelled():  # perhaps before it was anybody's
            taken.close()
