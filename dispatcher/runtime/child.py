"""Child processes: start, output, exit, and shutdown together with their process group.

From top to bottom: `Child`, then `ChildOutput`, which reads its output, then the shutdown of a process group.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from pytriton._protocol import linux
from pytriton._protocol.log_lines import MAX_LINE_LENGTH, decoded
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.upgrade.snapshot import ChildState

#: Number of lines kept for error reports; enough for a crash with the stacks of two threads and, since Python 3.14, the C
#: stack (36 lines).
_MAX_LAST_LINES = 80
#: Interval of polling an exited child whose tracer has not waited for it, in seconds.
_TRACED_POLL_INTERVAL_S = 0.1

#: Called with a child's pid and a line that it printed, without the line ending.
OnLine = Callable[[int, bytes], None]


class Child:
    """A child process in a process group of its own.

    Attributes:
        pid: Its process id.
        exited: Done once the child has exited; the result is its return code (negative: the signal that killed it).
        peak_memory: The largest resident size, in bytes, of the child or of any process that it has waited for. 0 until
            the child has exited.
    """

    def __init__(
        self,
        pid: int,
        output: IO[bytes],
        on_line: OnLine,
        kill_on_death: KillOnDeath,
        state: ChildState | None = None,
    ) -> None:
        """Supervise a child that is running.

        Args:
            pid: The child.
            output: The pipe from its stdout and stderr; closed on failure.
            on_line: Called with each line that it prints.
            kill_on_death: Kills the child if this process is killed.
            state: The state of a child that the previous version of this process started; None for a new one.

        Raises:
            OSError: The child cannot be supervised, for example because too many files are open.
        """
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[int] = loop.create_future()
        self.peak_memory = 0
        self._is_group_empty = False  #: True: the group's id may belong to other processes by now
        self._on_line = on_line
        self._kill_on_death = kill_on_death
        lines = [] if state is None else state.lines
        self._last_lines: collections.deque[str] = collections.deque(lines, maxlen=_MAX_LAST_LINES)
        self._line_waiters: list[tuple[bytes, asyncio.Future[bytes]]] = []
        with contextlib.ExitStack() as undo:
            undo.callback(output.close)
            self._pidfd = linux.pidfd_open(pid)
            undo.callback(os.close, self._pidfd)
            loop.add_reader(self._pidfd, self._reap)
            undo.callback(loop.remove_reader, self._pidfd)
            self._output = ChildOutput(output, self._printed, b"" if state is None else state.rest)
            undo.pop_all()
        if state is None:
            kill_on_death.add(pid)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | None,
        on_line: OnLine,
        kill_on_death: KillOnDeath,
        umask: int = -1,
        pass_fds: Sequence[int] = (),
    ) -> Child:
        """Start a process that inherits `pass_fds`, and pass its stdout and stderr to `on_line`, line by line.

        Raises:
            OSError: The process could not be started; `filename` is the file that caused the error.
        """
        popen = subprocess.Popen(
            argv,
            env=kill_on_death.mark(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=pass_fds,
            **({"umask": umask} if umask >= 0 else {}),  # type: ignore[call-overload]
        )
        popen.returncode = 0  # keeps subprocess from waiting for it: this class does
        assert popen.stdout is not None  # a pipe
        try:
            return cls(popen.pid, popen.stdout, on_line, kill_on_death)
        except BaseException:
            kill_and_reap(popen.pid)
            raise

    @classmethod
    def adopt(cls, state: ChildState, on_line: OnLine, kill_on_death: KillOnDeath) -> Child:
        """Supervise a child of the previous version of this process. It may have exited already.

        Raises:
            OSError: This process has no such child.
        """
        output = ended_output() if state.output < 0 else state.output
        pipe = os.fdopen(output, "rb", buffering=0)
        return cls(state.pid, pipe, on_line, kill_on_death, state)

    def hand_over(self) -> ChildState:
        """Log all queued lines, and return the child's state for the next version of this process."""
        output, rest = self._output.hand_over()
        return ChildState(self.pid, output, rest, self.recent_lines())

    def recent_lines(self) -> list[str]:
        """Return the last lines that the child printed, oldest first."""
        return list(self._last_lines)

    def last_lines(self) -> str:
        """Return the last lines that the child printed, as one text."""
        return "\n".join(self._last_lines)

    def next_line_with(self, text: bytes) -> asyncio.Future[bytes]:
        """Return a future whose result is the next line that contains `text`. Cancel the future to stop waiting."""
        printed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._line_waiters = [one for one in self._line_waiters if not one[1].done()]
        self._line_waiters.append((text, printed))
        return printed

    def is_runnable(self) -> bool:
        """Return whether a thread of the child runs, or only waits for a processor or a disk.

        If not, the child is stopped, or it sleeps and has handled everything that was sent to it.
        """
        for stat in Path(f"/proc/{self.pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread has ended
                if linux.stat_fields(stat)[3] in (b"R", b"D"):  # the state
                    return True
        return False

    def signal_group(self, number: int) -> None:
        """Send a signal to the child's process group."""
        if self._is_group_empty:
            return
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the group is gone, or runs as another user

    def kill(self) -> None:
        """Kill the child's process group immediately, without waiting for it to exit."""
        if not self._is_group_empty:
            kill_group(self.pid)

    async def stop(self, grace_s: float, *, first: int = signal.SIGTERM) -> int:
        """Stop the child and the rest of its process group; return its return code.

        The child gets the signal `first` and has `grace_s` seconds to clean up (tritonserver, its shared memory; a
        worker, its callable). Then it is killed. Resource trackers in the group may finish; see `end_group`.
        """
        if not self.exited.done():
            os.kill(self.pid, first)
            await asyncio.wait([self.exited], timeout=grace_s)
        if not self.exited.done():
            self.kill()
        code = await asyncio.shield(self.exited)
        if not self._is_group_empty:
            await end_group(self.pid)
            self._is_group_empty = True
        self._kill_on_death.remove(self.pid)
        await self.drained()
        return code

    async def drained(self) -> None:
        """Wait until all output of the child has been logged. The child must have exited."""
        await self._output.drained()

    def _reap(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._pidfd)
        pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            # A tracer, such as strace or a debugger, has not waited for it yet. The kernel
            # lets its parent wait only after that.
            loop.call_later(_TRACED_POLL_INTERVAL_S, self._reap)
            return
        os.close(self._pidfd)
        self._is_group_empty = not _group_exists(self.pid)
        self.peak_memory = usage.ru_maxrss * 1024
        self.exited.set_result(os.waitstatus_to_exitcode(status))

    def _printed(self, line: bytes) -> None:
        record = decoded(line)
        text = (
            line.decode(errors="backslashreplace").rstrip() if record is None else record.exception
        )
        self._last_lines.extend(text.split("\n"))
        self._on_line(self.pid, line.rstrip(b"\r"))
        for wanted, future in self._line_waiters:
            if wanted in line and not future.done():
                future.set_result(line)


def kill_and_reap(pid: int) -> None:
    """Kill a child that has just started and is not supervised yet, and wait for it to exit."""
    os.kill(pid, signal.SIGKILL)  # not yet reaped, so the pid cannot have been reused
    os.waitpid(pid, 0)


def with_parent_death_signal(argv: Sequence[str]) -> list[str]:
    """Return a command that runs `argv` in a process that the kernel kills when this process exits for any reason.

    The command is a small Python program that calls prctl(PR_SET_PDEATHSIG) and then executes `argv`. (Calling prctl
    between fork and exec here could deadlock, because this process has threads.)
    """
    launcher = os.path.join(os.path.dirname(__file__), "exec_launcher.py")
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), *argv]


