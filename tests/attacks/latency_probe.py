"""Measure the latency of health requests during an attack in a separate process, and the machine's own latency.

python tests/attacks/latency_probe.py HOST PORT SECONDS    until its standard input ends; then one line of JSON

SECONDS is the shortest of the server's limits on slow clients: on a loaded machine this process may be one of them.
"""

from __future__ import annotations

import contextlib
import json
import os
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
    """Latencies of health requests in ms; `machine_*`: of a process that only returns what it gets.

    `late` counts requests that this process sent so late that the server was allowed to refuse them.
    """

    asked: int
    failed: int
    late: int
    p99_ms: float
    worst_ms: float
    machine_p99_ms: float
    machine_worst_ms: float


@contextlib.contextmanager
def probing(address: tuple[str, int], limit_s: float) -> Iterator[list[Health]]:
    """Send health requests until the block ends; then the yielded list contains the result."""
    process = subprocess.Popen(
        [sys.executable, "-E", "-S", __file__, address[0], str(address[1]), str(limit_s)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline(), "the probing process has ended"
    seen: list[Health] = []
    try:
        yield seen
    finally:
        process.stdin.close()
        seen.append(Health(**json.loads(process.stdout.readline())))
        process.stdout.close()
        process.wait()


class _Connection:
    """A connection, and how long the server has waited for the last request on it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._since = time.perf_counter()
        self._socket = socket.create_connection(address, _PATIENCE_S)
        self.waited_s = 0.0

    def ask(self) -> None:
        try:
            self._socket.sendall(_REQUEST)
        finally:
            self.waited_s = time.perf_counter() - self._since
        said = self._socket.recv(4096)
        self._since = time.perf_counter()
        if not said.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError(said)

    def close(self) -> None:
        self._socket.close()


class _Watch:
    def __init__(self, address: tuple[str, int], limit_s: float, echo: socket.socket) -> None:
        self._address = address
        self._limit_s = limit_s
        self._echo = echo
        self._kept = _Connection(address)
        self.server: list[float] = []
        self.machine: list[float] = []
        self.failed = self.late = 0

    def turn(self, number: int) -> None:
        """Send one request: over the kept connection, or over a new one."""
        begun = time.perf_counter()
        self._echo.sendall(b"x")
        self._echo.recv(1)
        between = time.perf_counter()
        asking = self._kept
        try:
            if number % 2 == 0:
                asking = _Connection(self._address)
            asking.ask()
        except OSError:
            if asking.waited_s < self._limit_s / 2:
                # Less of it, since the other end may measure a little more.
                self.failed += 1
            else:
                self.late += 1
            self._kept.close()
            self._kept = _Connection(self._address)
        if asking is not self._kept:
            asking.close()
        self.server.append(time.perf_counter() - between)
        self.machine.append(between - begun)


def _high(values: list[float]) -> tuple[float, float]:
    """Return the 99th percentile and the largest, in ms."""
    ordered = sorted(values)
    return ordered[len(ordered) * 99 // 100] * 1e3, ordered[-1] * 1e3


def main() -> None:
    """Run the probe; see the module's docstring."""
    ours, other = socket.socketpair()
    helper = os.fork()
    if helper == 0:
        ours.close()
        _send_back(other)
        os._exit(0)
    other.close()
    watch = _Watch((sys.argv[1], int(sys.argv[2])), float(sys.argv[3]), ours)
    print("probing", flush=True)
    number = 0
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        watch.turn(number)
        number += 1
    watch.turn(number)
    p99, worst = _high(watch.server)
    machine_p99, machine_worst = _high(watch.machine)
    found = Health(
        len(watch.server), watch.failed, watch.late, p99, worst, machine_p99, machine_worst
    )
    print(json.dumps(found.__dict__), flush=True)
    ours.close()
    os.waitpid(helper, 0)


def _send_back(end: socket.socket) -> None:
    while data := end.recv(16):
        end.sendall(data)


if __name__ == "__main__":
    main()
