"""A child process that cannot be watched is killed, and whether a child can run."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import sys

import psutil
import pytest
from support.real_daemon import eventually, halt

from pytriton._protocol import linux
from pytriton.dispatcher.runtime.child import Child, ChildOutput, describe_exit
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath


@pytest.mark.parametrize(
    ("owner", "name"), [(linux, "pidfd_open"), (ChildOutput, "__init__")], ids=["pidfd", "output"]
)
async def test_a_child_that_cannot_be_watched_is_killed(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    """For example, if no descriptor is left."""

    def fails(*arguments: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(owner, name, fails)
    others = set(psutil.Process().children())  # from earlier tests in this process
    gc.collect()  # leftovers of earlier tests may close descriptors now, or below
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files"):
        await Child.start(
            ["/bin/sleep", "1000"],
            env={},
            cwd=None,
            on_line=lambda pid, line: None,
            kill_on_death=kill_on_death,
        )
    # Threads of earlier tests may have one for a moment.
    eventually(lambda: set(os.listdir("/proc/self/fd")) <= before, "it leaves no descriptor")
    assert set(psutil.Process().children()) <= others


#: One thread runs; the main thread sleeps.
_SPINS = """
import threading
def spin():
    print("up", flush=True)
    while True: pass
threading.Thread(target=spin).start()
"""


async def test_a_child_is_runnable_unless_it_sleeps_or_is_stopped(
    kill_on_death: KillOnDeath,
) -> None:
    up = asyncio.Event()

    async def start(*argv: str) -> Child:
        return await Child.start(
            argv,
            env={},
            cwd=None,
            on_line=lambda pid, line: up.set(),
            kill_on_death=kill_on_death,
        )

    sleeps, spins = await start("/bin/sleep", "1000"), await start(sys.executable, "-c", _SPINS)
    await up.wait()
    assert spins.is_runnable()
    eventually(lambda: not sleeps.is_runnable(), "it sleeps")
    halt(spins.pid)
    assert not spins.is_runnable()
    for child in sleeps, spins:
        await child.stop(0)
        assert not child.is_runnable()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exited with code 3"),
        (-11, "was killed by signal 11 (SIGSEGV)"),
        (
            -31,
            "was killed by signal 31 (SIGSYS): a filter blocked a system call (systemd: "
            "SystemCallFilter=)",
        ),
    ],
)
def test_descriptions_of_exits(code: int, text: str) -> None:
    assert describe_exit(code) == text
