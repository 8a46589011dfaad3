"""A Triton Python model's own `is_ready`: waited for before it serves, then asked again and again.

    thread "is_ready"   asks the model, one question at a time, and says so
    thread "readiness"  waits for the answer, no longer than Triton does, and tells the dispatcher what has changed

tritonserver 2.51 knows no `is_ready`: it cannot ask. So the worker does, as often as a health check would.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from pytriton._protocol import messages
from pytriton._protocol.control import ControlClient
from pytriton._protocol.errors import shown
from pytriton.pb_utils import Logger
from pytriton.worker.callable_errors import callable_errors
from pytriton.worker.callables import LoadError
from pytriton.worker.fault_reports import report_error, told

#: Seconds from an answer to the next question.
EVERY_S = 1.0
#: Seconds that an answer may take; Triton's python backend gives it as many.
LIMIT_S = 5.0
#: What a load is given up earlier than the dispatcher would, so that it is told why.
_MARGIN_S = 1.0
#: Seconds until a change is told once more: a daemon that becomes another version of itself meanwhile has not heard it.
AGAIN_S = 10.0
#: How long the end of a worker waits for a question under way.
_END_S = 2.0


def ask(is_ready: Callable[[], Any]) -> str:
    """Ask once; return "" if it is ready, else why not. What it raises is printed."""
    try:
        answer = is_ready()
        if inspect.isawaitable(answer):
            answer = asyncio.run(_wait(answer))
    except callable_errors() as error:
        report_error(error, "its is_ready failed")
        return f"is_ready() raised {told(error)}"
    if not isinstance(answer, bool):
        return f"is_ready() returned {shown(answer)}, which is no bool"
    return "" if answer else "is_ready() returned False"


def wait_ready(name: str, is_ready: Callable[[], Any], load_timeout_s: float, begun: float) -> None:
    """Return once the model says that it is ready; asked at least once.

    Args:
        name: the model's
        is_ready: asks it
        load_timeout_s: how long it may load, its `initialize` and all else before it included
        begun: when that began (`time.monotonic`)

    Raises:
        LoadError: it is not, for nearly as long as it may load.
    """
    deadline = begun + load_timeout_s - _MARGIN_S
    said = ""
    while True:
        why = ask(is_ready)
        if not why:
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise LoadError(
                f"model {name}: {why}, and did so until there was no time left to load "
                f"(load_timeout_s={load_timeout_s:g})"
            )
        if why != said:
            Logger.log_warn(f"not ready yet after initialize(): {why}; it is asked again")
            said = why
        time.sleep(min(EVERY_S, left_s))  # the model has no other way to tell


class Watch:
    """Asks a model that serves, and tells the dispatcher when the answer is another one; `stop` ends it."""

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
        """Ask no more, and wait a little for what is being asked: `finalize` comes next."""
        self._stopped.set()
        self._questions.put(False)
        self._threads[0].join(_END_S)

    def _answer(self) -> None:
        while self._questions.get():
            self._answers.put(self._asked())

    def _asked(self) -> str:
        try:
            return ask(self._is_ready)
        except BaseException as error:  # SystemExit, say: it would end this thread alone
            report_error(error, "its is_ready failed")
            return f"is_ready() raised {told(error)}"

    def _watch(self) -> None:
        while not self._stopped.wait(EVERY_S):
            self._questions.put(True)
            try:
                why = self._answers.get(timeout=LIMIT_S)
            except queue.Empty:
                self._tell(f"is_ready() has not returned for {LIMIT_S:g} s")
                why = self._answers.get()  # one question at a time
            self._tell(why)

    def _tell(self, why: str) -> None:
        """Tell an answer that differs from the one before. After the first of these, repeat it now and then."""
        now = time.monotonic()
        if why == self._known and now < self._again_at:
            return
        self._known, self._again_at = why, now + AGAIN_S
        with ControlClient(self._endpoint) as control:
            control.send(messages.WorkerReadiness(self._worker, not why, why))
            control.flush()


async def _wait(answer: Any) -> Any:
    return await answer
