"""The output of a child process, read from its pipe and logged line by line.

    pipe ──▶ _readable ──▶ blocks of whole lines, up to _MAX_WAITING bytes ──▶ _hand_on ──▶ on_line

A child never waits for the log when it prints: reading is cheap, but a log record costs some 30 µs. A child that prints
faster than that fills the queue here. Then lines are dropped, and a note says how many, until half of the queue has
been logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from pytriton._protocol.records import MAX_LINE_LENGTH

#: Pipe size, to buffer output while the event loop is busy. The kernel may allow less.
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_MAX_WAITING = 4 << 20
#: How long lines are logged before the event loop gets to run other callbacks.
_TURN_S = 0.003
#: After a child's exit: timeouts for the arrival of its last lines (a grandchild may hold the pipe open), and for
#: logging the queued ones.
_ARRIVE_S, _LOGGED_S = 0.5, 10.0


class LeftOut:
    """The number of dropped lines of all children since this process started."""

    def __init__(self) -> None:
        self.lines = 0


LEFT_OUT = LeftOut()


class ChildOutput:
    """The lines of one child. Must be created in a running event loop."""

    def __init__(
        self, pipe: IO[bytes], on_line: Callable[[bytes], None], rest: bytes = b""
    ) -> None:
        """Pass each line to `on_line`, without its ending; lines of more than 64 KiB come in pieces.

        `rest` is the beginning of the first line, if a previous version of this process has read it.
        """
        self._pipe = pipe
        self._on_line = on_line
        self._loop = asyncio.get_running_loop()
        self._blocks: deque[bytes] = deque()
        self._lines: deque[bytes] = deque()  #: of the first block
        self._waiting = 0
        self._rest = rest  #: an incomplete line
        self._left_out = 0
        self._handing_on = False
        self._at_end = asyncio.Event()
        self._all_handed_on = asyncio.Event()
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):  # may exceed the user's limit for all pipes
            fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, _PIPE_BYTES)
        self._loop.add_reader(pipe.fileno(), self._readable)

    def hand_over(self) -> tuple[int, bytes]:
        """Log the queued lines. Return the pipe's descriptor and the beginning of an incomplete line.

        The descriptor is -1 if the child has closed its output.
        """
        while self._lines or self._blocks:
            self._hand_on()
        return -1 if self._at_end.is_set() else self._pipe.fileno(), self._rest

    async def drained(self) -> None:
        """Wait until all lines of a child that has exited have been passed on. Then stop reading."""
        for event, limit_s in ((self._at_end, _ARRIVE_S), (self._all_handed_on, _LOGGED_S)):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), limit_s)
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
        """Queue whole lines for the log, or count them as dropped."""
        if self._left_out or self._waiting >= _MAX_WAITING:
            self._left_out += len(block)
            LEFT_OUT.lines += block.count(b"\n")
            return
        self._blocks.append(block)
        self._waiting += len(block)
        self._hand_on_soon()

    def _note(self) -> None:
        left_out, self._left_out = self._left_out, 0
        note = f"[… {left_out:,} bytes dropped: the child prints faster than the log can write …]\n"
        self._blocks.append(note.encode())
        self._waiting += len(note.encode())
        self._hand_on_soon()

    def _hand_on_soon(self) -> None:
        if not self._handing_on:
            self._handing_on = True
            self._loop.call_soon(self._hand_on)

    def _hand_on(self) -> None:
        until = time.monotonic() + _TURN_S
        self._handing_on = False
        try:
            while self._lines or self._blocks:
                if not self._lines:
                    self._lines.extend(self._blocks.popleft()[:-1].split(b"\n"))
                line = self._lines.popleft()
                if len(line) > MAX_LINE_LENGTH:
                    self._lines.appendleft(line[MAX_LINE_LENGTH:])
                    line = line[:MAX_LINE_LENGTH]
                else:
                    self._waiting -= 1  # its line ending
                self._waiting -= len(line)
                self._on_line(line)
                if time.monotonic() > until:
                    break
        finally:
            if self._left_out and self._waiting <= _MAX_WAITING // 2:
                self._note()
            if self._lines or self._blocks:
                self._hand_on_soon()
            elif self._at_end.is_set():
                self._all_handed_on.set()

    def _end(self) -> None:
        """Close the pipe, because the child has closed its end or no more output is wanted."""
        if self._at_end.is_set():
            return
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
        if self._rest:
            self._take(self._rest + b"\n")
            self._rest = b""
        if self._left_out:
            self._note()
        self._at_end.set()
        self._hand_on_soon()


def ended_output() -> int:
    """Return a descriptor that reads end-of-file: the output of a child that has closed it."""
    reader, writer = os.pipe()
    os.close(writer)
    return reader
