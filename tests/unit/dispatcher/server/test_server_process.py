"""When a process counts as hung: only after silence on every connection for the whole time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from pytriton._host.settings.declarations import DaemonConfig
from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath
from pytriton.dispatcher.server import server_process
from pytriton.dispatcher.server.frontend import Frontend
from pytriton.dispatcher.server.frontends.triton_frontend import AdminClient
from pytriton.dispatcher.server.server_process import ServerProcess, process_state, wait_hung


class _Connection:
    """Replaces a connection to tritonserver, with scripted answers."""

    def __init__(self, is_live: Callable[[], Awaitable[bool]]) -> None:
        self.is_live = is_live
        self.closed = False

    async def close(self) -> None:
        self.closed = True


async def _at_once() -> bool:
    return True


async def _not_live() -> bool:
    return False


async def _never() -> bool:
    await asyncio.Event().wait()
    return True


async def _refused() -> bool:
    raise ConnectionRefusedError("nobody listens")


async def _start(helper: KillOnDeath, program: str) -> Child:
    return await Child.start(
        [sys.executable, "-c", program],
        env=os.environ,
        cwd=None,
        on_line=lambda pid, line: None,
        kill_on_death=helper,
    )


async def _watch(
    helper: KillOnDeath, own: _Connection, others: list[_Connection], asked: asyncio.Event
) -> bool | None:
    """Watch a process with a limit of 30 ms of silence; None if it still counts as alive once `asked` is set."""
    child = await _start(helper, "import signal; signal.pause()")
    rest = iter(others)

    def connect() -> AdminClient:
        return cast(AdminClient, next(rest))

    watching = asyncio.create_task(
        wait_hung(child, cast(AdminClient, own), connect, interval_s=0.001, timeout_s=0.03)
    )
    enough = asyncio.create_task(asked.wait())
    try:
        await asyncio.wait([watching, enough], timeout=30, return_when=asyncio.FIRST_COMPLETED)
        assert watching.done() or enough.done(), "neither judged nor asked on"
        return watching.result() if watching.done() else None
    finally:
        for task in (watching, enough):
            task.cancel()
        await asyncio.gather(watching, enough, return_exceptions=True)
        await child.stop(5)


@pytest.mark.parametrize("silent", [_never, _refused])
async def test_silence_on_all_connections(
    kill_on_death: KillOnDeath, silent: Callable[[], Awaitable[bool]]
) -> None:
    others = [_Connection(silent), _Connection(silent)]
    assert await _watch(kill_on_death, _Connection(silent), others, asyncio.Event())
    assert all(other.closed for other in others)


@pytest.mark.parametrize("answer", [_at_once, _not_live])
async def test_any_answer_is_a_sign_of_life(
    kill_on_death: KillOnDeath, answer: Callable[[], Awaitable[bool]]
) -> None:
    """Even a negative one."""
    asked, count = asyncio.Event(), 0

    async def counted() -> bool:
        nonlocal count
        count += 1
        if count == 20:
            asked.set()
        return await answer()

    assert await _watch(kill_on_death, _Connection(counted), [], asked) is None


async def test_late_answers_and_answers_on_new_connections_count(
    kill_on_death: KillOnDeath,
) -> None:
    asked, again, count = asyncio.Event(), asyncio.Event(), 0

    async def late() -> bool:
        """The first answer arrives during the second new connection, later ones immediately."""
        nonlocal count
        count += 1
        if count == 20:
            asked.set()
        await again.wait()
        return True

    async def makes_late_answer() -> bool:
        again.set()
        return await _never()

    others = [_Connection(_never), _Connection(makes_late_answer)]
    assert await _watch(kill_on_death, _Connection(late), others, asked) is None


async def test_an_exited_process_is_not_hung(kill_on_death: KillOnDeath) -> None:
    child = await _start(kill_on_death, "")
    own = cast(AdminClient, _Connection(_refused))
    hung = await wait_hung(child, own, lambda: own, interval_s=0.01, timeout_s=30)
    assert not hung
    await child.drained()


#: Its main thread ends at once, without the rest of the process, which aborts when it gets SIGUSR1.
_ENDS_SLOWLY = """
import ctypes, os, signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
threading.Thread(target=lambda: (signal.sigwait({signal.SIGUSR1}), os.abort())).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2)
"""


async def test_the_exit_of_a_crashing_process_is_awaited_however_long_it_takes(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a crash is attributed to the model that tritonserver was loading."""
    child = await _start(kill_on_death, _ENDS_SLOWLY)
    frontend = cast(Frontend, SimpleNamespace(connect=lambda pid: None))
    process = ServerProcess(DaemonConfig(), frontend, child)
    is_dying = server_process.is_dying

    def end_when_seen(pid: int) -> bool:
        seen = is_dying(pid)
        os.kill(pid, signal.SIGUSR1)
        return seen

    monkeypatch.setattr(server_process, "is_dying", end_when_seen)
    monkeypatch.setattr(server_process, "_EXIT_BEGINS_S", 0.0)
    try:
        while not is_dying(child.pid):
            await asyncio.sleep(0.01)
        assert await process.is_exiting()
        assert process.crashed
    finally:
        await child.stop(0)


async def test_a_running_process_is_not_exiting(
    kill_on_death: KillOnDeath, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = await _start(kill_on_death, "import signal; signal.pause()")
    frontend = cast(Frontend, SimpleNamespace(connect=lambda pid: None))
    monkeypatch.setattr(server_process, "_EXIT_BEGINS_S", 0.0)
    try:
        assert not await ServerProcess(DaemonConfig(), frontend, child).is_exiting()
    finally:
        await child.stop(0)


def test_the_state_of_a_process() -> None:
    assert process_state(os.getpid()).startswith("R")
    assert process_state(2**22 + 1).startswith("unknown")
