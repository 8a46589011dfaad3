"""Support for `is_ready` of Triton Python models: a worker serves once the model is ready, and then keeps polling it.

    thread "is_ready"   calls the model's function, one call at a time
    thread "readiness"  waits for the result, at most as long as Triton would, and reports changes to the dispatcher

tritonserver 2.51 does not support `is_ready`, so the worker polls it, as often as a health check would.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.errors import shown
from pytriton.pb_utils import Logger
from pytriton.worker.callables import LoadError
from pytriton.worker.fault_reports import callable_errors, client_text, report_error

#: Interval between a result and the next call, in seconds.
EVERY_S = 1.0
#: Timeout of a call in seconds, as in Triton's python backend.
LIMIT_S = 5.0
#: How long before the dispatcher's load timeout the worker gives up, so that it can report the reason.
_MARGIN_S = 1.0
#: Interval in seconds for repeating a report, which a daemon that is being upgraded may have missed.
AGAIN_S = 10.0
#: Maximum time that an exiting worker waits for a call in progress.
_END_S = 2.0


def call_is_ready(is_ready: Callable[[], Any]) -> str:
    """Call `is_ready` once. Return "" if the model is ready, else the reason. Exceptions are logged."""
    try:
        answer = is_ready()
        if inspect.isawaitable(answer):
            answer = asyncio.run(_wait(answer))
    except callable_errors() as error:
        report_error(error, "the model's is_ready failed")
        return f"is_ready() raised {client_text(error)}"
    if not isinstance(answer, bool):
        return f"is_ready() returned {shown(answer)}, which is not a bool"
    return "" if answer else "is_ready() returned False"


def wait_ready(name: str, is_ready: Callable[[], Any], load_timeout_s: float, begun: float) -> None:
    """Wait until the model is ready. Call `is_ready` at least once.

    Args:
        name: the model's name
        is_ready: the model's function
        load_timeout_s: the load timeout, which includes `initialize` and everything before it
        begun: when the load timeout started (`time.monotonic`)

    Raises:
        LoadError: the model did not become ready before the load timeout, with a margin of `_MARGIN_S`.
    """
    deadline = begun + load_timeout_s - _MARGIN_S
    said = ""
    while True:
        why = call_is_ready(is_ready)
        if not why:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise LoadError(
                f"model {name}: {why}, until the load timeout expired "
                f"(load_timeout_s={load_timeout_s:g})"
            )
        if why != said:
            Logger.log_warn(f"not ready yet after initialize(): {why}; retrying")
            said = why
        time.sleep(min(EVERY_S, left_s))


class ReadinessPoller:
    """Poller of a model's `is_ready`. Reports changes to the dispatcher, from construction until `stop`."""

    def __init__(self, worker: str, endpoint: str, is_ready: Callable[[], Any]) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._is_ready = is_ready
        self._known, self._again_at = "", math.inf
        self._stopped = threading.Event()
        self._questions: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._answer, name="is_ready", daemon=True),
            threading.Thread(target=self._watch, name="readiness", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop polling, and wait briefly for a call in progress, because `finalize` comes next."""
        self._stopped.set()
        self._questions.put(False)
        self._threads[0].join(_END_S)

    def _answer(self) -> None:
        while self._questions.get():
            self._answers.put(self._call())

    def _call(self) -> str:
        try:
            return call_is_ready(self._is_ready)
        except BaseException as error:  # for example SystemExit, which would only end this thread
            report_error(error, "the model's is_ready failed")
            return f"is_ready() raised {client_text(error)}"

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self._questions.put(True)
            try:
                why = self._answers.get(timeout=LIMIT_S)
            except queue.Empty:
                self._report(f"is_ready() has not returned for {LIMIT_S:g} s")
                why = self._answers.get()  # one call at a time
            self._report(why)

    def _report(self, why: str) -> None:
        """Report a result if it differs from the previous one. Otherwise, repeat the last report every `AGAIN_S`."""
        now = time.monotonic()
        if why == self._known and now < self._again_at:
            return
        self._known, self._again_at = why, now + AGAIN_S
        with closing(ControlClient(self._endpoint)) as control:
            control.send(messages.WorkerReadiness(self._worker, not why, why))
            control.flush()


async def _wait(answer: Any) -> Any:
    return await answer
