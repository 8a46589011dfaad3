"""Starts and stops the server of a system with one model, and checks its responses."""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.load.client import Connection
from benchmarks.load.wire import Request, WrongAnswer
from benchmarks.systems import SERVERS, Ports, System
from benchmarks.workloads import Workload

_REAPER = Path(__file__).with_name("reaper.py")
_START_S = 120.0
_STOP_S = 40.0
#: Interval between requests to a server that does not respond yet.
_PROBE_INTERVAL_S = 0.1


class DidNotStart(Exception):
    """A server exited, or did not respond correctly in time. The text contains the end of its log."""


def hold_port() -> socket.socket:
    """Return a socket that reserves a free port of 127.0.0.1 for the server that gets its number.

    The kernel does not assign a bound port to a process that asks for any free port. The server asks for this port by
    its number, and sets SO_REUSEADDR or SO_REUSEPORT as servers do, so it can listen there.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


class Deployment:
    """A server with all its processes. Leaving the `with` block stops them."""

    def __init__(self, system: System, workload: Workload, **extra: Any) -> None:
        self.system = system
        self.workload = workload
        self._held = [hold_port() for _ in fields(Ports)]
        self.ports = Ports(*[one.getsockname()[1] for one in self._held])
        # A short path: the sockets in it may have at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self.sizes: dict[str, int] = {}
        self.log = self.folder / "log"
        self.events = self.folder / "events"
        spec = {
            "model": workload.model.as_dict(),
            "folder": str(self.folder),
            "frontend": system.frontend,
            **{f"{name}_port": port for name, port in vars(self.ports).items()},
            **extra,
        }
        (self.folder / "spec.json").write_text(json.dumps(spec))
        self.process = self._start()
        self._is_shared = False

    def shared_by(self, system: System) -> Deployment:
        """Return this server as that of another system. Only the original deployment stops it."""
        shared = copy.copy(self)
        shared.system = system
        shared.sizes = {}
        shared._is_shared = True
        return shared

    def _start(self) -> subprocess.Popen[bytes]:
        script = SERVERS / self.system.script
        python = str(self.system.python())
        command = [
            sys.executable,
            str(_REAPER),
            python,
            str(script),
            str(self.folder / "spec.json"),
        ]
        dropped = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        env = {key: value for key, value in os.environ.items() if key not in dropped}
        env["PATH"] = f"{Path(python).parent}:{env.get('PATH', os.defpath)}"
        env.update(self.system.environment())
        with self.log.open("wb") as log, self.events.open("wb") as events:
            return subprocess.Popen(
                command,
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=events,
                stderr=log,
                start_new_session=True,  # Ctrl-C only reaches the benchmark, which then stops the servers
            )

    def request(self, protocol: str) -> Request:
        """Return the request that clients send over a protocol."""
        return self.system.request(self.workload, protocol, self.ports)

    def wait_correct(self, *protocols: str) -> None:
        """Wait for a correct response over each of `protocols`, by default all. Remember its size.

        Raises:
            DidNotStart: the server exited, or did not respond correctly in time.
        """
        deadline = time.monotonic() + _START_S
        for protocol in protocols or self.system.protocols:
            while True:
                problem = self.problem(protocol)
                if problem is None:
                    break
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise DidNotStart(f"{protocol}: {problem}. Its log: {self.log_tail()}")
                time.sleep(_PROBE_INTERVAL_S)

    def problem(self, protocol: str) -> str | None:
        """Send a request. Return what was wrong with the response; None if it was correct."""
        try:
            connection = Connection(self.request(protocol))
            try:
                connection.send()
                self.sizes[protocol] = connection.send()
            finally:
                connection.close()
        except (WrongAnswer, OSError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def log_tail(self) -> str:
        """Return the end of the server's log, in one line."""
        lines = self.log.read_text(errors="replace").strip().splitlines()[-8:]
        return " / ".join(line.strip() for line in lines)[-1500:]

    def stop(self) -> None:
        """Stop the server and all processes that it started."""
        if self._is_shared:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for held in self._held:
            held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
