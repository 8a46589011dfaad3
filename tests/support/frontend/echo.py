"""The echo server of tests/native/frontend/net_echo.c: built with a sanitizer, started on the test's socket, drained."""

from __future__ import annotations

import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from support.frontend.c_programs import FRONT, built_of

_PROGRAMS = Path(__file__).parents[2] / "native" / "frontend"


def build(target: Path, sanitizers: Sequence[str]) -> Path:
    """Compile the echo server with the sources that connections need."""
    rooms = ("memory", "base", "thread_pool", "net")
    sources = [path for room in rooms for path in FRONT.glob(f"{room}/*.c")]
    return built_of([*_PROGRAMS.glob("net_echo*.c"), *sources], target, sanitizers=sanitizers)


class EchoServer:
    """A running echo server. As a context manager, it drains at the end and checks the server's counters."""

    def __init__(
        self,
        program: Path,
        *arguments: str,
        loops: int = 1,
        descriptors: int = 0,
        family: str = "tcp",
    ) -> None:
        self._stack = ExitStack()
        self.listener = self._stack.enter_context(_listener(family))
        self.port = self.listener.getsockname()
        fd = str(self.listener.fileno())
        limit = ["prlimit", f"--nofile={descriptors}"] if descriptors else []
        self._process = subprocess.Popen(
            [*limit, str(program), str(loops), *arguments, fd],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[self.listener.fileno()],
            env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"},
        )
        self._stack.enter_context(self._process)
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        self.pid = self._process.pid
        self.counts: dict[str, int] = {}
        self.refused: dict[str, int] = {}

    def connect(self, timeout_s: float = 60.0) -> socket.socket:
        """Return a connection that is closed together with the server."""
        connection = socket.socket(self.listener.family, socket.SOCK_STREAM)
        connection.settimeout(timeout_s)
        connection.connect(self.port)
        return connection

    def terminate(self) -> None:
        """Start draining."""
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Drain, wait for the exit, and check the counters: every connection was closed and freed once."""
        self.terminate()
        said, _ = self._process.communicate()
        self._stack.close()
        assert self._process.returncode == 0, said
        self.counts = {
            name: int(count) for name, count in re.findall(r"(\w+) (\d+)", said.split("\n")[0])
        }
        self.refused = {
            name: int(count) for name, count in re.findall(r"refused (\w+) (\d+)", said)
        }
        assert self.counts["opened"] == self.counts["closed"] == self.counts["freed"], said
        assert self.counts["left"] == 0

    def kill(self) -> None:
        """Kill the server if it is still running."""
        if self._process.poll() is not None:
            self._stack.close()
            return
        self._process.kill()
        self._process.communicate()
        self._stack.close()


#: Starts a server: its settings, as words and names.
Start = Callable[..., EchoServer]


def _listener(family: str) -> socket.socket:
    if family == "unix":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind("")  # an abstract name of the kernel's choice
    else:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    return listener


def ask(connection: socket.socket, line: str) -> None:
    """Send a line."""
    connection.sendall(line.encode() + b"\n")


def take(connection: socket.socket, count: int) -> bytes:
    """Receive this many bytes, or fewer if the connection ends first."""
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            break
        data += piece
    return bytes(data)


def ends(connection: socket.socket) -> bool:
    """Return whether the other side closes the connection, cleanly or by a reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def echoes(connection: socket.socket) -> bool:
    """Return whether the server answers on that connection."""
    ask(connection, "echo hello")
    return take(connection, 6) == b"hello\n"


def all_echo(connections: Sequence[socket.socket]) -> bool:
    """Send on all connections, then return whether all get their answers."""
    for number, connection in enumerate(connections):
        ask(connection, f"echo {number}")
    return all(
        take(connection, len(str(number)) + 1) == f"{number}\n".encode()
        for number, connection in enumerate(connections)
    )


def reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
