"""Sockets owned by a service manager: while no daemon is running, connections wait in them, and none is refused.

The test acts as the service manager, by systemd's protocol (sd_listen_fds(3)): descriptors from 3 on, and environment
variables.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.load.all_clients import AllClients
from support.models.inference import Inference
from support.models.tensors import X, Y
from support.real_daemon import ANSWER_S, FRONT, eventually

from pytriton._protocol.exit_codes import ExitCode
from pytriton.daemon import DaemonClient, connect
from pytriton.exceptions import PyTritonDaemonError

pytestmark = [
    pytest.mark.timeout(400),  # each starts daemons, one after the other
    pytest.mark.skipif(FRONT == "triton", reason="NVIDIA's executable cannot inherit sockets"),
]
#: Becomes the daemon, which has the descriptors of its first argument as 3, 4, ...
_BECOME = """
import fcntl, os, sys
copies = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 100) for number in sys.argv[1].split(",")]
for number, copy in enumerate(copies, start=3):
    os.dup2(copy, number)
    os.close(copy)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(copies)))
os.execv(sys.executable, [sys.executable, "-m", "pytriton._cli", "start", *sys.argv[2:]])
"""


class ServiceManager:
    """Owns the sockets, and starts the daemon in a folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        ports = [one.getsockname()[1] for one in self.held]
        self.http, self.grpc = (f"127.0.0.1:{port}" for port in ports[:2])
        names = ("http", "grpc", "metrics")
        self._flags = [f"--{name}-port={port}" for name, port in zip(names, ports)]
        self._flags += [f"--{name}-dir={folder}/{name}" for name in ("runtime", "state")]

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        """Start the daemon with the sockets."""
        numbers = [one.fileno() for one in self.held]
        reported = ",".join(map(str, numbers))
        with open(self._log, "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", _BECOME, reported, *self._flags, *flags],
                pass_fds=numbers,
                stdout=log,
                stderr=log,
            )
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def client(self) -> DaemonClient:
        """Return a client once the daemon is ready."""

        def ready() -> DaemonClient | None:
            try:
                client = connect(self._folder / "runtime", ANSWER_S)
                return client if client.status().state == "ready" else None
            except PyTritonDaemonError:
                return None

        found: DaemonClient = eventually(ready, self.said)
        return found

    def said(self) -> str:
        """Return the log of the last daemon."""
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self._folder / "log"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with ExitStack() as stack:
        yield ServiceManager(tmp_path, stack)


def _ask(protocol: str, address: str) -> float:
    inference = Inference(protocol, address)
    try:
        return float(inference.infer("model", {"x": np.ones((1, 1), np.float32)})["y"][0, 0])
    finally:
        inference.close()


def _register(client: DaemonClient) -> None:
    client.register(lambda requests: [{"y": one["x"] + 1} for one in requests], "model", X, Y)


def test_no_connection_is_refused_after_a_kill(manager: ServiceManager) -> None:
    """The second daemon answers clients that connect after the first was killed."""
    daemon = manager.start()
    _register(manager.client())
    assert _ask("http", manager.http) == _ask("grpc", manager.grpc) == 2
    daemon.kill()
    daemon.wait(60)
    with ThreadPoolExecutor(4) as clients:
        asked = threading.Semaphore(0)

        def ask(protocol: str, address: str) -> float:
            asked.release()
            return _ask(protocol, address)

        answers = [
            clients.submit(ask, *one)
            for one in [("http", manager.http), ("grpc", manager.grpc)] * 2
        ]
        for _ in answers:
            asked.acquire()
        manager.start()
        assert [one.result(100) for one in answers] == [2] * 4


def _doubles(client: http.client.HTTPConnection) -> bool:
    body = b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,1]}]}'
    client.request("POST", "/v2/models/double/infer", body)
    response = client.getresponse()
    said = response.read()
    assert response.status == 200, said
    return bool(json.loads(said)["outputs"][0]["data"] == [2, 2])


def test_restarts_under_load_fail_no_request(manager: ServiceManager) -> None:
    """The next daemon accepts waiting connections; kept connections are closed only with a response."""
    daemon = manager.start()
    manager.client().register(
        lambda requests: [{"y": one["x"] * 2} for one in requests], "double", X, Y
    )
    with AllClients(manager, _doubles) as load:
        for _ in range(2):
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(60) == 0
            daemon = manager.start()
            manager.client()
            load.wait_for_progress()
    assert load.wrong == []


def test_an_upgrade_keeps_the_sockets_and_hides_them_from_children(manager: ServiceManager) -> None:
    """Only the frontend has the sockets on which it listens."""
    daemon = manager.start()
    client = manager.client()
    _register(client)
    held = {os.fstat(one.fileno()).st_ino for one in manager.held}
    for address in (manager.http, manager.grpc):
        client.upgrade()
        assert client.status().pid == daemon.pid
        kept = {os.stat(f"/proc/{daemon.pid}/fd/{number}").st_ino for number in (3, 4, 5)}
        assert kept == held
        assert _ask("http" if address is manager.http else "grpc", address) == 2
    children = psutil.Process(daemon.pid).children(recursive=True)
    frontend = client.status().server.pid
    assert len(children) >= 3
    for child in children:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):  # it has exited since
            assert not any(name.startswith("LISTEN_") for name in child.environ())
            for path in Path(f"/proc/{child.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed since
                    assert child.pid == frontend or path.stat().st_ino not in held


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--http-port=1"], "but the daemon's settings name other ports"),
        (["--frontend=triton"], "socket unit"),
    ],
)
def test_an_unusable_socket_is_an_error_at_the_start(
    manager: ServiceManager, flags: list[str], reported: str
) -> None:
    daemon = manager.start(*flags)
    assert daemon.wait(100) in (ExitCode.USAGE, ExitCode.PORT_IN_USE)
    assert reported in manager.said()
