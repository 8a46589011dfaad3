"""The private daemon of a `Triton` object or a runner: a child process that ends when this one ends, however it ends.

The daemon watches this process (dispatcher/runtime/owner.py) and reports about itself over a pipe.
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

#: Of a service manager, or for an interpreter that somebody sits at: neither is for a child.
STAYING = (
    "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "PYTHONINSPECT", "PYTHONSTARTUP",
    "PYTHONBREAKPOINT",
)  # fmt: skip
#: What an orderly stop may take beside the grace period, and what one in a hurry may.
_MARGIN_S, _HURRY_S = 15.0, 5.0

OnEnd = Callable[["ServerProcess", str], None]


def environment() -> dict[str, str]:
    """Return this process's environment as its daemon and its workers get it."""
    return {name: value for name, value in os.environ.items() if name not in STAYING}


def new_runtime_dir() -> Path:
    """Choose a runtime directory with a short path: those of unix sockets have at most 107 bytes.

    The daemon makes it, so that nothing is left if this process is killed in between.
    """
    folders = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp"]
    for folder in folders:
        path = Path(folder, f"pytriton-{secrets.token_hex(4)}")
        short = len(os.fsencode(RuntimeDir(path).lane_socket("w12345678"))) <= MAX_SOCKET_PATH
        if folder and short and os.access(folder, os.W_OK | os.X_OK):
            return path
    raise DaemonStartError(
        f"No runtime directory can be made in {', '.join(filter(None, folders))}: not writable, or "
        "the path is too long. Set TMPDIR to a short path of a folder that you may write to."
    )


class ServerProcess:
    """One daemon, from its start to its end.

    Args:
        settings: what `daemon_settings` returns
        on_end: is called, from a thread, with the reason, if it ends by itself once it was ready
        workspace: a folder that it makes at its start and removes at its end
        quiet: its log does not go to this process's standard output

    Attributes:
        runtime_dir: where its control socket lies
        workspace: the folder that it makes, if any
        ended: is set when it has ended and has been reaped
        was_ready: whether it ever was
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
        self._up = threading.Event()  #: ready, or ended
        self.was_ready = False
        self._told_to_stop = False
        self._end: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._spawning = threading.Lock()

    def start(self) -> None:
        """Begin to start the process; `wait_ready` tells what becomes of it.

        A thread does it all: only the main thread can be interrupted (Ctrl-C), and an interruption in the middle of it
        could leave a process that nobody knows of.
        """
        threading.Thread(target=self._live, name="pytriton-daemon", daemon=True).start()

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Return when models can be registered.

        Raises:
            DaemonStartError: it ended before, and says why; or `timeout_s` seconds were not enough.
        """
        if not self._up.wait(timeout_s):
            raise DaemonStartError(f"Triton Inference Server was not ready within {timeout_s:g} s")
        if self.was_ready and not self.ended.is_set():
            return
        code = self._end.get("code")
        reason = self._end.get("reason") or self._how_it_ended()
        if self._told_to_stop:
            reason = "it was told to stop meanwhile"
        raise DaemonStartError(f"Triton Inference Server did not start: {reason}", exit_code=code)

    def stop(self) -> None:
        """Answer what is under way, end the daemon with all that it has started, and return then.

        An interruption (Ctrl-C) while this waits ends it at once.
        """
        with self._spawning:
            self._told_to_stop = True
            if self._process is None:
                self._up.set()
                self.ended.set()
                return
        patience_s = float(self._settings["grace_period_s"]) + _MARGIN_S
        try:
            self._signal(signal.SIGTERM)
            if self.ended.wait(patience_s):
                return
        except BaseException:
            self._kill()
            raise
        self._kill()

    def _kill(self) -> None:
        self._signal(signal.SIGTERM)  # the second one: it ends at once, and leaves nothing
        if not self.ended.wait(_HURRY_S):
            self._signal(signal.SIGKILL)
            self.ended.wait(_HURRY_S)

    def _signal(self, number: int) -> None:
        assert self._process is not None  # `stop` has seen to it
        self._process.send_signal(number)

    def _live(self) -> None:
        """Start the process, read its reports until it ends, reap it, and clean up behind it."""
        try:
            reports = self._spawn()
            if reports is None:
                return
            with reports:
                for line in reports:
                    self._take(json.loads(line))
            assert self._process is not None  # `_spawn` made it
            self._process.wait()
        except Exception as error:  # no process or no descriptor left, for one
            self._end = {"reason": f"{type(error).__name__}: {error}"}
        shutil.rmtree(self.runtime_dir, ignore_errors=True)  # if it was killed
        self.ended.set()
        self._up.set()
        if self.was_ready and not self._told_to_stop:
            self._on_end(self, self._end.get("reason") or self._how_it_ended())

    def _take(self, report: dict[str, Any]) -> None:
        if report["state"] == "ready":
            self.was_ready = True
            self._up.set()
        else:
            self._end = report

    def _spawn(self) -> TextIO | None:
        """Start the process and return where it reports; None when `stop` came before."""
        with self._spawning:
            if self._told_to_stop:
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
            start_new_session=True,  # Ctrl-C is for the script, which then stops this in order
            cwd="/",  # not a folder with a pytriton/ or a worker.py of the user's in it
        )

    def _how_it_ended(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return f"its daemon was killed by signal {-code}"
        return f"its daemon ended with code {code}; what it said is in the output of this process"


def _standard_output() -> int:
    """Return where the daemon's log goes: our standard output, unless that is closed, or was when Python started."""
    stream = sys.__stdout__
    try:
        os.fstat(1)
    except OSError:
        return subprocess.DEVNULL
    return subprocess.DEVNULL if stream is None or stream.closed else 1


def _pipe() -> tuple[int, int]:
    """Return a pipe whose writing end has a number that is no standard descriptor's: a child gets those anew."""
    reading, writing = os.pipe()
    try:
        return reading, fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 3)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
