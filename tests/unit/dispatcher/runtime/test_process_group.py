"""Stopping a process group leaves neither processes nor files in /dev/shm."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.real_daemon import eventually

from pytriton._protocol import linux
from pytriton.dispatcher.runtime import child, kill_on_death
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath

#: Creates shared memory, prints its name, and starts a child that shares it, ignores SIGTERM and never exits.
_LEAVES_MEMORY = """
import os, signal, sys, time
from multiprocessing.shared_memory import SharedMemory
memory = SharedMemory(create=True, size=4096)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
if os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(memory._name, flush=True)
    time.sleep(1000)
time.sleep(1000)
"""
#: Pretends to be a tracker, and never exits.
_FALSE_TRACKER = (
    "import time  # resource_tracker import main\nprint('up', flush=True)\ntime.sleep(1000)"
)
#: Pretends to be a tracker, and exits on SIGTERM.
_PATIENT_TRACKER = """import signal  # resource_tracker import main
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
"""
#: Replaces `sleep` in the helper. Ten of its seconds pass at once; then the tracker gets a signal.
_CLOCK = """
now=0
sleep() {{
  now=$((now + 1))
  [ "$now" -ge 100 ] || return 0
  [ "$now" -ne 100 ] || kill -s {signal} ${{trackers%%:*}}
  {slow}
}}
"""


async def _child(kill_on_death: KillOnDeath, program: str) -> tuple[Child, str]:
    """Return a child and the first line that it printed."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    child = await Child.start(
        [sys.executable, "-c", program],
        env={},
        cwd=None,
        on_line=lambda pid, line: lines.put_nowait(line.decode()),
        kill_on_death=kill_on_death,
    )
    return child, await lines.get()


def _in_group(group: int) -> list[int]:
    return [one.pid for one in psutil.process_iter() if _group_of(one.pid) == group]


def _tracker_runs(group: int) -> None:
    """Wait until the group's tracker has started its program: Python 3.9 does not wait for that."""

    def found() -> bool:
        return any(
            child.TRACKER.decode() in " ".join(psutil.Process(pid).cmdline())
            for pid in _in_group(group)
        )

    assert eventually(found, "the tracker runs")


def _all_end(group: int) -> None:
    assert eventually(lambda: not _in_group(group), "somebody has waited for all of them")


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


