"""A port that stays free until the test's own server listens on it."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_given: set[int] = set()
#: The process that was given port N holds a lock (fcntl) on byte N until it exits; its forks do not hold it.
_locks = os.open(
    Path(tempfile.gettempdir(), f"pytriton-test-ports-{os.getuid()}"),
    os.O_WRONLY | os.O_CREAT,
    0o600,
)


def lasting_port() -> int:
    """Return a free port outside the range from which the kernel assigns ports; no other process of this user is given it.

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
                fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                listener.bind(("", port))
                listener.listen(1)
            except OSError:
                continue
            _given.add(port)
            return port
    raise AssertionError("no port is free")
