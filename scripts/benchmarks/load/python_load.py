"""The load where wrk or h2load is not installed: processes of Python with a thread per client.

It costs several times the CPU of the programs in C, and with many clients it measures itself: its figures compare
with each other only.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator

from benchmarks.load.client import Connection
from benchmarks.load.generators import Load
from benchmarks.load.wire import Request, WrongAnswer
from benchmarks.workloads import percentile


def apply_python(request: Request, clients: int, seconds: float, size: int) -> Load:
    """Send a request from `clients` connections for some seconds; see `generators.apply`."""
    context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
    processes = min(clients, os.cpu_count() or 1)
    shares = [clients // processes + (index < clients % processes) for index in range(processes)]
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        with _interrupted_later():
            asked = [pool.submit(_share, request, seconds, share) for share in shares]
        parts = [one.result() for one in asked]
    times = sorted(value for part, _, _ in parts for value in part)
    return Load(
        generator="python",
        requests=len(times),
        seconds=seconds,
        p50_ms=percentile(times, 0.50),
        p99_ms=percentile(times, 0.99),
        mean_ms=sum(times) / max(1, len(times)),
        failed=sum(failed for _, failed, _ in parts),
        hidden=0,  # every answer was looked at
        cpu_s=sum(cpu for _, _, cpu in parts),
    )


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Have Ctrl-C wait for the end of the block, which starts the pool's processes.

    In the middle of that, a process is no part of the pool yet: nobody would end it, and Python would wait for it.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


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
