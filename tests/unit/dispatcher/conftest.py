"""Tests that are coroutines, and a daemon without processes, on a virtual clock."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Coroutine, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fakes.simulated_daemon import SimulatedDaemon
from fakes.virtual_time import VirtualLoop

from pytriton.dispatcher.runtime.kill_on_death import KillOnDeath

#: Only a test that fails takes so long.
_LIMIT_S = 200.0
#: How long tasks may take to end after their test.
_PENDING_S = 10.0


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in an event loop of its own, without failed or unfinished background tasks."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(_run_with_background_tasks(test))
    return True


async def _run_with_background_tasks(test: Coroutine[Any, Any, None]) -> None:
    """Run a test, and fail if a task that it started has failed unnoticed or is still pending."""
    reported: list[dict[str, Any]] = []

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        reported.append(context)
        loop.default_exception_handler(context)  # logs the traceback

    asyncio.get_running_loop().set_exception_handler(report)
    await asyncio.wait_for(test, _LIMIT_S)
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    if pending:  # for example, one that the test has cancelled at its end
        pending = (await asyncio.wait(pending, timeout=_PENDING_S))[1]
    gc.collect()  # a task reports its exception when it is collected
    assert not reported
    assert not pending


@pytest.fixture
def sim(tmp_path: Path) -> Iterator[SimulatedDaemon]:
    """A daemon with a running tritonserver; at the end it is stopped, and no worker may be left."""
    one = SimulatedDaemon(tmp_path)
    one.advance(2.0)
    yield one
    one.close()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    """For parts of a daemon: this thread's event loop, on a virtual clock."""
    one = VirtualLoop()
    asyncio.set_event_loop(one)
    yield one
    one.close()
    asyncio.set_event_loop(None)


@pytest.fixture
def kill_on_death(tmp_path: Path) -> Iterator[KillOnDeath]:
    """The helper that kills what a test starts if this process is killed."""
    with closing(KillOnDeath(tmp_path / "nothing-")) as helper:
        yield helper
