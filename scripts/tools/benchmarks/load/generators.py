"""Generates load with wrk (HTTP) and h2load (gRPC), which are written in C and use little CPU.

Both keep each client's connection open and send the next request after the response. Errors with a good status are
found by their size: every response of a workload has as many bytes as the one that was checked.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load.wire import Request
from benchmarks.workloads import percentile

_SCRIPT = Path(__file__).with_name("load.lua")
#: Fraction by which the bytes per response may differ: the framing of a stream depends on timing.
_TOLERANCE = 0.01


class GeneratorFailed(Exception):
    """The load generator itself failed. The text is its output."""


@dataclass(frozen=True)
class Load:
    """The results of a generator; times in milliseconds, CPU in seconds."""

    generator: str
    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    mean_ms: float
    failed: int  #: connections, statuses and time-outs
    hidden: int  #: responses with a good status, but the wrong size
    cpu_s: float

    @classmethod
    def of(cls, generator: str, times_ms: list[float], seconds: float, **others: Any) -> Load:
        """Return the results of a generator that measured each request; `times_ms` are sorted."""
        return cls(
            generator,
            len(times_ms),
            seconds,
            p50_ms=percentile(times_ms, 0.50),
            p99_ms=percentile(times_ms, 0.99),
            mean_ms=sum(times_ms) / max(1, len(times_ms)),
            **others,
        )


def generator_for(request: Request) -> str:
    """Return the name of the generator for a request: the one written in C if it is installed."""
    program = "h2load" if request.grpc else "wrk"
    return program if shutil.which(program) else "python"


def apply(request: Request, clients: int, seconds: float, size: int, folder: Path) -> Load:
    """Send a request repeatedly over `clients` connections.

    Args:
        request: what to send
        clients: connections, each with one request at a time
        seconds: how long
        size: bytes of a correct response, as `client.Connection` counted them
        folder: for files of the generator

    Raises:
        GeneratorFailed: the generator could not be run.
    """
    program = generator_for(request)
    if program == "python":
        from benchmarks.load.python_load import apply_python

        return apply_python(request, clients, seconds)
    body = folder / "body.bin"
    body.write_bytes(request.body)
    if program == "wrk":
        return _wrk(request, clients, seconds, size, body)
    return _h2load(request, clients, seconds, size, body, folder / "requests.log")


def _wrk(request: Request, clients: int, seconds: float, size: int, body: Path) -> Load:
    duration = f"-d{_whole_seconds(seconds)}s"
    command = ["wrk", "-t1", f"-c{clients}", duration, "--timeout", "60s"]
    env = {**os.environ, "BENCH_BODY": str(body)}
    env["BENCH_HEADERS"] = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
    said, cpu_s = _run([*command, "-s", str(_SCRIPT), request.url], env)
    found = re.search(r"^BENCH (\{.*\})$", said, re.MULTILINE)
    if not found:
        raise GeneratorFailed(f"wrk printed no result: {said[-500:]}")
    seen = json.loads(found.group(1))
    return Load(
        generator="wrk",
        requests=seen["requests"],
        seconds=seen["duration_us"] / 1e6,
        p50_ms=seen["p50_us"] / 1e3,
        p99_ms=seen["p99_us"] / 1e3,
        mean_ms=seen["mean_us"] / 1e3,
        failed=seen["failed"],
        hidden=_hidden(seen["requests"], seen["bytes"], size, clients),
        cpu_s=cpu_s,
    )


def _whole_seconds(seconds: float) -> int:
    """Round a duration up: wrk and h2load take whole seconds only (h2load reads 0.4 as 0, and 400ms as 400)."""
    return max(1, math.ceil(seconds))


def _hidden(answers: int, received: int, size: int, clients: int) -> int:
    """Estimate from the total bytes how many of `answers` had the wrong size.

    Responses in flight at the beginning and the end add or remove up to one per client.
    """
    if not answers or not size:
        return 0
    off = abs(received / size - answers)
    return 0 if off <= clients + answers * _TOLERANCE else math.ceil(off)


def apply_h2load(
    request: Request, clients: int, seconds: float, folder: Path, unix: Path | None
) -> Load:
    """Send a request with h2load, whatever its protocol, over TCP or a unix socket. See `apply`.

    Sizes of responses are not checked.
    """
    body = folder / "body.bin"
    body.write_bytes(request.body)
    further = [] if request.grpc else ["--h1"]
    further += [] if unix is None else ["-B", f"unix:{unix}"]
    return _h2load(request, clients, seconds, 0, body, folder / "requests.log", further)


def _h2load(
    request: Request,
    clients: int,
    seconds: float,
    size: int,
    body: Path,
    log: Path,
    further: Sequence[str] = (),
) -> Load:
    log.unlink(missing_ok=True)
    seconds = _whole_seconds(seconds)
    command = ["h2load", "-t1", f"-c{clients}", "-m1", f"-D{seconds}", f"--log-file={log}"]
    command += [f"-d{body}", *further]
    for name, value in request.headers.items():
        command += ["-H", f"{name}: {value}"]
    said, cpu_s = _run([*command, request.url], dict(os.environ))
    times, statuses = _read_log(log)
    traffic = re.search(r"\((\d+)\) data", said)
    if not times or traffic is None:
        raise GeneratorFailed(f"h2load finished no request: {said[-800:]}")
    bad = sum(status != 200 for status in statuses)
    # an error in the trailers has no data
    hidden = _hidden(len(times) - bad, int(traffic.group(1)), size, clients)
    return Load.of("h2load", times, seconds, failed=bad, hidden=hidden, cpu_s=cpu_s)


def _read_log(log: Path) -> tuple[list[float], list[int]]:
    """Return the sorted latencies in ms and the statuses of h2load's log."""
    times, statuses = [], []
    if log.exists():
        for line in log.read_text().splitlines():
            _, status, elapsed = line.split("\t")[:3]
            times.append(int(elapsed) / 1e3)
            statuses.append(int(status))
    return sorted(times), statuses


def _run(command: list[str], env: dict[str, str]) -> tuple[str, float]:
    """Run a generator. Return its output and its CPU time in seconds."""
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        said = process.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    if process.returncode:
        raise GeneratorFailed(f"{command[0]} ended with {process.returncode}: {said[-500:]}")
    return said, used.ru_utime + used.ru_stime
