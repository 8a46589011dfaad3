"""A child process: start it, log its lines, detect its exit, and stop it with escalating signals."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO

from pytriton._protocol import linux
from pytriton._protocol.records import decoded
from pytriton.dispatcher.runtime.child_output import ChildOutput, ended_output
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.runtime.process_group import end_group, kill_group
from pytriton.dispatcher.runtime.upgrade_snapshot import ChildState

#: Number of lines kept for error reports; enough for a crash with the stacks of two threads.
_MAX_LAST_LINES = 40

#: Called with a child's pid and a line that it printed, without the line ending.
OnLine = Callable[[int, bytes], None]


class Child:
    """A running child process, in a process group of its own.

    Attributes:
        pid: its process id.
        exited: done once the child has exited; the result is the return code as in `subprocess` (negative: a signal).
        peak_memory: the largest resident size of the child, or of one process that it waited for, in bytes; known once
            it has exited.
    """

    def __init__(
        self,
        pid: int,
        output: IO[bytes],
        on_line: OnLine,
        kill_on_death: KillOnDeath,
        state: ChildState | None = None,
    ) -> None:
        """Supervise a child. On an error, close `output`.

        `state` is given for a child that a previous version of this process started.

        Raises:
            OSError: for example, too many open descriptors; the child is not supervised.
        """
        loop = asyncio.get_running_loop()
        self.pid = pid
        self.exited: asyncio.Future[int] = loop.create_future()
        self.peak_memory = 0
        self._on_line = on_line
        self._kill_on_death = kill_on_death
        lines = [] if state is None else state.lines
        self._last_lines: collections.deque[str] = collections.deque(lines, maxlen=_MAX_LAST_LINES)
        self._awaited: list[tuple[bytes, asyncio.Future[bytes]]] = []
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
        """Start a process whose stdout and stderr are passed line by line to `on_line`. It inherits `pass_fds`.

        Raises:
            OSError: it could not be started; `filename` is the file that caused the error.
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
        popen.returncode = 0  # waited for by this class, not by subprocess
        assert popen.stdout is not None  # a pipe
        try:
            return cls(popen.pid, popen.stdout, on_line, kill_on_death)
        except BaseException:
            put_away(popen.pid)
            raise

    @classmethod
    def adopt(cls, state: ChildState, on_line: OnLine, kill_on_death: KillOnDeath) -> Child:
        """Adopt a child of a previous version of this process; it may have exited already.

        Raises:
            OSError: this process has no such child.
        """
        output = ended_output() if state.output < 0 else state.output
        pipe = os.fdopen(output, "rb", buffering=0)
        return cls(state.pid, pipe, on_line, kill_on_death, state)

    def hand_over(self) -> ChildState:
        """Return the child's state for the next version of this process. All lines so far have been logged."""
        output, rest = self._output.hand_over()
        return ChildState(self.pid, output, rest, self.recent_lines())

    def recent_lines(self) -> list[str]:
        """The lines that the child printed last."""
        return list(self._last_lines)

    def last_lines(self) -> str:
        """The lines that the child printed last, joined into one text."""
        return "\n".join(self._last_lines)

    def next_line_with(self, text: bytes) -> asyncio.Future[bytes]:
        """Return a future for the next line that contains `text`. Cancel it if you stop waiting."""
        printed: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited = [one for one in self._awaited if not one[1].done()]
        self._awaited.append((text, printed))
        return printed

    def signal_group(self, number: int) -> None:
        """Send a signal to the child's process group."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the group is gone, or belongs to another user

    def kill(self) -> None:
        """Kill the child's process group. Unlike `stop`, this leaves no time to clean up."""
        kill_group(self.pid)

    async def stop(self, grace_s: float, *, first: int = signal.SIGTERM) -> int:
        """Stop the child: send `first`, after `grace_s` seconds SIGKILL; then end the rest of its process group.

        A child that exits by itself releases what only it can (tritonserver: its shared memory; a worker: its
        callable's clean-up). Trackers that remove leftover shared memory of the child and its children may finish
        (process_group.py).
        """
        if not self.exited.done():
            os.kill(self.pid, first)
            await asyncio.wait([self.exited], timeout=grace_s)
        if not self.exited.done():
            self.kill()
        code = await asyncio.shield(self.exited)
        await end_group(self.pid)
        self._kill_on_death.remove(self.pid)
        await self.drained()
        return code

    async def drained(self) -> None:
        """Wait until all lines of a child that has exited have been logged."""
        await self._output.drained()

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status, usage = os.wait4(self.pid, 0)
        self.peak_memory = usage.ru_maxrss * 1024
        self.exited.set_result(os.waitstatus_to_exitcode(status))

    def _printed(self, line: bytes) -> None:
        record = decoded(line)
        said = (
            line.decode(errors="backslashreplace").rstrip() if record is None else record.exception
        )
        self._last_lines.extend(said.split("\n"))
        self._on_line(self.pid, line.rstrip(b"\r"))
        for text, printed in self._awaited:
            if text in line and not printed.done():
                printed.set_result(line)


def put_away(pid: int) -> None:
    """Kill a child that is not supervised. It has just started, so it exits quickly."""
    os.kill(pid, signal.SIGKILL)  # not yet reaped, so the pid cannot have been reused
    os.waitpid(pid, 0)


def bound_to_us(argv: Sequence[str]) -> list[str]:
    """Return a command that runs `argv` and is killed by the kernel when this process exits, for whatever reason.

    A small Python wrapper sets PR_SET_PDEATHSIG with prctl and then executes `argv`. Doing this after fork in this
    process, which has threads, could deadlock.
    """
    launcher = os.path.join(os.path.dirname(__file__), "exec_launcher.py")
    return [sys.executable, "-I", "-S", launcher, str(os.getpid()), *argv]


def describe_exit(code: int) -> str:
    """Describe how a process exited: "exited with code 3", "was killed by signal 11 (SIGSEGV)"."""
    if code >= 0:
        return f"exited with code {code}"
    text = f"was killed by signal {-code} ({signal_name(code)})"
    if -code == signal.SIGSYS:
        text += ": a filter blocked a system call (systemd: SystemCallFilter=)"
    return text


def signal_name(code: int) -> str | None:
    """Return the name of the signal in a return code; None if it is an exit code."""
    if code >= 0:
        return None
    try:
        return signal.Signals(-code).name
    except ValueError:
        return "unknown"
