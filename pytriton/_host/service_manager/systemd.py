"""Notifies the service manager of the daemon's state (systemd's sd_notify(3)).

A message is one datagram of `NAME=value` lines to the socket named by $NOTIFY_SOCKET: a path, or "@" and a name
in the abstract namespace. The protocol is implemented here because that takes ten lines, while the bindings of
libsystemd are a compiled package. Without $NOTIFY_SOCKET, nothing is sent.
"""

from __future__ import annotations

import asyncio
import collections
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

_log = structlog.get_logger(__name__)

#: Variables that a service manager sets for the daemon only: a child that inherited them could send notifications.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
#: How much more time a starting or stopping daemon requests, and how often.
_EXTEND_S, _EXTEND_EVERY_S = 30.0, 10.0
#: Interval between checks of the state for a new STATUS=, unless the watchdog needs a shorter one.
_POLL_INTERVAL_S = 2.0
_MAX_LEN_STATUS = 500
#: Number of messages kept while the service manager does not read; a start, a reload and a stop send four.
_KEPT = 8


@dataclass(frozen=True)
class ServiceState:
    """The daemon's state, as reported to the service manager."""

    text: str  #: one line for people
    healthy: bool  #: whether the daemon works; the watchdog is notified only if it does
    busy: bool  #: whether the daemon is starting or stopping, which may take long


class Notifier:
    """Sends notifications to the service manager; does nothing without one.

    Args:
        address: $NOTIFY_SOCKET; empty if there is no service manager.
        watchdog_s: time without a notification after which the daemon counts as hung, in seconds; 0: no watchdog.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        #: The variables set by the service manager, for the next version of this process.
        self.variables: dict[str, str] = {}
        self._watchdog_s = watchdog_s if address else 0.0
        self._status = ""  #: the last one sent
        #: Messages that could not be sent yet, in order, each with the status in it.
        self._unsent: collections.deque[tuple[str, str | None]] = collections.deque(maxlen=_KEPT)
        self._failure_logged = False
        self._target = f"\0{address[1:]}" if address.startswith("@") else address
        if address and address[0] not in "@/":
            self._target = ""
            _log.warning(
                "cannot notify the service manager: NOTIFY_SOCKET is neither a path nor an abstract socket",
                notify_socket=address,
            )

    @classmethod
    def from_environment(cls, env: MutableMapping[str, str]) -> Notifier:
        """Create a notifier from the protocol's variables in `env`; remove them, so that no child process inherits them."""
        variables = {name: env.pop(name) for name in VARIABLES if name in env}
        address, usec, pid = (variables.get(name, "") for name in VARIABLES)
        mine = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if usec.isdecimal() and mine else 0.0
        notifier = cls(address, watchdog_s)
        notifier.variables = variables
        return notifier

    def ready(self, status: str) -> None:
        """Announce that models can be registered, or that a reload is complete."""
        self._announce("READY=1", _status_line(status), status=status)

    def reloading(self) -> None:
        """Announce a reload of the settings; `ready` follows."""
        # The protocol requires CLOCK_MONOTONIC, which is time.monotonic() on Linux.
        self._announce("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Announce that the daemon is stopping."""
        self._announce("STOPPING=1", _status_line(status), _extension(), status=status)

    def status(self, text: str) -> None:
        """Send the daemon's state in one line, unless it is unchanged."""
        if text != self._status and not self._unsent and self._send(_status_line(text)):
            self._status = text

    @contextmanager
    def slow_start(self) -> Iterator[None]:
        """During the block, which downloads tritonserver, keep requesting more time in a separate thread."""
        if not self._target:
            yield
            return
        done = threading.Event()

        def extend() -> None:
            self._send(_extension())
            while not done.wait(_EXTEND_EVERY_S):
                self._send(_extension())

        thread = threading.Thread(target=extend, name="notify", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    async def keep(self, state: Callable[[], ServiceState]) -> None:
        """Notify the service manager until cancelled: send watchdog messages, new states, and requests for more time.

        This runs in the dispatcher's own event loop, so that a hung loop sends nothing. Failed sends are retried.
        """
        if not self._target:
            return
        pause_s = (
            min(_POLL_INTERVAL_S, self._watchdog_s / 2) if self._watchdog_s else _POLL_INTERVAL_S
        )
        extended = float("-inf")
        while True:
            now = state()
            self._send_unsent()
            self.status(now.text)
            if self._watchdog_s and now.healthy:
                self._send("WATCHDOG=1")
            if now.busy and time.monotonic() - extended >= _EXTEND_EVERY_S:
                extended = time.monotonic()
                self._send(_extension())
            await asyncio.sleep(pause_s)

    def _announce(self, *lines: str, status: str | None = None) -> None:
        """Send a message that must not be lost. Earlier messages that could not be sent are sent first."""
        self._unsent.append(("\n".join(lines), status))
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent and self._send(self._unsent[0][0]):
            _, status = self._unsent.popleft()
            self._status = self._status if status is None else status

    def _send(self, *lines: str) -> bool:
        """Send one message without blocking; return False if that fails. Only the first failure is logged."""
        if not self._target:
            return True  # there is no recipient
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # must not block the event loop
                sender.sendto("\n".join(lines).encode("utf-8", "replace"), self._target)
        except OSError as error:
            if not self._failure_logged:
                _log.warning("cannot notify the service manager", reason=str(error))
            self._failure_logged = True
            return False
        self._failure_logged = False
        return True


def _status_line(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:_MAX_LEN_STATUS]}"


def _extension() -> str:
    return f"EXTEND_TIMEOUT_USEC={int(_EXTEND_S * 1e6)}"
