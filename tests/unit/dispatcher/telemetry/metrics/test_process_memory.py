"""Memory of processes: resident, and on GPUs with fakes of NVML and nvidia-smi."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.metrics import process_memory
from pytriton.dispatcher.telemetry.metrics.process_memory import Gpu, GpuMemory, gpus, memory_of


class FakeNvml(ModuleType):
    """`pynvml` with the processes of two GPUs; `fault` is the exception that it raises."""

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: list[tuple[int, int | None]]) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.mps_clients: dict[int, list[tuple[int, int | None]]] = {}
        self.lost: set[int] = set()
        self.fault: Exception | None = None

    def nvmlInit(self) -> None:
        if self.fault is not None:
            raise self.fault

    def nvmlDeviceGetCount(self) -> int:
        self.nvmlInit()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        if number in self.lost:
            raise self.NVMLError("GPU is lost")
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.devices[device]]

    def nvmlDeviceGetMPSComputeRunningProcesses(self, device: int) -> list[Any]:
        if device not in self.mps_clients:
            raise self.NVMLError("Not Supported")
        found = self.mps_clients[device]
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs on a host whose process ids are this one's."""
    fake = FakeNvml([(7, 1000), (8, 50)], [(7, 500), (9, None)])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    monkeypatch.setattr(process_memory, "_INITIAL_PID_NAMESPACE", namespace)
    return fake


def test_memory_is_summed_over_gpus(nvml: FakeNvml) -> None:
    assert GpuMemory().by_process() == {7: 1500, 8: 50}
    assert GpuMemory().peak_by_process() == {7: 1000, 8: 50}


def test_processes_that_use_a_gpu_through_mps_count_once(nvml: FakeNvml) -> None:
    nvml.mps_clients[0] = [(7, 1000), (10, 30)]
    assert GpuMemory().by_process() == {7: 1500, 8: 50, 10: 30}


def test_a_lost_gpu_does_not_hide_the_others(nvml: FakeNvml) -> None:
    nvml.lost.add(0)
    with structlog.testing.capture_logs() as logs:
        assert GpuMemory().by_process() == {7: 500}
    assert [one["reason"] for one in logs] == ["GPU 0: GPU is lost"]


def test_a_failing_gpu_is_logged_once_and_queried_again(nvml: FakeNvml) -> None:
    memory = GpuMemory()
    memory.by_process()
    nvml.fault = FakeNvml.NVMLError("GPU is lost")
    with structlog.testing.capture_logs() as logs:
        assert [memory.by_process(), memory.by_process()] == [{}, {}]
    assert [one["reason"] for one in logs] == ["GPU is lost"]
    nvml.fault = None
    assert memory.by_process()[8] == 50


def test_without_a_driver_nvml_is_not_queried_again(nvml: FakeNvml) -> None:
    nvml.fault = FakeNvml.NVMLError("no driver")
    memory = GpuMemory()
    assert (memory.by_process(), memory.is_available) == ({}, False)


def test_without_the_package_there_is_no_gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    memory = GpuMemory()
    assert (memory.by_process(), memory.is_available) == ({}, False)


def test_a_container_with_its_own_pids_reports_no_gpu_memory(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_memory, "_INITIAL_PID_NAMESPACE", 1)
    memory = GpuMemory()
    assert (memory.by_process(), memory.is_available) == ({}, False)


def test_a_sandbox_that_hides_its_pid_namespace_reports_no_gpu_memory(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.stat

    def stat(path: Any, **options: Any) -> os.stat_result:
        if path == "/proc/self/ns/pid":
            raise FileNotFoundError(path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    memory = GpuMemory()
    assert (memory.by_process(), memory.is_available) == ({}, False)


def test_gpu_memory_is_in_the_snapshot(sim: SimulatedDaemon, nvml: FakeNvml) -> None:
    sim.served(sim.client.register("m"))
    nvml.devices = ([(sim.workers[-1].pid, 4096)],)
    sim.services.metrics._nvml = GpuMemory()
    sim.advance(2.0)
    answer = sim.answered(sim.client.ask(messages.GetMetrics()))
    assert isinstance(answer, messages.MetricsSnapshot)
    assert answer.models[0].instances[0].gpu == 4096


def test_resident_memory_of_a_process() -> None:
    memory = memory_of(os.getpid())
    assert memory is not None
    assert 1 << 20 < memory.shared < memory.resident
    assert memory_of(1 << 22) is None


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder searched for programs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        ("echo '0, GPU-aa, 81559'; echo '1, GPU-bb, 4'", [("0", 81559 << 20), ("1", 4 << 20)]),
        ("echo 'a warning'; echo '0, GPU-aa, [N/A]'; echo '1, GPU-bb, 4'", [("1", 4 << 20)]),
        ("echo '0, GPU-aa, 4'; exit 9", []),
    ],
    ids=["in bytes", "lines without memory", "a failure"],
)
def test_gpus_are_reported_with_their_memory(
    path: Path, script: str, reported: list[tuple[str, int]]
) -> None:
    program = path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    uuids = {"0": "GPU-aa", "1": "GPU-bb"}
    assert gpus() == [Gpu(number, uuids[number], memory) for number, memory in reported]


def test_without_nvidia_smi_there_are_no_gpus(path: Path) -> None:
    assert gpus() == []
