"""The load where wrk or h2load is not installed: processes of Python with a thread per client.

It costs several times the CPU of the programs in C, and with many clients it measures itself: its figures compare
with each other only.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
import time

from benchmarks.load.client import Connection
from benchmarks.load.generators import GeneratorFailed, Load
from benchmarks.load.wire import Request, WrongAnswer


def apply_python(request: Request, clients: int, seconds: float) -> Load:
    """Send a request repeatedly over `clients` connections. See `generators.apply`."""
    processes = min(clients, os.cpu_count() or 1)
    shares = [clients // processes + (index < clients % processes) for index in range(processes)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with contextlib.ExitStack() as stack:
        running: list[subprocess.Popen[bytes]] = []
        for _ in shares:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=env,
                start_new_session=True,  # Ctrl-C is for this process, which then kills them
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            running.append(process)
        try:
            parts = _results(running, [(request, seconds, share) for share in shares])
        except (OSError, EOFError) as error:
            raise GeneratorFailed("a process of the Python generator exited (see above)") from error
    times = sorted(value for part, _, _ in parts for value in part)
    return Load.of(
        "python",
        times,
        seconds,
        failed=sum(failed for _, failed, _ in parts),
        hidden=0,  # every response was checked
        cpu_s=sum(cpu for _, _, cpu in parts),
    )


def _results(
    running: list[subprocess.Popen[bytes]], tasks: list[tuple[Request, float, int]]
) -> list[tuple[list[float], int, float]]:
    """Start all processes at the same time. Return what `_share` returned in each."""
    for process in running:
        assert process.stdout is not None
        process.stdout.read(1)
    for process, task in zip(running, tasks):
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(task))
        process.stdin.close()
    return [pickle.load(process.stdout) for process in running if process.stdout is not None]


def _share(request: Request, seconds: float, clients: int) -> tuple[list[float], int, float]:
    """Return latencies in ms, failures and CPU seconds of one process."""
    times: list[float] = []
    failures: list[int] = []
    before = time.process_time()

    def client() -> None:
        connection = Connection(request)  # which takes time that must not count
        end = time.monotonic() + seconds
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


if __name__ == "__main__":
    sys.stdout.buffer.write(b".")  # the imports are done
    sys.stdout.flush()
    pickle.dump(_share(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
