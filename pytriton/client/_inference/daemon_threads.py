"""`DaemonThreads`: a thread pool whose threads, unlike an executor's, do not keep the process alive."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Optional, TypeVar

__all__ = ["DaemonThreads"]

T = TypeVar("T")

if TYPE_CHECKING:
    #: A job and the future of its result; None ends a thread.
    Jobs = queue.SimpleQueue[Optional[tuple[Future[Any], Callable[[], Any]]]]


class DaemonThreads:
    """A pool of threads that are created on demand and reused.

    Args:
        max_threads: maximum number of threads
        name: prefix of their names
    """

    def __init__(self, max_threads: int, name: str) -> None:
        self._max_threads = max_threads
        self._name = name
        self._lock = threading.Lock()
        self._unfinished = 0
        self._jobs: Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # The threads hold no reference to this object, so they end when it is deleted.
        weakref.finalize(self, _send_stop, self._jobs, self._threads).atexit = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue `work` to be run in a thread, and return the future of its result."""
        future: Future[T] = Future()
        with self._lock:
            if len(self._threads) <= self._unfinished and len(self._threads) < self._max_threads:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._unfinished += 1
        future.add_done_callback(self._finished)
        self._jobs.put((future, work))
        return future

    def run_queued(self) -> None:
        """Run all queued jobs in this thread."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                _do(*job)

    def end(self, *, wait: bool) -> None:
        """End the threads once all jobs are done. With `wait`, wait for them."""
        _send_stop(self._jobs, self._threads)
        for thread in self._threads if wait else ():
            thread.join()

    def _finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1


def _run(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job  # release it, because the next job may be far in the future


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        del future, work  # the error references this frame
    else:
        future.set_result(result)


def _send_stop(jobs: Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
