"""The default options that the frontend gives to Triton's core."""

from __future__ import annotations

import pytest
from support.frontend.calls import Run

#: Observed of NVIDIA's executable (2.51), which sets each of them in every start. It also sets two folders and
#: min-supported-compute-capability, where its values are the core's own.
_NVIDIAS = {
    "ServerId": "triton",
    "ModelControlMode": "0",
    "ModelConfigName": "",
    "StrictModelConfig": "0",
    "StrictReadiness": "1",
    "ExitOnError": "1",
    "ExitTimeout": "30",
    "ModelLoadThreadCount": "4",
    "ModelLoadRetryCount": "0",
    "ModelNamespacing": "0",
    "EnablePeerAccess": "1",
    "BufferManagerThreadCount": "0",
    "PinnedMemoryPoolByteSize": str(1 << 28),
    "RateLimiterMode": "0",
    "Metrics": "1",
    "GpuMetrics": "1",
    "CpuMetrics": "1",
    "MetricsInterval": "2000",
    "LogInfo": "1",
    "LogWarn": "1",
    "LogError": "1",
    "LogVerbose": "0",
    "LogFormat": "0",
    "LogFile": "",
}


def test_the_core_gets_every_option_of_nvidias_executable(
    calls: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CORE_OPTIONS", "1")
    said = [line.partition(" ") for line in calls().splitlines()]
    given = {name: value for name, _, value in said if name != "running"}
    assert given == _NVIDIAS
