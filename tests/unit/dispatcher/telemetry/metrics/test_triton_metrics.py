"""The start time of tritonserver's counters."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from pytriton.dispatcher.telemetry.metrics import triton_metrics


def test_counters_start_with_the_process_that_reports_them() -> None:
    began = triton_metrics.read("", os.getpid).since
    assert began == psutil.Process().create_time()


@pytest.mark.parametrize("pids", [[None, None], [1, 2], [1, None], [None, 1]])
def test_metrics_of_a_replaced_process_are_dropped(pids: list[int | None]) -> None:
    seen: Iterator[int | None] = iter(pids)
    assert triton_metrics.read("", lambda: next(seen)).since is None


def test_an_exited_process_has_no_start_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    assert triton_metrics.read("", os.getpid).since is None
