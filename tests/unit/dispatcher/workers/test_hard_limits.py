"""Hard limits on the resources of a worker and its descendants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import cast

import psutil
import pytest
from support.real_daemon import eventually

from pytriton._protocol.messages import Limits
from pytriton.dispatcher.workers.hard_limits import guard
from pytriton.dispatcher.workers.worker_process import WorkerProcess

_CHILDREN = (
    "import subprocess, sys\n"
    "for _ in range(2):\n"
    "    subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
    "print('ready', flush=True)\n"
    "input()\n"
)


class Worker:
    """The part of a worker that its limits use: a process, and the reason of its kill."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.name = "w1"
        self.kill_reason: str | None = None
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.why: str | None = None

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def kill_now(self, why: str) -> None:
        self.why = why
        self.exited.set_result(-9)


@pytest.fixture
def family() -> Iterator[int]:
    """A process with two children."""
    with subprocess.Popen(
        [sys.executable, "-c", _CHILDREN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        children = psutil.Process(process.pid).children()
        yield process.pid
        for child in children:
            child.kill()
        process.kill()


async def _guarded(pid: int, limits: Limits) -> str | None:
    worker = Worker(pid)
    await asyncio.wait_for(guard(cast(WorkerProcess, worker), limits), 30)
    return worker.why


def test_too_many_processes_kill_the_worker(family: int) -> None:
    why = asyncio.run(_guarded(family, Limits(processes=1)))
    assert why == "it had 2 processes, more than the limit of 1 (limits)"


def test_the_memory_of_all_of_a_workers_processes_counts(family: int) -> None:
    each = psutil.Process(family).memory_info()
    # More than it uses itself, less than it uses with its children.
    why = asyncio.run(_guarded(family, Limits(memory_limit=2 * (each.rss - each.shared))))
    assert why is not None
    assert why.endswith("(limits)")
    assert "bytes of memory, more than the limit of" in why


async def test_a_worker_within_its_limits_runs_to_its_end(family: int) -> None:
    worker = Worker(family)
    limits = Limits(processes=2, memory_limit=1 << 40)
    looking = asyncio.ensure_future(guard(cast(WorkerProcess, worker), limits))
    done, _ = await asyncio.wait([looking], timeout=0.1)
    assert not done
    worker.exited.set_result(0)
    await looking
    assert worker.why is None


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), psutil.AccessDenied(1)])
def test_a_failed_measurement_is_repeated(
    family: int, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Otherwise, running out of descriptors would disable the limits."""
    real, failures = psutil.Process.children, [error]

    def children(process: psutil.Process, recursive: bool = False) -> list[psutil.Process]:
        if failures:
            raise failures.pop()
        return real(process, recursive)

    monkeypatch.setattr(psutil.Process, "children", children)
    why = asyncio.run(_guarded(family, Limits(processes=1)))
    assert why == "it had 2 processes, more than the limit of 1 (limits)"
    assert not failures


#: A worker whose children fork once more and end; `%s` is what the grandchild does first.
_DOUBLE_FORK = """
import os, sys, time
for number in range(2):
    if os.fork() == 0:
        if os.fork() == 0:
            %s
            os.write(1, b"%%d\\n" %% os.getpid())  # in one piece
            time.sleep(200)  # whatever becomes of the test
        os._exit(0)
    os.wait()
os.write(1, b"forked\\n")
input()
"""


@pytest.mark.parametrize("first", ["pass", "os.setpgid(0, 0)"])
def test_a_double_fork_does_not_escape_the_limits(first: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _DOUBLE_FORK % first],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # as a worker's process is
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(3)]
        grandchildren = [int(line) for line in lines if line != b"forked"]
        try:
            why = asyncio.run(_guarded(process.pid, Limits(processes=1)))
            assert why == "it had 2 processes, more than the limit of 1 (limits)"
            if first != "pass":  # processes that left the worker's group are killed with it
                for pid in grandchildren:
                    eventually(partial(_is_gone, pid), f"{pid} has ended")
        finally:
            for pid in grandchildren:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.kill()


def _is_gone(pid: int) -> bool:
    """Return whether a process has exited, even if nobody reaps it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
