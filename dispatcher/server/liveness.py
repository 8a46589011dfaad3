"""Liveness probes: detect a tritonserver that hangs because it is stopped, deadlocked or its frontend is stuck.

A pidfd reports the exit of a process; this detects a process that exists but makes no progress. A busy server must not
be taken for a hung one, so it counts as hung only if no answer at all has arrived within `server_probe_timeout_s`, on
several connections::

    interval ──▶ probe on the daemon's own connection ─┬─ any answer ──▶ alive
                 after 1/3 of the timeout, on a new one ┤
                 after 2/3, on another new one          └─ none by the end ──▶ hung

The daemon's own connection covers a server that has no descriptors left for new ones; the new ones cover a single
connection that is stuck. Each probe stays open until the end, so a late answer counts. Each of the three probes gets a
third of the timeout in turn: a dispatcher that was itself paused (a frozen machine) probes again before it decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from pytriton.dispatcher.runtime.child import Child
from pytriton.dispatcher.server.frontend import Admin

_log = structlog.get_logger(__name__)

_QUESTIONS = 3


async def wait_hung(
    child: Child,
    client: Admin,
    connect: Callable[[], Admin],
    *,
    interval_s: float,
    timeout_s: float,
) -> bool:
    """Return True once the process stops answering, False if it has exited.

    Args:
        child: the process
        client: an open connection to it
        connect: opens another connection
        interval_s: seconds from an answer to the next probe
        timeout_s: seconds without an answer after which the process counts as hung
    """
    while True:
        await asyncio.wait([child.exited], timeout=interval_s)
        if not await _lives(child, client, connect, timeout_s):
            return True
        if child.exited.done():
            return False


def process_state(pid: int) -> str:
    """Return the kernel's state of a process, for example "S (sleeping)" or "T (stopped)"."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError as error:
        return f"unknown ({error.strerror})"
    return next((line.split(None, 1)[1] for line in lines if line.startswith("State:")), "unknown")


async def _lives(
    child: Child, client: Admin, connect: Callable[[], Admin], timeout_s: float
) -> bool:
    questions: list[asyncio.Task[None]] = []
    try:
        for number in range(_QUESTIONS):
            asked = _ask_anew(child, connect) if number else _ask(child, client)
            questions.append(asyncio.create_task(asked))
            signs: list[asyncio.Future[Any]] = [child.exited, *questions]
            done, _ = await asyncio.wait(
                signs,
                timeout=timeout_s / _QUESTIONS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if done:
                return True
        return False
    finally:
        for question in questions:
            question.cancel()
        await asyncio.gather(*questions, return_exceptions=True)


async def _ask_anew(child: Child, connect: Callable[[], Admin]) -> None:
    client = connect()
    try:
        await _ask(child, client)
    finally:
        await client.close()


async def _ask(child: Child, client: Admin) -> None:
    """Return when the process has answered or exited. A failed request does not count as an answer."""
    try:
        await client.is_live()
    except Exception as error:  # each transport has its own exceptions
        _log.debug("tritonserver did not answer a probe", error=f"{type(error).__name__}: {error}")
        await asyncio.shield(child.exited)
