"""The frontend's whole program with sanitizers, using the core of tests/native/frontend/calls/fake_core."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.frontend.c_programs import ADDRESSES, FRONT, built
from support.frontend.calls import build_core

_ROOMS = (
    "memory", "base", "thread_pool", "json", "core", "tracing", "calls", "admin", "net", "http1", "http",
    "http2", "protobuf", "handover", "relay", "grpc", "startup",
)  # fmt: skip


def nghttp2() -> str:
    """Return the library from tritonserver's wheel, or the system's."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
    found = sorted(cache.glob("pytriton-daemon/server/*/nvidia_pytriton.libs/libnghttp2-*.so*"))
    return str(found[0]) if found else "libnghttp2.so.14"


@dataclass(frozen=True)
class Built:
    """The program, and the core that it loads."""

    program: Path
    core: Path


@dataclass
class OpenAIProcess:
    """A running frontend, with its addresses."""

    process: subprocess.Popen[bytes]
    http: tuple[str, int]
    admin: tuple[str, int] = ("", 0)
    private: Path | None = None  #: the unix socket of its HTTP for the daemon's own processes

    def connect(self) -> socket.socket:
        """Connect to its HTTP port."""
        client = socket.create_connection(self.http, timeout=60)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def kill(self) -> None:
        """Kill it, which `running` then takes for a clean exit."""
        self.process.kill()
        self.process.wait()
        self.process.returncode = 0


def build(folder: Path) -> Built:
    """Compile both with the address and undefined-behavior sanitizers."""
    core = build_core(folder, ADDRESSES)
    program = built(FRONT / "main.c", [f"{room}/*.c" for room in _ROOMS], folder)
    return Built(program, core)


@contextmanager
def running(
    made: Built,
    limits: Mapping[str, float] | None = None,
    *,
    protocol: str = "http",
    private: Path | None = None,
    handover: Path | None = None,
    tls: Mapping[str, str] | None = None,
    descriptors: Sequence[int] = (),
    **more: object,
) -> Iterator[OpenAIProcess]:
    """Run the program with these limits, protocol, descriptors and `more` settings.

    `private` is its socket for the daemon's own processes, `handover` the one for connections to take over. It must exit
    cleanly, without a report of a sanitizer.
    """
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as admin,
        socket.socket(socket.AF_UNIX) as own,
        socket.socket(socket.AF_UNIX) as taking,
    ):
        for one, path in ((own, private), (taking, handover)):
            if path is not None:
                one.bind(str(path))
                one.listen(100)
        sockets = (listener, admin, own, taking)
        settings, writer = os.pipe()
        heard, ready = os.pipe()
        document = {
            "core": str(made.core),
            "libraries": {"nghttp2": nghttp2()} if protocol == "grpc" else {},
            "listen": [
                {"fd": listener.fileno(), "protocol": protocol, "tls": tls},
                {"fd": admin.fileno(), "protocol": "admin"},
                *([{"fd": own.fileno(), "protocol": "http", "relays": True}] if private else []),
                *([{"fd": taking.fileno(), "protocol": "handover"}] if handover else []),
            ],
            "limits": dict(limits or {}),
            "ready_fd": ready,
            **more,
        }
        process = subprocess.Popen(
            [made.program, f"--settings={settings}"],
            pass_fds=(settings, ready, *map(socket.socket.fileno, sockets), *descriptors),
            stderr=subprocess.PIPE,
        )
        for descriptor in (settings, ready):
            os.close(descriptor)
        with open(writer, "wb") as target:
            target.write(json.dumps(document).encode())
        with open(heard, "rb") as source:
            assert source.read(1), process.communicate()[1].decode()
        try:
            yield OpenAIProcess(process, listener.getsockname(), admin.getsockname(), private)
        finally:
            process.terminate()
            said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 0, said
