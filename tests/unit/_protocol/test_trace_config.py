"""Triton's trace settings: the selected mode, and their meaning for spans created in Python."""

from __future__ import annotations

import os

import pytest

from pytriton._protocol.trace_config import environment, mode, with_absolute_files


@pytest.mark.parametrize(
    ("settings", "chosen"),
    [
        ([], "triton"),
        (["mode=opentelemetry"], "opentelemetry"),
        (["mode=opentelemetry", "mode=triton"], "triton"),
        ([" mode =opentelemetry"], "opentelemetry"),
        (["opentelemetry,mode=x", "rate=1"], "triton"),
    ],
)
def test_the_trace_mode(settings: list[str], chosen: str) -> None:
    assert mode(settings) == chosen


def test_settings_of_opentelemetry_become_its_variables() -> None:
    settings = [
        "opentelemetry,url=http://h:1/v1/traces?a=b",
        "opentelemetry , bsp_schedule_delay=7",
        "opentelemetry,bsp_max_queue_size=8",
        "opentelemetry,bsp_max_export_batch_size=9",
        "triton,url=http://other",
        "url=http://all",
        "opentelemetry,unknown=1",
    ]
    assert environment(settings) == {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h:1/v1/traces?a=b",
        "OTEL_BSP_SCHEDULE_DELAY": "7",
        "OTEL_BSP_MAX_QUEUE_SIZE": "8",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "9",
    }


def test_resources_are_joined_and_separators_quoted() -> None:
    settings = ["opentelemetry,resource=service.name = a, b", "opentelemetry,resource=path=/x:1 y"]
    variables = environment(settings)
    assert variables == {"OTEL_RESOURCE_ATTRIBUTES": "service.name=a%2C b,path=/x:1 y"}


def test_relative_trace_files_become_absolute() -> None:
    given = ["triton,file=trace.json", "triton, file=/t.json", "triton,file=", "rate=file"]
    here = os.path.join(os.getcwd(), "trace.json")
    assert with_absolute_files(given) == [f"triton,file={here}", *given[1:]]
