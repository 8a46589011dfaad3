"""What an attack is, and how it makes its connections."""

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
    """The addresses of the frontend, and the models that it serves."""

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
    """Outcomes of connections: HTTP statuses, or how they ended. `hung` counts those without an outcome in time."""

    seen: collections.Counter[str] = field(default_factory=collections.Counter)
    hung: int = 0

    def add(self, what: str) -> None:
        """Count an outcome."""
        if what == HUNG:
            self.hung += 1
        self.seen[what] += 1


HUNG = "hung"


@dataclass(frozen=True)
class Attack:
    """An attack. `run` performs it a given number of times, and counts the outcomes."""

    run: Callable[[Place, int, Tally], None]
    #: What may come of one; empty: anything but hanging.
    allowed: frozenset[str] = frozenset()
    #: How many are made of it instead of the connections that were asked for: "streams" or "calls".
    counts: str = "connections"
    #: Maximum memory of the frontend in MB during the attack; 0: no limit.
    peak_mb: int = 0


def connect(address: tuple[str, int], receive_bytes: int = 0) -> socket.socket:
    """Connect. `receive_bytes` is the size of the receive buffer, so that a slow reader's buffer is soon full."""
    client = socket.socket()
    if receive_bytes:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(PATIENCE_S)
    client.connect(address)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def rest(client: socket.socket) -> bytes:
    """Read until the server closes the connection.

    Raises:
        socket.timeout: the server does not close it
    """
    said = b""
    try:
        while piece := client.recv(1 << 16):
            said = (said + piece)[: 1 << 16]
    except ConnectionError:
        pass
    return said


def send(client: socket.socket, data: bytes) -> None:
    """Send the data, or as much as the server accepts before it closes the connection."""
    with contextlib.suppress(ConnectionError):
        client.sendall(data)


def each(
    place: Place, count: int, tally: Tally, one: Callable[[Place, int], str], abreast: int = ABREAST
) -> None:
    """Call `one` `count` times, in threads."""

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
