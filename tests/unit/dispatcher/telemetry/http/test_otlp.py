"""Metrics exported by OTLP: all scraped metrics arrive, and an unresponsive collector blocks nobody."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog
from support.telemetry.metric_receiver import MetricReceiver, metric_receiver
from support.telemetry.scrapes import INSTANCE, TRITON, scraped

from pytriton._protocol.lanes.histograms import BOUNDS_S
from pytriton.dispatcher.openai.meters import Meters
from pytriton.dispatcher.openai.state import MetricData
from pytriton.dispatcher.telemetry.http.otlp import OtlpExport, _interval_ms, is_configured
from pytriton.dispatcher.telemetry.metrics.daemon_metrics import Scrape
from pytriton.dispatcher.telemetry.metrics.triton_metrics import parsed
from pytriton.dispatcher.telemetry.metrics.user_metrics import MergedFamily, add_frontend
from pytriton.dispatcher.upgrade.snapshot import SentSeries


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetricReceiver]:
    """A collector to which this process's variables point."""
    logger = logging.getLogger("opentelemetry")
    before = logger.propagate, logger.handlers[:]
    with metric_receiver() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "shop")
        yield found
    logger.propagate, logger.handlers[:] = before


def export(
    play: Callable[[OtlpExport], Awaitable[None]], scrape: Callable[[], Any] | None = None
) -> OtlpExport:
    """Export a scrape function's results while a test runs; return the exporter after its end."""

    async def take() -> Scrape:
        return scraped(exports={"sent": 1, "dropped": 0})

    async def run() -> OtlpExport:
        exporting = OtlpExport(scrape or take, collections.Counter())
        exporting.open()
        try:
            await play(exporting)
        finally:
            await exporting.close()
        return exporting

    return asyncio.run(run())


def exported(receiver: MetricReceiver, **changes: Any) -> None:
    """Export a scrape with these changes, until the collector has received it."""

    async def scrape() -> Scrape:
        return scraped()._replace(**changes)

    async def play(exporting: OtlpExport) -> None:
        await until(lambda: receiver.received > 0)

    export(play, scrape)


async def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_everything_that_scrapers_see_is_exported(receiver: MetricReceiver) -> None:
    async def play(exporting: OtlpExport) -> None:
        await until(lambda: receiver.received > 1 and exporting.outcomes["sent"] > 0)

    export(play)
    point = receiver.point
    assert point("pytriton_calls", **INSTANCE).as_double == 50
    assert receiver.metrics["pytriton_calls"].sum.is_monotonic
    assert receiver.metrics["pytriton_calls"].description.startswith("Calls of the callable")
    assert point("pytriton_ready_instances", model="m", version="1").as_double == 1
    assert point("pytriton_otlp_exports", outcome="sent").as_double == 1
    took = point("pytriton_call_duration_seconds", **INSTANCE)
    assert (took.count, took.sum) == (50, pytest.approx(0.25))
    bucket = next(at for at, bound in enumerate(took.explicit_bounds) if bound >= 0.005)
    assert took.bucket_counts[bucket] == sum(took.bucket_counts) == 50
    assert len(took.bucket_counts) == len(took.explicit_bounds) + 1
    assert (took.start_time_unix_nano, took.time_unix_nano) == (1000 * 10**9, 1010 * 10**9)
    assert point("seen", **INSTANCE, colour='r"ed').as_double == 3
    size = point("size", **INSTANCE)
    assert (list(size.explicit_bounds), list(size.bucket_counts)) == ([1, 10], [0, 2, 1])
    assert (point("took_count", **INSTANCE).as_double, point("took_sum", **INSTANCE).as_double) == (
        1,
        4,
    )
    assert point("nv_inference_request_success", model="m", version="1").as_double == 7
    assert receiver.resource["service.name"] == "shop"


def test_the_openai_frontends_counters_start_with_its_process(receiver: MetricReceiver) -> None:
    """It may have been restarted: its counters then start again, later than the daemon's."""
    meters = Meters(lambda: 1005.5)
    meters.refuse("overloaded")
    meters.answered("m", "chat", 0.5)
    users = scraped().users
    add_frontend(users, meters.collect())
    earlier_version = MetricData("earlier", "counter", "", [([], [("_total", "", 1.0)])])
    add_frontend(users, [earlier_version])
    exported(receiver, users=users)
    refused = receiver.point("pytriton_openai_refused_requests", code="overloaded")
    took = receiver.metrics["gen_ai_server_request_duration_seconds"].histogram.data_points[0]
    span = (1005_500_000_000, 1010 * 10**9)
    assert (refused.start_time_unix_nano, refused.time_unix_nano) == span
    assert (took.start_time_unix_nano, took.time_unix_nano) == span
    for others in (receiver.point("earlier"), receiver.point("seen", **INSTANCE, colour='r"ed')):
        assert others.start_time_unix_nano == 1000 * 10**9


