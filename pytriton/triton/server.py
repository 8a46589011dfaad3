"""The private daemon of one `Triton` object: a child process that ends when this process ends, however it ends.

The daemon watches this process (dispatcher/owner.py) and reports about itself over a pipe; its log goes to this
process's standard output.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytriton.exceptions import DaemonStartError
from pytriton.ipc.rundir import MAX_SOCKET_PATH, RuntimeDir

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
    """Make a runtime directory with a short path: those of unix sockets have at most 107 bytes."""
    folders = [os.environ.get("XDG_RUNTIME_DIR") or "", tempfile.gettempdir(), "/tmp"]
    for folder in folders:
        longest = RuntimeDir(Path(folder, "pytriton-12345678")).lane_socket("w12345678")
        short = len(os.fsencode(longest)) <= MAX_SOCKET_PATH
        if folder and short and os.access(folder, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="pytriton-", dir=folder))
    raise DaemonStartError(
        f"No runtime directory can be made in {', '.join(filter(None, folders))}: not writable, or "
        "the path is too long. Set TMPDIR to a short path of a folder that you may write to."
    )


class ServerProcess:
    """One daemon, from its start to its end.

    Args:
        settings: what `daemon_settings` returns
        workspace: a folder to remove, beside the runtime directory, if this process is killed
        on_end: is called, from a thread, with the reason, if it ends by itself once it was ready

    Attributes:
        runtime_dir: where its control socket lies
        ended: is set when it has ended and has been reaped
    """

    def __init__(self, settings: dict[str, Any], workspace: Path, on_end: OnEnd) -> None:
        self.runtime_dir = Path(settings["runtime_dir"])
        self.ended = threading.Event()
        self._settings = settings
        self._workspace = workspace
        self._on_end = on_end
        self._up = threading.Event()  #: ready, or ended
        self._ready = False
        self._told_to_stop = False
        self._end: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process; `wait_ready` tells what becomes of it.

        Raises:
            OSError: it cannot be started.
        """
        from pytriton.world import own_interpreter

        reading, writing = os.pipe()
        command = [own_interpreter(), "-m", "pytriton.dispatcher", "--owner", str(os.getpid())]
        for folder in (self.runtime_dir, self._workspace):
            command += ["--remove", str(folder)]
        try:
            self._process = subprocess.Popen(
                [*command, "--report", str(writing)],
                stdin=subprocess.PIPE,
                stdout=_standard_output(),
                stderr=subprocess.STDOUT,
                env=environment(),
                pass_fds=[writing],
                start_new_session=True,  # Ctrl-C is for the script, which then stops this in order
                cwd="/",  # not a folder with a pytriton/ or a worker.py of the user's in it
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        follower = threading.Thread(
            target=self._follow, args=(self._process, reading), name="pytriton-daemon", daemon=True
        )
        follower.start()
        assert self._process.stdin is not None  # a pipe
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(json.dumps(self._settings).encode())

    def wait_ready(self) -> None:
        """Return when models can be registered.

        Raises:
            DaemonStartError: it ended before; says why.
        """
        self._up.wait()
        if self._ready and not self.ended.is_set():
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
        self._told_to_stop = True
        patience_s = float(self._settings["grace_period_s"]) + _MARGIN_S
        try:
            self._signal(signal.SIGTERM)
            if self.ended.wait(patience_s):
                return
        except BaseException:
            self._kill()
            raise
        self._kill()

    @property
    def alive(self) -> bool:
        """Whether it is ready and has not ended."""
        return self._ready and not self.ended.is_set()

    def _kill(self) -> None:
        self._signal(signal.SIGTERM)  # the second one: it ends at once, and leaves nothing
        if not self.ended.wait(_HURRY_S):
            self._signal(signal.SIGKILL)
            self.ended.wait(_HURRY_S)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)
        else:  # it could not even be started
            shutil.rmtree(self.runtime_dir, ignore_errors=True)
            self.ended.set()

    def _follow(self, process: subprocess.Popen[bytes], reading: int) -> None:
        """Read its reports until it ends, and reap it."""
        with os.fdopen(reading, encoding="utf-8") as reports:
            for line in reports:
                record = json.loads(line)
                if record["state"] == "ready":
                    self._ready = True
                    self._up.set()
                else:
                    self._end = record
        process.wait()
        shutil.rmtree(self.runtime_dir, ignore_errors=True)
        self.ended.set()
        self._up.set()
        if self._ready and not self._told_to_stop:
            self._on_end(self, self._end.get("reason") or self._how_it_ended())

    def _how_it_ended(self) -> str:
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return f"its daemon was killed by signal {-code}"
        return f"its daemon ended with code {code}; what it said is in the output of this process"


def _standard_output() -> int | None:
    """Return where the daemon's log goes: our standard output, unless that is closed."""
    try:
        os.fstat(1)
    except OSError:
        return subprocess.DEVNULL
    return None