@pytest.mark.parametrize(
    "way", ["in order", "killed by us", "killed at once", "killed by somebody"]
)
async def test_memory_of_a_child_is_removed(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """`multiprocessing` removes it after the child and its own children have exited, for whatever reason."""
    monkeypatch.setattr("pytriton.dispatcher.runtime.child.CLEAN_UP_S", 60.0)
    child, name = await _child(kill_on_death, _LEAVES_MEMORY)
    _tracker_runs(child.pid)
    assert Path(f"/dev/shm{name}").exists()
    if way == "killed by somebody":
        os.kill(child.pid, signal.SIGKILL)
        await child.exited
    elif way == "killed at once":  # as a worker that exceeded a hard limit
        child.kill()
        await child.exited
    code = await child.stop(30 if way == "in order" else 0, first=signal.SIGTERM)
    codes = {"in order": [0], "killed at once": [-signal.SIGKILL]}
    assert code in codes.get(way, [0, -signal.SIGKILL])
    assert not Path(f"/dev/shm{name}").exists()
    _all_end(child.pid)


def test_a_process_posing_as_a_tracker_is_killed(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets a moment to exit."""
    monkeypatch.setattr(child, "CLEAN_UP_S", 0.01)
    arguments = f"{sys.executable!r}, {sys.executable!r}, '-c', {_FALSE_TRACKER!r}"
    program = f"import os, time\nif os.fork() == 0:\n    os.execl({arguments})\n"

    async def run() -> None:
        child, said = await _child(kill_on_death, f"{program}time.sleep(1000)")
        assert said == "up"
        assert len(_in_group(child.pid)) == 2
        await child.stop(0)
        _all_end(child.pid)

    asyncio.run(run())


@pytest.mark.parametrize("leaves_group", [False, True])
def test_memory_is_removed_when_the_daemon_is_killed(tmp_path: Path, leaves_group: bool) -> None:
    """By the kill-on-death helper, which outlives it, even if a process that shares the memory has left the group."""
    helper = KillOnDeath(tmp_path / "nothing-")
    program = _LEAVES_MEMORY
    if leaves_group:
        program = program.replace("if os.fork() == 0:\n", "if os.fork() == 0:\n    os.setsid()\n")
        assert program != _LEAVES_MEMORY
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=helper.mark({}),
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    helper.add(process.pid)
    assert process.stdout is not None
    with process.stdout:
        name = process.stdout.readline().strip()
    _tracker_runs(process.pid)
    assert Path(f"/dev/shm{name}").exists()
    helper.close()  # as the end of this process would
    assert process.wait() == -signal.SIGKILL
    assert not Path(f"/dev/shm{name}").exists()
    _all_end(process.pid)


@pytest.mark.parametrize("ends", [True, False])
def test_a_tracker_has_a_minute_once_the_daemon_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """The time is that of a clock in the helper, which goes fast until the tracker may end."""
    clock = _CLOCK.format(signal="TERM" if ends else "0", slow="command sleep 0.1" if ends else ":")
    monkeypatch.setattr(kill_on_death, "_SCRIPT", clock + kill_on_death._SCRIPT)
    helper = KillOnDeath(tmp_path / "nothing-")
    tracker = subprocess.Popen(
        [sys.executable, "-c", _PATIENT_TRACKER], stdout=subprocess.PIPE, start_new_session=True
    )
    assert tracker.stdout is not None
    with tracker.stdout:
        assert tracker.stdout.readline() == b"up\n"
    helper.add(tracker.pid)
    helper.close()  # as the end of this process would
    assert tracker.wait() == (0 if ends else -signal.SIGKILL)


@pytest.mark.parametrize("leaves", ["nothing", "a process"])
async def test_an_empty_group_is_not_signalled(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch, leaves: str
) -> None:
    """Its id may have become that of another group, but not while a process of the group is left."""
    signalled: list[tuple[int, int]] = []
    killpg = os.killpg

    def record(group: int, number: int) -> None:
        if number:
            signalled.append((group, number))
        killpg(group, number)

    program = (
        "import os, time\npid = os.fork()\nprint('up', flush=True)\nif pid == 0: time.sleep(1000)\n"
    )
    child, _ = await _child(kill_on_death, program if leaves == "a process" else "print('up')")
    await child.exited
    monkeypatch.setattr("os.killpg", record)
    child.signal_group(signal.SIGCONT)
    child.kill()
    await child.stop(0)
    stopped = len(signalled)
    child.signal_group(signal.SIGCONT)
    child.kill()
    await child.stop(0)
    assert len(signalled) == stopped
    if leaves == "nothing":
        assert not signalled
    else:
        assert signalled[:2] == [(child.pid, signal.SIGCONT), (child.pid, signal.SIGKILL)]
        _all_end(child.pid)


def test_processes_of_another_user_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, if a callable used sudo: only root can kill them."""

    def refuse(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.killpg", refuse)
    asyncio.run(child.end_group(2**22 + 1))


#: Permits every process to trace it, where the system (Yama) leaves that to the traced one.
_IS_TRACEABLE = """
import ctypes, time
ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)
print("up", flush=True)
time.sleep(1000)
"""
#: Traces the process that its argument names, as a debugger does, and ignores it until its own input ends.
_TRACES = """
import ctypes, sys
PTRACE_SEIZE = 0x4206
print(ctypes.CDLL(None).ptrace(PTRACE_SEIZE, int(sys.argv[1]), None, None), flush=True)
sys.stdin.read()
"""


async def test_a_tracer_that_ignores_an_exited_child_does_not_block_the_daemon(
    kill_on_death: KillOnDeath,
) -> None:
    """For example, strace that was stopped with ctrl-Z. Until it goes on, the kernel does not let the parent wait."""
    traced, _ = await _child(kill_on_death, _IS_TRACEABLE)
    tracer = subprocess.Popen(
        [sys.executable, "-c", _TRACES, str(traced.pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert tracer.stdin is not None
    assert tracer.stdout is not None
    with tracer, tracer.stdout:
        if tracer.stdout.readline() != b"0\n":
            pytest.skip("this machine does not permit tracing")
        stopping = asyncio.create_task(traced.stop(0))
        has_exited = asyncio.Event()
        pidfd = linux.pidfd_open(traced.pid)
        asyncio.get_running_loop().add_reader(pidfd, has_exited.set)
        await has_exited.wait()
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        assert psutil.Process(traced.pid).status() == psutil.STATUS_ZOMBIE
        assert not traced.exited.done()
        tracer.stdin.close()
        assert await stopping in (-signal.SIGTERM, -signal.SIGKILL)
