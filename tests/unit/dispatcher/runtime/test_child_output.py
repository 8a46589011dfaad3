"""Children's output: complete and in order, unless there is too much for the log; and children never wait for the log."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from pytriton._protocol.log_lines import MAX_LINE_LENGTH
from pytriton.dispatcher.runtime import child
from pytriton.dispatcher.runtime.child import ChildOutput

_WAIT_S = 200.0
_NOTE = re.compile(r"\[… ([\d,]+) bytes dropped: ")


def lines_of(code: str, on_line: Callable[[bytes], None] = lambda line: None) -> list[bytes]:
    """Run a program and return the lines passed to the log."""
    lines: list[bytes] = []

    def take(line: bytes) -> None:
        lines.append(line)
        on_line(line)

    async def read() -> None:
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = ChildOutput(process.stdout, take)
            # In a thread: the loop must keep reading, or the program could not exit.
            await asyncio.wait_for(asyncio.to_thread(process.wait), _WAIT_S)
            await output.drained()

    asyncio.run(read())
    return lines


def test_lines_arrive_whole_and_in_order() -> None:
    code = """if True:
        import os, sys
        for number in range(20000):
            print(number)
        sys.stdout.flush()
        os.write(1, b"in ")
        os.write(1, b"pieces\\n\\n")
        os.write(1, b"without an end")
    """
    lines = lines_of(code)
    assert lines[:20000] == [str(number).encode() for number in range(20000)]
    assert lines[20000:] == [b"in pieces", b"", b"without an end"]


def test_an_endless_line_arrives_in_pieces() -> None:
    lines = lines_of(f"print('x' * {3 * MAX_LINE_LENGTH + 7})")
    assert [len(line) for line in lines] == [MAX_LINE_LENGTH] * 3 + [7]


@pytest.mark.programs
async def test_a_busy_loop_loses_no_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_ARRIVAL_TIMEOUT_S", 0)  # it has passed before the loop can read
    lines: list[bytes] = []
    code = "import os; os.write(1, b'line\\n' * 1000 + b'rest')"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        output = ChildOutput(process.stdout, lines.append)
        process.wait()
        await output.drained()
    assert lines == [b"line"] * 1000 + [b"rest"]


@pytest.mark.programs
def test_excess_output_is_dropped_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_MAX_QUEUED", 1 << 16)
    monkeypatch.setattr(child, "_PIPE_BYTES", 1 << 16)  # of which one more may wait
    monkeypatch.setattr(child, "_LOGGING_TIMEOUT_S", _WAIT_S)
    line, count = b"x" * 99, 100_000

    def slow_log(_: bytes) -> None:
        end = time.perf_counter() + 0.0005  # busy like a slow log: the event loop does nothing else
        while time.perf_counter() < end:
            pass

    # At the log's pace it would take 50 s, and the program would have to wait.
    lines = lines_of(f"for _ in range({count}): print('{line.decode()}')", slow_log)
    notes = [found for one in lines if (found := _NOTE.match(one.decode()))]
    left_out = sum(int(found.group(1).replace(",", "")) for found in notes)
    assert notes
    assert lines.count(line) + len(notes) == len(lines)
    assert lines.count(line) * 100 + left_out == count * 100


async def test_a_child_that_closed_its_output_can_be_handed_over() -> None:
    code = "import os; os.write(1, b'half'); os.close(1); os.read(0, 1)"
    lines: list[bytes] = []
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        output = ChildOutput(process.stdout, lines.append)
        while not process.stdout.closed:
            await asyncio.sleep(0.01)
        assert output.hand_over() == (-1, b"")
        assert lines == [b"half"]
        with os.fdopen(child.ended_output(), "rb", buffering=0) as pipe:
            adopted = ChildOutput(pipe, lines.append)
            await adopted.drained()
            assert adopted.hand_over() == (-1, b"")
        assert lines == [b"half"]
