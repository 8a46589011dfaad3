"""The loading of a worker: it says hello, then loads its callable, each within a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from pytriton._protocol import messages
from pytriton._protocol.errors import ErrorKind, RemoteFailure
from pytriton.dispatcher.workers.process.worker import Worker

_log = structlog.get_logger(__name__)


async def until_loaded(
    worker: Worker,
    spec: messages.ModelSpec,
    start_timeout_s: float,
    started_at: float,
    *,
    greeted: Callable[[], None],
) -> None:
    """Return when a worker that was started is ready.

    Args:
        worker: the worker
        spec: its model; says how long it may load
        start_timeout_s: what its start may take, until it says hello
        started_at: when that began, by the loop's clock; a fork server may have had to start first
        greeted: is called when it has, and loads

    Raises:
        RemoteFailure: it did not become ready. It has been ended, as with any other exception.
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
    """Return why there is no new worker. Our own fault is logged, and is no reason not to try again."""
    if isinstance(error, RemoteFailure):
        return error
    _log.error(
        "a fault of the daemon: an instance did not get its worker",
        model=model,
        instance=instance,
        exc_info=error,
    )
    text = f"model {model}: a fault of the daemon: {type(error).__name__}: {error}"
    return RemoteFailure(ErrorKind.INTERNAL, text)


async def wait_any(*futures: asyncio.Future[Any], timeout_s: float | None = None) -> None:
    """Wait until one of them is done, at most `timeout_s` seconds."""
    await asyncio.wait(futures, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)


def _check(worker: Worker, spec: messages.ModelSpec, start_timeout_s: float) -> None:
    """Raise RemoteFailure unless the worker is ready; the text says why it failed, or which time ran out."""
    if worker.ready.done():
        worker.ready.result()
        return
    if worker.greeted.done():
        what = f"did not load its callable within {spec.load_timeout_s:g} s (load_timeout_s)"
    else:
        what = f"did not start within {start_timeout_s:g} s (worker_start_timeout_s)"
    raise RemoteFailure(
        ErrorKind.LOAD_FAILED,
        f"model {spec.name}: worker {worker.name} {what}",
        worker.last_lines() or None,
    )
