"""The exit code of scripts/bench: a row that could not be measured makes a run fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as bench
from benchmarks import runner, workloads
from benchmarks.environments import NotInstalled
from benchmarks.load import generators
from benchmarks.load.wire import Request
from benchmarks.systems.base import Ports, System
from benchmarks.workloads import Workload

PLAN = runner.Plan(rounds=1, seconds=0.1, protocols=("http",), quick=True, plots=False)


class _Peer(System):
    """A peer that takes no workload, and whose packages may not be found."""

    name = title = "peer"

    def __init__(self, installs: bool) -> None:
        self._installs = installs

    def versions(self) -> dict[str, str]:
        if not self._installs:
            raise NotInstalled("no such package")
        return {"peer": "1.0"}

    def refuses(self, workload: Workload) -> str | None:
        return "it has no streams"

    def request(self, workload: Workload, protocol: str, ports: Ports) -> Request:
        raise NotImplementedError


@pytest.mark.parametrize(("installs", "code"), [(True, 0), (False, 1)])
def test_only_missing_rows_make_a_run_fail(tmp_path: Path, installs: bool, code: int) -> None:
    """A workload that does not apply to a system is no row."""
    loads = [one for one in workloads.WORKLOADS if one.key == "A"]
    assert bench.measure([_Peer(installs)], loads, PLAN, tmp_path, set()) == code
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert bool(results["missing"]) is not installs
    assert ("## Missing" in (tmp_path / "report.md").read_text()) is not installs


@pytest.mark.parametrize(("protocol", "program"), [("http", "wrk"), ("grpc", "h2load")])
def test_generators_get_whole_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, program: str
) -> None:
    """h2load takes 0.4 for 0 seconds and never measures; the rate counts what it was really given."""
    commands: list[list[str]] = []

    def run(command: list[str], env: dict[str, str]) -> tuple[str, float]:
        commands.append(command)
        if program == "h2load":
            log = next(one.partition("=")[2] for one in command if one.startswith("--log-file="))
            Path(log).write_text("1\t200\t500\n" * 10)
        seen = {"requests": 10, "bytes": 5000, "duration_us": 1_000_000, "failed": 0}
        times = dict.fromkeys(("p50_us", "p99_us", "mean_us"), 500)
        return f"BENCH {json.dumps({**seen, **times})}\ntraffic: (5000) data", 0.1

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(generators, "_run", run)
    request = Request(
        "http://127.0.0.1:1", b"", lambda body, headers: None, grpc=protocol == "grpc"
    )
    load = generators.apply(request, clients=1, seconds=0.4, size=500, folder=tmp_path)
    assert load.generator == program
    assert load.seconds == 1
    (duration,) = [
        one for one in commands[0] if one.startswith(("-D", "-d")) and one[2:3].isdigit()
    ]
    assert duration.rstrip("s")[2:] == "1"
