"""The loads of several workers at once, with what the client is told meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.workers.supervisor import Supervisor

ReportProgress = Callable[[messages.Progress], Awaitable[None]]


async def report_to_nobody(_: messages.Progress) -> None:
    """Take the progress of a change that no client waits for."""


def workers(count: int) -> str:
    """Return a number of workers in words."""
    return "1 worker" if count == 1 else f"{count} workers"


async def until_first_ready(supervisors: Sequence[Supervisor], report: ReportProgress) -> None:
    """Return when each has its first worker.

    Raises:
        RemoteFailure: the first that could not be loaded.
    """
    total = len(supervisors)
    await report(messages.Progress("loading", f"loading {workers(total)}", 0, total))
    firsts = [supervisor.first for supervisor in supervisors]
    for done, first in enumerate(asyncio.as_completed(firsts), start=1):
        try:
            await first
        except RemoteFailure:
            for other in firsts:
                other.cancel()
            raise
        await report(messages.Progress("loading", f"worker {done} of {total} loaded", done, total))


async def heal(model: str, supervisors: Sequence[Supervisor], report: ReportProgress) -> None:
    """Load a worker now for each instance that has none, instead of later or never.

    Raises:
        RemoteFailure: one could not be loaded; its instance goes on as before.
    """
    lacking = [supervisor for supervisor in supervisors if supervisor.lacks_worker]
    if not lacking:
        return
    text = f"loading {workers(len(lacking))} in the place of ended ones"
    await report(messages.Progress("loading", text, 0, len(lacking)))
    healed = asyncio.gather(*(one.heal() for one in lacking), return_exceptions=True)
    for supervisor, failure in zip(lacking, await healed):
        if isinstance(failure, RemoteFailure):
            raise RemoteFailure(
                failure.kind,
                f"instance {supervisor.index} of model {model} has no worker: {failure.text}",
                failure.traceback,
            )
