"""The load where wrk or h2load is not installed: processes of Python with a thread per client.

It costs several times the CPU of the programs in C, and with many clients it measures itself: its figures compare
with each other only.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.pool import Pool

from benchmarks.load.client import Connection
from benchmarks.load.generators import Load
from benchmarks.load.wire import Request, WrongAnswer
from benchmarks.workloads import percentile


def apply_python(request: Request, clients: int, seconds: float, size: int) -> Load:
    """Send a request repeatedly over `clients` connections. See `generators.apply`."""
    processes = min(clients, os.cpu_count() or 1)
    shares = [clients // processes + (index < clients % processes) for index in range(processes)]
    parts = _pool().map(functools.partial(_share, request, seconds), shares, chunksize=1)
    times = sorted(value for part, _, _ in parts for value in part)
    return Load(
        generator="python",
        requests=len(times),
        seconds=seconds,
        p50_ms=percentile(times, 0.50),
        p99_ms=percentile(times, 0.99),
        mean_ms=sum(times) / max(1, len(times)),
        failed=sum(failed for _, failed, _ in parts),
        hidden=0,  # every response was checked
        cpu_s=sum(cpu for _, _, cpu in parts),
    )


@functools.cache
def _pool() -> Pool:
    """Return the processes, which exit with this one. Starting one takes half a second of CPU time, for its imports."""
    resource_tracker.ensure_running()  # otherwise, the first start would unblock signals
    with _interrupted_later() as came:
        # gRPC does not survive a fork.
        pool = multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1)
    if came:
        pool.terminate()
        pool.join()
        raise KeyboardInterrupt
    return pool


@contextlib.contextmanager
def _interrupted_later() -> Iterator[list[int]]:
    """Record Ctrl-C during the block instead of handling it, which would leave a half-started process behind.

    Processes that start inherit that it is blocked: it is not for them. It is blocked in this thread alone, and another
    one may take it for the process.
    """
    came: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield came
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, former)


def _share(request: Request, seconds: float, clients: int) -> tuple[list[float], int, float]:
    """Return latencies in ms, failures and CPU seconds of one process."""
    times: list[float] = []
    failures: list[int] = []
    before = time.process_time()
    end = time.monotonic() + seconds

    def client() -> None:
        connection = Connection(request)
        while time.monotonic() < end:
            start = time.perf_counter()
            try:
                connection.send()
            except (WrongAnswer, OSError):
                failures.append(1)
                connection.close()
                connection = Connection(request)
                continue
            times.append((time.perf_counter() - start) * 1e3)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, len(failures), time.process_time() - before
