"""Does tritonserver still answer? Notices a process that hangs: stopped, deadlocked, its frontend stuck.

Its end needs no asking (pidfd); this is for one that is there and does nothing. A busy one must not
be taken for that, so it counts as hung only when nothing at all has come back for the whole of
`server_probe_timeout_s`, on several connections::

    interval ──▶ ask on the daemon's own connection ─┬─ an answer, whatever it says ──▶ lives
                 after 1/3 of the time-out, on a new ┤
                 after 2/3 once more                 └─ none by the end ──▶ hung

The own connection is for a server that has no descriptors left for new ones; the new ones are for
a connection that is stuck by itself. Each question stays open to the end, so a late answer counts.
Three of them in a row each had their third of the time: a dispatcher that was itself held up (a
frozen machine) asks again before it judges.
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
    """Return True once the process answers no more, False when it has ended.

    Args:
        child: the process
        client: an open connection to it
        connect: makes another one
        interval_s: seconds from an answer to the next question
        timeout_s: seconds of silence
    """
    while True:
        await asyncio.wait([child.exited], timeout=interval_s)
        if not await _lives(child, client, connect, timeout_s):
            return True
        if child.exited.done():
            return False


def process_state(pid: int) -> str:
    """Return the kernel's word for what a process does: "S (sleeping)", "T (stopped)"."""
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
    """Return when there is an answer, or the process has ended. A failure to ask is no answer."""
    try:
        await client.is_live()
    except Exception as error:  # each of its transports has errors of its own
        _log.debug("tritonserver was not reached", error=f"{type(error).__name__}: {error}")
        await asyncio.shield(child.exited)
