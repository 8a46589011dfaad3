"""Memory on GPUs, as a stand-in for NVML tells it."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import structlog
from fakes.simulated_daemon import SimulatedDaemon

from pytriton._protocol import messages
from pytriton.dispatcher.telemetry.metrics import gpu_memory
from pytriton.dispatcher.telemetry.metrics.gpu_memory import GpuMemory


class FakeNvml(ModuleType):
    """`pynvml` with the processes of two GPUs; `fault`: what it raises."""

    class NVMLError(Exception):
        pass

    def __init__(self, *devices: list[tuple[int, int | None]]) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.fault: Exception | None = None

    def nvmlInit(self) -> None:
        if self.fault is not None:
            raise self.fault

    def nvmlDeviceGetCount(self) -> int:
        self.nvmlInit()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.devices[device]]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """Two GPUs on a host whose process ids are this one's."""
    fake = FakeNvml([(7, 1000), (8, 50)], [(7, 500), (9, None)])
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    namespace = os.stat("/proc/self/ns/pid").st_ino
    monkeypatch.setattr(gpu_memory, "_FIRST_NAMESPACE", namespace)
    return fake


def test_the_memory_of_a_process_is_that_of_all_gpus(nvml: FakeNvml) -> None:
    assert GpuMemory().read() == {7: 1500, 8: 50}
    assert GpuMemory().most() == {7: 1000, 8: 50}


def test_a_gpu_that_fails_is_reported_once_and_asked_again(nvml: FakeNvml) -> None:
    memory = GpuMemory()
    memory.read()
    nvml.fault = FakeNvml.NVMLError("GPU is lost")
    with structlog.testing.capture_logs() as logs:
        assert [memory.read(), memory.read()] == [{}, {}]
    assert [one["reason"] for one in logs] == ["GPU is lost"]
    nvml.fault = None
    assert memory.read()[8] == 50


def test_without_a_driver_nothing_is_asked_again(nvml: FakeNvml) -> None:
    nvml.fault = FakeNvml.NVMLError("no driver")
    memory = GpuMemory()
    assert (memory.read(), memory.there) == ({}, False)


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    memory = GpuMemory()
    assert (memory.read(), memory.there) == ({}, False)


def test_in_a_container_with_ids_of_its_own_no_process_is_mistaken_for_another(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_memory, "_FIRST_NAMESPACE", 1)
    memory = GpuMemory()
    assert (memory.read(), memory.there) == ({}, False)


def test_the_memory_of_a_worker_is_among_the_figures(sim: SimulatedDaemon, nvml: FakeNvml) -> None:
    sim.served(sim.client.register("m"))
    nvml.devices = ([(sim.workers[-1].pid, 4096)],)
    sim.daemon.figures._nvml = GpuMemory()
    sim.advance(2.0)
    answer = sim.answered(sim.client.ask(messages.GetMetrics()))
    assert isinstance(answer, messages.MetricsSnapshot)
    assert answer.models[0].instances[0].gpu == 4096
