"""The record of how the last daemon in a runtime directory exited (last_exit.json)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.rundir import RuntimeDir


class ExitRecord(msgspec.Struct, frozen=True):
    """How and when a daemon exited."""

    pid: int
    ended_at: float  #: seconds since the epoch
    exit_code: int  #: see _protocol/exit_codes.py
    reason: str  #: one line

    def describe(self) -> str:
        """Return the time, pid, exit code and reason in one line."""
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.ended_at))
        return f"{when}, pid {self.pid}, exit code {self.exit_code}: {self.reason}"


def write(rundir: RuntimeDir, code: int, reason: str) -> None:
    """Record how this process exits. Write errors are logged and ignored."""
    known = {int(one): one.meaning for one in ExitCode}
    line = " ".join(reason.split()) or known.get(code, "")
    end = ExitRecord(os.getpid(), time.time(), int(code), line)
    new = _path(rundir).with_suffix(".new")
    try:
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(end))
        new.replace(_path(rundir))
    except OSError as error:
        import structlog  # imported here because it is slow, and commands only read

        structlog.get_logger(__name__).warning(
            "cannot record how the daemon exited", reason=str(error)
        )


def read(rundir: RuntimeDir) -> ExitRecord | None:
    """Return the most recently recorded exit of a daemon; None if there is no readable record."""
    try:
        return msgspec.json.decode(_path(rundir).read_bytes(), type=ExitRecord)
    except (OSError, msgspec.DecodeError):
        return None


def killed_pid(rundir: RuntimeDir) -> int | None:
    """Return the pid of a daemon that was killed before it could remove its pid from the lock file."""
    try:
        text = rundir.lock_file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() and rundir.running_pid() is None else None


def _path(rundir: RuntimeDir) -> Path:
    return rundir.path / "last_exit.json"
