"""When the daemon has requests traced, and where its workers export spans."""

from __future__ import annotations

import pytest

from pytriton._host.settings import opentelemetry
from pytriton._host.settings.declarations import DaemonConfig
from pytriton.proxy.telemetry import trace_environment

URL = "http://127.0.0.1:4318/v1/traces"


def config(*settings: str) -> DaemonConfig:
    return DaemonConfig(tritonserver_options={"trace-config": list(settings)})


@pytest.mark.parametrize(
    ("settings", "uses"),
    [
        ([], False),
        (["level=TIMESTAMPS"], False),
        (["mode=triton", "triton,file=/tmp/t"], False),
        ([f"opentelemetry,url={URL}"], False),  # no mode: Triton's own
        (["opentelemetry,mode=opentelemetry"], False),
        (["level=TIMESTAMPS", "mode=opentelemetry"], True),
        (["mode=triton", "mode=opentelemetry"], True),
    ],
)
def test_only_opentelemetry_mode_creates_spans(settings: list[str], uses: bool) -> None:
    assert opentelemetry.uses_opentelemetry(config(*settings)) is uses


def test_without_a_trace_config_nothing_is_traced() -> None:
    assert not opentelemetry.uses_opentelemetry(DaemonConfig())


def test_settings_become_opentelemetrys_variables() -> None:
    settings = [
        "mode=opentelemetry",
        f"opentelemetry,url={URL}",
        "opentelemetry,resource=service.name=a shop, big",
        "opentelemetry,resource=deployment.environment=test",
        "opentelemetry,bsp_schedule_delay=100",
        "triton,file=/tmp/t",
    ]
    expected = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL,
        "OTEL_RESOURCE_ATTRIBUTES": "service.name=a shop%2C big,deployment.environment=test",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    assert trace_environment(settings) == expected
    assert trace_environment(None) == {}


def test_trace_config_overrides_the_daemons_environment() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:1",
        "OTEL_EXPORTER_OTLP_HEADERS": "key=secret",
        "PATH": "/bin",
    }
    assert opentelemetry.worker_environment(config(f"opentelemetry,url={URL}"), environ) == {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": URL,
        "OTEL_EXPORTER_OTLP_HEADERS": "key=secret",
    }


def test_a_registrants_own_exporter_replaces_the_daemons() -> None:
    assert opentelemetry.exports_elsewhere({"OTEL_EXPORTER_OTLP_ENDPOINT": URL})
    assert not opentelemetry.exports_elsewhere(
        {"OTEL_SERVICE_NAME": "shop", "OTEL_EXPORTER_OTLP_TIMEOUT": "1", "SOME_ENDPOINT": URL}
    )