def test_counters_start_with_their_process(receiver: MetricReceiver) -> None:
    """tritonserver's, and after an upgrade the daemon's for counters that do not continue."""
    exported(receiver, triton=dataclasses.replace(parsed(TRITON), since=1004.0), since=1002.0)
    triton = receiver.point("nv_inference_request_success", model="m", version="1")
    lost = receiver.point("pytriton_lost_events")
    restarts = receiver.point("pytriton_tritonserver_restarts", reason="exited")
    calls = receiver.point("pytriton_calls", **INSTANCE)
    began = [one.start_time_unix_nano // 10**9 for one in (triton, lost, restarts, calls)]
    assert began == [1004, 1002, 1000, 1000]


def test_metrics_of_tritonserver_are_not_sent_during_a_replacement(
    receiver: MetricReceiver,
) -> None:
    exported(receiver, triton=dataclasses.replace(parsed(TRITON), since=None))
    assert receiver.point("pytriton_calls", **INSTANCE).as_double == 50
    assert "nv_inference_request_success" not in receiver.metrics


def test_start_times_continue_after_an_upgrade(receiver: MetricReceiver) -> None:
    async def play(exporting: OtlpExport) -> None:
        await until(lambda: exporting.outcomes["sent"] > 0)
        handed.append(exporting.hand_over())

    handed: list[SentSeries | None] = []
    assert OtlpExport(lambda: None, collections.Counter()).hand_over() is None  # type: ignore[arg-type,return-value]
    export(play)
    assert handed[0] is not None
    assert handed[0][0] == 1010 * 10**9
    assert any(name == "pytriton_calls" and counted == 50 for name, _, counted, _ in handed[0][1])


def test_durations_can_be_exponential_histograms(
    receiver: MetricReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION",
        "base2_exponential_bucket_histogram",
    )
    exported(receiver)
    took = receiver.point("pytriton_call_duration_seconds", **INSTANCE)
    counts = took.positive.bucket_counts
    assert (took.count, took.scale, counts[0], sum(counts)) == (50, 2, 50, 50)
    # Bucket number i has what is in (base^i, base^(i + 1)].
    base = 2.0 ** (2.0**-took.scale)
    assert base**took.positive.offset < 0.005 <= base ** (took.positive.offset + 1)
    assert base ** (took.positive.offset + 1) == pytest.approx(
        min(b for b in BOUNDS_S if b >= 0.005)
    )


def test_rejected_snapshots_are_counted_and_reported_once(receiver: MetricReceiver) -> None:
    receiver.status = 400

    async def play(exporting: OtlpExport) -> None:
        await until(lambda: exporting.outcomes["dropped"] > 2)
        receiver.status = 200
        await until(lambda: exporting.outcomes["sent"] > 0)

    with structlog.testing.capture_logs() as logs:
        outcomes = export(play).outcomes
    assert outcomes["dropped"] > 2
    assert [one["log_level"] for one in logs] == ["warning", "info"]
    assert "400" in logs[0]["reason"]


def test_a_hanging_collector_delays_neither_the_loop_nor_the_stop(
    receiver: MetricReceiver,
) -> None:
    receiver.may_answer.clear()
    turns = 0
    asked = 0

    async def scrape() -> Scrape:
        nonlocal asked
        asked += 1
        return scraped()

    async def play(exporting: OtlpExport) -> None:
        nonlocal turns
        await until(lambda: asked > 0)
        for turns in range(1, 101):  # noqa: B007
            await asyncio.sleep(0)

    exporting = export(play, scrape)
    assert (turns, exporting.outcomes["sent"], receiver.received) == (100, 0, 0)


def test_an_endless_answer_is_counted_and_costs_one_thread(
    receiver: MetricReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may trickle, which no timeout of the exporter ends."""
    monkeypatch.setattr("pytriton.dispatcher.telemetry.http.otlp._EXPORT_TIMEOUT_S", 0.01)
    receiver.may_answer.clear()
    before = threading.enumerate()

    async def play(exporting: OtlpExport) -> None:
        await until(lambda: exporting.outcomes["dropped"] > 2)
        new = [one for one in threading.enumerate() if one not in before]
        late = [one for one in new if one.name == "otlp export"]
        assert len(late) == 1
        receiver.may_answer.set()
        await until(lambda: exporting.outcomes["sent"] > 0 or not late[0].is_alive())

    with structlog.testing.capture_logs() as logs:
        export(play)
    assert logs[0]["reason"] == "the collector did not answer within 0.01 s"


def test_a_busy_dispatcher_drops_a_snapshot(
    receiver: MetricReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytriton.dispatcher.telemetry.http.otlp._SCRAPE_TIMEOUT_S", 0.01)

    async def never() -> Scrape:
        await asyncio.Event().wait()
        raise AssertionError

    async def play(exporting: OtlpExport) -> None:
        await until(lambda: exporting.outcomes["dropped"] > 1)

    assert export(play, never).outcomes["sent"] == 0


def test_a_failed_snapshot_is_dropped_and_the_next_one_sent(
    receiver: MetricReceiver,
) -> None:
    broken = True

    async def scrape() -> Scrape:
        if broken:
            raise ValueError("no figures")
        return scraped()

    async def play(exporting: OtlpExport) -> None:
        nonlocal broken
        await until(lambda: exporting.outcomes["dropped"] > 1)
        broken = False
        await until(lambda: exporting.outcomes["sent"] > 0)

    with structlog.testing.capture_logs() as logs:
        export(play, scrape)
    assert [one["log_level"] for one in logs] == ["warning", "info"]
    assert logs[0]["reason"] == "cannot take a snapshot: ValueError: no figures"


def test_an_invalid_custom_metric_drops_no_others(
    receiver: MetricReceiver,
) -> None:
    users = scraped().users
    values = {("_bucket", "+Inf"): float("nan"), ("_count", ""): 1.0, ("_sum", ""): 1.0}
    users.families["bad"] = MergedFamily("bad", "histogram", "", {(): values})
    exported(receiver, users=users)
    assert receiver.point("seen", **INSTANCE, colour='r"ed').as_double == 3
    assert "bad" not in receiver.metrics


def test_an_exporter_that_raises_does_not_end_the_thread(receiver: MetricReceiver) -> None:
    async def play(exporting: OtlpExport) -> None:
        whole = exporting._exporter

        class Raises:
            def export(self, data: Any) -> Any:
                raise ConnectionError("gone")

        exporting._exporter = Raises()
        await until(lambda: exporting.outcomes["dropped"] > 1)
        exporting._exporter = whole
        await until(lambda: exporting.outcomes["sent"] > 0)

    with structlog.testing.capture_logs() as logs:
        export(play)
    assert "ConnectionError: gone" in str(logs)


def test_a_failed_thread_start_drops_a_snapshot(
    receiver: MetricReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = threading.Thread.start, [RuntimeError("can't start new thread")]

    def short(thread: threading.Thread) -> None:
        if thread.name == "otlp export" and failures:
            raise failures.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", short)

    async def play(exporting: OtlpExport) -> None:
        await until(lambda: exporting.outcomes["sent"] > 0)
        assert exporting.outcomes["dropped"] == 1

    export(play)
    assert not failures


# ── OpenTelemetry's variables ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("variables", "sends"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://x"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://x"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_variables_configure_the_collector(variables: dict[str, str], sends: bool) -> None:
    assert is_configured(variables) is sends


def test_another_protocol_is_refused() -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://secret@x",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
    }
    exporting = OtlpExport(lambda: None, collections.Counter(), variables)  # type: ignore[arg-type, return-value]
    with structlog.testing.capture_logs() as logs:
        exporting.open()
    assert logs[0]["protocol"] == "grpc"
    assert "secret" not in str(logs)
    asyncio.run(exporting.close())


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500", 500), ("1", 100), ("", 60_000), ("soon", 60_000), ("9" * 400, 60_000), ("-5", 60_000)],
)
def test_an_invalid_interval_is_a_minute(text: str, ms: int) -> None:
    assert _interval_ms({"OTEL_METRIC_EXPORT_INTERVAL": text}) == ms
