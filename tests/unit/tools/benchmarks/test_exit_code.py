"""The exit code of scripts/bench: a row that could not be measured makes a run fail."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import __main__ as bench
from benchmarks import openai_api, runner, sockets, workloads
from benchmarks.deployment import DidNotStart, hold_port
from benchmarks.environments import NotInstalled
from benchmarks.load import generators
from benchmarks.load.wire import Request
from benchmarks.reporting.figures import METRICS
from benchmarks.systems import Ports, System
from benchmarks.workloads import Workload

PLAN = runner.Plan(rounds=1, seconds=0.1, quick=True)


class _Uninstallable(System):
    def versions(self) -> dict[str, str]:
        raise NotInstalled("no such package")


def _peer(installs: bool = True, name: str = "peer") -> System:
    """Return a system that serves no workload, and whose packages may not be found."""
    kind = System if installs else _Uninstallable
    return kind(name, name, "none.py", _request, refused={"A": "it has no streams"})


def _request(workload: Workload, protocol: str, ports: Ports) -> Request:
    raise NotImplementedError


@pytest.mark.parametrize(("installs", "code"), [(True, 0), (False, 1)])
def test_only_missing_rows_make_a_run_fail(tmp_path: Path, installs: bool, code: int) -> None:
    """A workload that does not apply to a system is no row."""
    loads = [one for one in workloads.WORKLOADS if one.key == "A"]
    assert bench.measure([_peer(installs)], loads, PLAN, tmp_path, set()) == code
    results: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    assert bool(results["missing"]) is not installs
    assert ("## Missing" in (tmp_path / "report.md").read_text()) is not installs


def test_a_workload_that_no_chosen_system_serves_makes_a_run_fail(tmp_path: Path) -> None:
    loads = [one for one in workloads.WORKLOADS if one.key == "typed_small"]
    assert bench.measure([_peer(True)], loads, PLAN, tmp_path, set()) == 1


@pytest.mark.parametrize("fault", ["failed", "hidden", "server_failures", "wrong", None])
def test_a_row_with_errors_makes_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None
) -> None:
    def measure(workload: Workload, systems: Any, plan: Any, recorder: runner.Recorder) -> None:
        row = {"workload": "A", "system": "peer", "protocol": "http", "clients": 1, "round": 0}
        figures: dict[str, Any] = dict.fromkeys(METRICS, 1.0)
        errors: dict[str, Any] = {"failed": 0, "hidden": 0, "server_failures": 0, "wrong": None}
        if fault:
            errors[fault] = 1
        recorder.measurements.append({**row, **figures, **errors, "requests": 9})

    monkeypatch.setattr(runner, "measure_workload", measure)
    loads = [one for one in workloads.WORKLOADS if one.key == "A"]
    assert bench.measure([_peer(True)], loads, PLAN, tmp_path, set()) == int(fault is not None)


def test_sockets_that_cannot_be_measured_make_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(system: System, quick: bool) -> runner.Rows:
        raise DidNotStart("the port was lost")

    ours = _peer(name="ours")
    monkeypatch.setattr(sockets, "_idle", fail)
    monkeypatch.setattr(sockets, "_unix", fail)
    assert bench.measure([ours], [], PLAN, tmp_path, {"sockets"}) == 1


@pytest.mark.parametrize(
    ("failed", "first_ms", "code"), [(0.0, 1.0, 0), (1.0, 1.0, 1), (0.0, float("nan"), 1)]
)
def test_failed_or_unmeasured_requests_to_the_openai_api_make_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: float, first_ms: float, code: int
) -> None:
    def loads(*_: Any) -> Iterator[tuple[int, dict[str, float]]]:
        yield 1, {"per_s": 9.0, "first_ms": first_ms, "failed": failed, "cpu_us: others": 5.0}

    monkeypatch.setattr(openai_api, "_loads", loads)
    assert bench.measure([_peer(True)], [], PLAN, tmp_path, {"openai"}) == code


def test_a_load_generator_that_fails_makes_a_run_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loads(*_: Any) -> Iterator[tuple[int, dict[str, float]]]:
        raise generators.GeneratorFailed("32 clients: connection refused")

    monkeypatch.setattr(openai_api, "_loads", loads)
    assert bench.measure([_peer(True)], [], PLAN, tmp_path, {"openai"}) == 1


def test_only_the_server_that_is_told_a_held_port_can_listen_on_it() -> None:
    """A port that is merely free is lost when another process gets it before the server listens."""
    with hold_port() as held, hold_port() as other, socket.socket() as server:
        address = held.getsockname()
        assert other.getsockname() != address
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(address)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        with socket.create_connection(address, timeout=30), server.accept()[0]:
            pass


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
