"""The process that tritonserver's counters begin with."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest

from pytriton.dispatcher.telemetry.metrics import triton_metrics


def test_counters_begin_with_the_process_that_tells_them() -> None:
    began = triton_metrics.read("", os.getpid).since
    assert began == psutil.Process().create_time()


@pytest.mark.parametrize("pids", [[None, None], [1, 2], [1, None], [None, 1]])
def test_of_a_process_that_was_replaced_meanwhile_nobody_knows(pids: list[int | None]) -> None:
    seen: Iterator[int | None] = iter(pids)
    assert triton_metrics.read("", lambda: next(seen)).since is None


def test_one_that_has_ended_has_no_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int) -> psutil.Process:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", gone)
    assert triton_metrics.read("", os.getpid).since is None
