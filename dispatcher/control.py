"""The dispatcher's end of the control socket: receives, parses, and hands every message to its handler."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Optional

import structlog
import zmq
import zmq.asyncio

from pytriton.ipc import control, messages
from pytriton.ipc.errors import ErrorKind, RemoteFailure

_log = structlog.get_logger(__name__)

Handler = Callable[
    ["Peer", messages.AnyMessage, Sequence[bytes]], Awaitable[Optional[messages.AnyMessage]]
]


@dataclass(frozen=True)
class Peer:
    """Who sent a message, so that it can be answered: `request_id` is what the answer carries."""

    _socket: zmq.asyncio.Socket
    identity: bytes
    request_id: bytes

    async def reply(self, message: messages.AnyMessage) -> None:
        """Answer the message, or report on the way to an answer."""
        await self._send(self.request_id, message, ())

    async def send(self, message: messages.AnyMessage, payloads: Sequence[bytes] = ()) -> None:
        """Send something that was not asked for."""
        await self._send(control.UNASKED, message, payloads)

    async def _send(
        self, request_id: bytes, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        # A ROUTER drops what it cannot deliver: the peer is gone, and its end is noticed elsewhere.
        await self._socket.send_multipart(
            [self.identity, *control.frames(request_id, message, payloads)], copy=False
        )


class ControlServer:
    """The ROUTER socket. `handle` is awaited in a task of its own for every message."""

    def __init__(self, endpoint: str, handle: Handler) -> None:
        self._endpoint = endpoint
        self._handle = handle
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._tasks: set[asyncio.Task[None]] = set()

    def bind(self) -> None:
        """Listen; the socket's file is private because its directory is, and because of its own mode."""
        self._socket.linger = 1000
        self._socket.maxmsgsize = control.MAX_FRAME_BYTES
        self._socket.bind(self._endpoint)
        os.chmod(self._endpoint[len("ipc://") :], 0o600)

    async def serve(self) -> None:
        """Receive until cancelled."""
        while True:
            identity, *parts = await self._socket.recv_multipart()
            try:
                request_id, message, payloads = control.parse(parts)
            except messages.MalformedMessage as error:
                _log.warning("malformed control message dropped", error=str(error)[:200])
                continue
            peer = Peer(self._socket, identity, request_id)
            task = asyncio.create_task(self._answer(peer, message, payloads))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Stop answering and close the socket."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._socket.close()
        self._context.term()

    async def _answer(
        self, peer: Peer, message: messages.AnyMessage, payloads: Sequence[bytes]
    ) -> None:
        try:
            reply = await self._handle(peer, message, payloads)
        except RemoteFailure as failure:
            reply = messages.Failure(failure.kind.value, failure.text, failure.traceback)
        except Exception as error:
            _log.exception("handler failed", message_type=type(message).__name__)
            text = f"the daemon failed at {type(message).__name__}: {type(error).__name__}: {error}"
            reply = messages.Failure(ErrorKind.INTERNAL.value, text)
        if reply is not None:
            await peer.reply(reply)
