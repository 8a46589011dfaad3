"""Start real daemons for tests, and check that they leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from pytriton._host.settings.declarations import ENV_OWNER, DaemonConfig
from pytriton._protocol.fork_protocol import FORKS
from pytriton.daemon import DaemonClient, connect
from support.forks.prefork import Forking

#: The first download of the server takes long; everything else takes
#: seconds.
_START_S = 400.0
_STOP_S = 100.0
#: A daemon on a busy machine may answer late.
ANSWER_S = 60.0
#: Time for the kernel and the kill-on-death helper after the daemon's exit.
_FAMILY_S = 30.0
_REGIONS_S = 30.0
#: Seconds between two polls of a condition: first and maximum. Polling a daemon costs milliseconds of CPU time,
#: which the awaited processes need. So the interval grows to a tenth of the time waited.
_POLL_INTERVAL_S = 0.02
_MAX_POLL_INTERVAL_S = 0.1
_PATIENCE = 0.1


def eventually(
    condition: Callable[[], Any], what: str | Callable[[], str], timeout_s: float = 60.0
) -> Any:
    """Return the first true value of `condition`; fail with `what` if there is none in time.

    The default time is long: a worker's start takes a second, and ten if several tests share two cores.
    """
    started = time.monotonic()
    while True:
        value = condition()
        if value:
            return value
        waited = time.monotonic() - started
        if waited > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what() if callable(what) else what}")
        time.sleep(min(max(_POLL_INTERVAL_S, waited * _PATIENCE), _MAX_POLL_INTERVAL_S))


def halt(pid: int) -> None:
    """Stop a process (SIGSTOP), and return once all of its threads have stopped."""
    os.kill(pid, signal.SIGSTOP)

    def stands_still() -> bool:
        states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
        return all("\nState:\tT " in state for state in states)

    eventually(stands_still, f"process {pid} stands still")


#: Timeouts that are longer for tests, so that slow starts on a busy machine do not fail those that do not
#: test them.
_PATIENT = {
    "not_ready_after_s": 60.0,
    "server_probe_timeout_s": 30.0,
    "server_start_timeout_s": 110.0,
}
#: The default frontend of daemons in tests: "native" or "triton".
FRONT = os.environ.get("PYTRITON_TESTS_FRONTEND", "native")
#: The users' default, for tests that measure or show it.
AS_SHIPPED: dict[str, float] = {name: getattr(DaemonConfig(), name) for name in _PATIENT}


@dataclass
class RunningDaemon:
    """The daemon process of one test, with its own runtime directory and free ports."""

    process: subprocess.Popen[bytes]
    config: DaemonConfig
    log: Path
    client: DaemonClient
    _said_before: int = 0

    @classmethod
    def start(cls, **settings: Any) -> RunningDaemon:
        """Start a daemon, by default in a new folder, and return once models can be registered."""
        # Short: a unix socket's path has at most 107 bytes, and pytest's tmp_path is long.
        runtime_dir = Path(settings.pop("runtime_dir", None) or tempfile.mkdtemp(prefix="ptd-"))
        runtime_dir.mkdir(mode=0o700, exist_ok=True)
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "openai_port": 0}
        settings = {**ports, **_PATIENT, "frontend": FRONT, **settings}
        config = DaemonConfig(runtime_dir=str(runtime_dir), **settings)
        log = runtime_dir / "stderr.log"
        with open(log, "wb") as stderr:
            process = _start(config, stderr)
        try:
            client = _wait_ready(process, runtime_dir, log)
        except BaseException:
            process.kill()
            process.wait()
            shutil.rmtree(runtime_dir, ignore_errors=True)
            raise
        return cls(process, config, log, client)

    @property
    def http(self) -> str:
        """host:port of HTTP."""
        return self.client.status().server.http_url.rpartition("/")[2]

    @property
    def grpc(self) -> str:
        """host:port of gRPC."""
        return self.client.status().server.grpc_url.rpartition("/")[2]

    @property
    def server(self) -> psutil.Process:
        """The process of the frontend, of either kind."""
        return psutil.Process(self.client.status().server.pid)

    def children(self) -> list[psutil.Process]:
        """Return all processes below the daemon: tritonserver, stubs, workers."""
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children

    def commands(self) -> dict[psutil.Process, str]:
        """Return the command line of each process below the daemon."""
        found = {}
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has exited
                found[child] = " ".join(child.cmdline())
        return found

    def workers(self) -> list[psutil.Process]:
        """The worker processes."""
        return [one for one, command in self._booted() if FORKS not in command]

    def fork_servers(self) -> list[psutil.Process]:
        """The processes that fork workers."""
        return [one for one, command in self._booted() if FORKS in command]

    def _booted(self) -> list[tuple[psutil.Process, list[str]]]:
        found = []
        for child in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has exited
                command = child.cmdline()
                if any(word.endswith("worker/boot.py") for word in command):
                    found.append((child, command))
        return found

    def stubs(self) -> list[psutil.Process]:
        """The processes of Python proxies; compiled proxies have none."""
        found = []
        for child in self.children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has exited
                if "stub" in child.name():
                    found.append(child)
        return found

    def regions(self) -> list[str]:
        """The names of the daemon's files in /dev/shm."""
        prefix = f"pytriton-{self.process.pid}-"
        return [entry.name for entry in os.scandir("/dev/shm") if entry.name.startswith(prefix)]

    @contextlib.contextmanager
    def without_new_models(self) -> Iterator[RunningDaemon]:
        """Unregister the models that a block registers when it ends, even if it fails."""
        before = {model.name for model in self.client.models()}
        try:
            yield self
        finally:
            if self.process.poll() is None:
                for name in {model.name for model in self.client.models()} - before:
                    self.client.unregister(name)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop the daemon and return its exit code; fail if anything of it is left."""
        family = [] if self.process.poll() is not None else self.children()
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(_STOP_S)
        _, alive = psutil.wait_procs(family, timeout=_FAMILY_S)
        assert not alive, f"still running after the daemon: {alive}"
        # After a kill, the kill-on-death helper removes them a little later.
        eventually(
            lambda: not self.regions(), lambda: f"nothing left: {self.regions()}", _REGIONS_S
        )
        return code

    def said(self) -> str:
        """Return the daemon's log since it was lent to this test."""
        with open(self.log, "rb") as file:
            file.seek(self._said_before)
            return file.read().decode(errors="replace")

    def forget_said(self) -> None:
        """Exclude what has been logged so far."""
        self._said_before = self.log.stat().st_size

    def __enter__(self) -> RunningDaemon:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.client.close()
        try:
            self.stop()
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            if error is not None:
                print(self.said()[-20_000:])
            shutil.rmtree(self.config.runtime_dir, ignore_errors=True)


