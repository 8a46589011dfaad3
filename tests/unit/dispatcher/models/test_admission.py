"""Registrations that this daemon refuses."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from pytriton._host.settings.declarations import DaemonConfig
from pytriton._protocol import messages
from pytriton._protocol.errors import RemoteFailure
from pytriton.dispatcher.models.admission import check, check_cache


def _spec(*, cached: bool) -> messages.ModelSpec:
    return messages.ModelSpec(
        "m", 1, {"response_cache": {"enable": cached}}, messages.WorkerEnvironment("python")
    )


def test_a_model_with_a_response_cache_requires_a_daemon_with_one() -> None:
    with pytest.raises(
        RemoteFailure, match=r"model m has response_cache=True.*response-cache-size"
    ):
        check_cache(_spec(cached=True), DaemonConfig(), frontend_is_native=True)
    check_cache(_spec(cached=False), DaemonConfig(), frontend_is_native=True)
    check_cache(
        _spec(cached=True), DaemonConfig(response_cache_size=1 << 20), frontend_is_native=True
    )
    config = DaemonConfig(tritonserver_options={"cache-config": ["redis,host=127.0.0.1"]})
    check_cache(_spec(cached=True), config, frontend_is_native=True)


def test_nvidias_frontend_serves_a_model_without_its_response_cache() -> None:
    """PyTriton's scripts run unchanged, but never with a cache that may answer another request."""
    config = DaemonConfig(response_cache_size=1 << 20)
    with capture_logs() as logs:
        check_cache(_spec(cached=False), config, frontend_is_native=False)
        check_cache(_spec(cached=True), config, frontend_is_native=True)
        assert not logs
        check_cache(_spec(cached=True), config, frontend_is_native=False)
    assert [(line["event"], line["model"]) for line in logs] == [
        ("model is served without the response cache", "m")
    ]


@pytest.mark.parametrize("option", ["memory_request", "gpu_memory_request"])
@pytest.mark.parametrize("size", [0, -5])
def test_a_memory_request_must_be_positive(option: str, size: int) -> None:
    given: dict[str, Any] = {option: size}
    spec = messages.ModelSpec("m", 1, {}, messages.WorkerEnvironment("python"), **given)
    with pytest.raises(RemoteFailure, match=rf"^{option}={size}: it must be at least 1 byte$"):
        check(spec, [b""])
