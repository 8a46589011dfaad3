"""The daemon under service managers: systemd's protocol over a real socket, reloading, the real supervisord."""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.forks.prefork import command
from support.models.inference import Inference
from support.models.tensors import ONES, X
from support.real_daemon import ANSWER_S, AS_SHIPPED, RunningDaemon, eventually, halt
from tritonclient.utils import InferenceServerException

from pytriton._host import exit_record
from pytriton._host.service_manager.systemd import VARIABLES
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.daemon import connect
from pytriton.exceptions import PyTritonUnrecoverableError
from pytriton.model_config import ModelConfig

WATCHDOG_S = 1.0
BIN = Path(sys.executable).parent
PORTS = {"http_port": "0", "grpc_port": "0", "metrics_port": "0", "openai_port": "0"}


def _broken(requests: Any) -> Any:
    raise PyTritonUnrecoverableError("the GPU has\nfallen off the bus")


def _break(client: Any, grpc: str) -> None:
    """Register a model that raises PyTritonUnrecoverableError, and call it."""
    client.register(_broken, "broken", X, X, ModelConfig(max_batch_size=1), progress=False)
    connection = Inference("grpc", grpc)
    try:
        with pytest.raises(InferenceServerException, match="fallen off the bus"):
            connection.infer("broken", {"x": ONES})
    finally:
        connection.close()


class Manager:
    """A service manager's end of the notification socket, which it reads continuously.

    The kernel buffers ten messages; a daemon drops further ones.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._bound = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._bound)
        self._messages: queue.Queue[dict[str, str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while text := self._socket.recv(1 << 16).decode():
            self._messages.put(dict(line.split("=", 1) for line in text.split("\n")))

    def next(self, timeout_s: float = 60.0) -> dict[str, str]:
        """Return the next message; raise queue.Empty if none comes."""
        return self._messages.get(timeout=timeout_s)

    def until(self, name: str) -> list[dict[str, str]]:
        """Return all messages up to the first one with the field `name`."""
        seen = [self.next()]
        while name not in seen[-1]:
            seen.append(self.next())
        return seen

    def come(self) -> list[dict[str, str]]:
        """Return all messages received so far."""
        self._send(b"MARK=")  # messages stay in order
        return self.until("MARK")[:-1]

    def close(self) -> None:
        self._send(b"")
        self._reader.join()
        self._socket.close()

    def _send(self, message: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(message, self._bound)


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Manager]:
    """A service manager that the environment names to daemons started by this process, as systemd does."""
    folder = tempfile.mkdtemp(prefix="ptd-")
    name = f"{folder}/notify"
    manager = Manager(f"@{name}" if request.param == "abstract" else name)
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", str(int(WATCHDOG_S * 1e6)))
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    yield manager
    manager.close()
    shutil.rmtree(folder)


def _only(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("manager", names, indirect=True)


def test_readiness_watchdog_and_stopping_are_notified(manager: Manager) -> None:
    """READY=1 once tritonserver is ready; WATCHDOG=1 only while the event loop runs."""
    with RunningDaemon.start() as daemon:
        before = manager.until("READY")
        assert "EXTEND_TIMEOUT_USEC" in before[0]
        assert before[-1]["STATUS"] == "ready: 0 of 0 models ready"
        assert "tritonserver is ready" in daemon.said()

        manager.until("WATCHDOG")
        manager.until("WATCHDOG")
        halt(daemon.process.pid)
        manager.come()
        with pytest.raises(queue.Empty):
            manager.next(2 * WATCHDOG_S)
        daemon.process.send_signal(signal.SIGCONT)
        manager.until("WATCHDOG")

        assert daemon.stop() == ExitCode.OK
        stopping = manager.until("STOPPING")[-1]
        assert stopping["STATUS"] == "stopping: SIGTERM"
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 0


@_only("path")
def test_model_counts_are_reported_and_hidden_from_children(manager: Manager) -> None:
    """A worker or tritonserver with these variables could send notifications in the daemon's name."""
    with RunningDaemon.start() as daemon:
        daemon.client.register(
            lambda requests: requests, "m", X, X, ModelConfig(max_batch_size=1), progress=False
        )
        eventually(
            lambda: manager.next().get("STATUS") == "ready: 1 of 1 models ready", "it is told"
        )
        children = daemon.children()
        assert len(children) >= 2  # tritonserver, a worker
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has exited since
                assert not set(VARIABLES) & set(child.environ()), child


