"""scripts/bench from end to end, as briefly as possible; docs/audits/performance.md has its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[3]
SHORT = ["--systems", "ours", "--quick", "--rounds", "1"]


@contextmanager
def bench(out: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start the benchmark as scripts/bench does; stop it if the test fails."""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "benchmarks", *SHORT, "--out", str(out), *more],
        env={**os.environ, "PYTHONPATH": str(ROOT / "scripts" / "tools")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                whole = psutil.Process(process.pid)
                for one in [*whole.children(recursive=True), whole]:
                    with suppress(psutil.NoSuchProcess):
                        one.kill()


def results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_short_run_measures_and_reports(tmp_path: Path) -> None:
    """It covers each number of clients over both protocols, accepts only correct responses, and writes a report."""
    with bench(tmp_path, "--workloads", "add_sub", "--seconds", "0.2") as process:
        said, _ = process.communicate(timeout=350)
    assert process.returncode == 0, said
    found = results(tmp_path)["measurements"]
    assert [(one["protocol"], one["clients"]) for one in found] == [
        (protocol, clients) for protocol in ("http", "grpc") for clients in (1, 8, 32)
    ]
    for one in found:
        assert one["requests"] > 0
        assert one["wrong"] is None
        assert one["failed"] == one["hidden"] == one["server_failures"] == 0
        assert one["cpu_us_per_request"] > 0
    assert "### add_sub: " in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_typed_functions_are_measured_on_their_route_and_by_kserve(tmp_path: Path) -> None:
    """For each kind of request."""
    with bench(tmp_path, "--workloads", "typed", "--seconds", "0.2") as process:
        said, _ = process.communicate(timeout=350)
    assert process.returncode == 0, said
    found = results(tmp_path)["measurements"]
    assert [(one["workload"], one["clients"], one["system"]) for one in found] == [
        (f"typed_{kind}", 8, system)
        for kind in ("small", "text", "image")
        for system in ("ours-route", "ours-kserve")
    ]
    assert "ours-kserve | ≥ 0.9" in (tmp_path / "report.md").read_text()


@pytest.mark.timeout(400)
def test_ctrl_c_ends_all_servers_and_keeps_what_was_measured(tmp_path: Path) -> None:
    """The exit code is 130, finished measurements are in the results, and no process is left."""
    with bench(tmp_path, "--workloads", "A", "--seconds", "0.2") as process:
        assert process.stdout is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "round 1" in line:
                break
        family = psutil.Process(process.pid).children(recursive=True)
        servers = ("tritonserver", "pytriton-frontend")
        assert any(name_of(one) in servers for one in family), "".join(seen)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=100)
    assert process.returncode == 130, said
    # Another one may have ended before the signal came, or just then.
    reported = ("".join(seen) + said).count("round 1")
    assert reported >= 1
    assert len(results(tmp_path)["measurements"]) in (reported, reported + 1)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert alive == []
    beginnings = tuple(f"pytriton-{one.pid}-" for one in family)
    left = [name for name in os.listdir("/dev/shm") if name.startswith(beginnings)]
    assert left == []


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:  # what makes the load comes and goes
        return ""
