"""tritonserver's counters: their start time, the queue statistics, and OpenMetrics."""

from __future__ import annotations

import os
from collections.abc import Iterator

import psutil
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pytriton._protocol.messages import QueueMetrics
from pytriton.dispatcher.telemetry.metrics import triton_metrics

#: The name of a model, as it is and as tritonserver writes it.
_NAME, _WRITTEN = 'a"} 9\\n\n', r"a\"} 9\\n\n"


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


def test_labels_are_read_in_any_order_and_unescaped() -> None:
    metric = "nv_inference_pending_request_count"
    text = f'{metric}{{_tag="x",model="{_WRITTEN}",version="2"}} 3\n{metric}_ms{{model="m"}} 4\n'
    assert triton_metrics.waiting(text) == {_NAME: 3}
    assert triton_metrics.parsed(text).queues == {_NAME: [QueueMetrics(2, pending=3)]}


def test_families_have_their_samples() -> None:
    text = f"""\
# HELP a:b First \\\\ line\\nsecond
# TYPE a:b counter
a:b{{model="{_WRITTEN}\u2028",version="1"}} 7
a:b{{model="m"}} 1e+06
# TYPE c gauge
c -Inf
"""
    assert triton_metrics.parsed(text).families == (
        triton_metrics.TritonFamily(
            "a:b",
            "counter",
            "First \\ line\nsecond",
            [
                ("a:b", {"model": f"{_NAME}\u2028", "version": "1"}, 7.0),
                ("a:b", {"model": "m"}, 1e6),
            ],
        ),
        triton_metrics.TritonFamily("c", "gauge", "", [("c", {}, float("-inf"))]),
    )
    assert triton_metrics.parsed(text[:-1]).families == ()


def test_openmetrics_has_the_same_samples() -> None:
    text = f"""\
# HELP of_backend_total Named as "OpenMetrics" requires
# TYPE of_backend_total counter
of_backend_total{{model="{_WRITTEN}"}} 7
# HELP of_core Named otherwise
# TYPE of_core counter
of_core 8
# TYPE size_total gauge
size_total 9
# TYPE latency summary
latency_count 1
latency_sum 2
latency{{quantile="0.5"}} Nan
# TYPE custom untyped
custom 5
"""
    written = triton_metrics.parsed(text).openmetrics
    families = text_string_to_metric_families(f"{written}# EOF\n")  # type: ignore[no-untyped-call]
    found = {family.name: family for family in families}
    kinds = {name: family.type for name, family in found.items()}
    assert kinds == {
        "of_backend": "counter",
        "of_core": "unknown",
        "size_total": "gauge",
        "latency": "summary",
        "custom": "unknown",
    }
    assert found["of_backend"].documentation == 'Named as "OpenMetrics" requires'
    samples = [sample for family in found.values() for sample in family.samples]
    assert [sample.name for sample in samples if sample.labels.get("model") == _NAME] == [
        "of_backend_total"
    ]
    assert [line for line in written.splitlines() if line[0] != "#"] == [
        line for line in text.splitlines() if line[0] != "#"
    ]
    assert triton_metrics.parsed(text[:-1]).openmetrics == ""