#: Starting a daemon takes half a second of CPU time, nearly all for imports. Commands, scripts, services and the
#: `Triton` class start theirs normally.
_DAEMONS = Forking("structlog", "pytriton.dispatcher.process", "warm_daemons")


def _start(config: DaemonConfig, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the process of a daemon."""
    env = {**os.environ, ENV_OWNER: str(os.getpid())}  # so that a killed test run leaves no daemon
    settings = config.to_json()
    forked = _DAEMONS.start_module("pytriton.dispatcher", [], env, stdin=settings, output=output)
    if forked is not None:
        return forked
    process = subprocess.Popen(
        [sys.executable, "-m", "pytriton.dispatcher"],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=env,
    )
    assert process.stdin is not None
    process.stdin.write(settings)
    process.stdin.close()
    return process


def _wait_ready(process: subprocess.Popen[bytes], runtime_dir: Path, log: Path) -> DaemonClient:
    """Return a client once the daemon reports that it is ready, by polling."""

    def ready() -> DaemonClient | None:
        assert process.poll() is None, f"the daemon ended while starting:\n{log.read_text()}"
        if not (runtime_dir / "control.sock").exists():
            return None
        client = connect(runtime_dir=runtime_dir, timeout_s=ANSWER_S)
        if client.status().state == "ready":
            return client
        client.close()
        return None

    client: DaemonClient = eventually(ready, "the daemon is ready", _START_S)
    return client
