"""A process that runs its model's workers in threads of its own: its identity, a watch on it."""

from __future__ import annotations

import asyncio
import os

from pytriton._protocol import linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.control.control_socket import Peer

_INSTEAD = 'Use isolation="process", the default, or run it'


class Registrant:
    """The sender of a Register with isolation="thread", for as long as that registration lasts.

    The dispatcher can neither start nor end such a process; it asks it to run workers, and watches it.

    Attributes:
        pid: its process id.
        ended: is done when it has ended.
    """

    def __init__(self, peer: Peer, model: str) -> None:
        """See that its threads can serve here, and watch it.

        Raises:
            RemoteFailure: it is on another machine, of another user, or out of sight.
        """
        sender = peer.sender
        what = f'model {model} with isolation="thread"'
        if sender.pid is None:
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"{what}: the daemon cannot see the process of {sender.name}: it is on another machine or in "
                f"another PID namespace. {_INSTEAD} beside the daemon.",
            )
        if sender.uid != os.geteuid():
            raise RemoteFailure(
                ErrorKind.INVALID,
                f"{what}: only processes of the daemon's own user ({os.geteuid()}) share memory with it, this "
                f"is one of user {sender.uid}. {_INSTEAD} as that user.",
            )
        self.pid = sender.pid
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        try:
            self._pidfd = linux.pidfd_open(sender.pid)
        except ProcessLookupError:
            raise RemoteFailure(ErrorKind.INVALID, f"{what}: its process has ended") from None
        self._loop.add_reader(self._pidfd, self._end)

    async def send(self, message: messages.AnyMessage) -> None:
        """Send the registrant a message that answers no request."""
        await self._peer.send(message)

    async def release(self, why: str) -> None:
        """Tell the registrant that its registration is over, and watch it no longer."""
        if not self.ended.done():
            self._unwatch()  # first: it may end while it is told, and its descriptor is closed once
            self.ended.cancel()
            await self.send(messages.Released(why))

    def give_up(self) -> None:
        """Count the registrant as ended: it no longer wants to serve its model."""
        if not self.ended.done():
            self._end()

    def _end(self) -> None:
        self._unwatch()
        self.ended.set_result(None)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
