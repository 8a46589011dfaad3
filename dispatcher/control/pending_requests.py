"""Starts clients' requests, limits how many are in progress, and cancels a client's requests when it exits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog

from pytriton._protocol import linux
from pytriton._protocol.errors import ErrorKind
from pytriton.dispatcher.control.peers import MessageRefused

_log = structlog.get_logger(__name__)

#: Maximum number of concurrent requests per connection.
MAX_REQUESTS = 64


@dataclass
class _PendingRequest:
    task: asyncio.Task[None]
    abandonable: bool
    abandoned: bool = False


@dataclass
class PendingRequests:
    """The requests in progress on one ROUTER socket, by connection identity and request id."""

    _by_peer: dict[bytes, dict[bytes, _PendingRequest]] = field(default_factory=dict)

    def check(self, identity: bytes, request_id: bytes) -> None:
        """Check that a peer may make another request.

        Raises:
            MessageRefused: it has too many requests in progress, or one with this id.
        """
        own = self._by_peer.get(identity, {})
        if request_id in own:
            raise MessageRefused(
                f"request {request_id.hex()} on this connection is already in progress"
            )
        if len(own) >= MAX_REQUESTS:
            text = f"{len(own)} requests of this connection are in progress; no more are accepted"
            raise MessageRefused(text, ErrorKind.UNAVAILABLE)

    def begin(
        self,
        identity: bytes,
        request_id: bytes,
        answer: Coroutine[Any, Any, None],
        *,
        abandonable: bool,
    ) -> None:
        """Start a task that answers a request."""
        task = asyncio.create_task(answer)
        self._by_peer.setdefault(identity, {})[request_id] = _PendingRequest(task, abandonable)
        task.add_done_callback(lambda _: self._forget(identity, request_id))

    def abandon(self, identity: bytes, request_id: bytes, why: str) -> None:
        """Cancel a request because its client is no longer waiting. Do nothing if the request must not be abandoned.

        A second call has no effect, because by then the request may be undoing its work.
        """
        request = self._by_peer.get(identity, {}).get(request_id)
        if request is None or not request.abandonable or request.abandoned:
            return
        request.abandoned = True
        _log.info("request cancelled", why=why)
        request.task.cancel()

    def watch(self, identity: bytes, request_id: bytes, pid: int) -> None:
        """Abandon a request when its client's process exits."""

        def on_exit() -> None:
            self.abandon(identity, request_id, f"its client, process {pid}, has exited")

        stop_watching = when_exited(pid, on_exit)
        self._by_peer[identity][request_id].task.add_done_callback(lambda _: stop_watching())

    async def end(self) -> None:
        """Cancel all requests, and wait until they are done."""
        tasks = [request.task for own in self._by_peer.values() for request in own.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, identity: bytes, request_id: bytes) -> None:
        own = self._by_peer[identity]
        del own[request_id]
        if not own:
            del self._by_peer[identity]


def when_exited(pid: int, then: Callable[[], None]) -> Callable[[], None]:
    """Call `then` once a process has exited. Return a function that stops watching the process."""
    loop = asyncio.get_running_loop()
    try:
        ended = linux.pidfd_open(pid)
    except ProcessLookupError:
        return loop.call_soon(then).cancel
    except OSError as error:  # a kernel before 5.3, or seccomp: only Cancel is noticed then
        _log.debug("cannot detect when a client exits", client_pid=pid, reason=str(error))
        return lambda: None

    def fire() -> None:
        loop.remove_reader(ended)
        then()

    def stop() -> None:
        loop.remove_reader(ended)
        os.close(ended)

    loop.add_reader(ended, fire)
    return stop