@_only("path")
def test_a_watchdog_of_another_process_is_ignored(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """$WATCHDOG_PID names the process that is meant."""
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with RunningDaemon.start() as daemon:
        manager.until("READY")
        daemon.stop()
        assert not any("WATCHDOG" in message for message in manager.until("STOPPING"))


@_only("abstract")
def test_an_unrecoverable_error_is_reported_with_its_model(manager: Manager) -> None:
    """In one line, before the daemon exits with 70; afterwards the status shows it."""
    with RunningDaemon.start() as daemon:
        _break(daemon.client, daemon.grpc)
        stopping = manager.until("STOPPING")[-1]
        assert stopping["STATUS"].startswith("stopping: unrecoverable error in model broken: ")
        assert "the GPU has fallen off the bus" in stopping["STATUS"]
        assert daemon.process.wait(60) == ExitCode.UNRECOVERABLE
        end = exit_record.read(daemon.config.rundir)
        assert end is not None
        assert (end.pid, end.exit_code) == (daemon.process.pid, ExitCode.UNRECOVERABLE)
        kept = Path(daemon.config.runtime_dir, "last_exit.json")
        assert kept.stat().st_mode & 0o777 == 0o600
        status = command("status", "--runtime-dir", daemon.config.runtime_dir)
        assert status.returncode == ExitCode.NO_DAEMON
        assert f"pid {end.pid}, exit code 70: unrecoverable error in model broken" in status.stderr


def test_a_killed_daemon_is_distinguished_from_one_that_exited() -> None:
    """It leaves no exit record, and that of an earlier daemon must not be mistaken for it."""
    with RunningDaemon.start() as daemon:
        daemon.process.kill()
        daemon.process.wait()
        assert exit_record.killed_pid(daemon.config.rundir) == daemon.process.pid
        status = command("status", "--runtime-dir", daemon.config.runtime_dir)
        assert f"pid {daemon.process.pid} was killed" in status.stderr


@_only("path")
def test_a_detached_daemon_does_not_notify_the_service_manager(
    manager: Manager, tmp_path: Path
) -> None:
    """A script of a service may start a daemon in the background, which is not the service."""
    with tempfile.TemporaryDirectory(prefix="ptd-") as runtime_dir:
        where = ["--runtime-dir", runtime_dir]
        ports = [f"--{name.replace('_', '-')}=0" for name in PORTS]
        subprocess.run([BIN / "pytriton-daemon", "start", "--detach", *where, *ports], check=True)
        assert command("stop", *where).returncode == 0
    assert manager.come() == []  # both have ended: what was sent has come


@_only("path")
def test_a_reload_applies_live_settings_and_names_the_others(
    manager: Manager, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SIGHUP and `reload`; invalid settings change nothing."""
    monkeypatch.delenv("PYTRITON_DAEMON_FRONTEND", raising=False)  # a reload reads it, too
    settings = tmp_path / "settings.toml"
    settings.write_text("log_level = 'info'\n")
    with RunningDaemon.start(**AS_SHIPPED, frontend="auto") as daemon:
        StartFlags(PORTS, str(settings), str(tmp_path)).write(daemon.config.rundir)
        manager.until("READY")
        settings.write_text("log_level = 'error'\ngrace_period_s = 7\nhttp_address = '127.0.0.2'\n")
        daemon.process.send_signal(signal.SIGHUP)
        reloading = manager.until("RELOADING")[-1]
        assert int(reloading["MONOTONIC_USEC"]) > 0
        manager.until("READY")
        assert "http_address" in daemon.said()  # needs a restart

        settings.write_text("log_level = 'loud'\n")
        wrong = _reload(daemon)
        assert wrong.returncode == ExitCode.USAGE
        assert "'loud' is not one of" in wrong.stderr
        settings.write_text("log_level = 'info'\nhttp_address = '127.0.0.2'\n")
        right = _reload(daemon)
        assert right.stdout.splitlines() == [
            "changed: grace_period_s, log_level",
            "these need `pytriton-daemon restart`: http_address",
        ]
        lines = daemon.said().count("model registered")
        daemon.client.register(lambda requests: requests, "m", X, X, progress=False)
        assert daemon.said().count("model registered") == lines + 1  # info is logged again


def _reload(daemon: RunningDaemon) -> subprocess.CompletedProcess[str]:
    return command("reload", "--runtime-dir", daemon.config.runtime_dir)


# ── supervisord ──────────────────────────────────────────────────────────────────────────────────

_SUPERVISORD = """
[unix_http_server]
file={folder}/s.sock
[supervisord]
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
nodaemon=true
childlogdir={folder}
[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
[supervisorctl]
serverurl=unix://{folder}/s.sock
[include]
files={folder}/pytriton-daemon.conf
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_supervisord_restarts_and_stops_the_daemon() -> None:
    """With the unchanged section that `service install` writes."""
    folder = Path(tempfile.mkdtemp(prefix="ptd-"))
    rundir = folder / "run"
    flags = [f"--runtime-dir={rundir}", *(f"--{n.replace('_', '-')}=0" for n in PORTS)]
    install = ["service", "install", "--supervisord", f"--folder={folder}"]
    subprocess.run([BIN / "pytriton-daemon", *install, *flags], check=True)
    (folder / "supervisord.conf").write_text(_SUPERVISORD.format(folder=folder))
    configuration = ["-c", str(folder / "supervisord.conf")]
    log = open(folder / "out", "wb")  # noqa: SIM115, closed below
    supervisord = subprocess.Popen(
        [BIN / "supervisord", *configuration], stdout=log, stderr=log, cwd=folder
    )
    try:
        first = eventually(lambda: _ready(rundir, 0), "the daemon is ready", 200)
        said = folder / "supervisord.log"  # supervisorctl would start an interpreter for each look
        eventually(lambda: "entered RUNNING state" in said.read_text(), "supervisord sees it run")
        assert "RUNNING" in _ctl(configuration, "status")
        with connect(runtime_dir=rundir, timeout_s=ANSWER_S) as client:
            _break(client, client.status().server.grpc_url.rpartition("/")[2])
        second = eventually(lambda: _ready(rundir, first), "another daemon is ready", 200)
        end = exit_record.read(RuntimeDir(rundir))
        assert end is not None
        assert (end.pid, end.exit_code) == (first, ExitCode.UNRECOVERABLE)
        family = [psutil.Process(second), *psutil.Process(second).children(recursive=True)]
        _ctl(configuration, "stop", "pytriton-daemon")
        assert "STOPPED" in _ctl(configuration, "status")
        _, alive = psutil.wait_procs(family, timeout=60)  # the undertaker ends after the daemon
        assert not alive
        assert not [
            name for name in os.listdir("/dev/shm") if name.startswith(f"pytriton-{second}-")
        ]
    finally:
        supervisord.terminate()
        supervisord.wait(100)
        log.close()
        shutil.rmtree(folder)


def _ctl(configuration: list[str], *words: str) -> str:
    done = subprocess.run(
        [BIN / "supervisorctl", *configuration, *words],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def _ready(rundir: Path, former: int) -> int | None:
    """Return the pid of a ready daemon other than the former one."""
    if RuntimeDir(rundir).running_pid() in (None, former) or not (rundir / "control.sock").exists():
        return None
    with connect(runtime_dir=rundir, timeout_s=ANSWER_S) as client:
        status = client.status()
    return status.pid if status.state == "ready" else None
