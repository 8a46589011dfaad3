"""Loading of a worker: it says hello and then loads its callable, each within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.worker import Worker

_log = structlog.get_logger(__name__)


async def until_loaded(
    worker: Worker,
    spec: messages.ModelSpec,
    start_timeout_s: float,
    started_at: float,
    *,
    greeted: Callable[[], None],
) -> None:
    """Wait until a started worker is ready. Stop the worker on any exception.

    Args:
        worker: The worker.
        spec: Its model, with the load timeout.
        start_timeout_s: Time limit until the worker says hello, in seconds.
        started_at: Begin of the start by the loop's clock. It may include the start of a fork server.
        greeted: Called when the worker has said hello and starts loading.

    Raises:
        RemoteFailure: The worker did not become ready.
    """
    left_s = max(0.0, started_at + start_timeout_s - asyncio.get_running_loop().time())
    try:
        await wait_any(worker.greeted, worker.ready, timeout_s=left_s)
        if worker.greeted.done() and not worker.ready.done():
            greeted()
            await wait_any(worker.ready, timeout_s=spec.load_timeout_s)
        _check(worker, spec, start_timeout_s)
    except Exception:
        await worker.stop(0)
        raise


def load_failure(error: Exception, model: str, instance: int) -> RemoteFailure:
    """Convert an exception into the failure to report. Log internal errors; they do not prevent a retry."""
    if isinstance(error, RemoteFailure):
        return error
    _log.error(
        "internal error while starting a worker",
        model=model,
        instance=instance,
        exc_info=error,
    )
    text = f"model {model}: internal error: {type(error).__name__}: {error}"
    return RemoteFailure(ErrorKind.INTERNAL, text)


async def wait_any(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of the futures is done, at most `timeout_s` seconds."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _check(worker: Worker, spec: messages.ModelSpec, start_timeout_s: float) -> None:
    """Raise RemoteFailure with the reason, or the timeout that expired, unless the worker is ready."""
    if worker.ready.done():
        worker.ready.result()
        return
    if worker.greeted.done():
        what = f"did not load its callable within {spec.load_timeout_s:g} s (load_timeout_s)"
    else:
        what = f"did not start within {start_timeout_s:g} s"
    raise RemoteFailure(
        ErrorKind.LOAD_FAILED,
        f"model {spec.name}: worker {worker.name} {what}",
        worker.last_lines() or None,
    )
