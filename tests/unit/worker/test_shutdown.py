"""A worker's process exits when it should, and closes nothing that one of its threads waits on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pytriton._protocol.lanes.stats_page import WorkerStatsPage
from pytriton.worker.python_model.batches import LoadedPythonModel
from pytriton.worker.python_model.decoupled_loop import DecoupledModelLoop

pytestmark = pytest.mark.programs

_HEAD = """
import atexit, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pytriton.worker.shutdown import end_in_time
atexit.register(lambda: print("cleaned up"))
"""


def _run(code: str) -> subprocess.CompletedProcess[str]:
    """Run a process that should exit; fail if it does not."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False
    )


def _end(code: str) -> subprocess.CompletedProcess[str]:
    return _run(_HEAD + code)


def test_a_thread_that_never_returns_does_not_block_the_exit() -> None:
    done = _end(
        "threading.Thread(target=time.sleep, args=(1e6,), name='mine').start()\n"
        "end_in_time(7, threads_s=0.1)"
    )
    assert done.returncode == 7
    assert "threads of the callable are still running: mine." in done.stderr
    assert done.stdout == "cleaned up\n"


def test_threads_that_return_are_awaited() -> None:
    done = _end(
        "def work():\n"
        "    told.wait()\n"
        "    print('worked')\n"
        "told = threading.Event()\n"
        "threading.Thread(target=work).start()\n"
        "idle = ThreadPoolExecutor(2); idle.submit(int).result()\n"
        "end_in_time(7, threads_s=100)\n"
        "told.set()\n"
        "sys.exit(3)"
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "worked\ncleaned up\n", "")


def test_a_callable_that_broke_pythons_functions_does_not_block_shutdown() -> None:
    """Waiting for threads then hangs at its start or end."""
    spoil = "import builtins; builtins.len = None\n"
    assert _end(spoil + "end_in_time(7, threads_s=0.1)").returncode in (0, 7)
    hang = "threading._shutdown = lambda: time.sleep(1e6)\n"
    assert _end(hang + spoil + "end_in_time(7, threads_s=0.1)").returncode == 7


class _Poll:
    """An epoll that must not be closed during a wait, which would fail or continue with another file."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.waits = threading.Event()

    def poll(self, *limits: float) -> Any:
        self.waits.set()
        try:
            return self._real.poll(*limits)
        finally:
            self.waits.clear()

    def close(self) -> None:
        assert not self.waits.is_set(), "it is closed while a thread waits on it"
        self._real.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Control:
    """A silent dispatcher."""

    def __init__(self) -> None:
        self._ends = socket.socketpair()
        self.fileno = self._ends[0].fileno()

    def receive(self, timeout_s: float) -> None:
        return None

    def close(self) -> None:
        for end in self._ends:
            end.close()


@pytest.mark.parametrize("unrecoverable", [False, True])
def test_the_lane_thread_of_a_python_model_ends_before_its_epoll_is_closed(
    tmp_path: Path, unrecoverable: bool
) -> None:
    stats, descriptor = WorkerStatsPage.create()
    os.close(descriptor)
    model = LoadedPythonModel.__new__(LoadedPythonModel)
    control: Any = _Control()
    loop = DecoupledModelLoop(model, None, stats, control, "w1", str(tmp_path / "lane"))
    poll = _Poll(loop._poll)
    loop._poll = poll  # type: ignore[assignment]
    reader, writer = os.pipe()

    def set_end() -> None:
        poll.waits.wait()
        if unrecoverable:
            loop.unrecoverable = True
            loop._jobs.put(None)
        else:
            os.write(writer, b"\0")

    thread = threading.Thread(target=set_end)
    thread.start()
    loop.run(reader)
    thread.join()
    assert stats.read().ending
    assert not [thread for thread in threading.enumerate() if thread.name == "lanes"]
    stats.close()
    control.close()
    os.close(reader)
    os.close(writer)


_SIGNALS = """
import multiprocessing, os, select, signal, threading, time
from pytriton.worker.shutdown import EndSignal
end = EndSignal()
forks = multiprocessing.get_context("fork")

def is_told():
    while select.select([end.woken], [], [], 0)[0]:
        end.read_signals()
    return bool(select.select([end.fd], [], [], 0)[0])

"""


def _run_signals(code: str) -> list[str]:
    done = _run(_SIGNALS + code)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


def test_only_sigterm_ends_the_worker() -> None:
    said = _run_signals(
        "for number in (signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1):\n"
        "    signal.signal(number, lambda *_: None)\n"
        "    signal.raise_signal(number)\n"
        "    print(is_told())\n"
        "signal.raise_signal(signal.SIGTERM)\n"
        "print(is_told())"
    )
    assert said == ["False", "False", "False", "True"]


@pytest.mark.parametrize(
    "replaced",
    [
        "signal.set_wakeup_fd(-1)",
        "signal.signal(signal.SIGTERM, lambda *_: None)",
    ],
)
def test_sigterm_works_whatever_the_callable_has_replaced(replaced: str) -> None:
    assert _run_signals(f"{replaced}\nsignal.raise_signal(signal.SIGTERM)\nprint(is_told())") == [
        "True"
    ]


_IN_A_LOOP = """
import asyncio
from pytriton.worker.event_loops import new_event_loop

events = new_event_loop()

async def hear():
    told = asyncio.Event()
    events.add_reader(end.fd, told.set)
    events.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(told.wait(), 60)

events.run_until_complete(hear())
print(type(events).__module__)
"""


def test_sigterm_works_in_the_loop_of_streams() -> None:
    """uvloop replaces `signal.set_wakeup_fd` while it runs."""
    pytest.importorskip("uvloop")
    assert _run_signals(_IN_A_LOOP) == ["uvloop"]


_CHILD = """
def child():
    signal.sigwait([signal.SIGUSR1])

def ask():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # for the child
    for at_once in (True, False):
        reading, writing = os.pipe()
        process = forks.Process(target=lambda: (os.write(writing, b"b"), child()))
        process.start()
        if not at_once:
            os.read(reading, 1)
        process.terminate()
        process.join()
        print(process.exitcode, is_told())

{ask}
assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
"""


@pytest.mark.parametrize(
    "ask",
    [
        "ask()",
        "thread = threading.Thread(target=ask); thread.start(); thread.join()",
    ],
)
def test_sigterm_to_a_forked_child_ends_the_child_alone(ask: str) -> None:
    assert _run_signals(_CHILD.format(ask=ask)) == ["-15", "False"] * 2


def test_forked_children_may_fork() -> None:
    said = _run_signals(
        "def child():\n"
        "    reading, writing = os.pipe()\n"  # at the numbers of descriptors that the child closed
        "    grandchild = forks.Process(target=os.write, args=(writing, b'grandchild'))\n"
        "    grandchild.start()\n"
        "    grandchild.join()\n"
        "    print(os.read(reading, 100).decode(), flush=True)\n"
        "process = forks.Process(target=child)\n"
        "process.start()\n"
        "process.join()\n"
        "print(process.exitcode)"
    )
    assert said == ["grandchild", "0"]
