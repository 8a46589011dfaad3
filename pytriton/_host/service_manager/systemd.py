"""Reports the daemon's state to its service manager by systemd's protocol, sd_notify(3).

A message is one datagram of `NAME=value` lines to the socket named by $NOTIFY_SOCKET: a path, or "@" and a name
in the abstract namespace. Written here because the protocol is ten lines of code; libsystemd's bindings are a
compiled package for the same ten lines. Without $NOTIFY_SOCKET nothing is ever sent.
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

#: What a service manager sets for its service alone: no child may have it, or it would speak for us.
VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
#: While a start or a stop goes on, more time is asked for: so much, so often.
_EXTEND_S, _EXTEND_EVERY_S = 30.0, 10.0
#: How often the state is looked at for a new STATUS=, if the watchdog wants no more.
_LOOK_S = 2.0
_LONGEST_STATUS = 500
#: Announcements that are kept for a service manager that does not read; a start, a reload and a stop are four.
_KEPT = 8


@dataclass(frozen=True)
class State:
    """The daemon's state, in the service manager's terms."""

    text: str  #: one line for people
    healthy: bool  #: whether it does its work: a sign of life is given only then
    busy: bool  #: whether it is starting or stopping, which may take its time


class Notifier:
    """The daemon's line to its service manager; silent when there is none.

    Args:
        address: $NOTIFY_SOCKET; empty: nobody listens.
        watchdog_s: how long the daemon may be silent before it is taken for hung; 0: never.
    """

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        #: What the service manager has set, for the next version of this process.
        self.variables: dict[str, str] = {}
        self._watchdog_s = watchdog_s if address else 0.0
        self._status = ""  #: the last one that was sent
        #: What could not be sent yet, in order: each with the status in it.
        self._unsent: collections.deque[tuple[str, str | None]] = collections.deque(maxlen=_KEPT)
        self._told_failure = False
        self._target = f"\0{address[1:]}" if address.startswith("@") else address
        if address and address[0] not in "@/":
            self._target = ""
            _log.warning(
                "the service manager is told nothing: NOTIFY_SOCKET is neither a path nor an abstract socket",
                notify_socket=address,
            )

    @classmethod
    def from_environment(cls, env: MutableMapping[str, str]) -> Notifier:
        """Take the variables of the protocol out of `env`, so that no child process inherits them."""
        variables = {name: env.pop(name) for name in VARIABLES if name in env}
        address, usec, pid = (variables.get(name, "") for name in VARIABLES)
        mine = not pid or pid == str(os.getpid())
        watchdog_s = int(usec) / 1e6 if usec.isdecimal() and mine else 0.0
        notifier = cls(address, watchdog_s)
        notifier.variables = variables
        return notifier

    def ready(self, status: str) -> None:
        """Announce that models can be registered; also the end of a reload."""
        self._announce("READY=1", _status_line(status), status=status)

    def reloading(self) -> None:
        """Announce that the settings are being read anew; `ready` follows."""
        # Of the same clock as CLOCK_MONOTONIC, as the protocol asks: time.monotonic() on Linux.
        self._announce("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Announce that the daemon begins to stop."""
        self._announce("STOPPING=1", _status_line(status), _extension(), status=status)

    def status(self, text: str) -> None:
        """Say in one line how the daemon is; the same text is not sent twice."""
        if text != self._status and not self._unsent and self._send(_status_line(text)):
            self._status = text

    @contextmanager
    def slow_start(self) -> Iterator[None]:
        """Ask for more time, from a thread, while this one is busy: tritonserver is being fetched."""
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

    async def keep(self, state: Callable[[], State]) -> None:
        """Go on telling, until cancelled: signs of life, new states, and that a start or stop needs time.

        It runs in the dispatcher's own loop: a loop that hangs is silent. What could not be sent is tried again.
        """
        if not self._target:
            return
        pause_s = min(_LOOK_S, self._watchdog_s / 2) if self._watchdog_s else _LOOK_S
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
        """Send a message that must not be lost, after those that are still unsent."""
        self._unsent.append(("\n".join(lines), status))
        self._send_unsent()

    def _send_unsent(self) -> None:
        while self._unsent and self._send(self._unsent[0][0]):
            _, status = self._unsent.popleft()
            self._status = self._status if status is None else status

    def _send(self, *lines: str) -> bool:
        """Send one message, or return False at once; that is told once and harms nothing else."""
        if not self._target:
            return True  # nobody wants it
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # whoever waits here does nothing else
                sender.sendto("\n".join(lines).encode("utf-8", "replace"), self._target)
        except OSError as error:
            if not self._told_failure:
                _log.warning("the service manager cannot be told anything", reason=str(error))
            self._told_failure = True
            return False
        self._told_failure = False
        return True


def _status_line(text: str) -> str:
    return f"STATUS={' '.join(text.split())[:_LONGEST_STATUS]}"


def _extension() -> str:
    return f"EXTEND_TIMEOUT_USEC={int(_EXTEND_S * 1e6)}"
