"""Threads that run what they are given, in its order. Unlike those of an executor, a process may end without them."""

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
    #: Work with the future of its result; None: a thread is to end.
    Jobs = queue.SimpleQueue[Optional[tuple[Future[Any], Callable[[], Any]]]]


class DaemonThreads:
    """Threads that are made when they are needed, and stay for what comes next.

    Args:
        most: how many there may be
        name: how their names begin
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._unfinished = 0
        self._jobs: Jobs = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        # Threads have no reference to this object: they end with it.
        weakref.finalize(self, _tell_all, self._jobs, self._threads).atexit = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Have a thread run `work`; return the future of what it returns."""
        future: Future[T] = Future()
        with self._lock:
            if len(self._threads) <= self._unfinished and len(self._threads) < self._most:
                name = f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True)
                thread.start()
                self._threads.append(thread)
            self._unfinished += 1
        future.add_done_callback(self._finished)
        self._jobs.put((future, work))
        return future

    def run_waiting(self) -> None:
        """Run all that waits for a thread in this one."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                _do(*job)

    def end(self, *, wait: bool) -> None:
        """Have the threads end when all is done; with `wait`, return then."""
        _tell_all(self._jobs, self._threads)
        for thread in self._threads if wait else ():
            thread.join()

    def _finished(self, _: Future[Any]) -> None:
        with self._lock:
            self._unfinished -= 1


def _run(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        _do(*job)
        del job  # the next one may be long in coming


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
        del future, work  # the error holds this frame
    else:
        future.set_result(result)


def _tell_all(jobs: Jobs, threads: list[threading.Thread]) -> None:
    for _ in threads:
        jobs.put(None)