def describe_exit(code: int) -> str:
    """Describe a return code, for example "exited with code 3" or "was killed by signal 11 (SIGSEGV)"."""
    if code >= 0:
        return f"exited with code {code}"
    text = f"was killed by signal {-code} ({signal_name(code)})"
    if -code == signal.SIGSYS:
        text += ": a filter blocked a system call (systemd: SystemCallFilter=)"
    return text


def signal_name(code: int) -> str | None:
    """Return the name of the signal behind a return code; None if the return code is an exit code."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "unknown"


# ── Output of a child process: read from its pipe, logged line by line ──

#: Requested size of the pipe, which buffers output while the event loop is busy. The kernel may allow less.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_MAX_QUEUED = 4 << 20
#: How long to log lines before other callbacks of the event loop run, in seconds.
_TURN_S = 0.003
#: Timeouts after a child's exit, in seconds: for its last lines to arrive (a grandchild may keep the pipe open), and
#: for queued lines to be logged.
_ARRIVAL_TIMEOUT_S, _LOGGING_TIMEOUT_S = 0.5, 10.0


class DroppedLines:
    """Counts the output lines of children that have been dropped since this process started."""

    def __init__(self) -> None:
        self.count = 0


DROPPED_LINES = DroppedLines()


class ChildOutput:
    """Reads the output of one child, and passes it on line by line. Must be created in a running event loop."""

    def __init__(
        self, pipe: IO[bytes], on_line: Callable[[bytes], None], rest: bytes = b""
    ) -> None:
        """Start reading.

        Args:
            pipe: The child's output.
            on_line: Called with each line, without its line ending. Lines of more than 64 KiB are passed in pieces.
            rest: The beginning of the first line, if the previous version of this process has read it.
        """
        self._pipe = pipe
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._blocks: deque[bytes] = deque()
        self._lines: deque[bytes] = deque()  #: the lines of the block that is being logged
        self._queued_bytes = 0
        self._rest = rest  #: an incomplete line
        self._dropped_bytes = 0
        self._is_scheduled = False
        self._at_end = asyncio.Event()
        self._all_logged = asyncio.Event()
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # the size may exceed the user's limit for all pipes
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(pipe.fileno(), self._readable)

    def hand_over(self) -> tuple[int, bytes]:
        """Log all queued lines. Return the pipe's descriptor (-1 if the child has closed it) and the incomplete last
        line.
        """
        while self._lines or self._blocks:
            self._log_queued()
        return -1 if self._at_end.is_set() else self._pipe.fileno(), self._rest

    async def drained(self) -> None:
        """Wait for a limited time until all lines of the exited child have been passed on. Then stop reading."""
        for event, limit_s in (
            (self._at_end, _ARRIVAL_TIMEOUT_S),
            (self._all_logged, _LOGGING_TIMEOUT_S),
        ):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), limit_s)
            if not self._at_end.is_set():
                self._readable()  # a busy event loop may not have read yet what the child wrote before its exit
            self._end()

    def _readable(self) -> None:
        try:
            data = os.read(self._pipe.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        end = data.rfind(b"\n") + 1
        if end:
            self._take(self._rest + data[:end])
            self._rest = data[end:]
        else:
            self._rest += data
        while len(self._rest) >= MAX_LINE_LENGTH:
            self._take(self._rest[:MAX_LINE_LENGTH] + b"\n")
            self._rest = self._rest[MAX_LINE_LENGTH:]

    def _take(self, block: bytes) -> None:
        """Queue complete lines for the log. If the queue is full, drop and count them."""
        if self._dropped_bytes or self._queued_bytes >= _MAX_QUEUED:
            self._dropped_bytes += len(block)
            DROPPED_LINES.count += block.count(b"\n")
            return
        self._blocks.append(block)
        self._queued_bytes += len(block)
        self._log_soon()

    def _log_dropped(self) -> None:
        dropped_bytes, self._dropped_bytes = self._dropped_bytes, 0
        note = f"[… {dropped_bytes:,} bytes dropped: the child prints faster than the log can write …]\n"
        self._blocks.append(note.encode())
        self._queued_bytes += len(note.encode())
        self._log_soon()

    def _log_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._log_queued)

    def _log_queued(self) -> None:
        until = time.monotonic() + _TURN_S
        self._is_scheduled = False
        try:
            while self._lines or self._blocks:
                if not self._lines:
                    self._lines.extend(self._blocks.popleft()[:-1].split(b"\n"))
                line = self._lines.popleft()
                if len(line) > MAX_LINE_LENGTH:
                    self._lines.appendleft(line[MAX_LINE_LENGTH:])
                    line = line[:MAX_LINE_LENGTH]
                else:
                    self._queued_bytes -= 1  # its line ending
                self._queued_bytes -= len(line)
                self._on_line(line)
                if time.monotonic() > until:
                    break
        finally:
            if self._dropped_bytes and self._queued_bytes <= _MAX_QUEUED // 2:
                self._log_dropped()
            if self._lines or self._blocks:
                self._log_soon()
            elif self._at_end.is_set():
                self._all_logged.set()

    def _end(self) -> None:
        """Close the pipe, and queue an incomplete last line."""
        if self._at_end.is_set():
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        if self._rest:
            self._take(self._rest + b"\n")
            self._rest = b""
        if self._dropped_bytes:
            self._log_dropped()
        self._at_end.set()
        self._log_soon()


def ended_output() -> int:
    """Return a descriptor at end-of-file, which replaces a child's output after the child has closed it."""
    reader, writer = os.pipe()
    os.close(writer)
    return reader


