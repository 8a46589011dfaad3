"""Loading of several workers at once, with progress reports to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.workers.supervisor import Supervisor

ReportProgress = Callable[[messages.Progress], Awaitable[None]]


async def report_to_nobody(_: messages.Progress) -> None:
    """Discard the progress of a change that no client waits for."""


def workers(count: int) -> str:
    """Format a number of workers, such as "2 workers"."""
    return "1 worker" if count == 1 else f"{count} workers"


async def until_first_ready(supervisors: Sequence[Supervisor], report: ReportProgress) -> None:
    """Wait until every supervisor has its first worker.

    Raises:
        RemoteFailure: A worker could not be loaded; the first failure is raised.
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


async def retry_now(model: str, supervisors: Sequence[Supervisor], report: ReportProgress) -> None:
    """Immediately retry to load a worker for each instance that has none.

    Raises:
        RemoteFailure: A worker could not be loaded. The instance continues its back-off.
    """
    lacking = [supervisor for supervisor in supervisors if supervisor.lacks_worker]
    if not lacking:
        return
    text = f"loading {workers(len(lacking))} to replace exited ones"
    await report(messages.Progress("loading", text, 0, len(lacking)))
    attempts = asyncio.gather(*(one.retry_now() for one in lacking), return_exceptions=True)
    for supervisor, failure in zip(lacking, await attempts):
        if isinstance(failure, RemoteFailure):
            raise RemoteFailure(
                failure.kind,
                f"instance {supervisor.index} of model {model} has no worker: {failure.text}",
                failure.traceback,
            )
