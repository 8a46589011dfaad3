"""How long a health request takes meanwhile, asked from a process of its own; and what the machine adds to that.

python tests/attacking/watching.py HOST PORT      until its standard input ends; then one line of JSON
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

_EVERY_S = 0.01
_PATIENCE_S = 60.0
_REQUEST = b"GET /v2/health/live HTTP/1.1\r\nHost: watch\r\n\r\n"


@dataclass(frozen=True)
class Health:
    """Of answers to health requests, in ms; `machine_*`: of a process that only sends back what it gets."""

    asked: int
    failed: int
    p99_ms: float
    worst_ms: float
    machine_p99_ms: float
    machine_worst_ms: float


@contextlib.contextmanager
def watching(address: tuple[str, int]) -> Iterator[list[Health]]:
    """Ask until the block ends; then the list has what came of it."""
    process = subprocess.Popen(
        [sys.executable, __file__, address[0], str(address[1])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline(), "the watching process has ended"
    seen: list[Health] = []
    try:
        yield seen
    finally:
        process.stdin.close()
        seen.append(Health(**json.loads(process.stdout.readline())))
        process.stdout.close()
        process.wait()


def _ask(connection: socket.socket) -> None:
    connection.sendall(_REQUEST)
    said = connection.recv(4096)
    if not said.startswith(b"HTTP/1.1 200 "):
        raise ConnectionError(said)


class _Watch:
    def __init__(self, address: tuple[str, int], echo: socket.socket) -> None:
        self._address = address
        self._echo = echo
        self._kept = socket.create_connection(address, _PATIENCE_S)
        self.server: list[float] = []
        self.machine: list[float] = []
        self.failed = 0

    def turn(self, number: int) -> None:
        """Ask once: over the connection that stays, or over a new one."""
        begun = time.perf_counter()
        self._echo.sendall(b"x")
        self._echo.recv(1)
        between = time.perf_counter()
        try:
            if number % 2:
                _ask(self._kept)
            else:
                with socket.create_connection(self._address, _PATIENCE_S) as fresh:
                    _ask(fresh)
        except OSError:
            self.failed += 1
            self._kept.close()
            self._kept = socket.create_connection(self._address, _PATIENCE_S)
        self.server.append(time.perf_counter() - between)
        self.machine.append(between - begun)


def _high(values: list[float]) -> tuple[float, float]:
    """Return the 99th percentile and the largest, in ms."""
    ordered = sorted(values)
    return ordered[len(ordered) * 99 // 100] * 1e3, ordered[-1] * 1e3


def main() -> None:
    """Watch; see above."""
    ours, other = socket.socketpair()
    helper = subprocess.Popen(
        [sys.executable, "-c", _HELPER, str(other.fileno())], pass_fds=[other.fileno()]
    )
    other.close()
    watch = _Watch((sys.argv[1], int(sys.argv[2])), ours)
    ours.sendall(b"x")
    ours.recv(1)  # it runs
    print("watching", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        watch.turn(number)
        number += 1
    watch.turn(number)
    p99, worst = _high(watch.server)
    machine_p99, machine_worst = _high(watch.machine)
    found = Health(len(watch.server), watch.failed, p99, worst, machine_p99, machine_worst)
    print(json.dumps(found.__dict__), flush=True)
    ours.close()
    helper.wait()


_HELPER = """
import socket, sys
end = socket.socket(fileno=int(sys.argv[1]))
while data := end.recv(16):
    end.sendall(data)
"""

if __name__ == "__main__":
    main()
