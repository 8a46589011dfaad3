"""A port that stays free until the test's own server listens on it."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_given: set[int] = set()


def lasting_port() -> int:
    """Return a free port outside the range from which the kernel assigns ports.

    The kernel may give a port that it chose itself to somebody else (a listener on port 0, a connection) before the server
    starts.
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
