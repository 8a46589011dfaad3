"""A process that runs its model's workers in its own threads: its identity, and detection of its exit."""

from __future__ import annotations

import asyncio
import os

from pytriton._protocol import linux, messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.control.control_socket import Peer

_INSTEAD = 'Use isolation="process", the default, or run it'


class Registrant:
    """The sender of a Register message with isolation="thread", for the lifetime of the registration.

    The dispatcher can neither start nor stop such a process. It asks the process to run workers and watches for its exit.

    Attributes:
        pid: Process id.
        ended: Resolves when the process has exited.
    """

    def __init__(self, peer: Peer, model: str) -> None:
        """Check that the process's threads can serve, and start watching it.

        Raises:
            RemoteFailure: The process is on another machine, in another PID namespace, or of another user.
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
        """Send the registrant a message that is not a reply."""
        await self._peer.send(message)

    async def release(self, why: str) -> None:
        """Notify the registrant that its registration has ended, and stop watching it."""
        if not self.ended.done():
            self._unwatch()  # first: it may exit while the message is sent, and its descriptor must be closed once
            self.ended.cancel()
            await self.send(messages.Released(why))

    def give_up(self) -> None:
        """Treat the registrant as exited, because it no longer serves its model."""
        if not self.ended.done():
            self._end()

    def _end(self) -> None:
        self._unwatch()
        self.ended.set_result(None)

    def _unwatch(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
