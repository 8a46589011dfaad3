"""Starts the daemon, in this process or in the background."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pytriton._cli.daemon_connection import ask_status, describe_last_exit
from pytriton._cli.errors import CliError
from pytriton._cli.logs import daemon_event, pretty
from pytriton._cli.output import Spinner, say
from pytriton._cli.settings import private, save_flags
from pytriton._host import exit_record
from pytriton._host.log_files import rotated
from pytriton._host.settings.declarations import DaemonConfig
from pytriton._host.settings.start_flags import StartFlags
from pytriton._protocol import linux, messages
from pytriton._protocol.exit_codes import ExitCode
from pytriton._protocol.files.private_files import open_private
from pytriton._protocol.files.rundir import RuntimeDir
from pytriton.dispatcher import start

#: Number of log records that a failed start shows.
_LAST_RECORDS = 12
#: Exits that the next start does not report.
_SAID_AT_START = (ExitCode.OK, ExitCode.USAGE, ExitCode.ALREADY_RUNNING, ExitCode.PORT_IN_USE)
#: Interval between status requests to a starting daemon. Its exit is reported by a pidfd, but its readiness must be polled:
#: the control socket exists before the daemon is ready, and a start takes a second or more.
_MIN_POLL_INTERVAL_S, _MAX_POLL_INTERVAL_S = 0.05, 0.5


def run_here(config: DaemonConfig, flags: StartFlags) -> int:
    """Run the daemon in this process, or in a child if this is a container's first process. Return its exit code."""
    rundir = private(config)
    _report_previous_exit(rundir)
    return start.run_here(config, lambda status: save_flags(flags, rundir))


def run_detached(config: DaemonConfig, flags: StartFlags) -> messages.Status:
    """Start a daemon in its own session, and return its status once it is ready.

    Raises:
        CliError: the daemon exited before it was ready. The error contains its exit code and its last log records.
    """
    rundir = private(config)
    _refuse_second(rundir)
    _report_previous_exit(rundir)
    with _NewRecords(rundir) as records, _started(config, rundir) as process:
        with Spinner("starting the daemon") as spinner:
            status = _wait_ready(rundir, process, records, spinner)
        if status is None:
            raise _failure(rundir, process, records)
    save_flags(flags, rundir)
    return status


def _report_previous_exit(rundir: RuntimeDir) -> None:
    """Report how the last daemon in a directory exited, unless the user already knows."""
    end = exit_record.read(rundir)
    failed = end is not None and end.exit_code not in _SAID_AT_START
    if exit_record.killed_pid(rundir) is not None or failed:
        say(f"the last daemon in {rundir.path} exited: {describe_last_exit(rundir)}")


def _refuse_second(rundir: RuntimeDir) -> None:
    pid = rundir.running_pid()
    if pid is not None:
        raise CliError(
            ExitCode.ALREADY_RUNNING,
            f"a daemon is already running in {rundir.path} (pid {pid}). Stop it with "
            "`pytriton-daemon stop`, or use another directory with --runtime-dir.",
        )


@contextmanager
def _started(config: DaemonConfig, rundir: RuntimeDir) -> Iterator[subprocess.Popen[bytes]]:
    """Start the daemon's process; stop it if the block is interrupted."""
    with open(_startup_log(rundir), "wb", opener=open_private) as output:
        process = start.spawn(config, output)
    try:
        yield process
    except KeyboardInterrupt:
        process.send_signal(signal.SIGTERM)
        process.wait()
        raise


def _wait_ready(
    rundir: RuntimeDir, process: subprocess.Popen[bytes], records: _NewRecords, spinner: Spinner
) -> messages.Status | None:
    """Wait until the daemon is ready, and return its status; return None if it exits first."""
    ended = linux.pidfd_open(process.pid)
    try:
        for attempt in itertools.count():
            look_s = min(_MAX_POLL_INTERVAL_S, _MIN_POLL_INTERVAL_S * 1.5 ** min(attempt, 20))
            readable, _, _ = select.select([ended], [], [], look_s)
            for text in records.new():
                spinner.say(text)
            if readable:
                return None
            status = _status(rundir, process.pid)
            if status is not None and status.state in ("ready", "draining"):
                return status
    finally:
        os.close(ended)
    raise AssertionError("itertools.count() does not end")


def _status(rundir: RuntimeDir, pid: int) -> messages.Status | None:
    if rundir.running_pid() != pid:
        return None
    try:
        return ask_status(rundir, timeout_s=_MAX_POLL_INTERVAL_S)
    except CliError:  # not listening yet, or exiting
        return None


def _failure(
    rundir: RuntimeDir, process: subprocess.Popen[bytes], records: _NewRecords
) -> CliError:
    """Return the error for a failed start, with the recorded reason or the last log records."""
    code = process.wait()
    known = {int(one): one for one in ExitCode}
    # With exit code 0, the daemon was stopped while it was starting, so `start` has failed.
    exit_code = known.get(code, ExitCode.ERROR) if code else ExitCode.ERROR
    end = exit_record.read(rundir)
    if end is not None and end.pid == process.pid and exit_code is not ExitCode.ERROR:
        return CliError(exit_code, f"the daemon did not start: {end.reason}")
    ended = f"with code {code}" if code >= 0 else f"by signal {-code}"
    why = f"{end.reason}\nIt" if end is not None and end.pid == process.pid else "it"
    last = "\n".join(records.last())
    return CliError(
        exit_code, f"the daemon did not start: {why} exited {ended}. Its last messages:\n{last}"
    )


def _startup_log(rundir: RuntimeDir) -> Path:
    return rundir.logs / "startup.log"


class _NewRecords:
    """Reader of the lines that a starting daemon adds to its log, even if the log is rotated."""

    def __init__(self, rundir: RuntimeDir) -> None:
        self._rundir = rundir
        self._stream: BinaryIO | None = None
        self._records: list[str] = []
        path = rundir.log_file()
        self._start = path.stat().st_size if path.exists() else 0
        self._rotated = len(rotated(path))

    def __enter__(self) -> _NewRecords:
        return self

    def __exit__(self, *error: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def new(self) -> list[str]:
        """Return the texts of the daemon's own records since the last call."""
        path = self._rundir.log_file()
        if self._stream is None and path.exists():
            self._stream = open(path, "rb")  # noqa: SIM115, closed in __exit__
            # Rotated since: everything in the new file is new.
            self._stream.seek(self._start if len(rotated(path)) == self._rotated else 0)
        if self._stream is None:
            return []
        lines = [line.decode("utf-8", "replace").rstrip("\n") for line in self._stream]
        self._records = [*self._records, *lines][-_LAST_RECORDS:]
        return [text for line in lines if (text := daemon_event(line))]

    def last(self) -> list[str]:
        """Return the last log records, and what the daemon printed outside its log."""
        self.new()
        printed = _startup_log(self._rundir).read_text(errors="replace").rstrip()
        return [*(pretty(line) for line in self._records), *([printed] if printed else [])]
