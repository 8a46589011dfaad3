"""The private daemon of a `Triton` object or a runner: a child process that always exits with this process.

The daemon watches this process (dispatcher/runtime/owner.py) and reports its state over a pipe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from pytriton._protocol.files.rundir import MAX_SOCKET_PATH, RuntimeDir
from pytriton.exceptions import DaemonStartError

#: Environment variables for this process only, set by a service manager or for an interactive interpreter.
NOT_INHERITED = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "PYTHONINSPECT", "PYTHONSTARTUP",
    "PYTHONBREAKPOINT",
)  # fmt: skip
#: Time limits of a graceful stop, in addition to the grace period, and of each step of a forced stop.
_STOP_MARGIN_S, _KILL_TIMEOUT_S = 15.0, 5.0

OnEnd = Callable[["DaemonProcess", str], None]


def environment() -> dict[str, str]:
    """Return the environment for a child process: this process's environment without the variables in NOT_INHERITED."""
    return {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}


def new_runtime_dir() -> Path:
    """Choose a path for a runtime directory, short enough for unix sockets (at most 107 bytes).

    The daemon creates the directory, so that nothing is left behind if this process is killed first.
    """
    folders = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp"]
    for folder in folders:
        path = Path(folder, f"pytriton-{secrets.token_hex(4)}")
        short = len(os.fsencode(RuntimeDir(path).lane_socket("w12345678"))) <= MAX_SOCKET_PATH
        if folder and short and os.access(folder, os.W_OK | os.X_OK):
            return path
    raise DaemonStartError(
        f"Cannot create a runtime directory in {', '.join(filter(None, folders))}: each one either is not writable or "
        "has a path that is too long. Set TMPDIR to a writable folder with a short path."
    )


class DaemonProcess:
    """A daemon that runs as a child process.

    Args:
        settings: the result of `daemon_settings`
        on_end: called from a thread, with the reason, if the daemon exits unexpectedly after it was ready
        workspace: a folder that the daemon creates at startup and removes when it exits
        quiet: discard the daemon's log instead of writing it to this process's standard output

    Attributes:
        runtime_dir: the daemon's runtime directory, which contains its control socket
        workspace: the folder that the daemon creates, if any
        ended: set when the process has exited and has been reaped
        was_ready: whether the daemon has ever been ready
    """

    def __init__(
        self,
        settings: dict[str, Any],
        on_end: OnEnd,
        *,
        workspace: Path | None = None,
        quiet: bool = False,
    ) -> None:
        self.runtime_dir = Path(settings["runtime_dir"])
        self.ended = threading.Event()
        self._settings = settings
        self.workspace = workspace
        self._on_end = on_end
        self._quiet = quiet
        self._up = threading.Event()  #: set when the daemon is ready or has exited
        self.was_ready = False
        self._stop_requested = False
        self._end: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._spawning = threading.Lock()

    def start(self) -> None:
        """Start the process in the background; `wait_ready` reports the outcome.

        A thread starts it: Ctrl-C interrupts only the main thread, where it could leave an orphaned process.
        """
        threading.Thread(target=self._run, name="pytriton-daemon", daemon=True).start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until models can be registered.

        Raises:
            DaemonStartError: the daemon exited first (the message gives the reason), or `timeout_s` expired
        """
        if not self._up.wait(timeout_s):
            raise DaemonStartError(f"Triton Inference Server was not ready within {timeout_s:g} s")
        if self.was_ready and not self.ended.is_set():
            return
        code = self._end.get("code")
        reason = self._end.get("reason") or self._describe_exit()
        if self._stop_requested:
            reason = "it was stopped during startup"
        raise DaemonStartError(f"Triton Inference Server did not start: {reason}", exit_code=code)

    def stop(self) -> None:
        """Answer the in-flight requests, stop the daemon and all its processes, and wait until they have exited.

        If the wait is interrupted (Ctrl-C), kill the daemon immediately.
        """
        with self._spawning:
            self._stop_requested = True
            if self._process is None:
                self._up.set()
                self.ended.set()
                return
        patience_s = float(self._settings["grace_period_s"]) + _STOP_MARGIN_S
        try:
            self._signal(signal.SIGTERM)
            if self.ended.wait(patience_s):
                return
        except BaseException:
            self._kill()
            raise
        self._kill()

    def _kill(self) -> None:
        # At the second SIGTERM the daemon exits immediately, but cleans up.
        self._signal(signal.SIGTERM)
        if not self.ended.wait(_KILL_TIMEOUT_S):
            self._signal(signal.SIGKILL)
            self.ended.wait(_KILL_TIMEOUT_S)

    def _signal(self, number: int) -> None:
        assert self._process is not None  # checked by `stop`
        self._process.send_signal(number)

    def _run(self) -> None:
        """Start the process, read its reports until it exits, reap it, and remove its runtime directory."""
        try:
            reports = self._spawn()
            if reports is None:
                return
            with reports:
                for line in reports:
                    self._handle_report(json.loads(line))
            assert self._process is not None  # set by `_spawn`
            self._process.wait()
        except Exception as error:  # e.g. out of processes or file descriptors
            self._end = {"reason": f"{type(error).__name__}: {error}"}
        shutil.rmtree(self.runtime_dir, ignore_errors=True)  # still exists if the daemon was killed
        self.ended.set()
        self._up.set()
        if self.was_ready and not self._stop_requested:
            self._on_end(self, self._end.get("reason") or self._describe_exit())

    def _handle_report(self, report: dict[str, Any]) -> None:
        if report["state"] == "ready":
            self.was_ready = True
            self._up.set()
        else:
            self._end = report

    def _spawn(self) -> TextIO | None:
        """Start the process and return the pipe for its reports; None if `stop` has already been called."""
        with self._spawning:
            if self._stop_requested:
                return None
            reading, writing = _pipe()
            reports = os.fdopen(reading, encoding="utf-8")
            try:
                self._process = self._popen(writing)
            except BaseException:
                reports.close()
                raise
            finally:
                os.close(writing)
        assert self._process.stdin is not None  # a pipe
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(self._settings).encode())
        return reports

    def _popen(self, writing: int) -> subprocess.Popen[bytes]:
        from pytriton._register.environment import own_interpreter

        command = [own_interpreter(), "-m", "pytriton.dispatcher", "--owner", str(os.getpid())]
        command += ["--report", str(writing)]
        if self.workspace is not None:
            command += ["--workspace", str(self.workspace)]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if self._quiet else _standard_output(),
            stderr=subprocess.STDOUT,
            env=environment(),
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C reaches only the script, which then stops the daemon gracefully
            cwd="/",  # the current folder may contain modules such as pytriton/ or worker.py
        )

    def _describe_exit(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return f"its daemon was killed by signal {-code}"
        return f"its daemon exited with code {code}; see its log in the output of this process"


def _standard_output() -> int:
    """Return the file descriptor for the daemon's log: standard output, or DEVNULL if that is closed."""
    stream = sys.__stdout__
    try:
        os.fstat(1)
    except OSError:
        return subprocess.DEVNULL
    return subprocess.DEVNULL if stream is None or stream.closed else 1


def _pipe() -> tuple[int, int]:
    """Return the ends of a pipe. The write end's descriptor is above 2, because a child process replaces 0 to 2."""
    reading, writing = os.pipe()
    try:
        return reading, fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 3)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
