"""A port that stays free until a server of the test's own listens there."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_given: set[int] = set()


def lasting_port() -> int:
    """Return a port that nobody listens on, and that the kernel gives to nobody who asks for any.

    One that it chose itself it may choose for somebody else, before the server that is to have it has started: for
    one who listens on port 0, or for a connection.
    """
    first_given = int(_RANGE.read_text().split()[0])
    below = range(_LOWEST, first_given) or range(first_given, 2**16)
    fresh = [port for port in below if port not in _given]
    for port in random.SystemRandom().sample(fresh, k=min(100, len(fresh))):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("", port))
                listener.listen(1)
            except OSError:
                continue
            _given.add(port)
            return port
    raise AssertionError("no port is free")
