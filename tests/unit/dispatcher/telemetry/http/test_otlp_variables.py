"""OpenTelemetry's variables: whether there is a collector, the protocol, and the export interval."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
import structlog

from pytriton.dispatcher.telemetry.http.otlp import OtlpExport, _interval_ms, is_configured


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
    exporting = OtlpExport(lambda: None, Counter(), variables)  # type: ignore[arg-type, return-value]
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
