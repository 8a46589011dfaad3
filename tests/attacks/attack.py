"""What a kind of attack is, and how connections of one kind are made."""

from __future__ import annotations

import collections
import contextlib
import socket
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

#: What clients may leave unread, and send in bodies, all together, in the daemon that is attacked.
TOTAL_BYTES = 256 << 20
#: An answer, or the connection's end, has to come within this time.
PATIENCE_S = 60.0
#: Connections that one kind makes at a time, where it has no reason for others.
ABREAST = 16


@dataclass(frozen=True)
class Place:
    """Where the frontend listens, and the models that it serves."""

    http: tuple[str, int]
    grpc: tuple[str, int]
    model: str
    large: str
    stream: str
    #: Typed functions: one that takes a file, one that yields without an end.
    upload: str
    events: str


@dataclass
class Tally:
    """What became of the connections: statuses of HTTP, or how they ended. `hung`: nothing came in time."""

    seen: collections.Counter[str] = field(default_factory=collections.Counter)
    hung: int = 0

    def add(self, what: str) -> None:
        """Count one more."""
        if what == HUNG:
            self.hung += 1
        self.seen[what] += 1


HUNG = "hung"


@dataclass(frozen=True)
class Attack:
    """An attack. `run` makes that many of them, and counts what came of each."""

    run: Callable[[Place, int, Tally], None]
    #: What may come of one; empty: anything but hanging.
    allowed: frozenset[str] = frozenset()
    #: How many are made of it instead of the connections that were asked for: "streams" or "calls".
    counts: str = "connections"
    #: The most memory in MB that the frontend may have meanwhile; 0: no bound.
    peak_mb: int = 0


def connect(address: tuple[str, int], receive_bytes: int = 0) -> socket.socket:
    """Connect; `receive_bytes`: of the socket's buffer, so that a slow reader is soon full."""
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE_S)
    client.connect(address)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def rest(client: socket.socket) -> bytes:
    """Read until the server ends the connection.

    Raises:
        socket.timeout: it does not.
    """
    said = b""
    try:
        while piece := client.recv(1 << 16):
            said = (said + piece)[: 1 << 16]
    except ConnectionError:
        pass
    return said


def send(client: socket.socket, data: bytes) -> None:
    """Send as much as the server takes: it may have had enough."""
    with contextlib.suppress(ConnectionError):
        client.sendall(data)


def each(
    place: Place, count: int, tally: Tally, one: Callable[[Place, int], str], abreast: int = ABREAST
) -> None:
    """Do `one` so many times, in threads."""

    def attempt(number: int) -> str:
        try:
            return one(place, number)
        except socket.timeout:
            return HUNG
        except ConnectionError:
            return "reset"

    with ThreadPoolExecutor(abreast) as threads:
        for what in threads.map(attempt, range(count)):
            tally.add(what)


def rounds(count: int, most: int) -> Iterable[int]:
    """Yield parts of `count`, each at most `most`."""
    while count > 0:
        yield min(count, most)
        count -= most