# ── Shutdown of a process group: all processes are killed, but resource trackers may clean up first ──

#: Part of the command line of every resource tracker, including joblib's.
TRACKER = b"resource_tracker import main"
#: Timeout for resource trackers to exit, in seconds. They clean up once the processes that they track have exited.
CLEAN_UP_S = 5.0


async def end_group(group: int) -> None:
    """Kill what remains of a process group after its leader has exited. Wait for its resource trackers to exit."""
    trackers = kill_group(group)
    if trackers:
        await _wait_for_exit(trackers)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def kill_group(group: int) -> Sequence[int]:
    """Kill all processes of a group except its resource trackers; return the pids of these trackers."""
    if not _group_exists(group):
        return []
    members = _members(group)
    trackers = [pid for pid in members if _is_tracker(pid)]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if not trackers:
            os.killpg(group, signal.SIGKILL)
    for pid in members if trackers else ():
        if pid not in trackers:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return trackers


def _group_exists(group: int) -> bool:
    """Return whether a group has processes that this process may signal, and not only some of another user (sudo)."""
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _members(group: int) -> list[int]:
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                found.append(pid)
    return found


def _is_tracker(pid: int) -> bool:
    """Return whether a process is, or may be, a resource tracker.

    While a process starts its program, its command line is empty, and it counts as a tracker. Python 3.9, unlike later
    versions, does not wait until a new tracker runs its program. With 3.9, a process that is killed while it creates
    its first shared memory may therefore leave that behind.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            line = file.read()
            return not line or TRACKER in line
    except OSError:  # it has exited
        return False


async def _wait_for_exit(pids: Sequence[int]) -> None:
    """Wait up to `CLEAN_UP_S` seconds for processes to exit. They need not be children of this process."""
    loop = asyncio.get_running_loop()
    ends: list[asyncio.Future[None]] = []
    with contextlib.ExitStack() as undo:
        for pid in pids:
            with contextlib.suppress(OSError):
                # It has exited, or there is no pidfd to watch it.
                pidfd = linux.pidfd_open(pid)
                undo.callback(os.close, pidfd)
                ends.append(loop.create_future())
                loop.add_reader(pidfd, _done, loop, pidfd, ends[-1])
                undo.callback(loop.remove_reader, pidfd)
        if ends:
            await asyncio.wait(ends, timeout=CLEAN_UP_S)


def _done(loop: asyncio.AbstractEventLoop, pidfd: int, end: asyncio.Future[None]) -> None:
    loop.remove_reader(pidfd)
    if not end.done():
        end.set_result(None)
